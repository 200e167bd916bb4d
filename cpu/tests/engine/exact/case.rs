//! A layer between inputs and a loss, and the arrays that it works on.

use quadrille_core::layer::{Layer, Operand, SubTask};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetState, Phase, StorageId};
use quadrille_core::plan::{Plan, Stage};
use quadrille_core::reference::{Arrays, Context, Real, compute};
use quadrille_core::rng::Draw;
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
    gradients: bool,
    /// Whether its bottoms are the tops of convolutions, which lie in blocks on tiers with vectors.
    pub after_blocks: bool,
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
        Self::build(layer, bottoms, Around { gradients: true, ..Around::default() })
    }

    /// With bottoms in blocks of channels, on tiers that have them.
    pub fn blocked(layer: Layer, bottoms: &[&[usize]]) -> Self {
        Self::build(layer, bottoms, Around { gradients: true, after_blocks: true, ..Around::default() })
    }

    /// Not in place and in place, plain and, if it is an image, in blocks.
    pub fn everywhere(layer: Layer, bottom: &[usize]) -> Vec<Self> {
        let in_place = layer.works_in_place().then(|| Self::in_place(layer.clone(), bottom));
        let mut cases: Vec<Self> = std::iter::once(Self::new(layer, &[bottom])).chain(in_place).collect();
        let blocked: Vec<Self> = cases.iter().filter_map(Self::in_blocks).collect();
        cases.extend(blocked);
        cases
    }

    /// On images, which need no gradient.
    pub fn of_images(layer: Layer, bottom: &[usize]) -> Self {
        Self::build(layer, &[bottom], Around::default())
    }

    pub fn in_place(layer: Layer, bottom: &[usize]) -> Self {
        Self::build(layer, &[bottom], Around { in_place: true, gradients: true, ..Around::default() })
    }

    pub fn zeros(self, why: &'static str) -> Self {
        Self { zeros: Some(why), ..self }
    }

    pub fn scaled(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    fn build(layer: Layer, bottoms: &[&[usize]], around: Around) -> Self {
        let bottoms: Vec<Shape> = bottoms.iter().map(|dims| Shape::new(*dims)).collect();
        let net = build_net(&layer, &bottoms, around);
        let is_it = |l: &quadrille_core::net::NetLayer| match &layer {
            Layer::Split(_) => matches!(l.layer, Layer::Split(_)) && l.name.starts_with("x0"),
            _ => l.name == "it",
        };
        let id = LayerId(net.layers.iter().position(is_it).expect("the layer is in its net"));
        let Around { in_place, gradients, after_blocks } = around;
        Self { layer, bottoms, in_place, gradients, after_blocks, zeros: None, scale: 1.0, seed: 1, net, id }
    }

    /// The same with its bottoms in blocks of channels, if they are images.
    pub fn in_blocks(&self) -> Option<Self> {
        let bottoms: Vec<&[usize]> = self.bottoms.iter().map(Shape::dims).collect();
        let Self { in_place, gradients, zeros, scale, seed, .. } = *self;
        let around = Around { in_place, gradients, after_blocks: true };
        let case = || Self { zeros, scale, seed, ..Self::build(self.layer.clone(), &bottoms, around) };
        (self.gradients && !self.after_blocks && bottoms.iter().any(|dims| dims.len() == 4)).then(case)
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
                draw: Draw { layer: self.id.0 as u32, ..Draw::default() },
                share: self.net.share,
            };
            compute(&ctx, sub, arrays);
        }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let place = if self.in_place { " in place" } else { "" };
        let place = if self.after_blocks { format!("{place} after blocks") } else { place.to_owned() };
        write!(f, "{:?}{place} on {:?} seed {}", self.layer, self.bottoms, self.seed)
    }
}

/// What stands around the layer.
#[derive(Clone, Copy, Default)]
struct Around {
    in_place: bool,
    /// Whether its bottoms get gradients.
    gradients: bool,
    /// Whether its bottoms are the tops of convolutions, which lie in blocks on tiers with vectors.
    after_blocks: bool,
}

/// Inputs, the layer, and a loss on each of its tops, so that all its gradients exist.
fn build_net(layer: &Layer, bottoms: &[Shape], around: Around) -> Net {
    let Around { in_place, gradients, after_blocks } = around;
    let names: Vec<String> = (0..bottoms.len()).map(|i| format!("x{i}")).collect();
    let mut layers: Vec<LayerSpec> = Vec::new();
    for (i, (name, shape)) in names.iter().zip(bottoms).enumerate() {
        if !after_blocks || shape.axes() != 4 {
            layers.push(input(name, shape.dims()));
            continue;
        }
        let raw = format!("raw{i}");
        layers.push(input(&raw, shape.dims()));
        let convolution = Layer::Convolution(common::convolution(shape.dim(1), [1, 1]));
        layers.push(LayerSpec::new(&format!("blocks{i}"), convolution, &[&raw], &[name]));
    }
    let bottoms: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut heads = vec![if in_place { "x0" } else { "top" }];
    match layer {
        Layer::Split(split) => heads = vec!["x0"; split.tops],
        Layer::SoftmaxWithLoss(_) | Layer::InfogainLoss(_) => {
            layers.push(LayerSpec::new("it", layer.clone(), &bottoms, &["top", "p"]));
            heads.clear();
        }
        Layer::Accuracy(_) => {
            layers.push(LayerSpec::new("it", layer.clone(), &bottoms, &["top", "by class"]));
        }
        _ if layer.is_loss() => {
            layers.push(LayerSpec::new("it", layer.clone(), &bottoms, &heads));
            heads.clear();
        }
        Layer::Filter(filter) => {
            let tops = &["top", "top1", "top2"][..filter.bottoms - 1];
            layers.push(LayerSpec::new("it", layer.clone(), &bottoms, tops));
        }
        Layer::Slice(slice) => {
            heads = ["top", "top1", "top2", "top3"][..slice.tops].to_vec();
            layers.push(LayerSpec::new("it", layer.clone(), &bottoms, &heads));
        }
        _ => layers.push(LayerSpec::new("it", layer.clone(), &bottoms, &heads)),
    }
    // What has no gradient cannot stand above what is trained.
    let ends = matches!(layer, Layer::Accuracy(_) | Layer::ArgMax(_) | Layer::Filter(_));
    let phase = if ends { Phase::Test } else { Phase::Train };
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
