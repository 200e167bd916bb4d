//! Weights of a file into the parameters of a net, by the names of layers, as Caffe copies trained layers.

use std::collections::BTreeSet;

use quadrille_core::net::{LayerId, Net, ParamId};
use quadrille_core::shape::Shape;

use super::{Weights, layer_and_index};
use crate::caffemodel::Blob;

/// Names that a message lists at most.
const MOST_NAMES: usize = 5;

/// What files have given to a net so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Placed {
    filled: BTreeSet<ParamId>,
    /// Layers of files that the net lacks, in their order.
    pub ignored: Vec<String>,
}

impl Placed {
    /// The parameters of `net` that no file has given, by name.
    pub fn missing(&self, net: &Net) -> Vec<String> {
        let views = net.params.views().iter().enumerate();
        let missing = views.filter(|(id, _)| !self.filled.contains(&ParamId(*id)));
        missing.map(|(_, view)| view.name.clone()).collect()
    }
}

/// Copies `weights` over the parameters in `packed` (laid out as `net.params`) whose layers have the same name; of
/// layers of one name the last counts. `net` is as the file has it, with no layers fused.
///
/// # Errors
/// If a layer has other shapes or another number of arrays than the net's, or if no layer of the net is there at all.
pub fn place(weights: &Weights, net: &Net, packed: &mut [f32], placed: &mut Placed) -> Result<(), String> {
    let mut target = Target { net, packed, placed, copied: 0, names: Vec::new() };
    match weights {
        Weights::Layers(file) => {
            for layer in &file.layers {
                target.layer(&layer.name, &layer.blobs)?;
            }
        }
        Weights::Tensors(tensors) => {
            for (name, (dims, values)) in tensors {
                match layer_and_index(name) {
                    Some((layer, index)) => target.array(layer, index, dims, values)?,
                    None => target.ignore(name),
                }
            }
        }
    }
    let Target { copied, names, .. } = target;
    if copied > 0 {
        return Ok(());
    }
    if names.is_empty() {
        return Err("there are no weights in the file".to_owned());
    }
    let trained = net.layers.iter().filter(|layer| !layer.params.is_empty());
    Err(format!(
        "none of its layers has the name of one of the network's; the file has {}, the network {}",
        listed(names.iter().map(String::as_str)),
        listed(trained.map(|layer| layer.name.as_str()))
    ))
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let shown = names[..names.len().min(MOST_NAMES)].iter().map(|name| format!("{name:?}"));
    let shown = shown.collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => "none".to_owned(),
        n if n > MOST_NAMES => format!("{shown} and {} more", n - MOST_NAMES),
        _ => shown,
    }
}

/// A net whose parameters are being filled.
struct Target<'a> {
    net: &'a Net,
    packed: &'a mut [f32],
    placed: &'a mut Placed,
    copied: usize,
    /// Names in the file that are no layer of the net.
    names: Vec<String>,
}

impl Target<'_> {
    fn find(&self, layer: &str) -> Option<LayerId> {
        self.net.layers.iter().position(|other| other.name == layer).map(LayerId)
    }

    fn ignore(&mut self, layer: &str) {
        if self.names.last().is_none_or(|last| last != layer) {
            self.names.push(layer.to_owned());
            self.placed.ignored.push(layer.to_owned());
        }
    }

    /// A layer that has all its arrays in the file.
    fn layer(&mut self, name: &str, blobs: &[Option<Blob>]) -> Result<(), String> {
        let Some(id) = self.find(name) else {
            if !blobs.is_empty() {
                self.ignore(name);
            }
            return Ok(());
        };
        let params = &self.net.layer(id).params;
        let given = |index: &usize| blobs.get(*index).is_some_and(Option::is_some);
        // Of what a layer shares with one before, Caffe has no second copy in HDF5.
        let lacks = |(index, param): (usize, &ParamId)| !given(&index) && self.is_own(name, *param);
        if blobs.len() > params.len() || params.iter().enumerate().any(lacks) {
            let (own, given) = (params.len(), (0..blobs.len()).filter(given).count());
            return Err(format!(
                "layer {name:?} has {given} arrays of weights, in the network {own}; {ADVICE}"
            ));
        }
        let mut blobs = blobs.iter().enumerate().filter_map(|(index, blob)| Some((index, blob.as_ref()?)));
        blobs.try_for_each(|(index, (dims, values))| self.array(name, index, dims, values))
    }

    /// Whether a parameter of the layer of this name is its own, and not one of a layer before.
    fn is_own(&self, layer: &str, param: ParamId) -> bool {
        layer_and_index(&self.net.params.view(param).name).is_none_or(|(owner, _)| owner == layer)
    }

    fn array(&mut self, name: &str, index: usize, dims: &[usize], values: &[f32]) -> Result<(), String> {
        let Some(id) = self.find(name) else {
            self.ignore(name);
            return Ok(());
        };
        let shapes = self.net.param_shapes(id);
        let (Some(shape), Some(param)) = (shapes.get(index), self.net.layer(id).params.get(index)) else {
            let own = shapes.len();
            return Err(format!("{name}/{index}: that layer of the network has {own} arrays; {ADVICE}"));
        };
        let range = self.net.params.view(*param).range();
        if !fits(dims, shape.dims()) || values.len() != range.len() {
            let given = Shape::new(dims);
            return Err(format!("{name}/{index} has shape {given}, in the network {shape}; {ADVICE}"));
        }
        self.packed[range].copy_from_slice(values);
        self.placed.filled.insert(*param);
        self.copied += 1;
        Ok(())
    }
}

/// What Caffe, too, says then.
const ADVICE: &str = "to learn it anew instead of copying it, rename the layer";

/// Old files have four extents for every array, the first ones being 1 where there are fewer axes.
fn fits(given: &[usize], own: &[usize]) -> bool {
    let legacy = given.len() == 4 && own.len() < 4 && {
        let (ones, rest) = given.split_at(4 - own.len());
        rest == own && ones.iter().all(|extent| *extent == 1)
    };
    given == own || legacy
}
