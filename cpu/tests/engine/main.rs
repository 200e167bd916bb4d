//! The quadrant engine from outside: exact arithmetic, the same bits, refusals, and no allocation after a step.

mod adding;
mod allocation;
mod bits;
mod chunks;
mod common;
#[cfg(target_arch = "x86_64")]
mod disassembly;
mod dropout;
mod exact;
mod functions;
mod fusion;
mod gathering;
mod gemm;
mod joined;
mod lifetime;
mod made;
mod placement;
mod rectifying;
mod refusals;
mod running_sums;
mod schedules;
mod sharing;
mod shortcuts;
mod stepping;
mod stepping_together;
mod summing;
mod watchdog;
mod whole_nets;
