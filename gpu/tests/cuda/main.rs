//! Every sub-task of every layer on a GPU against the oracle, and whole iterations.
//!
//! Without a driver each test says so and is skipped. The program needs nothing of the build, so it can be carried to a machine
//! with a GPU (`scripts/gpu-check`).

mod bench;
mod bf16;
#[path = "../../../cpu/tests/engine/exact/case.rs"]
mod case;
mod common;
mod exact;
mod iterations;
#[path = "../../../cpu/tests/engine/made.rs"]
mod made;
mod pool;
mod refusals;
mod rounded;
