//! Quadrille: gpu.
