//! Batch-level parallelism: a layer as several of the same kind, each of a chunk of the images.

use std::fmt;

use crate::layer::{Concat, Layer, Slice};
use crate::net::{LayerSpec, Net, NetSpec, ParamSpec};
use crate::shape::Shape;

/// A layer that cannot be cut into chunks of images.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkError {
    /// Its name.
    pub layer: String,
    /// Why not.
    pub reason: &'static str,
}

impl fmt::Display for ChunkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "layer {:?} cannot be cut into chunks of images: {}", self.layer, self.reason)
    }
}

impl std::error::Error for ChunkError {}

/// The network with some layers in chunks: those for which `images` says how many images a chunk has, if their mini-batch, as it
/// is in `net`, has more. Each becomes a Slice, a layer for each chunk, and a Concat; the last chunk may be smaller.
///
/// The first chunk keeps the layer's name and so its parameters' names in files; the others share its parameters. Their gradients
/// are added up in the order of backward.
///
/// # Errors
/// If a layer is to be cut that has not one bottom and one top, works in place, has a loss weight, or is of a kind in which images
/// may have to do with each other: all but Convolution, InnerProduct, LRN, Pooling and ReLU.
pub fn in_chunks(
    spec: &NetSpec,
    net: &Net,
    images: impl Fn(&LayerSpec) -> Option<usize>,
) -> Result<NetSpec, ChunkError> {
    let mut layers = Vec::new();
    for layer in &spec.layers {
        let built = net.layers.iter().find(|built| built.name == layer.name);
        let (Some(images), Some(built)) = (images(layer).filter(|images| *images > 0), built) else {
            layers.push(layer.clone());
            continue;
        };
        let bottoms: Vec<Shape> = built.bottoms.iter().map(|blob| net.blob(*blob).shape.clone()).collect();
        if let Some(reason) = refusal(layer, &bottoms) {
            return Err(ChunkError { layer: layer.name.clone(), reason });
        }
        let batch = bottoms[0].images();
        if images < batch {
            layers.extend(cut(layer, built.params.len(), (images..batch).step_by(images).collect()));
        } else {
            layers.push(layer.clone());
        }
    }
    Ok(NetSpec { layers, ..spec.clone() })
}

fn refusal(layer: &LayerSpec, bottoms: &[Shape]) -> Option<&'static str> {
    match layer {
        _ if !layer.layer.computes_images_apart(bottoms) => Some(
            "expected a Convolution, InnerProduct, LRN, Pooling or ReLU that computes each image by itself",
        ),
        _ if layer.bottoms.len() != 1 || layer.tops.len() != 1 => Some("expected one bottom and one top"),
        _ if layer.bottoms == layer.tops => Some("it works in place"),
        _ if !layer.loss_weights.is_empty() => Some("it has a loss weight"),
        _ => None,
    }
}

/// The layers in place of one with so many parameters; each chunk but the first begins at one of `points`.
fn cut(layer: &LayerSpec, params: usize, points: Vec<usize>) -> Vec<LayerSpec> {
    let chunks = points.len() + 1;
    let blobs = |what: &str| -> Vec<String> {
        (0..chunks).map(|chunk| format!("{}/{what}{chunk}", layer.name)).collect()
    };
    let (bottoms, tops) = (blobs("in"), blobs("out"));
    // What the layer says of states belongs to all of them, what it says of gradients to the first.
    let like = |name: String, kind: Layer| LayerSpec {
        name,
        layer: kind,
        params: Vec::new(),
        propagate_down: Vec::new(),
        ..layer.clone()
    };
    let slice = like(format!("{}/slice", layer.name), Layer::Slice(Slice { axis: 0, points, tops: chunks }));
    let concat = like(format!("{}/concat", layer.name), Layer::Concat(Concat { axis: 0, bottoms: chunks }));
    let param = |index: usize| {
        let said = layer.params.get(index).cloned().unwrap_or_default();
        let name = said.name.clone().unwrap_or_else(|| format!("{}/param{index}", layer.name));
        ParamSpec { name: Some(name), ..said }
    };
    let shared: Vec<ParamSpec> = (0..params).map(param).collect();
    let mut layers =
        vec![LayerSpec { tops: bottoms.clone(), propagate_down: layer.propagate_down.clone(), ..slice }];
    for (chunk, (bottom, top)) in bottoms.into_iter().zip(&tops).enumerate() {
        let name = if chunk == 0 { layer.name.clone() } else { format!("{}/{chunk}", layer.name) };
        let part = like(name, layer.layer.clone());
        layers.push(LayerSpec {
            bottoms: vec![bottom],
            tops: vec![top.clone()],
            params: shared.clone(),
            ..part
        });
    }
    layers.push(LayerSpec { bottoms: tops, ..concat });
    layers
}
