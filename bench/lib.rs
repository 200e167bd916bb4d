//! Experiments and records: what the program is measured with. The programs are in `bench/bin`.
