//! The vocabulary of Quadrille: networks, layers, sub-tasks, graphs, plans and devices.
#![forbid(unsafe_code)]

pub mod solver;
