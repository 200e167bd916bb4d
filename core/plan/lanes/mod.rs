//! GLP4NN: how many kernels of a layer are worth running at once.
//!
//! The kernels of one layer, each of some images of the mini-batch, do not depend on each other: they may run side by side
//! in a pool of lanes (streams of a GPU, queues of a quadrant), so that what one leaves idle others fill. The parts, after Fu,
//! Tang, He, Yu, Sun (ICPP 2018), section 3:
//!
//! - resource tracker: [`KernelUsage`], what a kernel was seen to use, as plain data;
//! - kernel analyzer: [`analyze`], equations (1) to (9) as a mixed-integer linear program; its results are kept by the
//!   [`Maintainer`], for each device, network, layer and shape, and round-trip as text;
//! - stream manager: a [`Pool`] of as many lanes as any layer of the device asks for;
//! - runtime scheduler: [`Scheduler`], which has a kernel profiled when it is first seen ([`first_sight`]), and from then on deals
//!   kernels out to the lanes in turn;
//! - what analyses of single layers cannot see, how chunks go on from layer to layer and what launching them takes:
//!   [`Candidates::choose`], which compares whole plans;
//! - batch-level parallelism: [`spread`], which cuts a plan's tasks of forward and ∇A into chunks of images and deals them out to
//!   pools; what a training uses. [`in_chunks`] makes several layers of one, ∇W and ∇B included, and [`deal`] puts a plan's tasks
//!   into other lanes: for experiments.
//!
//! **Convergence-invariant.** A result decides where a chunk runs and when, never what is computed. What a chunk writes forward and
//! in ∇A nobody else writes, and an image's values do not depend on what stands beside it. [`spread`] leaves ∇W and ∇B whole: they
//! are sums over images, whose order would follow the cut, and they have lanes of their own, so that they run beside ∇A anyway.
//! Of [`in_chunks`] each chunk finds a ∇W and a ∇B of its own, and these are added up by
//! [`SubTask::AddShared`](crate::layer::SubTask::AddShared) in the order of backward, which the plan's edges hold whatever lanes
//! they are in. So one lane and many give the same bits.

mod analyzer;
mod choose;
mod chunks;
mod deal;
mod maintainer;
mod scheduler;
mod spread;
mod usage;

pub use analyzer::{AnalysisError, Concurrency, analyze};
pub use choose::{Candidates, Choice, WORTH_IT, Way, Worth};
pub use chunks::{ChunkError, in_chunks};
pub use deal::{chunks_of, deal};
pub use maintainer::{Maintainer, NotKept, Situation};
pub use scheduler::{Pool, Scheduler, Sight};
pub use spread::{chunk_of, first_sight, spread};
pub use usage::{KernelUsage, Limits};
