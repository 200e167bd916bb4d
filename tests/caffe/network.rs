//! A fixture's network, with what stands for the gradients that Caffe was given.

use quadrille_core::layer::{Filler, InnerProduct, Input, Layer, Normalization, SoftmaxWithLoss};
use quadrille_core::net::{LayerSpec, Net, NetSpec, NetState, ParamRule, Phase};
use quadrille_core::site::SpecError;
use quadrille_io::npz::Archive;
use quadrille_io::prototxt::parse_net;

use crate::fixture::{Case, phase, singles, under};

/// So far below every score that its probability is 0.
const HOPELESS: f32 = -1e9;

/// A network and all that is to be put into it.
pub struct Prepared {
    pub net: Net,
    /// Values of inputs by blob.
    pub inputs: Vec<(String, Vec<f32>)>,
    /// Values of parameters by `layer/index`.
    pub params: Vec<(String, Vec<f32>)>,
}

impl Prepared {
    /// The packed buffer of weights.
    pub fn weights(&self) -> Vec<f32> {
        let mut packed = vec![0.0; self.net.params.len()];
        for view in self.net.params.views() {
            let (_, values) =
                self.params.iter().find(|(name, _)| *name == view.name).unwrap_or_else(|| {
                    panic!("{}: the fixture has no parameter {}", self.net.name, view.name)
                });
            packed[view.range()].copy_from_slice(values);
        }
        packed
    }

    /// Whether the statistics of the parameter `name` go on by themselves, and what stays of them.
    pub fn running_sum(&self, name: &str) -> Option<f32> {
        let view = self.net.params.views().iter().find(|view| view.name == name)?;
        match view.rule {
            ParamRule::RunningSum { fraction } => Some(fraction),
            ParamRule::Gradient => None,
        }
    }
}

/// The network in the phase of the fixture.
///
/// # Errors
/// What the file asks for that is not built yet.
pub fn prepare(case: &Case, arrays: &Archive) -> Result<Prepared, SpecError> {
    prepare_in(phase(arrays), case, arrays)
}

/// The network in a phase.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_in(phase: Phase, case: &Case, arrays: &Archive) -> Result<Prepared, SpecError> {
    let owned =
        |prefix| under(arrays, prefix).map(|(name, array)| (name.to_owned(), singles(array).to_vec()));
    let mut spec = parse_net(case.network(), &case.path(".prototxt").display().to_string())?;
    let mut inputs: Vec<_> = owned("in/").collect();
    let mut params: Vec<_> = owned("param/").collect();
    if phase == Phase::Train {
        for (blob, seed) in owned("seed/") {
            if let [seed] = seed[..] {
                weigh(&mut spec, &blob, seed);
                continue;
            }
            let label = format!("(label of the seed of {blob})");
            let product = add_seed(&mut spec, &blob, &label);
            let zeros = std::iter::repeat_n(0.0, seed.len());
            params.push((format!("{product}/0"), seed.iter().copied().chain(zeros).collect()));
            params.push((format!("{product}/1"), vec![0.0, HOPELESS]));
            inputs.push((label, vec![1.0]));
        }
    }
    let net = Net::build(&spec, &NetState::new(phase), 1.0)?;
    Ok(Prepared { net, inputs, params })
}

/// Makes a blob of one value a part of the loss, by the weight that is its gradient. An inner product has no axis there.
fn weigh(spec: &mut NetSpec, blob: &str, seed: f32) {
    let maker = spec.layers.iter_mut().rfind(|layer| layer.tops.iter().any(|top| top == blob));
    let maker = maker.expect("a layer makes the blob");
    maker.loss_weights = maker.tops.iter().map(|top| if top == blob { seed } else { 0.0 }).collect();
}

/// Adds layers whose gradient at `blob` is the weights of the first of two scores, exactly: the second is hopeless and
/// the answer all the same, so that the loss's gradient at the scores is 1 and −1, and the weights of the second are 0.
/// Returns the name of the layer with the weights.
fn add_seed(spec: &mut NetSpec, blob: &str, label: &str) -> String {
    let (product, loss) = (format!("(seed of {blob})"), format!("(loss of the seed of {blob})"));
    let scores = Layer::InnerProduct(InnerProduct {
        num_output: 2,
        bias: true,
        axis: 0,
        transpose: false,
        weight_filler: Filler::default(),
        bias_filler: Filler::default(),
    });
    let normalization = Normalization::Valid;
    let softmax = Layer::SoftmaxWithLoss(SoftmaxWithLoss { axis: 0, ignore_label: None, normalization });
    let input = Layer::Input(Input { shapes: vec![vec![1]], tops: 1 });
    spec.layers.extend([
        LayerSpec::new(label, input, &[], &[label]),
        LayerSpec::new(&product, scores, &[blob], &[&product]),
        LayerSpec::new(&loss, softmax, &[&product, label], &[&loss]),
    ]);
    product
}
