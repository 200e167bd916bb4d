//! Layers that move a window over images or channels, and the ways to write a window down.

use quadrille_core::layer::{Concat, Flatten, Layer, Lrn, NormRegion, PoolMethod, Pooling, PyramidLevel};
use quadrille_core::net::LayerSpec;
use quadrille_core::site::Fault;

use super::fields::{finite, unsupported};
use crate::schema::pooling_parameter::{self, RoundMode};
use crate::schema::{
    LayerParameter, LrnParameter, PoolingParameter, SppParameter, lrn_parameter, spp_parameter,
};

/// Numbers along the axes of a window, such as the extents of a kernel, in all the ways that Caffe lets one write them:
/// once for all (`kernel_size: 3`), once for each (`kernel_size: 5 kernel_size: 3`), or, over height and width, by name
/// (`kernel_h: 5 kernel_w: 3`).
pub(super) struct Along<'a> {
    /// The message, such as `convolution_param`.
    pub message: &'a str,
    /// The field that holds one or all, such as `kernel_size`, and what the named ones begin with, such as `kernel`.
    pub names: [&'a str; 2],
    /// Values of the field.
    pub listed: &'a [u32],
    /// Values of the named fields.
    pub named: [Option<u32>; 2],
    /// What it is if nothing is written; `None` if that is an error.
    pub default: Option<usize>,
    /// Whether one named field may stand alone, the other having the default.
    pub half: bool,
}

impl Along<'_> {
    /// One number for all axes, or one for each.
    pub(super) fn read(&self) -> Result<Vec<usize>, Fault> {
        let Self { message, names: [field, stem], .. } = self;
        match (self.listed, self.named) {
            ([], [None, None]) => self.default.map(|default| vec![default]).ok_or_else(|| {
                Fault::new(&format!("{message}.{field}"), "missing")
                    .hint(format!("write {field}: 3, for example"))
            }),
            (listed, [None, None]) => Ok(listed.iter().map(|value| *value as usize).collect()),
            ([], [height, width]) => Ok(vec![self.side(height, "h")?, self.side(width, "w")?]),
            (_, [height, _]) => {
                let named = if height.is_some() { "h" } else { "w" };
                Err(Fault::new(&format!("{message}.{stem}_{named}"), format!("conflicts with {field}"))
                    .hint(format!("give either {field}, or {stem}_h and {stem}_w")))
            }
        }
    }

    /// Height and width.
    fn pair(&self) -> Result<[usize; 2], Fault> {
        let values = self.read()?;
        Ok([0, 1].map(|a| values[a.min(values.len() - 1)]))
    }

    fn side(&self, value: Option<u32>, name: &str) -> Result<usize, Fault> {
        let Self { message, names: [field, stem], .. } = self;
        match (value, self.default) {
            (Some(value), _) => Ok(value as usize),
            (None, Some(default)) if self.half => Ok(default),
            _ => Err(Fault::new(
                &format!("{message}.{stem}_{name}"),
                format!("missing; {stem}_h and {stem}_w go together"),
            )
            .hint(format!("give both, or {field} for both"))),
        }
    }
}

fn stochastic(field: &str) -> Fault {
    unsupported(field, "STOCHASTIC pooling is").hint("use MAX or AVE")
}

pub(super) fn pooling(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let message = "pooling_param";
    let Some(param) = &parameter.pooling_param else {
        return Err(Fault::new(message, "missing")
            .hint("write pooling_param { pool: MAX kernel_size: 2 stride: 2 }, for example"));
    };
    let PoolingParameter {
        pool: _,
        kernel_size,
        kernel_h,
        kernel_w,
        pad,
        pad_h,
        pad_w,
        stride,
        stride_h,
        stride_w,
        global_pooling: _,
        round_mode: _,
        engine: _,
    } = param;
    let method = match param.pool() {
        pooling_parameter::PoolMethod::Max => PoolMethod::Max,
        pooling_parameter::PoolMethod::Ave => PoolMethod::Average,
        pooling_parameter::PoolMethod::Stochastic => return Err(stochastic("pooling_param.pool")),
    };
    if param.round_mode() == RoundMode::Floor {
        return Err(unsupported("pooling_param.round_mode", "rounding sizes down is"));
    }
    let global = param.global_pooling();
    let pair = |names, listed: &Option<u32>, named, default| {
        Along { message, names, listed: listed.as_slice(), named, default, half: false }.pair()
    };
    let kernel = pair(["kernel_size", "kernel"], kernel_size, [*kernel_h, *kernel_w], global.then_some(0))?;
    let pad = pair(["pad", "pad"], pad, [*pad_h, *pad_w], Some(0))?;
    let stride = pair(["stride", "stride"], stride, [*stride_h, *stride_w], Some(1))?;
    if global {
        check_global(kernel_size.or(*kernel_h).or(*kernel_w).is_some(), pad, stride)?;
    }
    let kernel = (!global).then_some(kernel);
    Ok(Layer::Pooling(Pooling { method, kernel, pad, stride }))
}

fn check_global(kernel: bool, pad: [usize; 2], stride: [usize; 2]) -> Result<(), Fault> {
    let fault = |field: &str, text: &str| Err(Fault::new(&format!("pooling_param.{field}"), text));
    if kernel {
        return fault("kernel_size", "conflicts with global_pooling, whose window is the whole image");
    }
    if pad != [0, 0] {
        return fault("pad", "conflicts with global_pooling; expected 0");
    }
    if stride != [1, 1] {
        return fault("stride", "conflicts with global_pooling; expected 1");
    }
    Ok(())
}

pub(super) fn lrn(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.lrn_param.unwrap_or_default();
    let LrnParameter { local_size: _, alpha: _, beta: _, norm_region: _, k: _, engine: _ } = param;
    let number = |value: f32, name: &str| finite(value, &format!("lrn_param.{name}"));
    Ok(Layer::Lrn(Lrn {
        region: match param.norm_region() {
            lrn_parameter::NormRegion::AcrossChannels => NormRegion::AcrossChannels,
            lrn_parameter::NormRegion::WithinChannel => NormRegion::WithinChannel,
        },
        local_size: param.local_size() as usize,
        alpha: number(param.alpha(), "alpha")?,
        beta: number(param.beta(), "beta")?,
        k: number(param.k(), "k")?,
    }))
}

/// The first level of a spatial pyramid; [`pyramid`] makes the others of it.
pub(super) fn spp(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.spp_param.unwrap_or_default();
    let SppParameter { pyramid_height, pool: _, engine: _ } = param;
    let method = match param.pool() {
        spp_parameter::PoolMethod::Max => PoolMethod::Max,
        spp_parameter::PoolMethod::Ave => PoolMethod::Average,
        spp_parameter::PoolMethod::Stochastic => return Err(stochastic("spp_param.pool")),
    };
    let field = "spp_param.pyramid_height";
    match pyramid_height {
        None => Err(Fault::new(field, "missing").hint("write spp_param { pyramid_height: 3 }, for example")),
        Some(1..=MOST_LEVELS) => Ok(Layer::PyramidLevel(PyramidLevel { method, level: 0 })),
        Some(other) => Err(Fault::new(field, format!("{other}; expected 1 to {MOST_LEVELS} levels"))),
    }
}

/// No image has a side of more than 2^31 pixels.
const MOST_LEVELS: u32 = 31;

/// The layers that a layer of type SPP is: its levels, each as a row, side by side. A pyramid of one level is that level.
pub(super) fn pyramid(height: u32, spec: LayerSpec) -> Vec<LayerSpec> {
    let Layer::PyramidLevel(PyramidLevel { method, .. }) = spec.layer else { return vec![spec] };
    let [name, bottom, top] =
        [Some(&spec.name), spec.bottoms.first(), spec.tops.first()].map(Option::<&_>::cloned);
    let (Some(name), Some(bottom), Some(top), 2..) = (name, bottom, top, height) else { return vec![spec] };
    let mut layers = Vec::new();
    let mut rows = Vec::new();
    for level in 0..height {
        let [pooled, row] = ["level", "row"].map(|what| format!("{name}/{what}{level}"));
        let part = |name: &str, layer, bottoms: &[String]| LayerSpec {
            name: name.to_owned(),
            layer,
            bottoms: bottoms.to_vec(),
            tops: vec![name.to_owned()],
            loss_weights: Vec::new(),
            ..spec.clone()
        };
        let level = Layer::PyramidLevel(PyramidLevel { method, level });
        layers.push(part(&pooled, level, std::slice::from_ref(&bottom)));
        let flatten = Layer::Flatten(Flatten { axis: 1, end_axis: -1 });
        layers.push(part(&row, flatten, std::slice::from_ref(&pooled)));
        rows.push(row);
    }
    let concat = Layer::Concat(Concat { axis: 1, bottoms: rows.len() });
    let propagate_down = Vec::new();
    layers.push(LayerSpec { layer: concat, bottoms: rows, tops: vec![top], propagate_down, ..spec });
    layers
}
