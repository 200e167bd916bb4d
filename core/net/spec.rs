//! What a network file says, before anything is inferred from it.

use std::fmt;
use std::sync::Arc;

use crate::layer::Layer;
use crate::site::Site;

/// Whether a net trains or tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Forward, backward and update.
    Train,
    /// Forward only.
    Test,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Train => "TRAIN",
            Self::Test => "TEST",
        })
    }
}

/// The state of a net, which decides the layers that belong to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetState {
    /// Training or testing.
    pub phase: Phase,
    /// Level, for `min_level` and `max_level`.
    pub level: i32,
    /// Stages, for `stage` and `not_stage`.
    pub stages: Vec<String>,
}

impl NetState {
    /// Level 0, no stages.
    pub fn new(phase: Phase) -> Self {
        Self { phase, level: 0, stages: Vec::new() }
    }
}

/// A condition on the state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StateRule {
    /// The phase it asks for.
    pub phase: Option<Phase>,
    /// Smallest level.
    pub min_level: Option<i32>,
    /// Largest level.
    pub max_level: Option<i32>,
    /// Stages that must all be there.
    pub stages: Vec<String>,
    /// Stages of which none may be there.
    pub not_stages: Vec<String>,
}

impl StateRule {
    /// Whether `state` meets every condition.
    pub fn holds(&self, state: &NetState) -> bool {
        self.phase.is_none_or(|p| p == state.phase)
            && self.min_level.is_none_or(|l| state.level >= l)
            && self.max_level.is_none_or(|l| state.level <= l)
            && self.stages.iter().all(|s| state.stages.contains(s))
            && !self.not_stages.iter().any(|s| state.stages.contains(s))
    }
}

/// What layers that share a parameter must have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ShareMode {
    /// Its shape.
    #[default]
    Strict,
    /// The number of its values.
    Permissive,
}

/// What a layer says about one of its parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ParamSpec {
    /// Its name. Layers that give the same name share the parameter; the first of them says how it starts.
    pub name: Option<String>,
    /// How much it must be like that of the layers above that share it.
    pub share: ShareMode,
    /// Factor of the learning rate, 1 unless said; 0 freezes the parameter.
    pub lr_mult: Option<f32>,
    /// Factor of the weight decay, 1 unless said.
    pub decay_mult: Option<f32>,
}

impl ParamSpec {
    /// A parameter of the layer's own with these factors of the learning rate and of the weight decay.
    pub fn with(lr_mult: f32, decay_mult: f32) -> Self {
        Self { lr_mult: Some(lr_mult), decay_mult: Some(decay_mult), ..Self::default() }
    }
}

/// One layer of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Its name.
    pub name: String,
    /// Where it stands.
    pub site: Site,
    /// Type and parameters.
    pub layer: Layer,
    /// Names of the blobs it reads.
    pub bottoms: Vec<String>,
    /// Names of the blobs it makes.
    pub tops: Vec<String>,
    /// What it says about its parameters, in order.
    pub params: Vec<ParamSpec>,
    /// Weights of its tops in the loss: none, or one for each.
    pub loss_weights: Vec<f32>,
    /// Whether gradients go down: none, or one for each bottom. `false` stops the gradient to that bottom unless
    /// the net forces backward; `true` says nothing new, since a layer below which nothing is trained has no use
    /// for a gradient.
    pub propagate_down: Vec<bool>,
    /// The layer belongs to a state if one of these holds …
    pub include: Vec<StateRule>,
    /// … or, without those, if none of these does. A layer cannot have both.
    pub exclude: Vec<StateRule>,
}

impl LayerSpec {
    /// A layer with nothing but type and wiring, for programs and tests.
    pub fn new(name: &str, layer: Layer, bottoms: &[&str], tops: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect();
        Self {
            name: name.to_owned(),
            site: Site::made("<program>"),
            layer,
            bottoms: owned(bottoms),
            tops: owned(tops),
            params: Vec::new(),
            loss_weights: Vec::new(),
            propagate_down: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
        }
    }

    /// Whether the layer belongs to a net in `state`.
    pub fn belongs(&self, state: &NetState) -> bool {
        if self.include.is_empty() {
            !self.exclude.iter().any(|rule| rule.holds(state))
        } else {
            self.include.iter().any(|rule| rule.holds(state))
        }
    }
}

/// What a network file says about the state that it is meant for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GivenState {
    /// Its phase; a command that has one of its own goes by that.
    pub phase: Option<Phase>,
    /// Its level.
    pub level: i32,
    /// Its stages.
    pub stages: Vec<String>,
}

/// A network file.
#[derive(Clone, Debug, PartialEq)]
pub struct NetSpec {
    /// The network's name.
    pub name: String,
    /// The file.
    pub file: Arc<str>,
    /// Whether inputs get gradients, too.
    pub force_backward: bool,
    /// What the file says about the state.
    pub state: GivenState,
    /// All layers, of all phases, in order.
    pub layers: Vec<LayerSpec>,
    /// What the user is told about the file: that it was upgraded from an old form, what in it has no effect.
    pub notes: Vec<String>,
}

impl NetSpec {
    /// The state in `phase`, with the level and the stages of the file.
    pub fn state(&self, phase: Phase) -> NetState {
        NetState { phase, level: self.state.level, stages: self.state.stages.clone() }
    }
}
