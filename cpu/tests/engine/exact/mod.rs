//! Every sub-task of every layer against the oracle with tolerance 0: on small integers all sums are exact, so the
//! order of a sum cannot matter and any difference is a defect. What exponentials and logarithms make inexact has a
//! bound on its rounding in `rounded.rs`.

mod arrange;
mod bench;
mod case;
mod convolved;
mod corners;
mod drawn;
mod layers;
mod losses;
mod lrn;
mod neurons;
mod normalized;
mod recurrent;
mod rounded;
mod rules;
mod structure;
mod transformed;
mod update;
mod wired;

pub use update::kinds;
