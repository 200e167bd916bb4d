//! The vocabulary of Quadrille: networks, layers, sub-tasks, graphs, plans and devices.
//!
//! Nothing here computes fast, spawns a thread or reads a clock; see `ARCHITECTURE.md` for the map.
#![forbid(unsafe_code)]

pub mod check;
pub mod device;
pub mod graph;
pub mod layer;
pub mod machine;
pub mod net;
pub mod plan;
pub mod reference;
pub mod rng;
pub mod run;
pub mod shape;
pub mod sim;
pub mod site;
pub mod solver;
pub mod task;
