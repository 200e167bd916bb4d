//! The program as a user has it: what it is given, what it prints, writes and exits with.

mod bad_input;
mod caffe_log;
mod check;
mod common;
mod data_sets;
mod determinism;
mod extract;
mod functions;
mod inputs;
mod interruption;
mod kills;
mod layer_times;
mod layers;
mod lifetime;
mod made_up;
mod models;
mod mutations;
mod networks;
mod normalization;
mod resume;
mod same_bits;
mod snapshots;
mod solvers;
mod tiers;
mod training;
mod weights;
