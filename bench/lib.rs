//! Quadrille: bench.
