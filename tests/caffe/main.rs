//! What real Caffe computes (see `tests/fixtures/caffe/README.md`), held against the reference implementation and
//! against the engine of the CPU: layers one by one, whole networks, and solvers over several iterations.

mod bounds;
mod by_engine;
mod by_program;
mod by_reference;
mod compared;
mod fixture;
mod layers;
mod nets;
mod network;
mod solvers;
