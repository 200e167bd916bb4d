//! The program as a user has it: what it is given, what it prints, writes and exits with.

mod bad_input;
mod caffe_log;
mod check;
mod common;
mod data_sets;
mod determinism;
mod dialects;
mod extract;
mod functions;
mod hdf5;
mod inputs;
mod interruption;
mod kills;
mod layer_times;
mod layers;
mod lifetime;
mod lost;
mod made_up;
mod memory;
mod methods;
mod mistakes;
mod models;
mod mutations;
mod networks;
mod nonfinite;
mod normalization;
#[cfg(target_os = "linux")]
mod placement;
mod resume;
mod same_bits;
mod snapshots;
mod solvers;
mod tiers;
mod topology;
mod training;
mod weights;
