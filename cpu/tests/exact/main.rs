//! Every sub-task of every layer against the oracle with tolerance 0: on small integers all sums are exact, so the
//! order of a sum cannot matter and any difference is a defect.

mod bench;
mod case;
#[path = "../common/mod.rs"]
mod common;
mod layers;
