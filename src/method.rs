//! What a method asks of the solver and the flags.

use quadrille_comm::choice::{Algorithm, Choice};
use quadrille_comm::protocol::Method;
use quadrille_core::site::Fault;
use quadrille_core::solver::{RuleKind, SolverSpec, easgd};

use crate::cli::TrainArgs;
use crate::failure::{Code, Failure};

fn usage(message: String) -> Failure {
    Failure::new(Code::Usage, message)
}

/// The names of the methods for which `is` holds.
fn names(is: fn(Method) -> bool) -> String {
    let names: Vec<&str> = Method::ALL.into_iter().filter(|method| is(*method)).map(Method::name).collect();
    names.join(", ")
}

/// What `--help` says of `--method`.
pub fn help() -> String {
    let mut text = "How workers exchange:".to_owned();
    for method in Method::ALL {
        text += &format!("\n  {:<15} {}", method.name(), method.summary());
    }
    text + "\nsync-easgd means sync-easgd3"
}

/// Applies `--momentum`, and makes the rule one that the method can have. Returns the momentum that was set aside for that.
/// A single worker can have any.
pub fn fit_rule(solver: &mut SolverSpec, args: &TrainArgs, workers: usize) -> Result<Option<f32>, Failure> {
    if let Some(asked) = args.momentum {
        take_momentum(solver, asked)?;
    }
    let method = args.method;
    if workers == 1 {
        return Ok(None);
    }
    let fits = match solver.rule.kind {
        RuleKind::Sgd { .. } => true,
        RuleKind::Nesterov { .. } => !method.sends_gradients() || method == Method::AsyncMsgd,
        _ => !method.sends_gradients(),
    };
    if !fits {
        let (kind, most) =
            (solver.rule.kind.name(), if method == Method::AsyncMsgd { "SGD or Nesterov" } else { "SGD" });
        let fault = Fault::new("type", format!("\"{kind}\", but {method} needs {most}"));
        let hint = "the elastic methods and sync-sgd take any type";
        return Err(fault.hint(hint).at(&solver.site, "solver").into());
    }
    if !method.is_plain() {
        return Ok(None);
    }
    if let Some(asked) = args.momentum.filter(|asked| *asked > 0.0) {
        let message = format!("--momentum {asked}: {method} is the method without momentum");
        let hint = match method {
            Method::AsyncSgd => "; with it, it is async-msgd",
            Method::AsyncEasgd => "; with it, it is async-measgd",
            _ => "",
        };
        return Err(usage(message + hint));
    }
    match &mut solver.rule.kind {
        RuleKind::Sgd { momentum } | RuleKind::Nesterov { momentum } => {
            Ok(Some(std::mem::take(momentum)).filter(|aside| *aside != 0.0))
        }
        _ => Ok(None),
    }
}

fn take_momentum(solver: &mut SolverSpec, asked: f32) -> Result<(), Failure> {
    match &mut solver.rule.kind {
        _ if !(0.0..1.0).contains(&asked) => {
            Err(usage(format!("--momentum {asked}: expected a number of at least 0 and below 1")))
        }
        RuleKind::Sgd { momentum }
        | RuleKind::Nesterov { momentum }
        | RuleKind::AdaDelta { momentum, .. }
        | RuleKind::Adam { momentum, .. } => {
            *momentum = asked;
            Ok(())
        }
        kind @ (RuleKind::AdaGrad { .. } | RuleKind::RmsProp { .. }) => {
            Err(usage(format!("--momentum {asked}: the solver's type {} has no momentum", kind.name())))
        }
    }
}

/// The elastic coefficient of several workers; 0 where no centre pulls.
pub fn rho(solver: &SolverSpec, args: &TrainArgs, workers: usize) -> Result<f32, Failure> {
    let (method, rate) = (args.method, solver.highest_rate());
    if workers == 1 || !method.is_elastic() {
        return match args.rho {
            None => Ok(0.0),
            Some(rho) => Err(usage(format!(
                "--rho {rho}: only the elastic methods ({}) with at least 2 workers have a centre that pulls",
                names(Method::is_elastic)
            ))),
        };
    }
    let rho = args.rho.unwrap_or_else(|| easgd::recommended_rho(workers, rate));
    // What pulls on the centre at once: all workers, or one.
    let pulling = if method.is_synchronous() { workers } else { 1 };
    if rho.is_finite() && rho >= 0.0 && rho * rate * pulling as f32 <= 1.0 {
        return Ok(rho);
    }
    Err(usage(format!(
        "--rho {rho}: with {workers} workers under {method} and base_lr {rate} the centre is stable only for 0 <= rho <= {}",
        1.0 / (pulling as f32 * rate)
    )))
}

/// How several workers sum, and whether they do it array by array.
///
/// # Errors
/// If the flags ask for what the method or the number of workers cannot have.
pub fn collective(args: &TrainArgs, workers: usize) -> Result<(Choice, bool), Failure> {
    let (method, choice, unpacked) = (args.method, args.collective, args.unpacked);
    let who = if workers == 1 { "a single worker".to_owned() } else { method.to_string() };
    let sums = |method: Method| method.is_synchronous();
    let cuts = |method: Method| method.is_synchronous() || method == Method::OriginalEasgd;
    if choice != Choice::Auto && (workers == 1 || !sums(method)) {
        let others = names(sums);
        return Err(usage(format!(
            "--collective: {who} sums nothing over all workers; {others} with at least 2 workers do"
        )));
    }
    if unpacked && (workers == 1 || !cuts(method)) {
        let others = names(cuts);
        return Err(usage(format!("--unpacked: {who} cannot; {others} with at least 2 workers can")));
    }
    match choice {
        Choice::Fixed(algorithm) if !algorithm.serves(workers) => Err(usage(format!(
            "--collective {algorithm}: {workers} workers are no power of two; tree and auto give the same bits as doubling would"
        ))),
        Choice::Fixed(Algorithm::Ring) if unpacked => Err(usage(
            "--unpacked: pieces of a ring are cut without regard to arrays; take --collective tree or doubling".to_owned(),
        )),
        choice => Ok((choice, unpacked)),
    }
}

/// Iterations from one exchange of a worker to its next.
pub fn period(args: &TrainArgs, workers: usize) -> Result<u64, Failure> {
    let Some(period) = args.period else { return Ok(1) };
    if workers > 1 && args.method.is_elastic() {
        return Ok(period);
    }
    let reason = match workers {
        1 => "a single worker has nobody to exchange with".to_owned(),
        _ => format!(
            "{} exchanges gradients, of which none may be left out; for fewer exchanges of more images give the solver an \
             iter_size",
            args.method
        ),
    };
    Err(usage(format!("--period {period}: {reason}")))
}

/// Refuses workers on different kinds of devices where each keeps the weights of all by its own arithmetic.
pub fn check_devices(args: &TrainArgs, workers: usize) -> Result<(), Failure> {
    let device = &args.machine.device;
    if args.method != Method::SyncSgd || workers == 1 || !device.is_mixed() {
        return Ok(());
    }
    let message = format!(
        "--device {device}: with sync-sgd all workers have the same weights, and quadrants and GPUs round differently, so they \
         would drift apart\n  hint: the elastic methods (--method sync-easgd3) pull workers together"
    );
    Err(Failure::new(Code::Usage, message))
}
