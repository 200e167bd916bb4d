//! The rule that changes the weights.

use quadrille_core::site::Fault;
use quadrille_core::solver::{Decay, Rule, RuleKind};

use super::{not_among, not_negative};
use crate::prototxt::fields::finite;
use crate::schema::SolverParameter;
use crate::schema::solver_parameter::SolverType;

const TYPES: [&str; 6] = ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"];

pub(super) fn rule(solver: &SolverParameter) -> Result<Rule, Fault> {
    let decay = match solver.regularization_type() {
        "L2" => Decay::L2,
        "L1" => Decay::L1,
        other => return Err(not_among("regularization_type", "penalty", other, &["L2", "L1"])),
    };
    let clip = solver.clip_gradients.map(|norm| finite(norm, "clip_gradients")).transpose()?;
    Ok(Rule {
        kind: kind(solver)?,
        weight_decay: not_negative(solver.weight_decay(), "weight_decay")?,
        decay,
        clip: clip.filter(|norm| *norm >= 0.0),
    })
}

/// The name of the solver, also from the enum of old files.
fn name(solver: &SolverParameter) -> Result<&str, Fault> {
    if solver.solver_type.is_some() && solver.r#type.is_some() {
        return Err(
            Fault::new("solver_type", "conflicts with type").hint("remove solver_type; it is the old form")
        );
    }
    Ok(match solver.solver_type {
        None => solver.r#type(),
        Some(_) => match solver.solver_type() {
            SolverType::Sgd => "SGD",
            SolverType::Nesterov => "Nesterov",
            SolverType::Adagrad => "AdaGrad",
            SolverType::Rmsprop => "RMSProp",
            SolverType::Adadelta => "AdaDelta",
            SolverType::Adam => "Adam",
        },
    })
}

fn kind(solver: &SolverParameter) -> Result<RuleKind, Fault> {
    let name = name(solver)?;
    let momentum = not_negative(solver.momentum(), "momentum")?;
    let delta = not_negative(solver.delta(), "delta")?;
    let without_momentum = || match momentum {
        0.0 => Ok(()),
        _ => Err(Fault::new("momentum", format!("{momentum}; the solver {name:?} has no momentum"))
            .hint("remove it, or use type: \"Adam\", which has one")),
    };
    // A share of what was there before; all of it would let nothing new in.
    let share = |value: f32, field: &str| match not_negative(value, field)? {
        value if value < 1.0 => Ok(value),
        value => Err(Fault::new(field, format!("{value}; {name} expects at least 0 and less than 1"))),
    };
    Ok(match name {
        "SGD" => RuleKind::Sgd { momentum: share(momentum, "momentum")? },
        "Nesterov" => RuleKind::Nesterov { momentum: share(momentum, "momentum")? },
        "AdaGrad" => {
            without_momentum()?;
            RuleKind::AdaGrad { delta }
        }
        "RMSProp" => {
            without_momentum()?;
            RuleKind::RmsProp { decay: share(solver.rms_decay(), "rms_decay")?, delta }
        }
        "AdaDelta" => RuleKind::AdaDelta { momentum: share(momentum, "momentum")?, delta },
        "Adam" => RuleKind::Adam {
            momentum: share(momentum, "momentum")?,
            momentum2: share(solver.momentum2(), "momentum2")?,
            delta,
        },
        other => return Err(not_among("type", "solver", other, &TYPES)),
    })
}

/// The fields of the rule that were given although this solver has none of them.
pub(super) fn ignored(solver: &SolverParameter, kind: RuleKind) -> Vec<String> {
    let momentum2 = matches!(kind, RuleKind::Adam { .. });
    let rms_decay = matches!(kind, RuleKind::RmsProp { .. });
    let delta = !matches!(kind, RuleKind::Sgd { .. } | RuleKind::Nesterov { .. });
    let given = [
        ("momentum2", solver.momentum2.is_some() && !momentum2),
        ("rms_decay", solver.rms_decay.is_some() && !rms_decay),
        ("delta", solver.delta.is_some() && !delta),
    ];
    let given = given.into_iter().filter(|(_, given)| *given);
    given.map(|(field, _)| format!("{field} ({} has none)", kind.name())).collect()
}
