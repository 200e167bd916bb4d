//! From the message SolverParameter to core's [`SolverSpec`].

use quadrille_core::site::{Fault, SpecError, did_you_mean};
use quadrille_core::solver::{Decay, Policy, SgdRule, SolverSpec};

use super::fields::{finite, typed, unsupported};
use super::message::Parsed;
use crate::schema::SolverParameter;
use crate::schema::solver_parameter::SolverType;

const POLICIES: [&str; 7] = ["fixed", "step", "exp", "inv", "multistep", "poly", "sigmoid"];
const TYPES: [&str; 6] = ["SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam"];

pub(super) fn convert(parsed: &Parsed) -> Result<SolverSpec, SpecError> {
    let read = || -> Result<SolverSpec, Fault> {
        let solver: SolverParameter = typed(&parsed.message)?;
        check_networks(&solver)?;
        check_rule(&solver)?;
        let (test_interval, test_iter) = tests(&solver)?;
        Ok(SolverSpec {
            site: parsed.site.clone(),
            net: solver.net.clone().unwrap_or_default(),
            base_lr: base_lr(&solver)?,
            policy: policy(&solver)?,
            rule: rule(&solver)?,
            max_iter: required_count(solver.max_iter, "max_iter")?,
            display: count(solver.display(), "display")?,
            test_interval,
            test_iter,
            test_initialization: solver.test_initialization(),
            snapshot: count(solver.snapshot(), "snapshot")?,
            snapshot_after_train: solver.snapshot_after_train(),
            seed: u64::try_from(solver.random_seed()).ok(),
            ignored: ignored(&solver),
        })
    };
    read().map_err(|fault| fault.at(&parsed.site, "solver"))
}

/// There is one network, in a file of its own, for training and testing.
fn check_networks(solver: &SolverParameter) -> Result<(), Fault> {
    let hint = "give one network for both phases: net: \"train_val.prototxt\", with include { phase: ... } in its layers";
    let refused = [
        ("net_param", solver.net_param.is_some()),
        ("train_net", solver.train_net.is_some()),
        ("train_net_param", solver.train_net_param.is_some()),
        ("test_net", !solver.test_net.is_empty()),
        ("test_net_param", !solver.test_net_param.is_empty()),
    ];
    if let Some((field, _)) = refused.iter().find(|(_, given)| *given) {
        return Err(unsupported(field, "this way to name a network is").hint(hint));
    }
    if solver.net.as_ref().is_none_or(String::is_empty) {
        return Err(Fault::new("net", "missing").hint("name the network file: net: \"train_val.prototxt\""));
    }
    let states =
        [("train_state", solver.train_state.is_some()), ("test_state", !solver.test_state.is_empty())];
    if let Some((field, _)) = states.iter().find(|(_, given)| *given) {
        return Err(unsupported(field, "a state in the solver file is"));
    }
    if !solver.weights.is_empty() {
        return Err(unsupported("weights", "weights in the solver file are").hint("use the flag -weights"));
    }
    Ok(())
}

/// Refuses what would change the meaning of a step.
fn check_rule(solver: &SolverParameter) -> Result<(), Fault> {
    if solver.solver_type.is_some() && solver.r#type.is_some() {
        return Err(
            Fault::new("solver_type", "conflicts with type").hint("remove solver_type; it is the old form")
        );
    }
    if solver.solver_type() != SolverType::Sgd {
        let name = solver.solver_type().as_str_name();
        return Err(unsupported("solver_type", &format!("the solver {name} is")).hint("use type: \"SGD\""));
    }
    let kind = solver.r#type();
    if kind != "SGD" {
        if TYPES.contains(&kind) {
            return Err(unsupported("type", &format!("the solver {kind:?} is")).hint("use type: \"SGD\""));
        }
        return Err(not_among("type", "solver", kind, &TYPES));
    }
    let refused = [
        (
            "clip_gradients",
            "clipping gradients is",
            solver.clip_gradients() >= 0.0 || solver.clip_gradients().is_nan(),
        ),
        ("iter_size", "summing gradients over several mini-batches is", solver.iter_size() != 1),
        ("disabled_update", "training without updates is", solver.disabled_update()),
        ("warmup_iter", "a warm-up of the learning rate is", solver.warmup_iter() != 0),
        ("local_lr_auto", "a learning rate for each layer is", solver.local_lr_auto()),
    ];
    match refused.iter().find(|(_, _, given)| *given) {
        Some((field, what, _)) => Err(unsupported(field, what)),
        None => Ok(()),
    }
}

fn not_among(field: &str, what: &str, word: &str, known: &[&str]) -> Fault {
    let fault = Fault::new(field, format!("unknown {what} {word:?}; expected one of {}", known.join(", ")));
    match did_you_mean(word, known.iter().copied()) {
        Some(close) => fault.hint(format!("did you mean {close:?}?")),
        None => fault,
    }
}

fn count(value: i32, field: &str) -> Result<u64, Fault> {
    u64::try_from(value).map_err(|_| Fault::new(field, format!("{value}; expected at least 0")))
}

fn required_count(value: Option<i32>, field: &str) -> Result<u64, Fault> {
    match value {
        Some(value) if value > 0 => count(value, field),
        Some(value) => Err(Fault::new(field, format!("{value}; expected at least 1"))),
        None => Err(Fault::new(field, "missing; expected at least 1")),
    }
}

/// Interval and length of the tests; both 0 without tests.
fn tests(solver: &SolverParameter) -> Result<(u64, u64), Fault> {
    let interval = count(solver.test_interval(), "test_interval")?;
    match solver.test_iter[..] {
        // In Caffe, too, the number of test_iter is the number of test nets.
        [] => Ok((0, 0)),
        [batches] => {
            let batches = required_count(Some(batches), "test_iter")?;
            if interval == 0 {
                return Err(Fault::new("test_interval", "missing or 0, but test_iter asks for tests")
                    .hint("say after how many iterations to test, or remove test_iter"));
            }
            Ok((interval, batches))
        }
        _ => Err(unsupported("test_iter", "more than one test network is")),
    }
}

fn base_lr(solver: &SolverParameter) -> Result<f32, Fault> {
    let rate = solver.base_lr.ok_or_else(|| {
        Fault::new("base_lr", "missing")
            .hint("give the learning rate at the start: base_lr: 0.01, for example")
    })?;
    not_negative(rate, "base_lr")
}

fn not_negative(value: f32, field: &str) -> Result<f32, Fault> {
    if finite(value, field)? < 0.0 {
        return Err(Fault::new(field, format!("{value}; expected at least 0")));
    }
    Ok(value)
}

fn rule(solver: &SolverParameter) -> Result<SgdRule, Fault> {
    let decay = match solver.regularization_type() {
        "L2" => Decay::L2,
        "L1" => Decay::L1,
        other => return Err(not_among("regularization_type", "penalty", other, &["L2", "L1"])),
    };
    Ok(SgdRule {
        momentum: not_negative(solver.momentum(), "momentum")?,
        weight_decay: not_negative(solver.weight_decay(), "weight_decay")?,
        decay,
    })
}

fn policy(solver: &SolverParameter) -> Result<Policy, Fault> {
    let Some(name) = solver.lr_policy.as_deref() else {
        return Err(Fault::new("lr_policy", format!("missing; expected one of {}", POLICIES.join(", "))));
    };
    let needed = |value: Option<f32>, field: &str| match value {
        Some(value) => not_negative(value, field),
        None => Err(Fault::new(field, format!("missing; lr_policy {name:?} needs it"))),
    };
    let gamma = || needed(solver.gamma, "gamma");
    let power = || needed(solver.power, "power");
    let step = || match solver.stepsize {
        None => Err(Fault::new("stepsize", format!("missing; lr_policy {name:?} needs it"))),
        given => required_count(given, "stepsize"),
    };
    Ok(match name {
        "fixed" => Policy::Fixed,
        "step" => Policy::Step { gamma: gamma()?, step: step()? },
        "exp" => Policy::Exp { gamma: gamma()? },
        "inv" => Policy::Inv { gamma: gamma()?, power: power()? },
        "multistep" => Policy::MultiStep { gamma: gamma()?, steps: steps(solver)? },
        "poly" => Policy::Poly { power: power()?, max: required_count(solver.max_iter, "max_iter")? },
        "sigmoid" => Policy::Sigmoid { gamma: gamma()?, step: step()? },
        "plateau" => return Err(unsupported("lr_policy", "the policy \"plateau\" is")),
        other => return Err(not_among("lr_policy", "policy", other, &POLICIES)),
    })
}

fn steps(solver: &SolverParameter) -> Result<Vec<u64>, Fault> {
    let steps: Vec<u64> =
        solver.stepvalue.iter().map(|v| count(*v, "stepvalue")).collect::<Result<_, _>>()?;
    if steps.is_empty() {
        return Err(Fault::new("stepvalue", "missing; lr_policy \"multistep\" needs it"));
    }
    match steps.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => {
            Err(Fault::new("stepvalue", format!("{} after {}; expected rising values", pair[1], pair[0])))
        }
        None => Ok(steps),
    }
}

/// Fields that were given and have no effect here.
fn ignored(solver: &SolverParameter) -> Vec<String> {
    let given = [
        ("solver_mode (flags choose the device)", solver.solver_mode.is_some()),
        ("device_id (flags choose the device)", solver.device_id.is_some()),
        ("engine", solver.engine.is_some()),
        ("layer_wise_reduce", solver.layer_wise_reduce.is_some()),
        ("average_loss (the loss is printed as it is)", solver.average_loss() != 1),
        ("debug_info", solver.debug_info()),
        ("test_compute_loss", solver.test_compute_loss()),
        ("test_interval (there is no test_iter)", solver.test_iter.is_empty() && solver.test_interval() > 0),
        ("snapshot_prefix (the run folder is used)", solver.snapshot_prefix.is_some()),
        ("snapshot_format (snapshots are safetensors)", solver.snapshot_format.is_some()),
        ("snapshot_diff", solver.snapshot_diff()),
        ("momentum2 (SGD has none)", solver.momentum2.is_some()),
        ("rms_decay (SGD has none)", solver.rms_decay.is_some()),
        ("delta (SGD has none)", solver.delta.is_some()),
        ("warmup_start_lr (there is no warmup_iter)", solver.warmup_start_lr.is_some()),
        ("local_gw_ratio (local_lr_auto is off)", solver.local_gw_ratio.is_some()),
        ("plateau_winsize (the policy is another)", !solver.plateau_winsize.is_empty()),
    ];
    given.iter().filter(|(_, given)| *given).map(|(text, _)| (*text).to_owned()).collect()
}
