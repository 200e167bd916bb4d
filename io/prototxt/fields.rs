//! What several messages have in common: windows in all their spellings, fillers, shapes.

use prost::Message;
use prost_reflect::DynamicMessage;
use quadrille_core::layer::{Filler, VarianceNorm};
use quadrille_core::site::{Fault, did_you_mean};

use crate::schema::FillerParameter;
use crate::schema::filler_parameter::VarianceNorm as Norm;

/// The fault of something that Caffe can do and Quadrille cannot yet. `what` ends in a verb.
pub(super) fn unsupported(field: &str, what: &str) -> Fault {
    Fault::new(field, format!("{what} not supported yet"))
}

/// The struct of a message.
pub(super) fn typed<T: Message + Default>(message: &DynamicMessage) -> Result<T, Fault> {
    message.transcode_to().map_err(|error| Fault::new("", format!("does not fit its type: {error}")))
}

/// Fails unless `value` is a number.
pub(super) fn finite(value: f32, field: &str) -> Result<f32, Fault> {
    if value.is_finite() {
        Ok(value)
    } else {
        Err(Fault::new(field, format!("{value}; expected a finite number")))
    }
}

/// Extents of a shape; zero is left to core, which knows what it means.
pub(super) fn extents(dims: &[i64], field: &str) -> Result<Vec<usize>, Fault> {
    dims.iter()
        .map(|&d| {
            usize::try_from(d)
                .map_err(|_| Fault::new(field, format!("{d}; expected an extent of at least 1")))
        })
        .collect()
}

/// A pair of numbers over height and width, such as a kernel, in all the ways that Caffe lets one write it:
/// once for both (`kernel_size: 3`), once for each (`kernel_size: 5 kernel_size: 3`), or by name (`kernel_h: 5
/// kernel_w: 3`).
pub(super) struct Pair<'a> {
    /// The message, such as `convolution_param`.
    pub message: &'a str,
    /// The field that holds one or both, such as `kernel_size`.
    pub field: &'a str,
    /// What the named fields begin with, such as `kernel`.
    pub stem: &'a str,
    /// Values of the field.
    pub listed: &'a [u32],
    /// Value of `stem_h`.
    pub height: Option<u32>,
    /// Value of `stem_w`.
    pub width: Option<u32>,
    /// What it is if nothing is written; `None` if that is an error.
    pub default: Option<usize>,
    /// Whether one named field may stand alone, the other having the default.
    pub half: bool,
}

impl Pair<'_> {
    pub(super) fn read(&self) -> Result<[usize; 2], Fault> {
        let Self { message, field, stem, .. } = self;
        let listed = format!("{message}.{field}");
        match (self.listed, self.height, self.width) {
            ([], None, None) => match self.default {
                Some(default) => Ok([default; 2]),
                None => Err(Fault::new(&listed, "missing").hint(format!("write {field}: 3, for example"))),
            },
            ([both], None, None) => Ok([*both as usize; 2]),
            ([height, width], None, None) => Ok([*height as usize, *width as usize]),
            (more, None, None) => {
                Err(unsupported(&listed, &format!("{} values, for as many axes, are", more.len()))
                    .hint("images have two axes: height and width"))
            }
            ([], height, width) => {
                let side = |value: Option<u32>, name: &str| match (value, self.default) {
                    (Some(value), _) => Ok(value as usize),
                    (None, Some(default)) if self.half => Ok(default),
                    _ => Err(Fault::new(
                        &format!("{message}.{stem}_{name}"),
                        format!("missing; {stem}_h and {stem}_w go together"),
                    )
                    .hint(format!("give both, or {field} for both"))),
                };
                Ok([side(height, "h")?, side(width, "w")?])
            }
            _ => {
                let named = if self.height.is_some() { "h" } else { "w" };
                Err(Fault::new(&format!("{message}.{stem}_{named}"), format!("conflicts with {field}"))
                    .hint(format!("give either {field}, or {stem}_h and {stem}_w")))
            }
        }
    }
}

const FILLERS: [&str; 7] =
    ["constant", "uniform", "gaussian", "xavier", "msra", "positive_unitball", "bilinear"];

/// A filler, or the default (constant 0). `field` is its path.
pub(super) fn filler(filler: Option<&FillerParameter>, field: &str) -> Result<Filler, Fault> {
    let Some(filler) = filler else { return Ok(Filler::default()) };
    let number = |value: f32, name: &str| finite(value, &format!("{field}.{name}"));
    let norm = match filler.variance_norm() {
        Norm::FanIn => VarianceNorm::FanIn,
        Norm::FanOut => VarianceNorm::FanOut,
        Norm::Average => VarianceNorm::Average,
    };
    Ok(match filler.r#type() {
        "constant" => Filler::Constant(number(filler.value(), "value")?),
        "uniform" => {
            let (min, max) = (number(filler.min(), "min")?, number(filler.max(), "max")?);
            if min > max {
                return Err(Fault::new(&format!("{field}.min"), format!("{min} is larger than max, {max}")));
            }
            Filler::Uniform { min, max }
        }
        "gaussian" => gaussian(filler, field)?,
        "xavier" => Filler::Xavier(norm),
        "msra" => Filler::Msra(norm),
        "positive_unitball" => Filler::PositiveUnitBall,
        "bilinear" => Filler::Bilinear,
        other => {
            let fault = Fault::new(
                &format!("{field}.type"),
                format!("unknown filler {other:?}; expected one of {}", FILLERS.join(", ")),
            );
            return Err(match did_you_mean(other, FILLERS) {
                Some(close) => fault.hint(format!("did you mean {close:?}?")),
                None => fault,
            });
        }
    })
}

fn gaussian(filler: &FillerParameter, field: &str) -> Result<Filler, Fault> {
    let (mean, std) = (finite(filler.mean(), &format!("{field}.mean"))?, filler.std());
    if !(std.is_finite() && std > 0.0) {
        return Err(Fault::new(&format!("{field}.std"), format!("{std}; expected a number above 0")));
    }
    let sparse = match filler.sparse() {
        -1 => None,
        other => Some(u32::try_from(other).map_err(|_| {
            Fault::new(&format!("{field}.sparse"), format!("{other}; expected -1 (none) or at least 0"))
        })?),
    };
    Ok(Filler::Gaussian { mean, std, sparse })
}
