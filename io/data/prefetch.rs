//! Mini-batches prepared ahead of their use, by a thread of their own.

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use quadrille_core::rng::{Purpose, Sampler, Stream};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::chance::Chance;
use super::source::{DataSource, Scratch};
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

/// Which threads read and decode.
#[derive(Clone)]
pub struct Readers {
    /// How many of their own; 0 for one that shares those of the whole process.
    pub threads: usize,
    /// What each calls first, with its number: the place to pin it, of which this crate knows nothing.
    pub settle: Arc<dyn Fn(usize) + Send + Sync>,
}

impl Default for Readers {
    fn default() -> Self {
        Self { threads: 0, settle: Arc::new(|_| {}) }
    }
}

impl Readers {
    fn pool(&self) -> Result<Option<ThreadPool>, IoError> {
        if self.threads == 0 {
            // Starts those of the process, if they are not there, from a thread that is not pinned: whoever starts threads
            // hands its CPUs down to them.
            rayon::current_num_threads();
            return Ok(None);
        }
        let settle = self.settle.clone();
        let builder = ThreadPoolBuilder::new().num_threads(self.threads);
        let pool = builder.thread_name(|n| format!("read {n}")).start_handler(move |n| settle(n)).build();
        pool.map(Some).map_err(|error| IoError::CannotCreate {
            path: "prefetch".into(),
            what: "threads to read data",
            source: std::io::Error::other(error),
        })
    }
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
    /// [`IoError::Data`] if the batch is empty or too large.
    pub fn start(
        source: Arc<DataSource>,
        order: Order,
        batch: usize,
        iteration: u64,
        ahead: usize,
    ) -> Result<Self, IoError> {
        Self::start_in(source, order, batch, iteration, ahead, Readers::default())
    }

    /// The same with the threads that `readers` says.
    ///
    /// # Errors
    /// As [`Prefetcher::start`], and if the threads cannot be started.
    pub fn start_in(
        source: Arc<DataSource>,
        order: Order,
        batch: usize,
        iteration: u64,
        ahead: usize,
        readers: Readers,
    ) -> Result<Self, IoError> {
        let pool = readers.pool()?;
        let maker = Maker::new(source, order, batch)?;
        let (ready_in, ready) = sync_channel(ahead.max(1));
        // Bounded, too, since an unbounded channel allocates as it goes.
        let (used, used_out) = sync_channel(ahead.max(1) + 2);
        let work = move || {
            (readers.settle)(0);
            let name = maker.source.name().to_owned();
            let ready_out = ready_in.clone();
            let run = move || maker.run(iteration, &ready_out, &used_out);
            // In a pool, whatever asks for more threads gets those of that pool.
            let run = move || match &pool {
                Some(pool) => pool.install(run),
                None => run(),
            };
            // A panic here must reach the run as an error, not as a silence.
            let outcome = panic::catch_unwind(AssertUnwindSafe(run));
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

    /// The next mini-batch if it is there already; what is wrong with it otherwise only [`Prefetcher::next_batch`] says.
    pub fn try_next(&self) -> Option<Result<Batch, IoError>> {
        self.ready.as_ref().and_then(|ready| ready.try_recv().ok())
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

/// Makes mini-batches, in whatever threads of rayon call it.
pub(super) struct Maker {
    source: Arc<DataSource>,
    order: Order,
    batch: usize,
    /// Of a mini-batch.
    values: usize,
    /// Memory for records, as much as there are threads at work at one time.
    scratch: Mutex<Vec<Scratch>>,
}

impl Maker {
    pub(super) fn new(source: Arc<DataSource>, order: Order, batch: usize) -> Result<Self, IoError> {
        let values = source.values(batch)?;
        Ok(Self { source, order, batch, values, scratch: Mutex::default() })
    }

    /// Makes the mini-batch of an iteration.
    pub(super) fn make(&self, iteration: u64, batch: &mut Batch) -> Result<(), IoError> {
        self.make_room(batch)?;
        self.fill(iteration, batch)
    }

    /// Prepares mini-batches until nobody wants any more.
    fn run(&self, first: u64, ready: &SyncSender<Result<Batch, IoError>>, used: &Receiver<Batch>) {
        for iteration in first.. {
            let mut batch = used.try_recv().unwrap_or_default();
            let filled = self.make(iteration, &mut batch).map(|()| batch);
            let last = filled.is_err();
            if ready.send(filled).is_err() || last {
                return;
            }
        }
    }

    /// Gives a batch its size; does nothing if it was used before. Too little memory is an error, not an abort.
    fn make_room(&self, batch: &mut Batch) -> Result<(), IoError> {
        batch.data.try_reserve_exact(self.values.saturating_sub(batch.data.len())).map_err(|error| {
            IoError::data(Path::new(self.source.name()), format!("a mini-batch: {error}"))
        })?;
        batch.data.resize(self.values, 0.0);
        batch.labels.resize(self.batch, 0.0);
        Ok(())
    }

    /// The random numbers of draw `k`.
    fn chance(&self, k: u64) -> Chance {
        let stream = match self.order {
            Order::Shuffled(_, stream) => stream,
            Order::Sequential => Stream::new(1, Purpose::Transform, 0),
        };
        Chance::new(stream, k, matches!(self.order, Order::Shuffled(..)))
    }

    fn index(&self, k: u64, position: u64) -> usize {
        if let Some(index) = self.source.drawn(self.chance(k).window(), position, self.batch) {
            return index;
        }
        (match self.order {
            Order::Shuffled(sampler, _) => sampler.index(k),
            Order::Sequential => k,
        } % self.source.len() as u64) as usize
    }

    /// Fills a mini-batch, one image a thread. What an image becomes depends on nothing but its draw. If several records
    /// are bad the first in the mini-batch is told.
    fn fill(&self, iteration: u64, batch: &mut Batch) -> Result<(), IoError> {
        batch.iteration = iteration;
        let first = iteration.wrapping_mul(self.batch as u64);
        let image = |(position, (out, label)): (usize, (&mut [f32], &mut f32))| {
            let k = first.wrapping_add(position as u64);
            let mut scratch = self.lock_scratch().pop().unwrap_or_default();
            let put = |index| self.source.put(index, &mut scratch, &self.chance(k), out);
            let outcome = self.source.good(self.index(k, position as u64), put);
            self.lock_scratch().push(scratch);
            *label = outcome? as f32;
            Ok(())
        };
        let (per_image, Batch { data, labels, .. }) = (self.values / self.batch, batch);
        if data.len() < PARALLEL_VALUES && !self.source.is_costly() {
            return data.chunks_mut(per_image).zip(labels).enumerate().try_for_each(image);
        }
        let images = data.par_chunks_mut(per_image).zip(labels).enumerate();
        let failed = images.map(|(position, slot)| (position, image((position, slot))));
        let failed = failed.filter_map(|(position, outcome)| Some((position, outcome.err()?)));
        match failed.min_by_key(|(position, _)| *position) {
            Some((_, error)) => Err(error),
            None => Ok(()),
        }
    }

    fn lock_scratch(&self) -> MutexGuard<'_, Vec<Scratch>> {
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
