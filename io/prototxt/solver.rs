//! From the message SolverParameter to core's [`SolverSpec`].

mod nets;
mod policy;
mod rule;

use quadrille_core::site::{Fault, SpecError, did_you_mean};
use quadrille_core::solver::{Policy, RuleKind, SolverSpec};

use super::fields::{finite, typed};
use super::inline::Inline;
use super::message::Parsed;
use crate::schema::solver_parameter::SnapshotFormat;
use crate::schema::{Phase, SolverParameter};
use nets::Networks;

/// Most losses that are averaged: bounds what a file can ask for.
const MAX_AVERAGE: u64 = 1 << 20;

/// `inline` are the networks that stand in the file.
pub(super) fn convert(parsed: &Parsed, inline: Vec<Inline>) -> Result<SolverSpec, SpecError> {
    let read = || -> Result<SolverSpec, Fault> {
        let solver: SolverParameter = typed(&parsed.message)?;
        let networks = Networks::new(&solver, inline)?;
        let (rule, policy) = (rule::rule(&solver)?, policy::policy(&solver)?);
        let test_nets = networks.tests(&solver)?;
        let test_interval = count(solver.test_interval(), "test_interval")?;
        Ok(SolverSpec {
            site: parsed.site.clone(),
            train_net: networks.train(),
            train_state: nets::state(solver.train_state.as_ref(), "train_state", Phase::Train)?,
            weights: weights(&solver),
            base_lr: policy::base_lr(&solver, &policy)?,
            warmup: policy::warmup(&solver)?,
            ignored: ignored(&solver, rule.kind, &policy),
            policy,
            rule,
            iter_size: required_count(Some(solver.iter_size()), "iter_size")?,
            average_loss: average_loss(&solver)?,
            max_iter: max_iter(&solver)?,
            display: count(solver.display(), "display")?,
            test_interval: if test_nets.is_empty() { 0 } else { test_interval },
            test_nets,
            test_compute_loss: solver.test_compute_loss(),
            test_initialization: solver.test_initialization(),
            debug_info: solver.debug_info(),
            snapshot: count(solver.snapshot(), "snapshot")?,
            undone: undone(&solver),
            snapshot_after_train: solver.snapshot_after_train(),
            snapshot_hdf5: solver.snapshot_format() == SnapshotFormat::Hdf5,
            seed: u64::try_from(solver.random_seed()).ok(),
        })
    };
    read().map_err(|fault| fault.at(&parsed.site, "solver"))
}

/// The files of weights to start from; one field can name several, with commas in between.
fn weights(solver: &SolverParameter) -> Vec<String> {
    let files = solver.weights.iter().flat_map(|files| files.split(','));
    files.map(|file| file.trim().to_owned()).filter(|file| !file.is_empty()).collect()
}

/// The first field that asks for what no training does yet.
fn undone(solver: &SolverParameter) -> Option<String> {
    let fields = [
        ("disabled_update", solver.disabled_update()),
        ("local_lr_auto", solver.local_lr_auto()),
        ("eval_type", solver.eval_type() != "classification"),
    ];
    fields.iter().find(|(_, given)| *given).map(|(field, _)| (*field).to_owned())
}

fn average_loss(solver: &SolverParameter) -> Result<u64, Fault> {
    match required_count(Some(solver.average_loss()), "average_loss")? {
        window if window <= MAX_AVERAGE => Ok(window),
        window => Err(Fault::new("average_loss", format!("{window}; expected at most {MAX_AVERAGE}"))),
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

/// Iterations of the training; 0 if the file leaves them to the command.
fn max_iter(solver: &SolverParameter) -> Result<u64, Fault> {
    solver.max_iter.map_or(Ok(0), |given| required_count(Some(given), "max_iter"))
}

fn not_negative(value: f32, field: &str) -> Result<f32, Fault> {
    if finite(value, field)? < 0.0 {
        return Err(Fault::new(field, format!("{value}; expected at least 0")));
    }
    Ok(value)
}

/// Fields that were given and have no effect here.
fn ignored(solver: &SolverParameter, kind: RuleKind, policy: &Policy) -> Vec<String> {
    let stages_given = !solver.stagelr.is_empty() || !solver.stageiter.is_empty();
    let in_stages = matches!(policy, Policy::MultiFixed(_));
    let given = [
        ("solver_mode (flags choose the device)", solver.solver_mode.is_some()),
        ("device_id (flags choose the device)", solver.device_id.is_some()),
        ("engine", solver.engine.is_some()),
        ("layer_wise_reduce", solver.layer_wise_reduce.is_some()),
        ("test_interval (there is no test_iter)", solver.test_iter.is_empty() && solver.test_interval() > 0),
        (
            "snapshot_prefix (snapshots go into the run folder, which --run names)",
            solver.snapshot_prefix.is_some(),
        ),
        ("snapshot_diff (gradients are not stored)", solver.snapshot_diff()),
        (
            "warmup_start_lr (there is no warmup_iter)",
            solver.warmup_start_lr.is_some() && solver.warmup_iter() == 0,
        ),
        ("ap_version (precision of detection is not measured)", solver.ap_version.is_some()),
        ("show_per_class_result (outputs of tests are all shown)", solver.show_per_class_result.is_some()),
        ("test_offset (tests begin with the first iterations)", solver.test_offset() != 0),
        ("local_gw_ratio (local_lr_auto is off)", solver.local_gw_ratio.is_some()),
        (
            "plateau_winsize (the policy is another)",
            !solver.plateau_winsize.is_empty() && !matches!(policy, Policy::Plateau { .. }),
        ),
        ("stagelr, stageiter (the policy is another)", stages_given && !in_stages),
        (
            "base_lr (each stage has its rate)",
            in_stages && solver.base_lr.is_some() && solver.warmup_iter() == 0,
        ),
    ];
    let given = given.iter().filter(|(_, given)| *given).map(|(text, _)| (*text).to_owned());
    given.chain(rule::ignored(solver, kind)).collect()
}
