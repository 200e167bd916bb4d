//! A layer between inputs and a loss, and the arrays that it works on.

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetState, Phase, StorageId};
use quadrille_core::plan::{Plan, Stage};
use quadrille_core::reference::{Arrays, Context, Real, compute};
use quadrille_core::shape::Shape;

use crate::common::{self, inner_product, input, integers, loss};

/// The arithmetic sub-tasks.
pub const SUBS: [SubTask; 4] =
    [SubTask::Forward, SubTask::GradActivation, SubTask::GradWeight, SubTask::GradBias];

/// A layer on bottoms of given shapes.
pub struct Case {
    pub layer: Layer,
    pub bottoms: Vec<Shape>,
    pub in_place: bool,
    /// Whether the bottoms are convolutions' tops, which lie in blocks of channels on tiers with vectors.
    pub blocked: bool,
    /// Why most of the results may be 0, if they may.
    pub zeros: Option<&'static str>,
    /// Factor of the integers in the tops' gradients, for what is divided later.
    pub scale: f32,
    pub seed: u64,
    pub net: Net,
    pub id: LayerId,
}

impl Case {
    pub fn new(layer: Layer, bottoms: &[&[usize]]) -> Self {
        Self::build(layer, bottoms, [false, false], true)
    }

    /// Plain, and below convolutions, whose tops lie in blocks; not in place and in place.
    pub fn everywhere(layer: Layer, bottom: &[usize]) -> Vec<Self> {
        let forms = [[false, false], [true, false], [false, true], [true, true]];
        // A convolution makes images.
        let possible = forms.into_iter().filter(|[in_place, blocked]| {
            (!in_place || layer.works_in_place()) && (!blocked || bottom.len() == 4)
        });
        possible.map(|form| Self::build(layer.clone(), &[bottom], form, true)).collect()
    }

    /// Below convolutions, whose tops lie in blocks.
    pub fn blocked(layer: Layer, bottoms: &[&[usize]]) -> Self {
        Self::build(layer, bottoms, [false, true], true)
    }

    /// On images, which need no gradient.
    pub fn of_images(layer: Layer, bottom: &[usize]) -> Self {
        Self::build(layer, &[bottom], [false, false], false)
    }

    pub fn in_place(layer: Layer, bottom: &[usize]) -> Self {
        Self::build(layer, &[bottom], [true, false], true)
    }

    pub fn zeros(self, why: &'static str) -> Self {
        Self { zeros: Some(why), ..self }
    }

    pub fn scaled(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    fn build(layer: Layer, bottoms: &[&[usize]], [in_place, blocked]: [bool; 2], gradients: bool) -> Self {
        let bottoms: Vec<Shape> = bottoms.iter().map(|dims| Shape::new(*dims)).collect();
        let net = build_net(&layer, &bottoms, [in_place, blocked], gradients);
        let is_it = |l: &quadrille_core::net::NetLayer| match &layer {
            Layer::Split(_) => {
                matches!(l.layer, Layer::Split(_)) && l.name.starts_with(if blocked { "b0" } else { "x0" })
            }
            _ => l.name == "it",
        };
        let id = LayerId(net.layers.iter().position(is_it).expect("the layer is in its net"));
        Self { layer, bottoms, in_place, blocked, zeros: None, scale: 1.0, seed: 1, net, id }
    }

    pub fn plan(&self) -> Plan {
        let stage = if self.net.phase == Phase::Train { Stage::Iteration } else { Stage::Forward };
        common::plan(std::slice::from_ref(&self.net), stage)
    }

    /// The blob's values or gradient behind an operand.
    pub fn storage(&self, operand: Operand) -> Option<StorageId> {
        let layer = self.net.layer(self.id);
        let blob = |blobs: &[quadrille_core::net::BlobId], i: usize| self.net.blob(blobs[i]).clone();
        match operand {
            Operand::Bottom(i) => Some(blob(&layer.bottoms, i).data),
            Operand::Top(i) => Some(blob(&layer.tops, i).data),
            Operand::BottomGrad(i) => blob(&layer.bottoms, i).grad,
            Operand::TopGrad(i) => blob(&layer.tops, i).grad,
            Operand::Param(_) | Operand::ParamGrad(_) | Operand::Aux(_) => None,
        }
    }

    /// Integers for the bottoms, the parameters and the gradients of the tops.
    pub fn integers(&self) -> Arrays<f32> {
        let layer = self.net.layer(self.id);
        let mut arrays = Arrays::new();
        for (i, shape) in self.bottoms.iter().enumerate() {
            arrays.insert(Operand::Bottom(i), integers(self.seed + i as u64, shape.count(), 4));
        }
        for (i, param) in layer.params.iter().enumerate() {
            let count = self.net.params.view(*param).shape.count();
            arrays.insert(Operand::Param(i), integers(self.seed + 10 + i as u64, count, 4));
        }
        for (i, top) in layer.tops.iter().enumerate() {
            let blob = self.net.blob(*top);
            let mut values = integers(self.seed + 20 + i as u64, blob.shape.count(), 4);
            values.iter_mut().for_each(|v| *v *= self.scale);
            if blob.grad.is_some() {
                arrays.insert(Operand::TopGrad(i), values);
            }
        }
        arrays
    }

    /// What the oracle makes of `arrays`, forward first.
    pub fn reference<T: Real>(&self, arrays: &mut Arrays<T>) {
        self.compute(&SUBS, arrays);
    }

    /// What the oracle makes of `arrays` in backward alone.
    pub fn backward<T: Real>(&self, arrays: &mut Arrays<T>) {
        self.compute(&SUBS[1..], arrays);
    }

    fn compute<T: Real>(&self, subs: &[SubTask], arrays: &mut Arrays<T>) {
        for sub in subs.iter().copied().filter(|sub| self.net.accesses(self.id, *sub).is_some()) {
            let ctx = Context {
                layer: &self.layer,
                bottoms: &self.bottoms,
                tops: &self.net.top_shapes(self.id),
                loss_weights: &self.net.layer(self.id).loss_weights,
                share: self.net.share,
            };
            compute(&ctx, sub, arrays);
        }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.in_place { " in place" } else { "" };
        let below = if self.blocked { " of convolutions" } else { "" };
        write!(f, "{:?}{place} on {:?}{below} seed {}", self.layer, self.bottoms, self.seed)
    }
}

/// Inputs, the layer, and a loss on each of its tops, so that all its gradients exist; those of the inputs only with
/// `gradients`.
fn build_net(layer: &Layer, bottoms: &[Shape], [in_place, blocked]: [bool; 2], gradients: bool) -> Net {
    let names: Vec<String> = (0..bottoms.len()).map(|i| format!("x{i}")).collect();
    let mut layers: Vec<LayerSpec> =
        names.iter().zip(bottoms).map(|(name, shape)| input(name, shape.dims())).collect();
    for (i, (name, shape)) in names.iter().zip(bottoms).enumerate().filter(|_| blocked) {
        let layer = Layer::Convolution(common::convolution(shape.dim(1), [1, 1]));
        layers.push(LayerSpec::new(&format!("below{i}"), layer, &[name], &[&format!("b{i}")]));
    }
    let names: Vec<String> =
        if blocked { (0..bottoms.len()).map(|i| format!("b{i}")).collect() } else { names };
    let bottoms: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut heads = vec![if in_place { bottoms[0] } else { "top" }];
    match layer {
        Layer::Split(split) => heads = vec![bottoms[0]; split.tops],
        Layer::SoftmaxWithLoss(_) => {
            layers.push(LayerSpec::new("it", layer.clone(), &bottoms, &["top", "p"]));
            heads.clear();
        }
        _ => layers.push(LayerSpec::new("it", layer.clone(), &bottoms, &heads)),
    }
    let phase = if matches!(layer, Layer::Accuracy(_)) { Phase::Test } else { Phase::Train };
    if phase == Phase::Test {
        heads.clear();
    }
    for (i, head) in heads.iter().enumerate() {
        // Over all axes, so that it takes tops of any shape.
        let mut ip = inner_product(2);
        ip.axis = 0;
        let [name, score, label, loss_name] = ["head", "score", "label", "loss"].map(|n| format!("{n}{i}"));
        layers.push(input(&label, &[1]));
        layers.push(LayerSpec::new(&name, Layer::InnerProduct(ip), &[head], &[&score]));
        layers.push(LayerSpec::new(&loss_name, loss(-1), &[&score, &label], &[&loss_name]));
    }
    let spec = common::network(layers, gradients);
    Net::build(&spec, &NetState::new(phase), 1.0).expect("the case is possible")
}
