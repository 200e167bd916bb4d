//! The program as a user has it: what it is given, what it prints, writes and exits with.

mod bad_input;
mod common;
mod data_sets;
mod determinism;
mod interruption;
mod layer_times;
mod layers;
mod lifetime;
mod made_up;
mod models;
mod normalization;
mod tiers;
mod training;
