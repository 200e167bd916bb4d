//! The layers that read data sets, with what they do to samples.

use quadrille_core::layer::{Colour, Data, DataKind, Hdf5Data, ImageList, Layer, Transform, WindowRules};
use quadrille_core::site::Fault;

use super::fields::finite;
use super::sizes::{self, Sizes};
use super::tokens::shortened;
use crate::schema::{
    DataParameter, Hdf5DataParameter, ImageDataParameter, LayerParameter, MemoryDataParameter,
    TransformationParameter, WindowDataParameter,
};

pub(super) fn data(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let Some(param) = &parameter.data_param else {
        return Err(Fault::new("data_param", "missing")
            .hint("write data_param { source: \"mnist\" batch_size: 64 }, for example"));
    };
    let DataParameter {
        source,
        batch_size,
        // Where it matters which data base it is, the data set itself says so.
        backend: _,
        // Training begins anywhere in a random order as it is.
        rand_skip: _,
        shuffle: _,
        force_encoded_color,
        // Only how far ahead Caffe reads.
        prefetch: _,
        scale,
        mean_file,
        crop_size,
        mirror,
    } = param;
    let old = OldTransform {
        message: "data_param",
        scale: *scale,
        mean_file: mean_file.as_ref(),
        crop_size: *crop_size,
        mirror: *mirror,
    };
    let mut transform = transform(parameter.transform_param.as_ref(), old)?;
    if force_encoded_color == &Some(true) && transform.colour.is_none() {
        transform.colour = Some(Colour::Colour);
    }
    let source =
        required(source.as_ref(), "data_param", "name the data set: source: \"mnist\", for example")?;
    let batch = batch(*batch_size, "data_param")?;
    Ok(Layer::Data(Data { source, batch, transform, sample: None, kind: DataKind::Records }))
}

pub(super) fn image_data(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let Some(param) = &parameter.image_data_param else {
        return Err(Fault::new("image_data_param", "missing")
            .hint("write image_data_param { source: \"list.txt\" batch_size: 64 }, for example"));
    };
    let ImageDataParameter {
        source,
        batch_size,
        // As of Data; and training draws in a random order in any case.
        rand_skip: _,
        shuffle: _,
        new_height,
        new_width,
        is_color: _,
        root_folder: _,
        scale,
        mean_file,
        crop_size,
        mirror,
    } = param;
    let message = "image_data_param";
    let (scale, crop_size, mirror) = (*scale, *crop_size, *mirror);
    let old = OldTransform { message, scale, mean_file: mean_file.as_ref(), crop_size, mirror };
    let transform = transform(parameter.transform_param.as_ref(), old)?;
    let resize = match (new_height.unwrap_or(0), new_width.unwrap_or(0)) {
        (0, 0) => None,
        (height, width) if height > 0 && width > 0 && height.max(width) <= 1 << 16 => {
            Some([height as usize, width as usize])
        }
        (height, width) => {
            let text =
                format!("{height} with new_width {width}; expected both or none of them, at most 65536");
            return Err(Fault::new("image_data_param.new_height", text));
        }
    };
    let hint = "name the list of images: source: \"list.txt\", for example";
    let source = required(source.as_ref(), message, hint)?;
    // Caffe reads one image a time if nothing is said.
    let batch = batch(Some(batch_size.unwrap_or(1)), message)?;
    let colour = if param.is_color() { Colour::Colour } else { Colour::Grey };
    let kind = DataKind::List(ImageList { root_folder: param.root_folder().to_owned(), resize, colour });
    Ok(Layer::Data(Data { source, batch, transform, sample: None, kind }))
}

pub(super) fn memory_data(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let message = "memory_data_param";
    let Some(param) = &parameter.memory_data_param else {
        return Err(Fault::new(message, "missing").hint(
            "write memory_data_param { batch_size: 64 channels: 1 height: 28 width: 28 }, for example",
        ));
    };
    let MemoryDataParameter { batch_size, channels, height, width } = param;
    let extent = |value: &Option<u32>, name: &str| match value.unwrap_or(0) {
        0 => Err(Fault::new(&format!("{message}.{name}"), "missing or 0; expected at least 1")),
        extent => Ok(extent as usize),
    };
    let shape = [extent(channels, "channels")?, extent(height, "height")?, extent(width, "width")?];
    let transform = transform(parameter.transform_param.as_ref(), OldTransform::none(message))?;
    if let Some([rows, columns]) = transform.fixed_size().filter(|size| *size != shape[1..]) {
        let [_, height, width] = shape;
        let (field, what) = match transform.crop {
            0 => ("resize_param", "resized"),
            _ => ("crop_size", "cut"),
        };
        let text = format!(
            "{rows} x {columns}; memory_data_param says what samples are once they are {what}, {height} x {width} (height x \
             width)"
        );
        return Err(Fault::new(&format!("transform_param.{field}"), text));
    }
    let (batch, kind) = (batch(*batch_size, message)?, DataKind::Memory(shape));
    Ok(Layer::Data(Data { source: String::new(), batch, transform, sample: Some(shape), kind }))
}

pub(super) fn window_data(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let message = "window_data_param";
    let Some(param) = &parameter.window_data_param else {
        return Err(Fault::new(message, "missing").hint(
            "write window_data_param { source: \"windows.txt\" batch_size: 128 }, for example, and a crop_size in \
             transform_param",
        ));
    };
    let WindowDataParameter {
        source,
        scale,
        mean_file,
        batch_size,
        crop_size,
        mirror,
        fg_threshold: _,
        bg_threshold: _,
        fg_fraction: _,
        context_pad: _,
        crop_mode: _,
        // Files are read as they are drawn; the system keeps what it has room for.
        cache_images: _,
        root_folder: _,
    } = param;
    let (scale, crop_size, mirror) = (*scale, *crop_size, *mirror);
    let old = OldTransform { message, scale, mean_file: mean_file.as_ref(), crop_size, mirror };
    let mut transform = transform(parameter.transform_param.as_ref(), old)?;
    if transform.resizes() {
        // Intel Caffe passes over them without a word, so nobody knows what was meant.
        transform.undone = parameter.transform_param.as_ref().and_then(sizes::given);
        (transform.random, transform.resize) = (None, None);
    }
    if transform.crop == 0 {
        let hint = "windows are brought to this many rows and columns";
        return Err(Fault::new("transform_param.crop_size", "missing; expected at least 1").hint(hint));
    }
    if ![0, 1, 3].contains(&transform.mean_values.len()) {
        let text =
            format!("{} values; windows have 3 channels, so expected 1 or 3", transform.mean_values.len());
        return Err(Fault::new("transform_param.mean_value", text));
    }
    let kind = DataKind::Windows(windows(param, transform.crop)?);
    let hint = "name the file of windows: source: \"windows.txt\", for example";
    let source = required(source.as_ref(), message, hint)?;
    let batch = batch(*batch_size, message)?;
    let sample = Some([3, transform.crop, transform.crop]);
    Ok(Layer::Data(Data { source, batch, transform, sample, kind }))
}

fn windows(param: &WindowDataParameter, crop: usize) -> Result<WindowRules, Fault> {
    let field = |name: &str| format!("window_data_param.{name}");
    let fraction = finite(param.fg_fraction(), &field("fg_fraction"))?;
    if !(0.0..=1.0).contains(&fraction) {
        return Err(Fault::new(&field("fg_fraction"), format!("{fraction}; expected 0 to 1")));
    }
    let pad = param.context_pad() as usize;
    if pad.saturating_mul(2) >= crop {
        let text =
            format!("{pad}; on both sides of {crop} pixels (crop_size) it leaves nothing of the window");
        return Err(Fault::new(&field("context_pad"), text));
    }
    let square = match param.crop_mode() {
        "warp" => false,
        "square" => true,
        other => {
            let text = format!("{:?}; expected \"warp\" or \"square\"", shortened(other));
            return Err(Fault::new(&field("crop_mode"), text));
        }
    };
    Ok(WindowRules {
        root_folder: param.root_folder().to_owned(),
        foreground: finite(param.fg_threshold(), &field("fg_threshold"))?,
        background: finite(param.bg_threshold(), &field("bg_threshold"))?,
        fraction,
        pad,
        square,
    })
}

pub(super) fn hdf5_data(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let message = "hdf5_data_param";
    let Some(Hdf5DataParameter { source, batch_size, shuffle }) = &parameter.hdf5_data_param else {
        return Err(Fault::new(message, "missing")
            .hint("write hdf5_data_param { source: \"files.txt\" batch_size: 64 }, for example"));
    };
    let hint = "name the list of files, one a line: source: \"files.txt\", for example";
    Ok(Layer::Hdf5Data(Hdf5Data {
        source: required(source.as_ref(), message, hint)?,
        batch: batch(*batch_size, message)?,
        shuffle: shuffle == &Some(true),
        tops: parameter.top.len(),
        samples: Vec::new(),
    }))
}

fn required(source: Option<&String>, message: &str, hint: &str) -> Result<String, Fault> {
    let source = source.filter(|source| !source.is_empty()).cloned();
    source.ok_or_else(|| Fault::new(&format!("{message}.source"), "missing").hint(hint))
}

/// Images of a mini-batch; 0 if the file leaves them to the command.
fn batch(size: Option<u32>, message: &str) -> Result<usize, Fault> {
    if size == Some(0) {
        return Err(Fault::new(&format!("{message}.batch_size"), "0; expected at least 1 image"));
    }
    Ok(size.unwrap_or(0) as usize)
}

/// Transforms in the place that they had in Caffe's first files.
struct OldTransform<'a> {
    message: &'static str,
    scale: Option<f32>,
    mean_file: Option<&'a String>,
    crop_size: Option<u32>,
    mirror: Option<bool>,
}

impl OldTransform<'_> {
    /// For a message that never had any.
    fn none(message: &'static str) -> Self {
        Self { message, scale: None, mean_file: None, crop_size: None, mirror: None }
    }
}

fn transform(param: Option<&TransformationParameter>, old: OldTransform<'_>) -> Result<Transform, Fault> {
    let default = TransformationParameter::default();
    let TransformationParameter {
        scale,
        mirror,
        crop_size,
        mean_file,
        mean_value,
        force_color,
        force_gray,
        random_resize_param,
        random_aspect_ratio_param,
        resize_param,
    } = param.unwrap_or(&default);
    let both = [
        ("scale", old.scale.is_some() && scale.is_some()),
        ("mean_file", old.mean_file.is_some() && mean_file.is_some()),
        ("crop_size", old.crop_size.is_some() && crop_size.is_some()),
        ("mirror", old.mirror.is_some() && mirror.is_some()),
    ];
    if let Some((field, _)) = both.iter().find(|(_, given)| *given) {
        let text = format!("conflicts with transform_param.{field}");
        return Err(Fault::new(&format!("{}.{field}", old.message), text));
    }
    let mean_file = mean_file.as_ref().or(old.mean_file).filter(|file| !file.is_empty()).cloned();
    if mean_file.is_some() && !mean_value.is_empty() {
        return Err(Fault::new(
            "transform_param.mean_file",
            "conflicts with mean_value; give only one of them",
        ));
    }
    for mean in mean_value {
        finite(*mean, "transform_param.mean_value")?;
    }
    let colour = match (force_color == &Some(true), force_gray == &Some(true)) {
        (true, true) => {
            let text = "conflicts with force_gray; give only one of them";
            return Err(Fault::new("transform_param.force_color", text));
        }
        (true, false) => Some(Colour::Colour),
        (false, true) => Some(Colour::Grey),
        (false, false) => None,
    };
    let (place, factor) = match old.scale {
        Some(scale) => (old.message, scale),
        None => ("transform_param", scale.unwrap_or(1.0)),
    };
    let crop = crop_size.or(old.crop_size).unwrap_or(0) as usize;
    let by_chance = (random_resize_param.as_ref(), random_aspect_ratio_param.as_ref());
    let Sizes { random, resize, ignored } = sizes::sizes(by_chance, resize_param.as_ref(), crop)?;
    Ok(Transform {
        scale: finite(factor, &format!("{place}.scale"))?,
        mean_values: mean_value.clone(),
        mean_file,
        crop,
        mirror: mirror.or(old.mirror) == Some(true),
        colour,
        random: random.map(Box::new),
        resize: resize.map(Box::new),
        ignored,
        undone: None,
    })
}
