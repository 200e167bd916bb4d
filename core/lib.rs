//! Quadrille: core.
