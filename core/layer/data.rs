//! Sources: `Data` reads a data set, `Input` is filled by the program.

use super::{Accesses, Arity, Fit, Inferred, Meaning, Operand, RandomResize, Resampling, Resize, SubTask};
use crate::shape::Shape;
use crate::site::Fault;

/// What is done to a sample on its way into the net: `(value − mean) · scale` of a part of it, which may get another size
/// before.
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    /// Factor, after the mean was taken off.
    pub scale: f32,
    /// Mean of each channel, or one for all; empty for none.
    pub mean_values: Vec<f32>,
    /// A file of means, one for each value of a sample, as the network file names it; never beside `mean_values`.
    pub mean_file: Option<String>,
    /// Height and width of the part that is cut out: anywhere to train, from the middle to test; 0 for the whole.
    pub crop: usize,
    /// Whether every second sample, by chance, has its left and right swapped.
    pub mirror: bool,
    /// What images that are stored encoded become; `None` for the channels that they have.
    pub colour: Option<Colour>,
    /// A change of the size by chance, to train and to test; first of all changes, and only beside a crop.
    pub random: Option<Box<RandomResize>>,
    /// A change to one size, before the part is cut out.
    pub resize: Option<Box<Resize>>,
    /// Fields that say how samples are changed and have no effect.
    pub ignored: Vec<String>,
    /// A field that asks for a change of samples that nobody makes yet: the shapes are right, but no sample can be read so.
    pub undone: Option<String>,
}

/// The channels that an encoded image is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// Three: blue, green, red.
    Colour,
    /// One.
    Grey,
}

impl Default for Transform {
    fn default() -> Self {
        Self {
            scale: 1.0,
            mean_values: Vec::new(),
            mean_file: None,
            crop: 0,
            mirror: false,
            colour: None,
            random: None,
            resize: None,
            ignored: Vec::new(),
            undone: None,
        }
    }
}

impl Transform {
    /// The same for samples that are made up: no file of means belongs to them, and noise of a size by chance is noise.
    pub fn of_made_up(&self) -> Self {
        Self { mean_file: None, random: None, undone: None, ..self.clone() }
    }

    /// Whether samples get another size before a part is cut out.
    pub fn resizes(&self) -> bool {
        self.random.is_some() || self.resize.is_some()
    }

    /// How images get other sizes, with the messages that say so.
    pub fn resamplings(&self) -> impl Iterator<Item = (&'static str, &Resampling)> {
        let random = self.random.as_deref().map(|random| match random {
            RandomResize::ShorterSide { resampling, .. } => {
                ("transform_param.random_resize_param.resize_param", resampling)
            }
            RandomResize::Part { resampling, .. } => {
                ("transform_param.random_aspect_ratio_param.resize_param", resampling)
            }
        });
        let fixed = self.resize.as_ref().map(|resize| ("transform_param.resize_param", &resize.resampling));
        random.into_iter().chain(fixed)
    }

    /// The shape of a sample once it has the size of `resize`.
    pub fn resized(&self, [c, h, w]: [usize; 3]) -> [usize; 3] {
        let [h, w] =
            self.resize.as_ref().map_or([h, w], |resize| resize.resampling.whole([h, w], resize.size));
        [c, h, w]
    }

    /// Height and width in a mini-batch if they are the same for samples of any size.
    pub fn fixed_size(&self) -> Option<[usize; 2]> {
        let fixed = self.resize.as_ref().filter(|resize| resize.resampling.fit != Fit::Small);
        if self.crop > 0 { Some([self.crop; 2]) } else { fixed.map(|resize| resize.size) }
    }

    /// # Errors
    /// A [`Fault`] if samples cannot be changed as the layer asks.
    pub fn check(&self) -> Result<(), Fault> {
        let refuse = |field: &String| {
            Err(Fault::new(field, "samples cannot be changed so yet")
                .hint("leave it away: windows are brought to the size of crop_size"))
        };
        self.undone.as_ref().map_or(Ok(()), refuse)
    }

    /// The shape of what becomes of a sample (channels, height, width).
    ///
    /// # Errors
    /// A [`Fault`] if more is to be cut out than there is, so far as that does not depend on chance.
    pub fn shape(&self, sample: [usize; 3]) -> Result<[usize; 3], Fault> {
        let [c, h, w] = self.resized(sample);
        if h == 0 || w == 0 {
            let text = format!("leaves nothing of samples of {} x {} (height x width)", sample[1], sample[2]);
            return Err(
                Fault::new("transform_param.resize_param", text).hint("resize_mode: WARP always fits")
            );
        }
        match self.crop {
            0 => Ok([c, h, w]),
            crop if self.random.is_some() => Ok([c, crop, crop]),
            crop if crop <= h && crop <= w => Ok([c, crop, crop]),
            crop => Err(Fault::new(
                "transform_param.crop_size",
                format!("{crop}; the samples are only {h} x {w} (height x width)"),
            )
            .hint(
                "cut out less, or make the samples larger: with resize_param, or when the data set is made",
            )),
        }
    }
}

/// Samples and labels from a data set. Tops: data (N, C, H, W) and, if there is a second, labels (N).
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// The data set, as the file names it.
    pub source: String,
    /// Images in a mini-batch.
    pub batch: usize,
    /// What is done to each sample.
    pub transform: Transform,
    /// Channels, height and width of a sample before it is transformed; `None` until somebody has looked at the data
    /// set.
    pub sample: Option<[usize; 3]>,
    /// The type of the layer, and what only this type knows.
    pub kind: DataKind,
}

/// The types of layers that read data sets.
#[derive(Clone, Debug, PartialEq)]
pub enum DataKind {
    /// `Data`: records of any kind.
    Records,
    /// `ImageData`: files that a list names.
    List(ImageList),
    /// `MemoryData`: samples that the program is given, of this shape (channels, height, width) once they are transformed.
    Memory([usize; 3]),
    /// `WindowData`: parts of images that a file of windows names, brought to the size of the crop.
    Windows(WindowRules),
}

impl DataKind {
    /// The type's name in network files.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Records => "Data",
            Self::List(_) => "ImageData",
            Self::Memory(_) => "MemoryData",
            Self::Windows(_) => "WindowData",
        }
    }

    /// The path of a field of the type's own message, for complaints.
    pub fn field(&self, name: &str) -> String {
        let message = match self {
            Self::Records => "data_param",
            Self::List(_) => "image_data_param",
            Self::Memory(_) => "memory_data_param",
            Self::Windows(_) => "window_data_param",
        };
        format!("{message}.{name}")
    }

    /// What a list of image files needs beside its name.
    pub fn list(&self) -> Option<&ImageList> {
        match self {
            Self::List(list) => Some(list),
            _ => None,
        }
    }
}

/// How windows are chosen and cut out (`WindowData`).
#[derive(Clone, Debug, PartialEq)]
pub struct WindowRules {
    /// What is put before each path of the file, as it is.
    pub root_folder: String,
    /// The least overlap with an object of a window that shows one.
    pub foreground: f32,
    /// Windows of less overlap show the background, whose class is 0.
    pub background: f32,
    /// The part of a mini-batch, between 0 and 1, that shows objects.
    pub fraction: f32,
    /// Pixels of context on each side, counted in what comes out.
    pub pad: usize,
    /// Whether a window is made square before it is cut out; otherwise it is warped.
    pub square: bool,
}

/// How the files of a list of images (`ImageData`) are found and read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageList {
    /// What is put before each path of the list, as it is.
    pub root_folder: String,
    /// Height and width to which every image is resized; `None` for that of the file.
    pub resize: Option<[usize; 2]>,
    /// The channels that every image is given.
    pub colour: Colour,
}

impl Meaning for Data {
    fn arity(&self) -> Arity {
        Arity { bottoms: 0..=0, tops: 1..=2 }
    }

    fn infer(&self, _: &[Shape]) -> Result<Inferred, Fault> {
        let field = |name: &str| self.kind.field(name);
        if self.batch == 0 {
            return Err(Fault::new(
                &field("batch_size"),
                "missing; expected at least 1 image in a mini-batch",
            ));
        }
        let sample = self
            .sample
            .ok_or_else(|| Fault::new(&field("source"), "the shape of its samples is not known"))?;
        let [c, h, w] = self.transform.shape(sample)?;
        if let DataKind::Memory(shape) = self.kind
            && shape != [c, h, w]
        {
            let [channels, height, width] = shape;
            return Err(Fault::new(
                &field("channels"),
                format!(
                    "the layer says {channels} x {height} x {width} (channels x height x width), but the samples that it \
                     is given are {c} x {h} x {w}"
                ),
            ));
        }
        let means = self.transform.mean_values.len();
        if means > 1 && means != c {
            return Err(Fault::new(
                "transform_param.mean_value",
                format!("{means} values for samples of {c} channels; expected 1 or {c}"),
            ));
        }
        for (field, resampling) in self.transform.resamplings() {
            resampling.check(c).map_err(|text| Fault::new(&format!("{field}.pad_value"), text))?;
        }
        let data = Shape::checked(&[self.batch, c, h, w], &field("batch_size"))?;
        Ok(Inferred { tops: vec![data, Shape::new([self.batch])], ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        // The second top is optional; the net drops what does not exist.
        (sub == SubTask::Load).then(|| Accesses::new([], [Operand::Top(0), Operand::Top(1)]))
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}

/// Arrays that the program fills before a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Input {
    /// Shape of each top; one shape serves all tops.
    pub shapes: Vec<Vec<usize>>,
    /// Number of tops.
    pub tops: usize,
}

impl Meaning for Input {
    fn arity(&self) -> Arity {
        Arity { bottoms: 0..=0, tops: self.tops..=self.tops }
    }

    fn infer(&self, _: &[Shape]) -> Result<Inferred, Fault> {
        if self.tops == 0 {
            return Err(Fault::new("top", "0 given; a layer of type Input has at least 1"));
        }
        let field = "input_param.shape";
        if self.shapes.is_empty() {
            let hint = "write input_param { shape { dim: 1 dim: 3 dim: 224 dim: 224 } }";
            return Err(Fault::new(field, "missing; the extents of the input are not known").hint(hint));
        }
        if self.shapes.len() != 1 && self.shapes.len() != self.tops {
            return Err(Fault::new(
                field,
                format!(
                    "{} shapes for {} tops; expected one for all or one each",
                    self.shapes.len(),
                    self.tops
                ),
            ));
        }
        let shape_of = |i: usize| Shape::checked(self.shapes.get(i).unwrap_or(&self.shapes[0]), field);
        Ok(Inferred { tops: (0..self.tops).map(shape_of).collect::<Result<_, _>>()?, ..Inferred::default() })
    }

    fn accesses(&self, sub: SubTask) -> Option<Accesses> {
        (sub == SubTask::Load)
            .then(|| Accesses::new([], (0..self.tops).map(Operand::Top).collect::<Vec<_>>()))
    }

    fn flops(&self, _: SubTask, _: &[Shape], _: &[Shape]) -> u64 {
        0
    }
}
