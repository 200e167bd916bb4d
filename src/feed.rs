//! Where the mini-batches of a phase come from: a data set, whose samples are prepared ahead, or arrays that were handed in
//! (`train --inputs`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use quadrille_core::layer::{Input, Layer};
use quadrille_core::net::{NetSpec, NetState};
use quadrille_core::rng::{Purpose, Sampler, Stream};
use quadrille_io::data::{Batch, DataSource, Held, Order, Prefetcher, Readers, RowFiles, RowReader};
use quadrille_io::{IoError, weights_hash};

use crate::failure::{Code, Failure};
use crate::given::Given;
use crate::pass::Pass;

/// Where mini-batches come from.
#[derive(Clone)]
pub enum Feed {
    /// A data set.
    DataSet(Arc<DataSource>),
    /// Arrays.
    Arrays(Arc<GivenBatches>),
    /// Files with arrays of samples; in a random order, if so asked.
    Rows(Arc<RowFiles>, bool),
}

/// In which order they are drawn.
#[derive(Clone, Copy, Debug)]
pub enum Draw {
    /// To train: every worker draws mini-batches of its own. Of a data set, samples in a fresh permutation every epoch; of
    /// arrays, all workers take turns.
    Train {
        /// The seed of the run.
        seed: u64,
        /// The worker.
        rank: usize,
        /// How many there are.
        workers: usize,
    },
    /// To test: in the order that they are stored in.
    Test,
}

impl Draw {
    /// The number of the first mini-batch where all workers take turns, and from one to the next.
    fn turns(self, first: u64) -> (u64, u64) {
        let (rank, step) = match self {
            Self::Train { rank, workers, .. } => (rank as u64, workers as u64),
            Self::Test => (0, 1),
        };
        (first.wrapping_mul(step).wrapping_add(rank), step)
    }
}

impl Feed {
    /// What they are called.
    pub fn name(&self) -> &str {
        match self {
            Self::DataSet(source) => source.name(),
            Self::Arrays(given) => &given.name,
            Self::Rows(files, _) => files.name(),
        }
    }

    /// Identifies the content.
    pub fn hash(&self) -> &str {
        match self {
            Self::DataSet(source) => source.hash(),
            Self::Arrays(given) => &given.hash,
            Self::Rows(files, _) => files.hash(),
        }
    }

    /// The data set, if it is one.
    pub fn data_set(&self) -> Option<&DataSource> {
        match self {
            Self::DataSet(source) => Some(source),
            Self::Arrays(_) | Self::Rows(..) => None,
        }
    }

    /// The memory that samples are held in, if they are read only once.
    pub fn held(&self) -> Vec<Held<'_>> {
        match self {
            Self::DataSet(source) => source.held().into_iter().collect(),
            Self::Arrays(given) => given.tops.iter().map(|top| Held::F32(&top.values)).collect(),
            Self::Rows(..) => Vec::new(),
        }
    }

    /// Records that could not be used so far.
    pub fn bad_records(&self) -> u64 {
        self.data_set().map_or(0, |source| source.bad().list().0)
    }

    /// What there is and how it is drawn, for the first lines.
    pub fn describe(&self, batch: usize) -> String {
        match self {
            Self::DataSet(source) => {
                let [channels, height, width] = source.sample();
                let (name, images) = (source.name(), source.len());
                let part = if source.is_by_rank() { ", each from a part of its own" } else { "" };
                format!(
                    "{name}: {images} images {channels}x{height}x{width}, mini-batches of {batch} for each worker{part}"
                )
            }
            Self::Arrays(given) => {
                let (name, count) = (&given.name, given.count);
                format!("{name}: {count} mini-batch(es) of {batch}, one after another, again and again")
            }
            Self::Rows(files, _) => {
                let (name, rows) = (files.name(), files.rows());
                format!("{name}: {rows} samples in HDF5, mini-batches of {batch} for each worker")
            }
        }
    }

    /// How many samples there are; `batch` is the size of mini-batches.
    pub fn samples(&self, batch: usize) -> u64 {
        match self {
            Self::DataSet(source) => source.len() as u64,
            Self::Arrays(given) => given.count * batch as u64,
            Self::Rows(files, _) => files.rows(),
        }
    }

    /// Whole mini-batches that hold every sample at least once.
    pub fn whole(&self, batch: usize) -> u64 {
        match self {
            Self::DataSet(source) => source.len().div_ceil(batch) as u64,
            Self::Arrays(given) => given.count,
            Self::Rows(files, _) => files.rows().div_ceil(batch as u64),
        }
    }

    /// Begins with the mini-batch number `first`, of `batch` images. `readers` says which threads
    /// read.
    ///
    /// # Errors
    /// If the mini-batch is too large, or no thread can be started.
    pub fn start(&self, draw: Draw, batch: usize, first: u64, readers: Readers) -> Result<Batches, Failure> {
        match self {
            Self::DataSet(source) => {
                let source = match draw {
                    Draw::Train { rank, workers, .. } if source.is_by_rank() => {
                        let part = source.part(rank, workers);
                        let usage =
                            |message| Failure::new(Code::Usage, format!("--data-shards rank: {message}"));
                        Arc::new(part.map_err(usage)?)
                    }
                    _ => source.clone(),
                };
                let order = match draw {
                    Draw::Train { seed, rank, .. } => {
                        let sampler = Sampler::new(seed, rank as u32, source.len() as u64);
                        Order::Shuffled(sampler, Stream::new(seed, Purpose::Transform, rank as u32))
                    }
                    Draw::Test => Order::Sequential,
                };
                let prefetcher = Prefetcher::start_in(source, order, batch, first, 2, readers)?;
                Ok(Batches::Prepared(Prepared { prefetcher, current: None, next: None, ahead: false }))
            }
            Self::Arrays(given) => {
                let (next, step) = draw.turns(first);
                Ok(Batches::Given(InTurn { given: given.clone(), next, step, ahead: false }))
            }
            Self::Rows(files, shuffle) => {
                let seed = match draw {
                    Draw::Train { seed, .. } => seed,
                    Draw::Test => 1,
                };
                let (next, step) = draw.turns(first);
                let values = vec![Vec::new(); files.samples().len()];
                let reader = RowReader::new(files.clone(), shuffle.then_some(seed));
                Ok(Batches::Rows { reader, batch, values, next, step })
            }
        }
    }
}

/// Mini-batches, one after the other.
pub enum Batches {
    /// Samples of a data set.
    Prepared(Prepared),
    /// Arrays.
    Given(InTurn),
    /// Samples in files.
    Rows {
        /// Reads them.
        reader: RowReader,
        /// Samples of a mini-batch.
        batch: usize,
        /// Room for a mini-batch, top by top.
        values: Vec<Vec<f32>>,
        /// The number of the next.
        next: u64,
        /// From one to the next.
        step: u64,
    },
}

impl Batches {
    /// Beside a step whose sources have loaded: hands the next mini-batch over already, if it is there. What is wrong with it
    /// comes out when it is its turn.
    ///
    /// # Errors
    /// If a device fails.
    pub fn load_ahead(&mut self, pass: &Pass) -> Result<(), Failure> {
        match self {
            Self::Prepared(prepared) => prepared.load_ahead(pass),
            Self::Given(given) => given.load_ahead(pass),
            // The worker itself reads them, which takes its time.
            Self::Rows { .. } => Ok(()),
        }
    }

    /// Hands the mini-batch of the last step over once more, so that its forward can be run again.
    ///
    /// # Errors
    /// If a device fails.
    pub fn load_again(&mut self, pass: &Pass) -> Result<(), Failure> {
        match self {
            Self::Prepared(prepared) => prepared.load_again(pass),
            Self::Given(given) => given.load_again(pass),
            // The devices still hold it.
            Self::Rows { .. } => Ok(()),
        }
    }

    /// Hands the next mini-batch to `pass`. Returns how long it had to be waited for.
    ///
    /// # Errors
    /// If a sample cannot be used.
    pub fn load(&mut self, pass: &Pass) -> Result<Duration, Failure> {
        match self {
            Self::Prepared(prepared) => prepared.load(pass),
            Self::Given(given) => given.load(pass),
            Self::Rows { reader, batch, values, next, step } => {
                let start = Instant::now();
                reader.fill(next.wrapping_mul(*batch as u64), *batch, values)?;
                let waited = start.elapsed();
                *next = next.wrapping_add(*step);
                pass.load(values.iter().map(Vec::as_slice))?;
                Ok(waited)
            }
        }
    }
}

/// Mini-batches of a data set: that of the step, and the next one, which may be with the devices already.
pub struct Prepared {
    prefetcher: Prefetcher,
    current: Option<Batch>,
    next: Option<Result<Batch, IoError>>,
    /// Whether the devices hold the next one.
    ahead: bool,
}

impl Prepared {
    fn load(&mut self, pass: &Pass) -> Result<Duration, Failure> {
        if let Some(used) = self.current.take() {
            self.prefetcher.recycle(used);
        }
        let start = Instant::now();
        let batch = self.next.take().unwrap_or_else(|| self.prefetcher.next_batch())?;
        let waited = start.elapsed();
        if !std::mem::take(&mut self.ahead) {
            hand_over(&batch, pass)?;
        }
        self.current = Some(batch);
        Ok(waited)
    }

    fn load_ahead(&mut self, pass: &Pass) -> Result<(), Failure> {
        if self.next.is_none() {
            self.next = self.prefetcher.try_next();
        }
        if let (Some(Ok(batch)), false) = (&self.next, self.ahead) {
            hand_over(batch, pass)?;
            self.ahead = true;
        }
        Ok(())
    }

    fn load_again(&mut self, pass: &Pass) -> Result<(), Failure> {
        match &self.current {
            Some(batch) if std::mem::take(&mut self.ahead) => hand_over(batch, pass),
            _ => Ok(()),
        }
    }
}

/// Mini-batches of arrays, of which a worker takes every so many.
pub struct InTurn {
    given: Arc<GivenBatches>,
    /// The number of the next.
    next: u64,
    /// From one to the next.
    step: u64,
    /// Whether the devices hold the next one.
    ahead: bool,
}

impl InTurn {
    fn load(&mut self, pass: &Pass) -> Result<Duration, Failure> {
        self.load_ahead(pass)?;
        self.ahead = false;
        self.next = self.next.wrapping_add(self.step);
        Ok(Duration::ZERO)
    }

    fn load_ahead(&mut self, pass: &Pass) -> Result<(), Failure> {
        if self.ahead {
            return Ok(());
        }
        self.ahead = true;
        self.hand_over(self.next, pass)
    }

    fn load_again(&mut self, pass: &Pass) -> Result<(), Failure> {
        if !std::mem::take(&mut self.ahead) {
            return Ok(());
        }
        self.hand_over(self.next.wrapping_sub(self.step), pass)
    }

    fn hand_over(&self, number: u64, pass: &Pass) -> Result<(), Failure> {
        let index = (number % self.given.count) as usize;
        pass.load(self.given.tops.iter().map(|top| &top.values[index * top.each..][..top.each]))
    }
}

fn hand_over(batch: &Batch, pass: &Pass) -> Result<(), Failure> {
    pass.load([batch.data.as_slice(), &batch.labels])
}

/// Mini-batches that lie in memory, for every top of the layers that feed a network.
pub struct GivenBatches {
    name: String,
    hash: String,
    /// How many there are, at least one.
    count: u64,
    tops: Vec<GivenTop>,
}

struct GivenTop {
    /// Of all mini-batches.
    values: Vec<f32>,
    /// Values of one of them.
    each: usize,
}

impl GivenBatches {
    /// The arrays `in/TOP` of `given` for all layers that feed a net in `state`, which become Input layers of their
    /// shapes. An array holds one mini-batch, or several, one after the other along a first axis of its own. Returns the
    /// number of images in a mini-batch, too.
    ///
    /// # Errors
    /// If an array is not there, has another number of axes, or other mini-batches than the others.
    pub fn open(
        given: &Given,
        spec: &mut NetSpec,
        state: &NetState,
    ) -> Result<Option<(Self, usize)>, Failure> {
        let belongs: Vec<bool> = spec.layers.iter().map(|layer| layer.belongs(state)).collect();
        let (mut tops, mut counts, mut batch, mut hash) = (Vec::new(), Vec::new(), None, String::new());
        for (layer, _) in spec.layers.iter_mut().zip(belongs).filter(|(_, belongs)| *belongs) {
            let axes = match &layer.layer {
                // Images and their labels.
                Layer::Data(_) => vec![Some(4), Some(1)],
                Layer::Hdf5Data(layer) => vec![None; layer.tops],
                Layer::Input(input) => (0..input.tops).map(|top| declared_axes(input, top)).collect(),
                _ => continue,
            };
            let mut shapes = Vec::new();
            for (top, axes) in layer.tops.iter().zip(axes) {
                let key = format!("in/{top}");
                let (count, shape) = split(given, &key, axes)?;
                let each = shape.iter().product();
                let values = given.values(&key, count * each, "the network")?;
                hash.push_str(&weights_hash(&values));
                batch = batch.or(shape.first().copied());
                tops.push(GivenTop { values, each });
                counts.push((key, count));
                shapes.push(shape);
            }
            layer.layer = Layer::Input(Input { tops: shapes.len(), shapes });
        }
        let Some((first, count)) = counts.first() else { return Ok(None) };
        if let Some((key, other)) = counts.iter().find(|(_, other)| other != count) {
            let message = format!("{key} has {other} mini-batches, but {first} has {count}");
            return Err(given.refuse(message));
        }
        let (name, count) = (given.file().display().to_string(), *count as u64);
        Ok(Some((Self { name, hash, count, tops }, batch.unwrap_or(1))))
    }
}

/// The axes of a top of an Input layer, if the file says it.
fn declared_axes(input: &Input, top: usize) -> Option<usize> {
    input.shapes.get(top).or(input.shapes.first()).map(Vec::len)
}

/// How many mini-batches an array holds, and the shape of one. What nobody has declared has a first axis of mini-batches.
fn split(given: &Given, key: &str, axes: Option<usize>) -> Result<(usize, Vec<usize>), Failure> {
    let shape = given.shape(key)?;
    if shape.contains(&0) {
        return Err(given.refuse(format!("{key} has shape {shape:?}: no values")));
    }
    match (shape, axes) {
        (one, Some(axes)) if one.len() == axes => Ok((1, one.to_vec())),
        ([count, one @ ..], Some(axes)) if one.len() == axes => Ok((*count, one.to_vec())),
        ([count, one @ ..], None) => Ok((*count, one.to_vec())),
        (other, axes) => {
            let axes = axes.unwrap_or_default();
            let message = format!(
                "{key} has shape {other:?}; expected {axes} axes for one mini-batch, or {} for several",
                axes + 1
            );
            Err(given.refuse(message))
        }
    }
}
