//! The learning rate: base, policy, warm-up.

use quadrille_core::site::Fault;
use quadrille_core::solver::{Policy, RateStage, Warmup};

use super::{count, max_iter, not_among, not_negative, required_count};
use crate::schema::SolverParameter;

const POLICIES: [&str; 9] =
    ["fixed", "step", "exp", "inv", "multistep", "poly", "sigmoid", "plateau", "multifixed"];

/// The rate at the start: that of the first stage where a policy has stages, unless a warm-up ends at another.
pub(super) fn base_lr(solver: &SolverParameter, policy: &Policy) -> Result<f32, Fault> {
    let given = solver.base_lr.map(|rate| not_negative(rate, "base_lr")).transpose()?;
    match policy {
        Policy::MultiFixed(stages) if solver.warmup_iter() <= 0 => {
            Ok(stages.first().map_or(0.0, |stage| stage.rate))
        }
        _ => given.ok_or_else(|| {
            Fault::new("base_lr", "missing")
                .hint("give the learning rate at the start: base_lr: 0.01, for example")
        }),
    }
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
        "multifixed" => Policy::MultiFixed(stages(solver)?),
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
    rising(&steps, "stepvalue")?;
    Ok(steps)
}

fn rising(values: &[u64], field: &str) -> Result<(), Fault> {
    match values.windows(2).find(|pair| pair[0] >= pair[1]) {
        Some(pair) => {
            Err(Fault::new(field, format!("{} after {}; expected rising values", pair[1], pair[0])))
        }
        None => Ok(()),
    }
}

/// The stages of Intel's fork, whose solver takes the first with a `stageiter` that the iteration does not exceed.
fn stages(solver: &SolverParameter) -> Result<Vec<RateStage>, Fault> {
    let (rates, ends) = (&solver.stagelr, &solver.stageiter);
    if rates.is_empty() {
        return Err(Fault::new("stagelr", "missing; lr_policy \"multifixed\" needs it").hint(
            "write the rate of each stage and its last iteration: stagelr: 0.1 stageiter: 1000, for example",
        ));
    }
    if rates.len() != ends.len() {
        let message = format!("{} values for {} of stagelr; expected as many", ends.len(), rates.len());
        return Err(Fault::new("stageiter", message)
            .hint("write the last iteration of each stage: stageiter: 1000, for example"));
    }
    let ends: Vec<u64> = ends.iter().map(|end| count(*end, "stageiter")).collect::<Result<_, _>>()?;
    rising(&ends, "stageiter")?;
    let stage = |(rate, last): (&f32, u64)| Ok(RateStage { rate: not_negative(*rate, "stagelr")?, last });
    rates.iter().zip(ends).map(stage).collect()
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
