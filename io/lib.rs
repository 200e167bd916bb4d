//! Quadrille: io.
