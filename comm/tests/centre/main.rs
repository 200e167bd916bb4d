//! The methods whose centre is held by a master or in shared memory: made-up training over the simulated network and over
//! threads, beside one plain program.

mod far;
mod faults;
mod hogwild;
mod lost;
mod orders;
mod overlapped;
mod served;
mod training;
