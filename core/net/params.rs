//! The packed buffer: every parameter of a net in one allocation, with named views.

use std::ops::Range;

use crate::layer::Filler;
use crate::rng::{Purpose, Stream};
use crate::shape::Shape;

/// Views start at multiples of this many elements: one cache line, and one full vector of AVX-512.
pub const ALIGNMENT: usize = 16;

/// A parameter's place among a net's parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// How the update changes a parameter.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ParamRule {
    /// By the solver's rule, down its gradient.
    #[default]
    Gradient,
    /// `p ← fraction · p + g`, where `g`, which travels as a gradient does, is this iteration's term. No learning rate,
    /// no decay, no history, no pull of a centre.
    RunningSum {
        /// What stays of the sum, 0 to 1.
        fraction: f32,
    },
}

impl ParamRule {
    /// The rule behind so many mini-batches whose gradients were added up: a running sum was changed by each of them, and
    /// what it was before them fades as often.
    pub fn after(self, mini_batches: usize) -> Self {
        match self {
            Self::RunningSum { fraction } if mini_batches > 1 => {
                let times = i32::try_from(mini_batches).unwrap_or(i32::MAX);
                Self::RunningSum { fraction: fraction.powi(times) }
            }
            rule => rule,
        }
    }
}

/// One parameter in the packed buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct ParamView {
    /// `layer/index`, index 0 being the weight: Caffe's order. Of several layers that share it, the first.
    pub name: String,
    /// Extents.
    pub shape: Shape,
    /// First element in the packed buffer.
    pub offset: usize,
    /// How the update changes it.
    pub rule: ParamRule,
    /// Factor of the learning rate; 0 for a running sum.
    pub lr_mult: f32,
    /// Factor of the weight decay; 0 for a running sum.
    pub decay_mult: f32,
    /// How it starts.
    pub filler: Filler,
}

impl ParamView {
    /// The elements in the packed buffer.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.shape.count()
    }
}

/// Where each parameter lies in a packed buffer. Weights, gradients, histories and centres all use it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParamLayout {
    views: Vec<ParamView>,
    len: usize,
}

impl FromIterator<ParamView> for ParamLayout {
    /// Puts parameters one behind the other; their offsets are set here.
    fn from_iter<I: IntoIterator<Item = ParamView>>(views: I) -> Self {
        let mut layout = Self::default();
        for view in views {
            layout.push(view);
        }
        layout
    }
}

impl ParamLayout {
    /// Puts a parameter behind the others; `offset` of the view is set here.
    pub(super) fn push(&mut self, mut view: ParamView) -> ParamId {
        view.offset = self.len;
        self.len = (self.len + view.shape.count()).next_multiple_of(ALIGNMENT);
        self.views.push(view);
        ParamId(self.views.len() - 1)
    }

    /// All views in order.
    pub fn views(&self) -> &[ParamView] {
        &self.views
    }

    /// One view.
    pub fn view(&self, id: ParamId) -> &ParamView {
        &self.views[id.0]
    }

    pub(super) fn view_mut(&mut self, id: ParamId) -> &mut ParamView {
        &mut self.views[id.0]
    }

    /// Elements of a packed buffer, padding between views included (it stays 0).
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the net has no parameters.
    pub fn is_empty(&self) -> bool {
        self.views.is_empty()
    }

    /// Learnable values, without padding.
    pub fn values(&self) -> usize {
        self.views.iter().map(|v| v.shape.count()).sum()
    }

    /// A packed buffer cut into parts of at least `least` elements, the last parameter's first: as backward finds gradients. Whole
    /// parameters with the padding behind them; what is left at the beginning may be smaller.
    pub fn buckets(&self, least: usize) -> Vec<Range<usize>> {
        let mut buckets = Vec::new();
        let mut end = self.len;
        for view in self.views.iter().rev() {
            if end - view.offset >= least.max(1) || view.offset == 0 {
                buckets.push(view.offset..end);
                end = view.offset;
            }
        }
        buckets
    }

    /// Fills a packed buffer of weights (all of it, padding with 0) from `seed`, by all threads of rayon's pool.
    pub fn fill(&self, seed: u64, weights: &mut [f32]) {
        weights.fill(0.0);
        for (i, view) in self.views.iter().enumerate() {
            let stream = Stream::new(seed, Purpose::Filler(i as u32), 0);
            view.filler.fill_by_all(&view.shape, &stream, &mut weights[view.range()]);
        }
    }
}
