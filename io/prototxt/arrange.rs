//! Layers that only arrange values anew.

use quadrille_core::layer::{ArgMax, Concat, Crop, Flatten, Layer, NewExtent, Reshape, Slice, Tile};
use quadrille_core::site::Fault;

use crate::schema::{
    ArgMaxParameter, ConcatParameter, CropParameter, FlattenParameter, LayerParameter, ReshapeParameter,
    SliceParameter, TileParameter,
};

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

pub(super) fn reshape(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.reshape_param.clone().unwrap_or_default();
    let ReshapeParameter { shape, axis: _, num_axes: _ } = &param;
    let extent = |dim: &i64| match dim {
        0 => Ok(NewExtent::Copied),
        -1 => Ok(NewExtent::Inferred),
        dim => usize::try_from(*dim).map(NewExtent::Of).map_err(|_| {
            let message =
                format!("{dim}; expected an extent, 0 to copy the bottom's or -1 for what is left over");
            Fault::new("reshape_param.shape", message)
        }),
    };
    let dims = shape.as_ref().map_or(&[][..], |shape| &shape.dim);
    let extents = dims.iter().map(extent).collect::<Result<_, _>>()?;
    Ok(Layer::Reshape(Reshape { extents, axis: param.axis(), num_axes: param.num_axes() }))
}

pub(super) fn crop(parameter: &LayerParameter) -> Layer {
    let param = parameter.crop_param.clone().unwrap_or_default();
    let CropParameter { axis: _, offset } = &param;
    let offsets = offset.iter().map(|offset| *offset as usize).collect();
    Layer::Crop(Crop { axis: param.axis(), offsets })
}

pub(super) fn tile(parameter: &LayerParameter) -> Result<Layer, Fault> {
    let param = parameter.tile_param.unwrap_or_default();
    let TileParameter { axis: _, tiles } = param;
    let field = "tile_param.tiles";
    let tiles = tiles.ok_or_else(|| Fault::new(field, "missing").hint("say how many copies there are"))?;
    let tiles = usize::try_from(tiles).ok().filter(|tiles| *tiles > 0);
    let tiles = tiles.ok_or_else(|| Fault::new(field, format!("{}; expected at least 1", param.tiles())))?;
    Ok(Layer::Tile(Tile { axis: param.axis(), tiles }))
}

pub(super) fn argmax(parameter: &LayerParameter) -> Layer {
    let param = parameter.argmax_param.unwrap_or_default();
    let ArgMaxParameter { out_max_val: _, top_k: _, axis } = param;
    Layer::ArgMax(ArgMax { out_max_val: param.out_max_val(), top_k: param.top_k() as usize, axis })
}
