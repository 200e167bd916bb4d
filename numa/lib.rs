//! Quadrille: numa.
