//! Phases that share their weights: a net whose parameters lie where another has them.

use super::{LayerId, Net, NetLayer};
use crate::site::{Fault, SpecError, did_you_mean};

impl Net {
    /// The same net with the packed buffer of `other`, such as a test network with that of the training. What a layer has there is what
    /// the layer of the same name has, as in Caffe (`ShareTrainedLayersWith`): fillers, factors of rates and the order of layers
    /// may be others, and `other` may have more layers, such as a loss aside that is only trained.
    ///
    /// # Errors
    /// If a layer with parameters has no such counterpart, or one of other shapes: with the place of the layer in its file.
    pub fn with_params_of(mut self, other: &Self) -> Result<Self, SpecError> {
        for id in (0..self.layers.len()).map(LayerId) {
            let layer = self.layer(id);
            if layer.params.is_empty() {
                continue;
            }
            let fails = |fault: Fault| fault.at(&layer.site, &format!("layer {:?}", layer.name));
            let same = other.layers.iter().position(|l| l.name == layer.name && !l.params.is_empty());
            let Some(same) = same.map(LayerId) else { return Err(fails(self.stranger(layer, other))) };
            let [here, there] = [self.param_shapes(id), other.param_shapes(same)];
            if here != there {
                let shapes = |shapes: &[_]| {
                    let each: Vec<String> = shapes.iter().map(|shape| format!("{shape}")).collect();
                    each.join(" and ")
                };
                let (here, there, phase) = (shapes(&here), shapes(&there), other.phase);
                return Err(fails(Fault::new(
                    "",
                    format!("parameters of {here}, but of {there} in phase {phase}, whose weights it shares"),
                )));
            }
            self.layers[id.0].params = other.layer(same).params.clone();
        }
        self.params = other.params.clone();
        Ok(self)
    }

    /// What is wrong with a layer that the other net does not have.
    fn stranger(&self, layer: &NetLayer, other: &Self) -> Fault {
        let (here, there) = (self.phase, other.phase);
        let message = format!(
            "it has parameters in phase {here}, but phase {there}, whose weights it shares, has no such layer"
        );
        let untaken = other
            .layers
            .iter()
            .filter(|l| !l.params.is_empty() && self.layers.iter().all(|here| here.name != l.name))
            .map(|l| l.name.as_str());
        let fault = Fault::new("name", message);
        match did_you_mean(&layer.name, untaken) {
            Some(name) => fault.hint(format!("is it {name:?} there? Give both the same name")),
            None => fault.hint("give layers with parameters the same names in both phases"),
        }
    }
}
