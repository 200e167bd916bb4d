//! Layers that only arrange values anew.

use quadrille_core::layer::{Concat, Flatten, Layer, Slice};
use quadrille_core::site::Fault;

use crate::schema::{ConcatParameter, FlattenParameter, LayerParameter, SliceParameter};

/// The axis of Concat or Slice: `axis`, or the older field, which cannot count from the end.
fn axis(message: &str, axis: Option<i32>, old: (&str, Option<u32>)) -> Result<i32, Fault> {
    let (name, dim) = old;
    let Some(dim) = dim else { return Ok(axis.unwrap_or(1)) };
    let field = format!("{message}.{name}");
    if axis.is_some() {
        return Err(Fault::new(&field, "conflicts with axis; give only one of them"));
    }
    i32::try_from(dim).map_err(|_| Fault::new(&field, format!("{dim}; expected an axis of the bottom")))
}

pub(super) fn concat(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let ConcatParameter { axis: new, concat_dim, engine: _ } = parameter.concat_param.unwrap_or_default();
    let axis = axis("concat_param", new, ("concat_dim", concat_dim))?;
    Ok(Layer::Concat(Concat { axis, bottoms: parameter.bottom.len() }))
}

pub(super) fn slice(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let SliceParameter { axis: new, slice_point, slice_dim } =
        parameter.slice_param.clone().unwrap_or_default();
    let axis = axis("slice_param", new, ("slice_dim", slice_dim))?;
    let points = slice_point.iter().map(|point| *point as usize).collect();
    Ok(Layer::Slice(Slice { axis, points, tops: parameter.top.len() }))
}

pub(super) fn flatten(parameter: &LayerParameter) -> Layer {
    let param = parameter.flatten_param.unwrap_or_default();
    let FlattenParameter { axis: _, end_axis: _ } = param;
    Layer::Flatten(Flatten { axis: param.axis(), end_axis: param.end_axis() })
}
