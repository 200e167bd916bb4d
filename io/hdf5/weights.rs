//! Weights: `data/LAYER/INDEX`, as Caffe's `snapshot_format: HDF5` writes them.

use std::collections::BTreeMap;
use std::path::Path;

use hdf5_pure::{FileBuilder, FinishedGroup, Group};

use super::arrays::{Hdf5, MAX_DEPTH, MAX_ENTRIES, builder, extents, write};
use crate::caffemodel::{LayerWeights, MAX_BLOBS, NetWeights};
use crate::error::IoError;

const DATA: &str = "data";

/// Reads weights.
///
/// # Errors
/// [`IoError::Missing`] if the file cannot be read, [`IoError::Data`] if it is damaged or has no group `data`.
pub(crate) fn read_weights(path: &Path) -> Result<NetWeights, IoError> {
    let file = Hdf5::read(path, "weights of Caffe in HDF5 (.caffemodel.h5)")?;
    let root = file.root();
    let (groups, _) = file.names(&root, "/")?;
    if !groups.iter().any(|name| name == DATA) {
        return Err(file
            .refuse("has no group \"data\"")
            .hint("expected weights that Caffe wrote (.caffemodel.h5)"));
    }
    let mut layers = Vec::new();
    collect(&file, &file.group(&root, DATA)?, &mut Vec::new(), &mut layers)?;
    Ok(NetWeights { name: String::new(), layers })
}

/// Adds the layers of a group and of those below it: a name such as `inception/3x3` is a group in a group.
fn collect(
    file: &Hdf5,
    group: &Group,
    path: &mut Vec<String>,
    layers: &mut Vec<LayerWeights>,
) -> Result<(), IoError> {
    let name = path.join("/");
    if path.len() > MAX_DEPTH || layers.len() > MAX_ENTRIES {
        return Err(file.refuse(format!("group {name:?}: more groups than weights have")));
    }
    let (groups, arrays) = file.names(group, &name)?;
    if !arrays.is_empty() {
        let mut blobs = Vec::new();
        for array in &arrays {
            let index = (0..MAX_BLOBS).find(|index| *array == index.to_string()).ok_or_else(|| {
                file.refuse(format!("layer {name:?} has an array {array:?}; expected numbers such as \"0\""))
            })?;
            // What is shared with a layer before has no array: it stays left out.
            blobs.resize(blobs.len().max(index + 1), None);
            blobs[index] = Some(file.numbers(group, array)?);
        }
        layers.push(LayerWeights { name, kind: String::new(), blobs });
    }
    for below in groups {
        let group = file.group(group, &below)?;
        path.push(below);
        collect(file, &group, path, layers)?;
        path.pop();
    }
    Ok(())
}

/// Groups in groups.
#[derive(Default)]
struct Tree<'a> {
    layer: Option<&'a LayerWeights>,
    below: BTreeMap<&'a str, Tree<'a>>,
}

impl<'a> Tree<'a> {
    fn insert(&mut self, layer: &'a LayerWeights) -> Result<(), String> {
        let mut place = self;
        for part in layer.name.split('/') {
            if part.is_empty() || part == "." {
                return Err(format!("layer {:?} has a name that HDF5 cannot hold", layer.name));
            }
            place = place.below.entry(part).or_default();
        }
        match place.layer.replace(layer) {
            Some(_) => Err(format!("two layers {:?} have weights", layer.name)),
            None => Ok(()),
        }
    }

    fn build(&self, builder: &mut FileBuilder, name: &str) -> FinishedGroup {
        let mut group = builder.create_group(name);
        let blobs = self.layer.iter().flat_map(|layer| layer.blobs.iter().enumerate());
        let blobs = blobs.filter_map(|(index, blob)| Some((index, blob.as_ref()?)));
        for (index, (shape, values)) in blobs {
            group.create_dataset(&index.to_string()).with_f32_data(values).with_shape(&extents(shape));
        }
        for (name, tree) in &self.below {
            group.add_group(tree.build(builder, name));
        }
        group.finish()
    }
}

/// Writes weights as Caffe reads them.
///
/// # Errors
/// [`IoError::CannotCreate`], [`IoError::WriteFailed`], or [`IoError::Data`] for names that HDF5 cannot hold.
pub(crate) fn write_weights(path: &Path, weights: &NetWeights) -> Result<(), IoError> {
    let mut tree = Tree::default();
    for layer in weights.layers.iter().filter(|layer| !layer.blobs.is_empty()) {
        tree.insert(layer).map_err(|message| IoError::data(path, message))?;
    }
    let mut file = builder();
    let data = tree.build(&mut file, DATA);
    file.add_group(data);
    write(path, "weights", file)
}
