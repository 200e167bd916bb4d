//! What an update asks of gradients beside its own: those of several mini-batches, and the norm of all of them.

use super::Net;

impl Net {
    /// The same net with iterations of `parts` mini-batches (Caffe's `iter_size`), whose gradients are added up before the
    /// update. An iteration is then `parts − 1` plans of [`Stage::Part`](crate::plan::Stage) and one of another stage,
    /// which finds the gradients of the last mini-batch and adds to them what was gathered.
    ///
    /// A running sum is changed by each mini-batch in turn, as if there had been an update behind each of them.
    /// Comes before [`Net::stepping`]: where gradients are gathered, they are stored.
    pub fn gathering(mut self, parts: usize) -> Self {
        self.parts = parts.max(1);
        self
    }

    /// The same net with updates that ask for the norm of all gradients that a solver's rule applies (Caffe's
    /// `clip_gradients`): no update begins before every gradient is complete. Comes before [`Net::stepping`].
    pub fn clipping(mut self, clips: bool) -> Self {
        self.clips = clips;
        self
    }

    /// Whether updates need nothing but the gradients of one mini-batch, each its own.
    pub(super) fn updates_at_once(&self) -> bool {
        self.parts == 1 && !self.clips
    }
}
