//! Mini-batches prepared ahead of their use, by a thread of their own.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use quadrille_core::layer::Transform;
use quadrille_core::rng::Sampler;
use quadrille_core::shape::MAX_ELEMENTS;
use rayon::prelude::*;

use super::Dataset;
use crate::error::IoError;

/// From this many values on, a mini-batch is converted by all threads of rayon; below, waking them costs more.
const PARALLEL_VALUES: usize = 1 << 18;

/// One mini-batch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// Values, batch x C x H x W, transformed.
    pub data: Vec<f32>,
    /// One label for each image.
    pub labels: Vec<f32>,
    /// The iteration that it is for.
    pub iteration: u64,
}

/// Which image is drawn as number `k = iteration · batch + position`; a pure function, so that a run resumes at any
/// iteration.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// A fresh permutation every epoch.
    Shuffled(Sampler),
    /// The order of the files, again and again.
    Sequential,
}

/// Prepares the mini-batches of one worker, in order.
#[derive(Debug)]
pub struct Prefetcher {
    ready: Option<Receiver<Result<Batch, IoError>>>,
    used: Option<SyncSender<Batch>>,
    thread: Option<JoinHandle<()>>,
}

impl Prefetcher {
    /// Starts to prepare mini-batches of `batch` images from `iteration` on, `ahead` (at least 1) of them waiting
    /// and one in the making.
    ///
    /// # Errors
    /// [`IoError::Data`] if the batch is empty or too large, or if the means do not fit the channels.
    pub fn start(
        dataset: Arc<Dataset>,
        order: Order,
        transform: &Transform,
        batch: usize,
        iteration: u64,
        ahead: usize,
    ) -> Result<Self, IoError> {
        let means = channel_means(transform, &dataset)?;
        if batch == 0 || dataset.is_empty() {
            return Err(IoError::data(Path::new(&dataset.name), "a mini-batch needs at least one image"));
        }
        let values = batch.checked_mul(dataset.per_image()).filter(|n| *n <= MAX_ELEMENTS);
        if values.is_none() {
            let message = format!("a mini-batch of {batch} images has more than {MAX_ELEMENTS} values");
            return Err(IoError::data(Path::new(&dataset.name), message));
        }
        let maker = Maker { dataset, order, means, scale: transform.scale, batch };
        let (ready_in, ready) = sync_channel(ahead.max(1));
        // Bounded, too, since an unbounded channel allocates as it goes.
        let (used, used_out) = sync_channel(ahead.max(1) + 2);
        let work = move || {
            let name = maker.dataset.name.clone();
            // A panic here must reach the run as an error, not as a silence.
            let outcome =
                panic::catch_unwind(AssertUnwindSafe(|| maker.run(iteration, &ready_in, &used_out)));
            if outcome.is_err() {
                let error = IoError::data(Path::new(&name), "the thread that prepares mini-batches failed");
                let _ = ready_in.send(Err(error));
            }
        };
        let thread = thread::Builder::new().name("prefetch".to_owned()).spawn(work);
        let thread = thread.map_err(|source| IoError::CannotCreate {
            path: "prefetch".into(),
            what: "a thread to prepare data",
            source,
        })?;
        Ok(Self { ready: Some(ready), used: Some(used), thread: Some(thread) })
    }

    /// The next mini-batch; waits until it is there.
    ///
    /// # Errors
    /// Whatever the preparing thread met.
    pub fn next_batch(&self) -> Result<Batch, IoError> {
        let gone = || IoError::data(Path::new("prefetch"), "the thread that prepares mini-batches is gone");
        self.ready.as_ref().and_then(|ready| ready.recv().ok()).ok_or_else(gone)?
    }

    /// Gives a mini-batch back, so that its memory is used again.
    pub fn recycle(&self, batch: Batch) {
        if let Some(used) = &self.used {
            // Fails if more come back than ever left, or if the thread is gone, which `next_batch` reports.
            let _ = used.try_send(batch);
        }
    }
}

impl Drop for Prefetcher {
    fn drop(&mut self) {
        // Closing the channels ends the thread, wherever it waits.
        drop((self.ready.take(), self.used.take()));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One mean for each channel.
fn channel_means(transform: &Transform, dataset: &Dataset) -> Result<Vec<f32>, IoError> {
    let channels = dataset.shape[0];
    match transform.mean_values.len() {
        0 => Ok(vec![0.0; channels]),
        1 => Ok(vec![transform.mean_values[0]; channels]),
        n if n == channels => Ok(transform.mean_values.clone()),
        n => Err(IoError::data(
            Path::new(&dataset.name),
            format!("{n} values of mean_value for {channels} channels; expected 1 or {channels}"),
        )),
    }
}

struct Maker {
    dataset: Arc<Dataset>,
    order: Order,
    means: Vec<f32>,
    scale: f32,
    batch: usize,
}

impl Maker {
    /// Prepares mini-batches until nobody wants any more.
    fn run(&self, first: u64, ready: &SyncSender<Result<Batch, IoError>>, used: &Receiver<Batch>) {
        for iteration in first.. {
            let mut batch = used.try_recv().unwrap_or_default();
            if let Err(error) = self.make_room(&mut batch) {
                let _ = ready.send(Err(error));
                return;
            }
            self.fill(iteration, &mut batch);
            if ready.send(Ok(batch)).is_err() {
                return;
            }
        }
    }

    /// Gives a batch its size; does nothing if it was used before. Too little memory is an error, not an abort.
    fn make_room(&self, batch: &mut Batch) -> Result<(), IoError> {
        let values = self.batch * self.dataset.per_image();
        batch.data.try_reserve_exact(values.saturating_sub(batch.data.len())).map_err(|error| {
            IoError::data(Path::new(&self.dataset.name), format!("a mini-batch: {error}"))
        })?;
        batch.data.resize(values, 0.0);
        batch.labels.resize(self.batch, 0.0);
        Ok(())
    }

    fn index(&self, k: u64) -> usize {
        (match self.order {
            Order::Shuffled(sampler) => sampler.index(k),
            Order::Sequential => k,
        } % self.dataset.len() as u64) as usize
    }

    fn fill(&self, iteration: u64, batch: &mut Batch) {
        let per_image = self.dataset.per_image();
        batch.iteration = iteration;
        let first = iteration.wrapping_mul(self.batch as u64);
        let image = |(position, (out, label)): (usize, (&mut [f32], &mut f32))| {
            let index = self.index(first.wrapping_add(position as u64));
            *label = f32::from(self.dataset.labels[index]);
            self.convert(&self.dataset.images[index * per_image..][..per_image], out);
        };
        let Batch { data, labels, .. } = batch;
        if data.len() < PARALLEL_VALUES {
            data.chunks_mut(per_image).zip(labels).enumerate().for_each(image);
        } else {
            data.par_chunks_mut(per_image).zip(labels).enumerate().for_each(image);
        }
    }

    /// `(value − mean) · scale`, channel by channel.
    fn convert(&self, pixels: &[u8], out: &mut [f32]) {
        let plane = pixels.len() / self.means.len();
        for ((pixels, out), mean) in pixels.chunks(plane).zip(out.chunks_mut(plane)).zip(&self.means) {
            for (value, pixel) in out.iter_mut().zip(pixels) {
                *value = (f32::from(*pixel) - mean) * self.scale;
            }
        }
    }
}
