//! Quadrille: cpu.
