//! A fixture's network, with the gradients that Caffe was given.

use quadrille_core::layer::{Input, Layer, Seed};
use quadrille_core::net::{LayerSpec, Net, NetState, ParamRule, Phase};
use quadrille_core::site::SpecError;
use quadrille_io::npz::Archive;
use quadrille_io::prototxt::parse_net;

use crate::fixture::{Case, phase, singles, under};

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

/// The network in the phase of the fixture, with backward if the fixture has gradients.
///
/// # Errors
/// What the file asks for that is not built yet.
pub fn prepare(case: &Case, arrays: &Archive) -> Result<Prepared, SpecError> {
    let phase = phase(arrays);
    let has_gradients = arrays.keys().any(|key| key.starts_with("diff/") || key.starts_with("pdiff/"));
    prepare_in(phase, phase == Phase::Train || has_gradients, case, arrays)
}

/// The network in a phase, with or without backward.
///
/// # Errors
/// As [`prepare`].
pub fn prepare_in(
    phase: Phase,
    backward: bool,
    case: &Case,
    arrays: &Archive,
) -> Result<Prepared, SpecError> {
    let owned =
        |prefix| under(arrays, prefix).map(|(name, array)| (name.to_owned(), singles(array).to_vec()));
    let mut spec = parse_net(case.network(), &case.path(".prototxt").display().to_string())?;
    let mut inputs: Vec<_> = owned("in/").collect();
    for (blob, seed) in owned("seed/").filter(|_| backward) {
        let (input, begin) = (format!("(seed of {blob})"), format!("(backward from {blob})"));
        let values = Layer::Input(Input { shapes: vec![vec![seed.len()]], tops: 1 });
        spec.layers.push(LayerSpec::new(&input, values, &[], &[&input]));
        spec.layers.push(LayerSpec::new(&begin, Layer::Seed(Seed), &[&blob, &input], &[]));
        inputs.push((input, seed));
    }
    let net = Net::assemble(&spec, &NetState::new(phase), 1.0, backward)?;
    Ok(Prepared { net, inputs, params: owned("param/").collect() })
}
