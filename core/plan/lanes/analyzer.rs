//! The kernel analyzer: equations (1) to (9) of the paper as a mixed-integer linear program.
//!
//! Variables are #K_i, how many of each kernel run at once. As the paper leaves open how #K_i enters (3) to (5), each of the
//! #K_i kernels counts with its own blocks: τ_total = Σ τ_i β_i #K_i. Two things are as in the authors' code
//! (GLP4NN_Caffe, `ParallelDegreeLB`) rather than as in the text:
//!
//! - β_i is #β_i / #SM without rounding. By (8), rounded down, a kernel of fewer blocks than multiprocessors would use nothing.
//! - Of a kernel of more blocks than fit, those of its last wave count. (7) would allow less than one of it, although its
//!   last wave leaves as much idle as a small kernel does.
//!
//! One thing is our own. Where the kernels found leave threads idle, and the host could launch more while they run, there is a
//! lane more than (9) says: of a kernel that does not fit as a whole some blocks do, and the rest follow as others end. Their
//! code has the same effect by rounding the bounds of (7) up. A single kernel counts as leaving threads idle, since they are
//! while its last blocks end and the next of its lane begins.
//!
//! Everything is multiplied by #SM and so is an integer. Of several optima the one of fewest kernels is taken.

use std::fmt;
use std::time::Duration;

use good_lp::solvers::microlp::microlp;
use good_lp::solvers::{SolutionStatus, WithTimeLimit};
use good_lp::{
    Expression, ProblemVariables, ResolutionError, Solution, SolverModel, Variable, WithInitialSolution,
    variable,
};

use super::usage::{KernelUsage, Limits};

/// What an analysis found.
#[derive(Clone, Debug, PartialEq)]
pub struct Concurrency {
    /// #K_i: how many of each kernel run at once.
    pub kernels: Vec<u32>,
    /// The lanes that the layer is worth: C_out, equation (9), and one more where there is something left to fill.
    pub lanes: u32,
    /// OR_SM, equation (1): threads of these kernels, of those that the device holds.
    pub occupancy: f64,
    /// Whether that is known to be the most; else the time was over.
    pub proven: bool,
}

/// Kernels that could not be analyzed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnalysisError {
    /// There are none.
    NoKernels,
    /// A time or limit that is no positive number, or more blocks than can be counted: of which kernel, or of the device.
    Impossible(String),
    /// The solver failed. A bug of the program.
    Solver(String),
}

impl fmt::Display for AnalysisError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKernels => f.write_str("there is no kernel to analyze"),
            Self::Impossible(what) => write!(f, "{what}: expected positive numbers"),
            Self::Solver(reason) => write!(f, "the analysis of kernels failed: {reason}"),
        }
    }
}

impl std::error::Error for AnalysisError {}

/// The program's numbers: everything of the device as a whole.
#[derive(Clone, Debug)]
struct Program {
    /// τ_i β_i #SM.
    threads: Vec<u64>,
    /// sm_i β_i #SM.
    shared: Vec<u64>,
    /// The right side of (7), at least 1: a kernel runs, whatever it takes.
    most: Vec<u32>,
    /// ⌈T_i / T_launch⌉.
    launches: Vec<f64>,
    /// τ_max #SM.
    threads_max: u64,
    /// sm_max #SM.
    shared_max: u64,
    /// C.
    kernels_max: u32,
}

impl Program {
    fn new(kernels: &[KernelUsage], limits: &Limits) -> Result<Self, AnalysisError> {
        let positive = |value: f64| value > 0.0 && value.is_finite();
        if limits.units == 0 || limits.threads == 0 || limits.kernels == 0 || !positive(limits.launch) {
            return Err(AnalysisError::Impossible("the device's limits".into()));
        }
        let threads_max = u64::from(limits.threads) * u64::from(limits.units);
        let shared_max = limits.shared.saturating_mul(limits.units.into());
        let mut program = Self {
            threads: Vec::new(),
            shared: Vec::new(),
            most: Vec::new(),
            launches: Vec::new(),
            threads_max,
            shared_max,
            kernels_max: limits.kernels,
        };
        for kernel in kernels {
            if !positive(kernel.nanoseconds) || kernel.threads == 0 || kernel.blocks == 0 {
                return Err(AnalysisError::Impossible(format!("kernel {}", kernel.name)));
            }
            let blocks = limits.last_wave(kernel);
            // What is larger than the device takes all of it.
            let threads = (u64::from(kernel.threads) * blocks).min(threads_max);
            let shared = kernel.shared.saturating_mul(blocks).min(shared_max);
            let launches = (kernel.nanoseconds / limits.launch).ceil();
            let by_shared = shared_max.checked_div(shared).unwrap_or(u64::MAX);
            let fit = (threads_max / threads).min(by_shared).min(limits.kernels.into());
            program.most.push((launches.min(fit as f64) as u32).max(1));
            program.launches.push(launches);
            program.threads.push(threads);
            program.shared.push(shared);
        }
        Ok(program)
    }

    /// τ_total #SM, and then as few kernels as possible: what is maximised. An integer, exact in f64 within any real device.
    fn weight(&self, kernel: usize) -> f64 {
        (self.threads[kernel] * (u64::from(self.kernels_max) + 1) - 1) as f64
    }

    fn solve(&self, limit: Duration) -> Result<(Vec<u32>, bool), AnalysisError> {
        let mut problem = ProblemVariables::new();
        let counts: Vec<Variable> =
            self.most.iter().map(|most| problem.add(variable().integer().min(0).max(*most))).collect();
        let sum = |of: &dyn Fn(usize) -> f64| -> Expression {
            counts.iter().enumerate().map(|(kernel, count)| of(kernel) * *count).sum()
        };
        let model = problem.maximise(sum(&|kernel| self.weight(kernel))).using(microlp);
        let model = model
            .with(sum(&|kernel| self.shared[kernel] as f64).leq(self.shared_max as f64))
            .with(sum(&|kernel| self.threads[kernel] as f64).leq(self.threads_max as f64))
            .with(sum(&|_| 1.0).leq(self.kernels_max))
            .with(sum(&|_| 1.0).geq(1))
            .with_time_limit(limit.as_secs_f64())
            // One of the first kernel is always possible: whatever time there is, something is found.
            .with_initial_solution(
                counts.iter().enumerate().map(|(kernel, count)| (*count, f64::from(u8::from(kernel == 0)))),
            );
        let solution = match model.solve() {
            Ok(solution) => solution,
            // The time was over before the solver had looked at what it was to begin with.
            Err(ResolutionError::Other(_)) => {
                return Ok(((0..counts.len()).map(|kernel| u32::from(kernel == 0)).collect(), false));
            }
            Err(error) => return Err(AnalysisError::Solver(error.to_string())),
        };
        let value = |count: &Variable| solution.value(*count).round().max(0.0) as u32;
        let proven = matches!(solution.status(), SolutionStatus::Optimal);
        Ok((counts.iter().map(value).collect(), proven))
    }

    /// Whether counts meet (4) to (7).
    fn allows(&self, counts: &[u32]) -> bool {
        let sum = |of: &[u64]| counts.iter().zip(of).map(|(n, each)| u64::from(*n) * each).sum::<u64>();
        sum(&self.threads) <= self.threads_max
            && sum(&self.shared) <= self.shared_max
            && (1..=self.kernels_max).contains(&counts.iter().sum())
            && counts.iter().zip(&self.most).all(|(count, most)| count <= most)
    }
}

/// How many of a layer's kernels, each launched once for every chunk of images, are worth running at once on a device. Takes no
/// longer than about `limit`; then what was found so far counts. That is the solver's clock, the only one here: it may decide how
/// many lanes there are, and so how fast something runs, but never what is computed.
///
/// # Errors
/// If there is no kernel, a figure is impossible, or the solver fails.
pub fn analyze(
    kernels: &[KernelUsage],
    limits: &Limits,
    limit: Duration,
) -> Result<Concurrency, AnalysisError> {
    if kernels.is_empty() {
        return Err(AnalysisError::NoKernels);
    }
    let program = Program::new(kernels, limits)?;
    let (counts, proven) = program.solve(limit)?;
    if !program.allows(&counts) {
        return Err(AnalysisError::Solver(format!("{counts:?} breaks its own constraints")));
    }
    let threads: u64 = counts.iter().zip(&program.threads).map(|(n, each)| u64::from(*n) * each).sum();
    let lanes: u32 = counts.iter().sum();
    let launches = counts.iter().zip(&program.launches).any(|(count, most)| f64::from(*count) < *most);
    let idle = threads < program.threads_max || lanes == 1;
    let more = idle && launches && lanes < program.kernels_max;
    Ok(Concurrency {
        lanes: lanes + u32::from(more),
        occupancy: threads as f64 / program.threads_max as f64,
        kernels: counts,
        proven,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Stream};

    const LIMIT: Duration = Duration::from_secs(60);

    fn limits(units: u32, kernels: u32) -> Limits {
        Limits {
            units,
            blocks: 32,
            threads: 2048,
            registers: 65536,
            shared: 64 << 10,
            kernels,
            launch: 5_000.0,
        }
    }

    fn kernel(name: &str, blocks: u64, threads: u32, shared: u64, microseconds: f64) -> KernelUsage {
        KernelUsage {
            name: name.into(),
            blocks,
            threads,
            registers: 32,
            shared,
            nanoseconds: 1e3 * microseconds,
        }
    }

    /// The best of all counts: most threads, and of those the fewest kernels.
    fn brute_force(program: &Program) -> (u64, u32) {
        let mut counts = vec![0; program.most.len()];
        let mut best = (0, 0);
        loop {
            if program.allows(&counts) {
                let threads: u64 = counts.iter().zip(&program.threads).map(|(n, t)| u64::from(*n) * t).sum();
                let lanes: u32 = counts.iter().sum();
                if threads > best.0 || (threads == best.0 && lanes < best.1) {
                    best = (threads, lanes);
                }
            }
            let Some(at) = (0..counts.len()).find(|at| counts[*at] < program.most[*at]) else { return best };
            counts[at] += 1;
            counts[..at].fill(0);
        }
    }

    #[test]
    fn the_solver_finds_what_trying_all_finds() {
        let stream = Stream::new(7, Purpose::Layer(0), 0);
        let mut draws = (0..).map(|at| stream.bits(at));
        let mut draw = |most: u64| u64::from(draws.next().expect("endless")) % most;
        let mut several = 0;
        for case in 0..300 {
            let limits = limits(1 + draw(60) as u32, 1 + draw(12) as u32);
            let kernels: Vec<KernelUsage> = (0..1 + draw(3))
                .map(|_| {
                    let (blocks, threads) = (1 + draw(200), 32 * (1 + draw(32) as u32));
                    kernel("k", blocks, threads, 512 * draw(64), 1.0 + draw(200) as f64)
                })
                .collect();
            let program = Program::new(&kernels, &limits).expect("possible");
            let found = analyze(&kernels, &limits, LIMIT).expect("a solution");
            let threads: u64 =
                found.kernels.iter().zip(&program.threads).map(|(n, t)| u64::from(*n) * t).sum();
            assert!(found.proven, "case {case}");
            let counted: u32 = found.kernels.iter().sum();
            assert!((counted..=counted + 1).contains(&found.lanes) && found.lanes <= limits.kernels);
            assert_eq!((threads, counted), brute_force(&program), "case {case}: {kernels:?} {limits:?}");
            several += usize::from(found.lanes > 1 && kernels.len() > 1);
        }
        assert!(several > 100, "only {several} cases with something to choose");
    }

    /// By hand: 10 units of 2048 threads. 30 blocks of 256 threads take 7680 of 20480: two fit, and not three.
    #[test]
    fn each_constraint_binds_where_it_should() {
        let device = limits(10, 16);
        let lanes = |kernels: &[KernelUsage], limits: &Limits| {
            analyze(kernels, limits, LIMIT).expect("a solution").lanes
        };
        let one =
            |blocks, threads, shared, microseconds| [kernel("k", blocks, threads, shared, microseconds)];
        assert_eq!(lanes(&one(30, 256, 0, 1e3), &device), 3, "(5): threads; a third finds some room");
        assert_eq!(lanes(&one(30, 256, 0, 1e3), &limits(10, 2)), 2, "and (6)");
        assert_eq!(lanes(&one(30, 256, 11 << 10, 1e3), &device), 2, "(4): shared memory; threads are left");
        assert_eq!(lanes(&one(1, 32, 0, 1e6), &device), 16, "(6): kernels at once");
        assert_eq!(lanes(&one(1, 32, 0, 12.0), &device), 3, "(7): launches while one runs, rounded up");
        assert_eq!(lanes(&one(1, 32, 0, 1.0), &device), 1, "one kernel runs in any case");
        assert_eq!(lanes(&one(80, 256, 0, 1e3), &device), 2, "the next fills what the last blocks leave");
        // Two waves: 80 blocks fill the device, 4 are left.
        assert_eq!(lanes(&one(84, 256, 0, 1e3), &device), 16, "the last wave is what counts");
        let mixed = [kernel("im2col", 40, 256, 0, 1e3), kernel("sgemm", 20, 512, 0, 1e3)];
        let found = analyze(&mixed, &device, LIMIT).expect("a solution");
        assert_eq!((found.kernels.iter().sum::<u32>(), found.occupancy), (2, 1.0), "{found:?}");
    }

    #[test]
    fn what_cannot_be_analyzed_is_refused() {
        let device = limits(10, 16);
        assert_eq!(analyze(&[], &device, LIMIT), Err(AnalysisError::NoKernels));
        for bad in [
            kernel("no time", 1, 32, 0, 0.0),
            kernel("no number", 1, 32, 0, f64::NAN),
            kernel("no blocks", 0, 32, 0, 1.0),
            kernel("no threads", 1, 0, 0, 1.0),
        ] {
            let refused = analyze(std::slice::from_ref(&bad), &device, LIMIT).expect_err("it is impossible");
            assert!(refused.to_string().contains(&bad.name), "{refused}");
        }
        let nothing = Limits { units: 0, ..device };
        let refused = analyze(&[kernel("k", 1, 32, 0, 1.0)], &nothing, LIMIT);
        assert_eq!(refused, Err(AnalysisError::Impossible("the device's limits".into())));
    }

    #[test]
    fn without_time_something_is_found_all_the_same() {
        let kernels: Vec<_> = (0..6).map(|k| kernel("k", 3 + k, 96 + 32 * k as u32, 1000 * k, 1e3)).collect();
        let found = analyze(&kernels, &limits(56, 128), Duration::ZERO).expect("a solution");
        assert!(found.lanes >= 1, "{found:?}");
    }
}
