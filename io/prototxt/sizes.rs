//! What gives samples another size: `random_resize_param`, `random_aspect_ratio_param` and `resize_param` of Intel's fork,
//! with the meaning that its data_transformer and im_transforms give them.

use quadrille_core::layer::{Fit, Interpolation, Padding, RandomResize, Resampling, Resize};
use quadrille_core::site::Fault;

use super::fields::finite;
use crate::schema::resize_parameter::{InterpMode, PadMode, ResizeMode};
use crate::schema::{
    RandomAspectRatioParameter, RandomResizeParameter, ResizeParameter, TransformationParameter,
};

const SHORTER: &str = "transform_param.random_resize_param";
const PART: &str = "transform_param.random_aspect_ratio_param";
const RESIZE: &str = "transform_param.resize_param";

/// No side of an image that is made is longer.
const MOST_EXTENT: u32 = 1 << 16;

/// Bounds the time that one image can take.
const MOST_ATTEMPTS: u32 = 100_000;

/// What the fields say.
#[derive(Debug, Default)]
pub(super) struct Sizes {
    pub random: Option<RandomResize>,
    pub resize: Option<Resize>,
    /// Fields without effect, each with the reason.
    pub ignored: Vec<String>,
}

/// The first field that gives samples another size.
pub(super) fn given(param: &TransformationParameter) -> Option<String> {
    let fields = [
        (SHORTER, param.random_resize_param.is_some()),
        (PART, param.random_aspect_ratio_param.is_some()),
        (RESIZE, param.resize_param.is_some()),
    ];
    fields.into_iter().find(|(_, given)| *given).map(|(field, _)| field.to_owned())
}

/// What the fields say of samples out of which `crop` rows and columns are cut, 0 for the whole.
pub(super) fn sizes(
    by_chance: (Option<&RandomResizeParameter>, Option<&RandomAspectRatioParameter>),
    resize: Option<&ResizeParameter>,
    crop: usize,
) -> Result<Sizes, Fault> {
    let mut ignored = Vec::new();
    let resize = resize.map(|param| fixed(param, &mut ignored)).transpose()?;
    let random = match by_chance {
        (Some(param), other) => {
            if other.is_some() {
                ignored.push(format!("{PART} (random_resize_param comes first)"));
            }
            Some(shorter_side(param, (crop, resize.is_some()), &mut ignored)?)
        }
        (None, Some(param)) => Some(part(param, crop, &mut ignored)?),
        (None, None) => None,
    };
    Ok(Sizes { random, resize, ignored })
}

fn fixed(param: &ResizeParameter, ignored: &mut Vec<String>) -> Result<Resize, Fault> {
    let extent = |value: u32, name: &str| match value {
        0 => Err(Fault::new(&format!("{RESIZE}.{name}"), "missing or 0; expected at least 1")
            .hint("give both, such as height: 256 width: 256")),
        value => at_most(value, MOST_EXTENT, &format!("{RESIZE}.{name}")),
    };
    let size = [extent(param.height(), "height")?, extent(param.width(), "width")?];
    Ok(Resize { size, resampling: resampling(Some(param), RESIZE, ignored)? })
}

fn shorter_side(
    param: &RandomResizeParameter,
    (crop, resized): (usize, bool),
    ignored: &mut Vec<String>,
) -> Result<RandomResize, Fault> {
    needs_crop(crop, "random_resize_param")?;
    let side = |value: u32, name: &str| match value {
        0 => Ok(None),
        value => at_most(value, MOST_EXTENT, &format!("{SHORTER}.{name}")).map(Some),
    };
    let (min, max) = (side(param.min_size(), "min_size")?, side(param.max_size(), "max_size")?);
    let field = |name: &str| format!("{SHORTER}.{name}");
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        return Err(Fault::new(&field("min_size"), format!("{min} is larger than max_size, {max}"))
            .hint(format!("write min_size: {max} max_size: {min}")));
    }
    for (side, name) in [(min, "min_size"), (max, "max_size")] {
        let Some(side) = side.filter(|side| *side < crop && !resized) else { continue };
        let text = format!("{side}; samples with so short a side are too small for crop_size, {crop}");
        let hint = format!("write at least {crop}, or a smaller crop_size");
        return Err(Fault::new(&field(name), text).hint(hint));
    }
    let resampling = inner(param.resize_param.as_ref(), SHORTER, ignored)?;
    Ok(RandomResize::ShorterSide { min, max, resampling })
}

fn part(
    param: &RandomAspectRatioParameter,
    crop: usize,
    ignored: &mut Vec<String>,
) -> Result<RandomResize, Fault> {
    needs_crop(crop, "random_aspect_ratio_param")?;
    let field = |name: &str| format!("{PART}.{name}");
    let ratio = |value: f32, name: &str, hint: &str| {
        let value = finite(value, &field(name))?;
        if value > 0.0 && value <= 1.0 {
            return Ok(value);
        }
        let text = format!("{value}; expected a number above 0 and at most 1");
        Err(Fault::new(&field(name), text).hint(hint))
    };
    let hint = "1 is the area of the whole image";
    let areas = [
        ratio(param.min_area_ratio(), "min_area_ratio", hint)?,
        ratio(param.max_area_ratio(), "max_area_ratio", hint)?,
    ];
    if areas[0] > areas[1] {
        let [min, max] = areas;
        let text = format!("{min} is larger than max_area_ratio, {max}");
        let hint = format!("write min_area_ratio: {max} max_area_ratio: {min}");
        return Err(Fault::new(&field("min_area_ratio"), text).hint(hint));
    }
    let change = param.aspect_ratio_change();
    let hint = match change {
        change if change > 1.0 => format!(
            "it is the smaller of two factors, the other is its inverse: write {}",
            (1000.0 / change).round() / 1000.0
        ),
        _ => "factors for the sides are drawn between it and its inverse; 0.75 is usual".to_owned(),
    };
    let change = ratio(change, "aspect_ratio_change", &hint)?;
    let attempts = at_most(param.max_attempt(), MOST_ATTEMPTS, &field("max_attempt"))? as u32;
    let resampling = inner(param.resize_param.as_ref(), PART, ignored)?;
    Ok(RandomResize::Part { areas, change, attempts, resampling })
}

fn needs_crop(crop: usize, field: &str) -> Result<(), Fault> {
    if crop == 0 {
        let text = format!("missing; {field} makes samples of many sizes");
        let hint = "crop_size: 224, for example, makes them equal";
        return Err(Fault::new("transform_param.crop_size", text).hint(hint));
    }
    Ok(())
}

fn at_most(value: u32, most: u32, field: &str) -> Result<usize, Fault> {
    if value > most {
        return Err(Fault::new(field, format!("{value}; expected at most {most}")));
    }
    Ok(value as usize)
}

/// The message inside of a change by chance, which says all but the size.
fn inner(
    param: Option<&ResizeParameter>,
    message: &str,
    ignored: &mut Vec<String>,
) -> Result<Resampling, Fault> {
    let path = format!("{message}.resize_param");
    let given = |field: Option<u32>| field.is_some_and(|value| value > 0);
    if param.is_some_and(|param| given(param.height) || given(param.width)) {
        ignored.push(format!("height and width of {path} (the size is drawn)"));
    }
    resampling(param, &path, ignored)
}

fn resampling(
    param: Option<&ResizeParameter>,
    path: &str,
    ignored: &mut Vec<String>,
) -> Result<Resampling, Fault> {
    let Some(param) = param else { return Ok(Resampling::default()) };
    let ResizeParameter {
        prob: _,
        resize_mode: _,
        height: _,
        width: _,
        pad_mode: _,
        pad_value,
        interp_mode: _,
        height_scale,
        width_scale,
    } = param;
    if param.prob() != 1.0 {
        ignored.push(format!("{path}.prob (Intel Caffe resizes always, too)"));
    }
    if height_scale.or(*width_scale).is_some() {
        ignored.push(format!("height_scale and width_scale of {path} (for the boxes of detection)"));
    }
    let fit = match param.resize_mode() {
        ResizeMode::Warp => Fit::Warp,
        ResizeMode::FitSmallSize => Fit::Small,
        ResizeMode::FitLargeSizeAndPad => Fit::LargeAndPad,
    };
    let field = format!("{path}.pad_value");
    // As OpenCV makes bytes of numbers.
    let byte = |value: &f32| finite(*value, &field).map(|value| value.round_ties_even() as u8);
    let padding = match param.pad_mode() {
        PadMode::Constant => Padding::Constant(pad_value.iter().map(byte).collect::<Result<_, _>>()?),
        PadMode::Mirrored => Padding::Mirrored,
        PadMode::RepeatNearest => Padding::Nearest,
    };
    let mut interpolations: Vec<Interpolation> = param.interp_mode().map(interpolation).collect();
    if interpolations.is_empty() {
        interpolations.push(Interpolation::Linear);
    }
    Ok(Resampling { fit, padding, interpolations })
}

fn interpolation(mode: InterpMode) -> Interpolation {
    match mode {
        InterpMode::Linear => Interpolation::Linear,
        InterpMode::Area => Interpolation::Area,
        InterpMode::Nearest => Interpolation::Nearest,
        InterpMode::Cubic => Interpolation::Cubic,
        InterpMode::Lanczos4 => Interpolation::Lanczos4,
    }
}
