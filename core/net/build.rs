//! From a network file to a [`Net`]: choose the layers of the phase, wire them, infer every shape, place every
//! parameter, and find out who needs a gradient.

use std::collections::HashMap;

use super::params::{ParamLayout, ParamView};
use super::spec::{LayerSpec, NetSpec, NetState, Phase};
use super::{AuxId, Blob, BlobId, LayerId, Net, NetLayer, ParamId, StorageId};
use crate::layer::{Inferred, Layer, Operand, Split, SubTask};
use crate::shape::Shape;
use crate::site::{Fault, Site, SpecError, did_you_mean};

impl Net {
    /// Builds the net of `spec` for `state`. `loss_share` scales every loss weight: the part of the worker's
    /// mini-batch that this net computes, so that gradients summed over devices are those of the whole.
    ///
    /// # Errors
    /// A [`SpecError`] naming file, line and field of whatever cannot be.
    pub fn build(spec: &NetSpec, state: &NetState, loss_share: f32) -> Result<Self, SpecError> {
        let chosen: Vec<&LayerSpec> = spec.layers.iter().filter(|l| l.belongs(state)).collect();
        let file_site = Site { file: spec.file.clone(), ..Site::default() };
        if chosen.is_empty() {
            let fault = Fault::new("layer", format!("no layer belongs to phase {}", state.phase));
            return Err(fault.at(&file_site, "network"));
        }
        let readers = count_readers(&chosen);
        let mut builder = Builder::new(spec, state, loss_share, readers);
        for (index, layer) in chosen.iter().enumerate() {
            let subject = format!("layer {:?}", layer.name);
            builder.add(index, layer).map_err(|fault| fault.at(&layer.site, &subject))?;
        }
        let mut net = builder.net;
        if state.phase == Phase::Train && net.losses().next().is_none() {
            let fault =
                Fault::new("layer", "the network has no loss in phase TRAIN, so there is nothing to train")
                    .hint("add a layer of type \"SoftmaxWithLoss\", or give a top a loss_weight");
            let last = chosen.last().map_or(&file_site, |l| &l.site);
            return Err(fault.at(last, "network"));
        }
        net.find_gradients();
        Ok(net)
    }

    /// Gives gradients to the blobs that need one: those between trained parameters and the loss.
    fn find_gradients(&mut self) {
        let needs = self.needs_gradient();
        let mut under_loss = vec![false; self.blobs.len()];
        for index in (0..self.layers.len()).rev() {
            let layer = &self.layers[index];
            let contributes =
                layer.loss_weights.iter().any(|w| *w != 0.0) || layer.tops.iter().any(|t| under_loss[t.0]);
            self.layers[index].under_loss = contributes;
            if contributes {
                for bottom in self.layers[index].bottoms.clone() {
                    under_loss[bottom.0] = true;
                }
            }
        }
        // Storage by storage of the values, so that in-place layers share their gradient's memory, too.
        let mut of_data: HashMap<StorageId, StorageId> = HashMap::new();
        for index in 0..self.blobs.len() {
            if !(needs[index] && under_loss[index]) {
                continue;
            }
            let blob = &self.blobs[index];
            let producer = self.layer(blob.producer);
            let in_place = !matches!(producer.layer, Layer::Split(_))
                && producer.bottoms.iter().any(|b| self.blob(*b).data == blob.data);
            let count = blob.shape.count();
            let shared = in_place.then(|| of_data.get(&blob.data).copied()).flatten();
            let grad = shared.unwrap_or_else(|| {
                self.storages.push(count);
                StorageId(self.storages.len() - 1)
            });
            of_data.insert(self.blobs[index].data, grad);
            self.blobs[index].grad = Some(grad);
        }
    }

    /// Blobs below which something is trained.
    fn needs_gradient(&self) -> Vec<bool> {
        let mut needs = vec![false; self.blobs.len()];
        for layer in &self.layers {
            let trained = layer.params.iter().any(|p| self.is_trained(*p));
            let differentiable = layer.layer.accesses(SubTask::GradActivation);
            if let (true, Some(accesses)) = (self.force_backward, &differentiable) {
                for operand in &accesses.writes {
                    if let Operand::BottomGrad(i) = operand {
                        needs[layer.bottoms[*i].0] = true;
                    }
                }
            }
            let passes_on = differentiable.is_some() && layer.bottoms.iter().any(|b| needs[b.0]);
            for top in &layer.tops {
                needs[top.0] = trained || passes_on;
            }
        }
        needs
    }
}

/// A version of a blob in the file: the top `top` of the chosen layer `layer`.
type Version = (usize, usize);

/// How often each version is read.
fn count_readers(layers: &[&LayerSpec]) -> HashMap<Version, usize> {
    let mut current: HashMap<&str, Version> = HashMap::new();
    let mut readers = HashMap::new();
    for (index, layer) in layers.iter().enumerate() {
        for bottom in &layer.bottoms {
            if let Some(version) = current.get(bottom.as_str()) {
                *readers.entry(*version).or_insert(0) += 1;
            }
        }
        for (top, name) in layer.tops.iter().enumerate() {
            current.insert(name, (index, top));
        }
    }
    readers
}

struct Builder {
    net: Net,
    loss_share: f32,
    readers: HashMap<Version, usize>,
    /// What the next reader of a name gets: one blob, or the tops of a split, last first.
    current: HashMap<String, Vec<BlobId>>,
    names: HashMap<String, u32>,
}

impl Builder {
    fn new(spec: &NetSpec, state: &NetState, loss_share: f32, readers: HashMap<Version, usize>) -> Self {
        let net = Net {
            name: spec.name.clone(),
            file: spec.file.clone(),
            phase: state.phase,
            layers: Vec::new(),
            blobs: Vec::new(),
            storages: Vec::new(),
            aux: Vec::new(),
            params: ParamLayout::default(),
            force_backward: spec.force_backward,
        };
        Self { net, loss_share, readers, current: HashMap::new(), names: HashMap::new() }
    }

    fn add(&mut self, index: usize, spec: &LayerSpec) -> Result<(), Fault> {
        if let Some(line) = self.names.insert(spec.name.clone(), spec.site.line) {
            return Err(Fault::new("name", format!("another layer has this name (line {line})")));
        }
        check_arity(spec)?;
        let bottoms = self.take_bottoms(spec)?;
        let shapes: Vec<Shape> = bottoms.iter().map(|b| self.net.blob(*b).shape.clone()).collect();
        let inferred = spec.layer.infer(&shapes)?;
        let params = self.add_params(spec, &inferred)?;
        let aux = inferred
            .aux
            .iter()
            .map(|shape| {
                self.net.aux.push(shape.count());
                AuxId(self.net.aux.len() - 1)
            })
            .collect();
        let id = LayerId(self.net.layers.len());
        let tops = self.add_tops(id, spec, &bottoms, &inferred)?;
        let loss_weights = self.loss_weights(spec, tops.len())?;
        for bottom in &bottoms {
            self.net.blobs[bottom.0].readers += 1;
        }
        self.net.layers.push(NetLayer {
            name: spec.name.clone(),
            site: spec.site.clone(),
            layer: spec.layer.clone(),
            bottoms,
            tops: tops.clone(),
            params,
            aux,
            loss_weights,
            under_loss: false,
        });
        for (top, name) in spec.tops.iter().enumerate() {
            self.offer(name, tops[top], self.readers.get(&(index, top)).copied().unwrap_or(0));
        }
        Ok(())
    }

    /// The blobs that the layer reads.
    fn take_bottoms(&mut self, spec: &LayerSpec) -> Result<Vec<BlobId>, Fault> {
        let mut bottoms = Vec::with_capacity(spec.bottoms.len());
        for name in &spec.bottoms {
            let Some(offered) = self.current.get_mut(name) else {
                let known: Vec<&str> = self.current.keys().map(String::as_str).collect();
                let fault = Fault::new("bottom", format!("no layer above makes the blob {name:?}"));
                return Err(match did_you_mean(name, known) {
                    Some(close) => fault.hint(format!("did you mean {close:?}?")),
                    None => fault,
                });
            };
            // A split offers one blob to each reader; a single blob stays for readers that cannot exist.
            let blob = if offered.len() > 1 { offered.pop() } else { offered.last().copied() };
            bottoms.extend(blob);
        }
        Ok(bottoms)
    }

    fn add_params(&mut self, spec: &LayerSpec, inferred: &Inferred) -> Result<Vec<ParamId>, Fault> {
        if spec.params.len() > inferred.params.len() {
            return Err(Fault::new(
                "param",
                format!(
                    "{} given, but the layer has {} parameters",
                    spec.params.len(),
                    inferred.params.len()
                ),
            ));
        }
        let mut ids = Vec::new();
        for (i, param) in inferred.params.iter().enumerate() {
            let said = spec.params.get(i).cloned().unwrap_or_default();
            ids.push(self.net.params.push(ParamView {
                name: format!("{}/{i}", spec.name),
                shape: param.shape.clone(),
                offset: 0,
                lr_mult: said.lr_mult,
                decay_mult: said.decay_mult,
                filler: param.filler.clone(),
            }));
        }
        Ok(ids)
    }

    fn add_tops(
        &mut self,
        id: LayerId,
        spec: &LayerSpec,
        bottoms: &[BlobId],
        inferred: &Inferred,
    ) -> Result<Vec<BlobId>, Fault> {
        let mut tops = Vec::new();
        // A loss without a top makes one, as in Caffe.
        let automatic = [format!("(loss of {})", spec.name)];
        let names = if spec.tops.is_empty() && spec.layer.is_loss() { &automatic[..] } else { &spec.tops };
        for (i, name) in names.iter().enumerate() {
            let reads = spec.bottoms.iter().position(|b| b == name);
            let storage = match reads {
                Some(bottom) => {
                    if bottom != i || !spec.layer.works_in_place() {
                        return Err(Fault::new(
                            "top",
                            format!(
                                "{name:?} is also a bottom, but {} cannot work in place",
                                spec.layer.type_name()
                            ),
                        )
                        .hint("give the top a name of its own"));
                    }
                    // Others read the bottom, too: it was split and must keep its values.
                    let split = matches!(
                        self.net.layer(self.net.blob(bottoms[bottom]).producer).layer,
                        Layer::Split(_)
                    );
                    (!split).then(|| self.net.blob(bottoms[bottom]).data)
                }
                None if self.current.contains_key(name) => {
                    return Err(Fault::new("top", format!("another layer already makes the blob {name:?}")));
                }
                None => None,
            };
            tops.push(self.add_blob(name, &inferred.tops[i], id, storage));
        }
        Ok(tops)
    }

    fn add_blob(
        &mut self,
        name: &str,
        shape: &Shape,
        producer: LayerId,
        storage: Option<StorageId>,
    ) -> BlobId {
        let data = storage.unwrap_or_else(|| {
            self.net.storages.push(shape.count());
            StorageId(self.net.storages.len() - 1)
        });
        let (name, shape) = (name.to_owned(), shape.clone());
        self.net.blobs.push(Blob { name, shape, data, grad: None, producer, readers: 0 });
        BlobId(self.net.blobs.len() - 1)
    }

    fn loss_weights(&self, spec: &LayerSpec, tops: usize) -> Result<Vec<f32>, Fault> {
        if spec.loss_weights.len() > tops {
            return Err(Fault::new(
                "loss_weight",
                format!("{} given, but the layer has {tops} tops", spec.loss_weights.len()),
            ));
        }
        if spec.loss_weights.iter().any(|w| *w != 0.0) && !spec.layer.is_loss() {
            let kind = spec.layer.type_name();
            return Err(Fault::new("loss_weight", format!("a layer of type {kind} cannot be a loss here")));
        }
        let default = |i: usize| if i == 0 && spec.layer.is_loss() { 1.0 } else { 0.0 };
        Ok((0..tops)
            .map(|i| self.loss_share * spec.loss_weights.get(i).copied().unwrap_or(default(i)))
            .collect())
    }

    /// Makes `blob` known under `name`, through a split if several layers read it.
    fn offer(&mut self, name: &str, blob: BlobId, readers: usize) {
        if readers < 2 {
            self.current.insert(name.to_owned(), vec![blob]);
            return;
        }
        let id = LayerId(self.net.layers.len());
        let (shape, data) = (self.net.blob(blob).shape.clone(), self.net.blob(blob).data);
        let tops: Vec<BlobId> = (0..readers).map(|_| self.add_blob(name, &shape, id, Some(data))).collect();
        self.net.blobs[blob.0].readers += 1;
        let producer = self.net.layer(self.net.blob(blob).producer);
        let (site, owner) = (producer.site.clone(), producer.name.clone());
        self.net.layers.push(NetLayer {
            name: format!("{name}_{owner}_split"),
            site,
            layer: Layer::Split(Split { tops: readers }),
            bottoms: vec![blob],
            tops: tops.clone(),
            params: Vec::new(),
            aux: Vec::new(),
            loss_weights: vec![0.0; readers],
            under_loss: false,
        });
        self.current.insert(name.to_owned(), tops.into_iter().rev().collect());
    }
}

fn check_arity(spec: &LayerSpec) -> Result<(), Fault> {
    let arity = spec.layer.arity();
    let kind = spec.layer.type_name();
    for (field, given, range) in
        [("bottom", spec.bottoms.len(), arity.bottoms), ("top", spec.tops.len(), arity.tops)]
    {
        if !range.contains(&given) {
            let (low, high) = (*range.start(), *range.end());
            let expected = if low == high { format!("{low}") } else { format!("{low} to {high}") };
            let expected = if high == usize::MAX { format!("at least {low}") } else { expected };
            return Err(Fault::new(field, format!("{given} given; a layer of type {kind} has {expected}")));
        }
    }
    Ok(())
}
