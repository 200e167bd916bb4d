//! Mini-batches prepared ahead of their use, by a thread of their own.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use quadrille_core::layer::Transform;
use quadrille_core::rng::{Purpose, Sampler, Stream};
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
    /// A fresh permutation every epoch; what is changed by chance follows the second. To train.
    Shuffled(Sampler, Stream),
    /// The order of the files, again and again. To test.
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
    /// [`IoError::Data`] if the batch is empty or too large, if the means do not fit the channels, or if more is to be
    /// cut out of an image than there is.
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
        let shape = transform.shape(dataset.shape);
        let shape = shape.map_err(|fault| {
            IoError::data(Path::new(&dataset.name), format!("{}: {}", fault.field, fault.message))
        })?;
        let values = batch.checked_mul(shape.iter().product()).filter(|n| *n <= MAX_ELEMENTS);
        if values.is_none() {
            let message = format!("a mini-batch of {batch} images has more than {MAX_ELEMENTS} values");
            return Err(IoError::data(Path::new(&dataset.name), message));
        }
        let (scale, mirror) = (transform.scale, transform.mirror);
        let maker = Maker { dataset, order, means, scale, mirror, shape, batch };
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
    mirror: bool,
    /// Of an image in a mini-batch.
    shape: [usize; 3],
    batch: usize,
}

/// The part of an image that is taken.
#[derive(Clone, Copy)]
struct Part {
    top: usize,
    left: usize,
    mirrored: bool,
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
        let values = self.batch * self.per_image();
        batch.data.try_reserve_exact(values.saturating_sub(batch.data.len())).map_err(|error| {
            IoError::data(Path::new(&self.dataset.name), format!("a mini-batch: {error}"))
        })?;
        batch.data.resize(values, 0.0);
        batch.labels.resize(self.batch, 0.0);
        Ok(())
    }

    /// Values of an image in a mini-batch.
    fn per_image(&self) -> usize {
        self.shape.iter().product()
    }

    /// Which part of draw `k` is taken: anywhere to train, the middle to test; mirrored by chance in both, as in Caffe.
    fn part(&self, k: u64) -> Part {
        let [_, height, width] = self.dataset.shape;
        let room = [height - self.shape[1], width - self.shape[2]];
        let (stream, [top, left]) = match self.order {
            Order::Shuffled(_, stream) => {
                let words = stream.block(k);
                let within = |word: u32, room: usize| ((u64::from(word) * (room as u64 + 1)) >> 32) as usize;
                (stream, [within(words[0], room[0]), within(words[1], room[1])])
            }
            Order::Sequential => (Stream::new(1, Purpose::Transform, 0), room.map(|r| r / 2)),
        };
        Part { top, left, mirrored: self.mirror && stream.block(k)[2] & 1 == 1 }
    }

    fn index(&self, k: u64) -> usize {
        (match self.order {
            Order::Shuffled(sampler, _) => sampler.index(k),
            Order::Sequential => k,
        } % self.dataset.len() as u64) as usize
    }

    fn fill(&self, iteration: u64, batch: &mut Batch) {
        let (per_image, stored) = (self.per_image(), self.dataset.per_image());
        batch.iteration = iteration;
        let first = iteration.wrapping_mul(self.batch as u64);
        let image = |(position, (out, label)): (usize, (&mut [f32], &mut f32))| {
            let k = first.wrapping_add(position as u64);
            let index = self.index(k);
            *label = f32::from(self.dataset.labels[index]);
            self.convert(&self.dataset.images[index * stored..][..stored], self.part(k), out);
        };
        let Batch { data, labels, .. } = batch;
        if data.len() < PARALLEL_VALUES {
            data.chunks_mut(per_image).zip(labels).enumerate().for_each(image);
        } else {
            data.par_chunks_mut(per_image).zip(labels).enumerate().for_each(image);
        }
    }

    /// `(value − mean) · scale` of a part of an image, row by row.
    fn convert(&self, pixels: &[u8], part: Part, out: &mut [f32]) {
        let [_, stored_rows, stored_columns] = self.dataset.shape;
        let [_, rows, columns] = self.shape;
        let planes = pixels.chunks(stored_rows * stored_columns).zip(out.chunks_mut(rows * columns));
        for ((pixels, out), mean) in planes.zip(&self.means) {
            let from = pixels.chunks(stored_columns).skip(part.top);
            for (pixels, out) in from.zip(out.chunks_mut(columns)) {
                let pixels = &pixels[part.left..part.left + columns];
                let convert =
                    |(value, pixel): (&mut f32, &u8)| *value = (f32::from(*pixel) - mean) * self.scale;
                if part.mirrored {
                    out.iter_mut().zip(pixels.iter().rev()).for_each(convert);
                } else {
                    out.iter_mut().zip(pixels).for_each(convert);
                }
            }
        }
    }
}
