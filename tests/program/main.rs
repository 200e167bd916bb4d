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
mod inputs;
mod interruption;
mod layer_times;
mod layers;
mod lifetime;
mod made_up;
mod mistakes;
mod models;
mod networks;
mod normalization;
mod solvers;
mod tiers;
mod training;
mod weights;
