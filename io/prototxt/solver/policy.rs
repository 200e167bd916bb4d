//! The learning rate: base, policy, warm-up.

use quadrille_core::site::Fault;
use quadrille_core::solver::{Policy, Warmup};

use super::{count, max_iter, not_among, not_negative, required_count};
use crate::schema::SolverParameter;

const POLICIES: [&str; 8] = ["fixed", "step", "exp", "inv", "multistep", "poly", "sigmoid", "plateau"];

pub(super) fn base_lr(solver: &SolverParameter) -> Result<f32, Fault> {
    let rate = solver.base_lr.ok_or_else(|| {
        Fault::new("base_lr", "missing")
            .hint("give the learning rate at the start: base_lr: 0.01, for example")
    })?;
    not_negative(rate, "base_lr")
}

pub(super) fn warmup(solver: &SolverParameter) -> Result<Option<Warmup>, Fault> {
    let iterations = count(solver.warmup_iter(), "warmup_iter")?;
    let start = not_negative(solver.warmup_start_lr(), "warmup_start_lr")?;
    Ok((iterations > 0).then_some(Warmup { iterations, start }))
}

pub(super) fn policy(solver: &SolverParameter) -> Result<Policy, Fault> {
    let Some(name) = solver.lr_policy.as_deref() else {
        return Err(Fault::new("lr_policy", format!("missing; expected one of {}", POLICIES.join(", "))));
    };
    let missing = |field: &str| {
        Fault::new(field, format!("missing; lr_policy {name:?} needs it"))
            .hint(format!("write {field}, or choose lr_policy: \"fixed\""))
    };
    let needed = |value: Option<f32>, field: &str| match value {
        Some(value) => not_negative(value, field),
        None => Err(missing(field)),
    };
    let gamma = || needed(solver.gamma, "gamma");
    let power = || needed(solver.power, "power");
    let step = || match solver.stepsize {
        None => Err(missing("stepsize")),
        given => required_count(given, "stepsize"),
    };
    Ok(match name {
        "fixed" => Policy::Fixed,
        "step" => Policy::Step { gamma: gamma()?, step: step()? },
        "exp" => Policy::Exp { gamma: gamma()? },
        "inv" => Policy::Inv { gamma: gamma()?, power: power()? },
        "multistep" => Policy::MultiStep { gamma: gamma()?, steps: steps(solver)? },
        "poly" => Policy::Poly { power: power()?, max: max_iter(solver)? },
        "sigmoid" => Policy::Sigmoid { gamma: gamma()?, step: step()? },
        "plateau" => Policy::Plateau { gamma: gamma()?, windows: windows(solver)? },
        other => return Err(not_among("lr_policy", "policy", other, &POLICIES)),
    })
}

fn steps(solver: &SolverParameter) -> Result<Vec<u64>, Fault> {
    let steps: Vec<u64> =
        solver.stepvalue.iter().map(|v| count(*v, "stepvalue")).collect::<Result<_, _>>()?;
    if steps.is_empty() {
        return Err(Fault::new("stepvalue", "missing; lr_policy \"multistep\" needs it")
            .hint("write the iteration of each step: stepvalue: 1000 stepvalue: 2000, for example"));
    }
    match steps.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => {
            Err(Fault::new("stepvalue", format!("{} after {}; expected rising values", pair[1], pair[0])))
        }
        None => Ok(steps),
    }
}

fn windows(solver: &SolverParameter) -> Result<Vec<u64>, Fault> {
    if solver.plateau_winsize.is_empty() {
        return Err(Fault::new("plateau_winsize", "missing; lr_policy \"plateau\" needs it").hint(
            "say after how many iterations without a smaller loss each step is taken: plateau_winsize: 500",
        ));
    }
    let windows = solver.plateau_winsize.iter();
    windows.map(|window| required_count(Some(*window), "plateau_winsize")).collect()
}
