//! A data set as a data layer sees it: records, decoded, of one shape, with the means and the transform of the layer.

use std::path::Path;
use std::sync::Arc;

use quadrille_core::layer::{Colour, Data, Transform, WindowRules};
use quadrille_core::shape::MAX_ELEMENTS;
use sha2::{Digest, Sha256};

use super::bad::{BadRecords, Tolerance};
use super::chance::Chance;
use super::decode::decode;
use super::records::{Content, Held, Records, values_of};
use super::resize::resize;
use super::sizes::Changed;
use super::transform::{Image, Mean, Pixels, convert, extents};
use super::warp::Warp;
use super::windows::WindowFile;
use crate::error::IoError;
use crate::hash::short_hex;

/// What the labels of a data set are for: a loss over so many classes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelRule {
    /// How many classes there are.
    pub classes: usize,
    /// The label that the loss passes over.
    pub ignored: Option<i32>,
    /// Which loss it is, for messages.
    pub loss: String,
}

impl LabelRule {
    /// # Errors
    /// That the label is no class, and what it should be.
    pub fn check(&self, label: i32) -> Result<(), String> {
        let class = usize::try_from(label).is_ok_and(|label| label < self.classes);
        if class || self.ignored == Some(label) {
            return Ok(());
        }
        Err(format!("has the label {label}, but {} has scores for {} classes", self.loss, self.classes))
    }
}

/// Samples as a data layer asks for them.
#[derive(Clone, Debug)]
pub struct DataSource {
    records: Arc<dyn Records>,
    /// Channels, height and width of a sample before it is transformed: those of the first record.
    sample: [usize; 3],
    transform: Transform,
    mean: Mean,
    /// The channels that every image file is given, and the size that every image gets.
    colour: Option<Colour>,
    size: Option<[usize; 2]>,
    labels: Vec<LabelRule>,
    bad: Arc<BadRecords>,
    windows: Option<WindowSource>,
    hash: String,
    /// Whether each worker is to read a part of its own.
    by_rank: bool,
    /// The records of such a part, in the order of the data set.
    part: Option<Arc<Vec<u32>>>,
}

/// Windows of images in place of whole ones.
#[derive(Clone, Debug)]
struct WindowSource {
    file: Arc<WindowFile>,
    warp: Warp,
    fraction: f32,
}

/// Memory that the records of one thread are read and decoded in.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    stored: Vec<u8>,
    pixels: Vec<u8>,
    resized: Vec<u8>,
    changed: Changed,
}

impl DataSource {
    /// `records` as `data` asks for them. `mean_file` is where its file of means was found.
    ///
    /// # Errors
    /// [`IoError::Data`] if the first records cannot be decoded, if the means do not fit the channels, or if more is to
    /// be cut out of an image than there is.
    pub fn new(
        records: Arc<dyn Records>,
        data: &Data,
        mean_file: Option<&Path>,
        tolerance: Tolerance,
    ) -> Result<Self, IoError> {
        let mut source = Self::without_shape(records, data, tolerance);
        source.sample = source.first_shape()?;
        let name = source.records.name();
        let mean = Mean::new(&source.transform, mean_file, source.sample, name)?;
        // Of sizes by chance, each sample must fit on its own.
        if source.transform.random.is_none() {
            mean.fits(source.transform.resized(source.sample)).map_err(|message| {
                IoError::data(mean_file.unwrap_or(Path::new(name)), format!("{message} of {name}"))
            })?;
        }
        let shape = source.transform.shape(source.sample).map_err(|fault| {
            let message = format!("{}: {}", fault.field, fault.message);
            IoError::data(Path::new(name), message)
        })?;
        if values_of(shape).is_none() {
            let message =
                format!("its samples are {} once they are resized, which is too large", extents(shape));
            return Err(IoError::data(Path::new(name), message));
        }
        source.mean = mean;
        Ok(source)
    }

    /// The windows of a file as `data` asks for them; `rules` are those of its kind.
    ///
    /// # Errors
    /// [`IoError::Data`] if the means do not fit.
    pub(super) fn of_windows(
        file: WindowFile,
        (data, rules): (&Data, &WindowRules),
        mean_file: Option<&Path>,
        tolerance: Tolerance,
    ) -> Result<Self, IoError> {
        let file = Arc::new(file);
        let mut source = Self::without_shape(file.clone(), data, tolerance);
        let crop = source.transform.crop;
        source.sample = [3, crop, crop];
        source.colour = Some(Colour::Colour);
        source.mean = Mean::new(&source.transform, mean_file, source.sample, file.name())?;
        source.mean.covers(3, crop).map_err(|message| IoError::data(Path::new(file.name()), message))?;
        let warp = Warp { crop, pad: rules.pad, square: rules.square };
        source.windows = Some(WindowSource { file, warp, fraction: rules.fraction });
        Ok(source)
    }

    fn without_shape(records: Arc<dyn Records>, data: &Data, tolerance: Tolerance) -> Self {
        let list = data.kind.list();
        let colour = list.map(|list| list.colour).or(data.transform.colour);
        Self {
            sample: [0; 3],
            transform: data.transform.clone(),
            mean: Mean::Channels(Vec::new()),
            colour,
            size: list.and_then(|list| list.resize),
            labels: Vec::new(),
            bad: Arc::new(BadRecords::new(tolerance)),
            windows: None,
            hash: records.hash().to_owned(),
            by_rank: false,
            part: None,
            records,
        }
    }

    /// The shape of the first record that is good.
    fn first_shape(&self) -> Result<[usize; 3], IoError> {
        let mut scratch = Scratch::default();
        for index in 0..self.records.len() {
            match self.image(index, &mut scratch, |image, _, _| Ok(image.shape)) {
                Ok(shape) => return Ok(shape),
                Err(message) => self.bad.note(&*self.records, index, message)?,
            }
        }
        Err(IoError::data(Path::new(self.records.name()), "has no record that can be read"))
    }

    /// The name of the data set.
    pub fn name(&self) -> &str {
        self.records.name()
    }

    /// The memory that all of it lies in, if it is held in memory.
    pub fn held(&self) -> Option<Held<'_>> {
        self.records.held()
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.part.as_ref().map_or(self.records.len(), |part| part.len())
    }

    /// The number of a record among those of the whole data set.
    fn number(&self, index: usize) -> usize {
        self.part.as_ref().map_or(index, |part| part[index] as usize)
    }

    /// The same data set, of which each worker is to read a part of its own ([`Self::part`]). It has another hash, since a
    /// run on it sees other samples.
    pub fn by_rank(self) -> Self {
        let hash = short_hex(&Sha256::digest(format!("{} by rank", self.hash)));
        Self { by_rank: true, hash, ..self }
    }

    /// Whether each worker is to read a part of its own.
    pub fn is_by_rank(&self) -> bool {
        self.by_rank
    }

    /// What worker `rank` of `workers` reads, in the order of the data set. Of several tar files those whose number among
    /// their sorted names is `rank`, `rank + workers` and so on; of anything else the records of such numbers.
    ///
    /// # Errors
    /// Why there is no such part, for whoever asked for it.
    pub fn part(&self, rank: usize, workers: usize) -> Result<Self, String> {
        let (name, shards, len) = (self.name(), self.records.shards(), self.records.len());
        if self.windows.is_some() {
            return Err(format!(
                "windows are drawn from all images of {name}, so workers cannot have parts of it"
            ));
        }
        let (all, what) = if shards > 1 { (shards, "tar files") } else { (len, "records") };
        if all < workers {
            return Err(format!("{workers} workers cannot share the {all} {what} of {name}"));
        }
        let mine =
            |index: &usize| (if shards > 1 { self.records.shard(*index) } else { *index }) % workers == rank;
        let part: Vec<u32> = (0..len).filter(mine).map(|index| index as u32).collect();
        if part.is_empty() {
            return Err(format!("the tar files of worker {rank} of {workers} in {name} hold no images"));
        }
        Ok(Self { part: Some(Arc::new(part)), ..self.clone() })
    }

    /// Whether there are none; never so for a data set that was opened.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Identifies the content ([`Records::hash`]), and whether each worker reads a part of it.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Channels, height and width of a sample before it is transformed.
    pub fn sample(&self) -> [usize; 3] {
        self.sample
    }

    /// Channels, height and width of a sample in a mini-batch.
    pub fn shape(&self) -> [usize; 3] {
        self.transform.shape(self.sample).unwrap_or(self.sample)
    }

    /// The records that could not be used so far.
    pub fn bad(&self) -> &BadRecords {
        &self.bad
    }

    /// Whether records must be decoded or resized, which is worth several threads.
    pub(super) fn is_costly(&self) -> bool {
        self.records.is_costly() || self.transform.resizes()
    }

    /// Every label must follow `rules` from now on. Where bad records may be passed over, one whose label does not is one of
    /// them when it is read; else those that are known without reading are checked at once.
    ///
    /// # Errors
    /// [`IoError::Data`] naming the record with the largest label, if it follows no rule.
    pub fn with_labels(mut self, rules: Vec<LabelRule>) -> Result<Self, IoError> {
        let checked = if self.bad.tolerance() == Tolerance::Fail { self.len() } else { 0 };
        let known = (0..checked).filter_map(|index| Some((self.records.label(index)?, index)));
        let bad = |(label, _): &(i32, usize)| rules.iter().any(|rule| rule.check(*label).is_err());
        if let Some((label, index)) = known.filter(bad).max() {
            let reason = rules.iter().find_map(|rule| rule.check(label).err()).unwrap_or_default();
            self.bad.note(&*self.records, index, reason)?;
        }
        self.labels = rules;
        Ok(self)
    }

    /// Reads and decodes a record, and hands it to `used` with memory for changes.
    fn image<T>(
        &self,
        index: usize,
        scratch: &mut Scratch,
        used: impl FnOnce(Image<'_>, i32, &mut Changed) -> Result<T, String>,
    ) -> Result<T, String> {
        let Scratch { stored, pixels, resized, changed } = scratch;
        let record = self.records.read(self.number(index), stored)?;
        let image = match record.content {
            Content::Bytes { shape, values } => Image { shape, pixels: Pixels::Planes(values) },
            Content::Floats { shape, values } => Image { shape, pixels: Pixels::Floats(values) },
            Content::Encoded { file, native } => {
                let colour = self.colour.or((!native).then_some(Colour::Colour));
                let [channels, height, width] = decode(file, colour, pixels)?;
                let size = self.size.unwrap_or([height, width]);
                if size == [height, width] {
                    Image { shape: [channels, height, width], pixels: Pixels::Interleaved(pixels) }
                } else if values_of([channels, size[0], size[1]]).is_none() {
                    return Err(format!(
                        "would be resized to {} x {} pixels, which are too many",
                        size[0], size[1]
                    ));
                } else {
                    resize(pixels, channels, [height, width], size, resized);
                    Image { shape: [channels, size[0], size[1]], pixels: Pixels::Interleaved(resized) }
                }
            }
        };
        used(image, record.label, changed)
    }

    /// Writes a record into `out`, transformed as `chance` wants it, and returns its label.
    pub(super) fn put(
        &self,
        index: usize,
        scratch: &mut Scratch,
        chance: &Chance,
        out: &mut [f32],
    ) -> Result<i32, String> {
        let (transform, mean) = (&self.transform, &self.mean);
        self.image(index, scratch, |image, label, changed| {
            self.labels.iter().try_for_each(|rule| rule.check(label))?;
            if let (Some(windows), Pixels::Interleaved(pixels)) = (&self.windows, &image.pixels) {
                let (window, mirrored) = (windows.file.corners(index), chance.mirrors(transform));
                windows.warp.put(window, (pixels, image.shape), mirrored, (mean, transform.scale), out)?;
                return Ok(label);
            }
            let image = if transform.resizes() { changed.apply(transform, image, chance)? } else { image };
            let (size, room) = self.fit(image.shape)?;
            convert(&image, chance.part(transform, room), mean, transform.scale, size, out);
            Ok(label)
        })
    }

    /// Height and width of what is taken of an image, and how far it can be moved; or why the image does not fit.
    fn fit(&self, shape: [usize; 3]) -> Result<([usize; 2], [usize; 2]), String> {
        let expected = self.shape();
        let [_, height, width] = expected;
        self.mean.fits(shape)?;
        if self.transform.crop == 0 && shape != expected || shape[0] != expected[0] {
            let remedy = if shape[0] != self.sample[0] {
                "force_color: true or force_gray: true in transform_param makes them equal"
            } else {
                "crop_size in transform_param, resize_param there, or new_height and new_width of a layer ImageData makes \
                 them equal"
            };
            return Err(format!(
                "is {} (channels x height x width), but the first record is {}; {remedy}",
                extents(shape),
                extents(self.transform.resized(self.sample))
            ));
        }
        let room = [shape[1].checked_sub(height), shape[2].checked_sub(width)];
        match room {
            [Some(rows), Some(columns)] => Ok(([height, width], [rows, columns])),
            _ => Err(format!("is {}, too small to cut {height} x {width} out of it", extents(shape))),
        }
    }

    /// The record at a position of a mini-batch of `batch`, if that follows from 32 random bits alone and not from an order.
    pub(super) fn drawn(&self, bits: u32, position: u64, batch: usize) -> Option<usize> {
        self.windows.as_ref().map(|windows| windows.file.draw(bits, position, batch, windows.fraction))
    }

    /// The transform of the layer.
    pub fn transform(&self) -> &Transform {
        &self.transform
    }

    /// Values of a mini-batch of `batch` samples.
    ///
    /// # Errors
    /// [`IoError::Data`] if there are none or too many.
    pub(super) fn values(&self, batch: usize) -> Result<usize, IoError> {
        let name = Path::new(self.name());
        if batch == 0 || self.is_empty() {
            return Err(IoError::data(name, "a mini-batch needs at least one image"));
        }
        let values = batch.checked_mul(self.shape().iter().product()).filter(|n| *n <= MAX_ELEMENTS);
        values.ok_or_else(|| {
            let message = format!("a mini-batch of {batch} images has more than {MAX_ELEMENTS} values");
            IoError::data(name, message)
        })
    }

    /// The record in place of `index` by the tolerance for bad ones: itself if `used` takes it, or else the first good
    /// one behind it in the order of the data set, going round.
    ///
    /// # Errors
    /// [`IoError::Data`] if more are bad than may be, or all.
    pub(super) fn good<T>(
        &self,
        index: usize,
        mut used: impl FnMut(usize) -> Result<T, String>,
    ) -> Result<T, IoError> {
        let len = self.len();
        for step in 0..len {
            let index = (index + step) % len;
            match used(index) {
                Ok(value) => return Ok(value),
                Err(message) => self.bad.note(&*self.records, self.number(index), message)?,
            }
        }
        Err(IoError::data(Path::new(self.name()), "has no record that can be used"))
    }
}
