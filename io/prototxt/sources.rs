//! The layers that read data sets, with what they do to samples.

use quadrille_core::layer::{Colour, Data, ImageList, Layer, Transform};
use quadrille_core::site::Fault;

use super::fields::finite;
use crate::schema::{DataParameter, ImageDataParameter, LayerParameter, TransformationParameter};

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
    Ok(Layer::Data(Data { source, batch, transform, sample: None, list: None }))
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
    let list = Some(ImageList { root_folder: param.root_folder().to_owned(), resize, colour });
    Ok(Layer::Data(Data { source, batch, transform, sample: None, list }))
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

fn transform(param: Option<&TransformationParameter>, old: OldTransform<'_>) -> Result<Transform, Fault> {
    let default = TransformationParameter::default();
    let TransformationParameter { scale, mirror, crop_size, mean_file, mean_value, force_color, force_gray } =
        param.unwrap_or(&default);
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
    Ok(Transform {
        scale: finite(factor, &format!("{place}.scale"))?,
        mean_values: mean_value.clone(),
        mean_file,
        crop: crop_size.or(old.crop_size).unwrap_or(0) as usize,
        mirror: mirror.or(old.mirror) == Some(true),
        colour,
    })
}
