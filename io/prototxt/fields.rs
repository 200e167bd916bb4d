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
