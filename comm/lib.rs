//! Quadrille: comm.
