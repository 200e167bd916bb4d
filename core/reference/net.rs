//! A whole net, layer by layer in the order of the file.

use super::{Arrays, Context, Real, compute};
use crate::layer::{Operand, SubTask};
use crate::net::{Blob, BlobId, LayerId, Net, ParamId, StorageId};
use crate::rng::Draw;

/// A net with all its values and gradients.
///
/// Arrays lie as the net lays them out, so that an in-place layer overwrites its bottom as in Caffe, and so does a storage
/// the one that lay in its memory before.
/// Each sub-task is given exactly the arrays that [`Net::accesses`] declares; one that needs more panics.
#[derive(Clone, Debug)]
pub struct ReferenceNet<T> {
    net: Net,
    /// All storages.
    memory: Vec<T>,
    /// Where each begins.
    starts: Vec<usize>,
    aux: Vec<Vec<T>>,
    params: Vec<Vec<T>>,
    param_grads: Vec<Vec<T>>,
    /// Seed of the step and first image.
    draw: Draw,
}

impl<T: Real> ReferenceNet<T> {
    /// The net with 0 everywhere.
    ///
    /// # Panics
    /// If the net shares memory in which its storages do not fit, or in which they lie inside others, as blocks of
    /// channels do.
    pub fn new(net: Net) -> Self {
        let parts = net.memory.iter().flat_map(|memory| &memory.parts);
        assert!(parts.flatten().next().is_none(), "the oracle's images lie side by side");
        let zeros = |count: usize| vec![T::ZERO; count];
        let mut end = 0;
        let starts: Vec<usize> = match &net.memory {
            Some(memory) => memory.ranges.iter().map(|range| range.start).collect(),
            None => net.storages.iter().map(|count| (end, end += count).0).collect(),
        };
        let ends = starts.iter().zip(&net.storages).map(|(start, count)| start + count);
        let params: Vec<Vec<T>> = net.params.views().iter().map(|v| zeros(v.shape.count())).collect();
        Self {
            memory: zeros(ends.max().unwrap_or(0)),
            starts,
            aux: net.aux.iter().map(|count| zeros(*count)).collect(),
            param_grads: params.clone(),
            params,
            net,
            draw: Draw::default(),
        }
    }

    /// The net's description.
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// Takes all parameters from a packed buffer (see [`crate::net::ParamLayout`]).
    ///
    /// # Panics
    /// If the buffer is shorter than the layout.
    pub fn set_params(&mut self, packed: &[f32]) {
        for (param, view) in self.params.iter_mut().zip(self.net.params.views()) {
            *param = packed[view.range()].iter().map(|value| T::from_f32(*value)).collect();
        }
    }

    /// Puts values into an input of the net: the first blob of this name.
    ///
    /// # Panics
    /// If there is no such blob, or if it has another number of elements.
    pub fn set_input(&mut self, name: &str, values: &[T]) {
        let blob = self.blobs_named(name).next().unwrap_or_else(|| panic!("there is no blob {name:?}"));
        let storage = blob.data;
        self.storage_mut(storage).copy_from_slice(values);
    }

    /// Says what layers draw from in the coming steps, and which image of the worker's mini-batch is the net's first.
    pub fn set_draw(&mut self, seed: u64, first_image: usize) {
        self.draw = Draw { seed, first_image: first_image as u64, ..self.draw };
    }

    /// Runs every layer forward.
    pub fn forward(&mut self) {
        for index in 0..self.net.layers.len() {
            self.run(LayerId(index), SubTask::Forward);
        }
    }

    /// Runs every layer backward, after forward. Gradients of parameters are replaced, not accumulated; those of
    /// frozen ones stay 0.
    pub fn backward(&mut self) {
        for index in (0..self.net.layers.len()).rev() {
            // A layer in place puts the gradient of its bottom where that of its top was: that comes last.
            for sub in [SubTask::GradWeight, SubTask::GradBias, SubTask::GradActivation] {
                self.run(LayerId(index), sub);
            }
            for (own, param) in self.net.layer(LayerId(index)).grads_to_add() {
                let sum = self.param_grads[param.0].iter_mut();
                sum.zip(&self.aux[own.0]).for_each(|(sum, own)| *sum += *own);
            }
        }
    }

    /// The loss: the sum of all loss tops by their weights.
    pub fn loss(&self) -> T {
        let mut sum = T::ZERO;
        for (blob, weight) in self.net.losses() {
            let values = self.storage(self.net.blob(blob).data);
            values.iter().for_each(|value| sum += T::from_f32(weight) * *value);
        }
        sum
    }

    /// Values of a blob; after layers in place, what the last of them left, and in shared memory whatever the last user
    /// left.
    pub fn blob(&self, name: &str) -> Option<&[T]> {
        self.blobs_named(name).last().map(|blob| self.storage(blob.data))
    }

    /// Gradient of a blob; of several by this name that below the first layer in place or split, as Caffe keeps it. In
    /// shared memory it is whatever the last user left.
    pub fn blob_grad(&self, name: &str) -> Option<&[T]> {
        self.blobs_named(name).find_map(|blob| blob.grad).map(|id| self.storage(id))
    }

    /// State number `index` of a layer, such as the positions of maxima.
    pub fn aux(&self, layer: &str, index: usize) -> Option<&[T]> {
        let layer = self.net.layers.iter().find(|l| l.name == layer)?;
        layer.aux.get(index).map(|id| self.aux[id.0].as_slice())
    }

    /// Values of the parameter `layer/index`.
    pub fn param(&self, name: &str) -> Option<&[T]> {
        self.param_id(name).map(|ParamId(index)| self.params[index].as_slice())
    }

    /// Values of the parameter `layer/index`, to be changed.
    pub fn param_mut(&mut self, name: &str) -> Option<&mut [T]> {
        self.param_id(name).map(|ParamId(index)| self.params[index].as_mut_slice())
    }

    /// Gradient of the parameter `layer/index`.
    pub fn param_grad(&self, name: &str) -> Option<&[T]> {
        self.param_id(name).map(|ParamId(index)| self.param_grads[index].as_slice())
    }

    fn param_id(&self, name: &str) -> Option<ParamId> {
        self.net.params.views().iter().position(|view| view.name == name).map(ParamId)
    }

    fn blobs_named(&self, name: &str) -> impl Iterator<Item = &Blob> {
        self.net.blobs.iter().filter(move |blob| blob.name == name)
    }

    /// Runs one sub-task of one layer on copies of what it reads, if the net has it.
    fn run(&mut self, id: LayerId, sub: SubTask) {
        let Some(accesses) = self.net.accesses(id, sub) else { return };
        let mut arrays = Arrays::new();
        for operand in accesses.reads {
            arrays.insert(operand, self.array(id, operand).to_vec());
        }
        let layer = self.net.layer(id);
        let ctx = Context {
            layer: &layer.layer,
            bottoms: &self.net.bottom_shapes(id),
            tops: &self.net.top_shapes(id),
            loss_weights: &layer.loss_weights,
            draw: Draw { layer: id.0 as u32, ..self.draw },
            share: self.net.share,
        };
        compute(&ctx, sub, &mut arrays);
        for operand in accesses.writes {
            let values = arrays.take(operand).expect("a sub-task writes what it declares");
            self.array(id, operand).copy_from_slice(&values);
        }
    }

    fn storage(&self, id: StorageId) -> &[T] {
        &self.memory[self.starts[id.0]..][..self.net.storages[id.0]]
    }

    fn storage_mut(&mut self, id: StorageId) -> &mut [T] {
        &mut self.memory[self.starts[id.0]..][..self.net.storages[id.0]]
    }

    /// Where an operand of a layer lies.
    fn array(&mut self, id: LayerId, operand: Operand) -> &mut [T] {
        let layer = self.net.layer(id);
        let data = |blob: BlobId| self.net.blob(blob).data;
        let grad = |blob: BlobId| self.net.blob(blob).grad.expect("accesses names gradients that exist");
        match operand {
            Operand::Bottom(i) => self.storage_mut(data(layer.bottoms[i])),
            Operand::Top(i) => self.storage_mut(data(layer.tops[i])),
            Operand::BottomGrad(i) => self.storage_mut(grad(layer.bottoms[i])),
            Operand::TopGrad(i) => self.storage_mut(grad(layer.tops[i])),
            Operand::Param(i) => &mut self.params[layer.params[i].0],
            Operand::ParamGrad(i) => match layer.own_grad(i) {
                Some(own) => &mut self.aux[own.0],
                None => &mut self.param_grads[layer.params[i].0],
            },
            Operand::Aux(i) => &mut self.aux[layer.aux[i].0],
        }
    }
}
