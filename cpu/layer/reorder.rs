//! A kernel between copies: for a layer whose implementation wants an array in another layout than it lies in.
//!
//! For each sub-task, a stage before the kernel's own copies what is read into the wanted layout, and a stage after
//! them copies back what was written. Each sub-task has a kernel and copies of its own, in the workspace of its lane,
//! since sub-tasks in different lanes may run at the same time.

use quadrille_core::layer::{Operand, SubTask};
use quadrille_core::net::StorageId;

use super::bind::Binder;
use super::select::Candidate;
use super::{GradientSource, Grain, KERNEL_SUB_TASKS, LayerKernel, Stages};
use crate::isa::Precision;
use crate::kernel::words::{Neighbours, Widened, with_words};
use crate::layout::{Arrangement, Layout};
use crate::memory::Span;

/// An array in two layouts.
struct Twin {
    lies: (Span, Arrangement),
    wanted: (Span, Arrangement),
}

/// How one sub-task is computed.
struct Reordered {
    sub: SubTask,
    kernel: Box<dyn LayerKernel>,
    before: Vec<Twin>,
    after: Vec<Twin>,
    images: usize,
}

struct Reorder {
    subs: Vec<Reordered>,
}

/// The blobs' operands of a sub-task that lie otherwise than wanted.
fn mismatched(binder: &Binder<'_>, sub: SubTask, read: bool) -> Vec<(Operand, Arrangement, Arrangement)> {
    let Some(accesses) = binder.net.accesses(binder.id, sub) else { return Vec::new() };
    let operands = if read { accesses.reads } else { accesses.writes };
    let both = |operand: Operand| {
        let (lies, wanted) =
            binder.decisions.arrangements(binder.net, binder.id, binder.candidate, operand)?;
        (!lies.is_like(&wanted)).then_some((operand, lies, wanted))
    };
    operands.into_iter().filter_map(both).collect()
}

/// Whether some operand of the layer lies otherwise than its implementation wants.
pub(super) fn is_needed(binder: &Binder<'_>) -> bool {
    KERNEL_SUB_TASKS
        .into_iter()
        .any(|sub| [true, false].into_iter().any(|read| !mismatched(binder, sub, read).is_empty()))
}

/// Binds `candidate` between copies.
pub(super) fn build(binder: &mut Binder<'_>, candidate: &Candidate) -> Option<Box<dyn LayerKernel>> {
    let mut subs = Vec::new();
    for sub in KERNEL_SUB_TASKS {
        if binder.net.accesses(binder.id, sub).is_none() {
            continue;
        }
        binder.taken = [0; SubTask::ALL.len()];
        binder.copies.clear();
        let [before, after] = [true, false].map(|read| {
            let mut twins = Vec::new();
            for (operand, lies, wanted) in mismatched(binder, sub, read) {
                let (Some(storage), Some(span)) = (binder.storage(operand), binder.memory(operand)) else {
                    continue;
                };
                let copy = copy_of(binder, sub, storage, wanted.len());
                twins.push(Twin { lies: (span, lies), wanted: (copy, wanted) });
            }
            twins
        });
        let images = before.iter().chain(&after).map(|t| t.lies.1.images).max().unwrap_or(1);
        subs.push(Reordered { sub, kernel: (candidate.build)(binder)?, before, after, images });
    }
    Some(Box::new(Reorder { subs }))
}

/// The copy of an array, the same for all operands that lie there.
fn copy_of(binder: &mut Binder<'_>, sub: SubTask, storage: StorageId, len: usize) -> Span {
    if let Some((_, copy)) = binder.copies.iter().find(|(original, _)| *original == storage) {
        return *copy;
    }
    let copy = binder.workspace(sub, len);
    binder.copies.push((storage, copy));
    copy
}

/// Copies an image from one arrangement to another: one of both is plain, or they differ in precision alone.
fn copy_image(from: Arrangement, source: &[f32], to: Arrangement, target: &mut [f32]) {
    match (from.layout, to.layout) {
        (Layout::PLAIN, _) => to.arrange(source, target),
        (_, Layout::PLAIN) => from.flatten(source, target),
        (Layout { precision: Precision::F32, .. }, _) => with_words(Neighbours { from: source, to: target }),
        (Layout { precision: Precision::Bf16, .. }, _) => with_words(Widened { from: source, to: target }),
    }
}

impl Reordered {
    fn stages(&self) -> Stages {
        let mut stages = self.kernel.stages(self.sub);
        if !self.before.is_empty() {
            stages = Stages::one(self.images).followed_by(stages);
        }
        if self.after.is_empty() { stages } else { stages.then(self.images) }
    }

    /// Copies the grain's images of every twin.
    fn copy(&self, grain: &Grain<'_>, twins: &[Twin], inward: bool) {
        for twin in twins {
            let (from, to) = if inward { (&twin.lies, &twin.wanted) } else { (&twin.wanted, &twin.lies) };
            for image in grain.share(from.1.images) {
                let part = |(span, a): &(Span, Arrangement)| {
                    let start = image * a.image_stride();
                    span.part(start..start + a.image_len())
                };
                // SAFETY: grains have images of their own; an array and its copy are different memory.
                let (source, target) =
                    unsafe { (grain.memory.read(part(from)), grain.memory.write(part(to))) };
                copy_image(from.1, source, to.1, target);
            }
        }
    }

    fn run(&self, grain: &mut Grain<'_>) {
        let first = usize::from(!self.before.is_empty());
        let own = self.kernel.stages(self.sub).len();
        match grain.stage {
            stage if stage < first => self.copy(grain, &self.before, true),
            stage if stage < first + own => {
                grain.stage -= first;
                self.kernel.compute(self.sub, grain);
            }
            _ => self.copy(grain, &self.after, false),
        }
    }
}

impl Reorder {
    fn of(&self, sub: SubTask) -> Option<&Reordered> {
        self.subs.iter().find(|s| s.sub == sub)
    }

    fn run(&self, sub: SubTask, grain: &mut Grain<'_>) {
        if let Some(reordered) = self.of(sub) {
            reordered.run(grain);
        }
    }
}

impl LayerKernel for Reorder {
    fn stages(&self, sub: SubTask) -> Stages {
        self.of(sub).map_or(Stages::one(1), Reordered::stages)
    }

    fn scratch(&self) -> usize {
        self.subs.iter().map(|s| s.kernel.scratch()).max().unwrap_or(0)
    }

    fn forward(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::Forward, grain);
    }

    fn grad_activation(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::GradActivation, grain);
    }

    fn grad_weight(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::GradWeight, grain);
    }

    fn step_weight(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::StepWeight, grain);
    }

    fn gradient_source(&self) -> Option<GradientSource> {
        // ∇A only where it updates the weight in passing: then the layer has neither of the others.
        let subs = [SubTask::StepWeight, SubTask::GradWeight, SubTask::GradActivation];
        subs.into_iter().find_map(|sub| self.of(sub)).and_then(|sub| sub.kernel.gradient_source())
    }

    fn grad_bias(&self, grain: &mut Grain<'_>) {
        self.run(SubTask::GradBias, grain);
    }
}
