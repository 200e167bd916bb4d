//! Solvers: eight iterations of a small LeNet from Caffe's parameters, and the second four from Caffe's own snapshot.

use std::collections::BTreeMap;

use quadrille_core::device::Packed;
use quadrille_core::net::{Net, NetState, Phase};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::solver::{SolverSpec, Step, update};
use quadrille_io::npz::{Archive, Values};
use quadrille_io::prototxt::{parse_net, read_solver};
use quadrille_io::{NetWeights, SolverState};

use crate::bounds::NET;
use crate::by_engine::{Run, options, tiers};
use crate::compared::{Report, doubles};
use crate::fixture::{Case, cases, singles, under};

/// Solvers of fixtures that come with the sources and are not built yet, and the fixtures.
const NOT_BUILT: &[(&str, &[&str])] = &[("Adam", &["adam"]), ("Nesterov", &["nesterov"])];
/// Of the four fixtures, how many can be run.
const RUNNABLE: usize = 2;
/// After how many iterations Caffe's parameters are stored, and where.
const STORED: [(u64, &str); 3] = [(1, "iter1/"), (4, "iter4/"), (8, "final/")];
/// Iterations before Caffe's snapshot.
const SNAPSHOT: u64 = 4;

/// A solver with its network and mini-batches.
struct Training {
    solver: SolverSpec,
    net: Net,
    arrays: Archive,
}

/// What changes in a training: packed weights and histories.
#[derive(Clone)]
struct State {
    weights: Vec<f32>,
    histories: Vec<f32>,
}

impl Training {
    /// The training of a fixture; nothing if its solver is not built yet.
    fn new(case: &Case) -> Option<Self> {
        let solver = read_solver(&case.path(".prototxt")).ok()?;
        let text = std::fs::read_to_string(case.beside(&solver.net)).expect("the network of the solvers");
        let spec = parse_net(&text, &solver.net).expect("a network");
        let net = Net::build(&spec, &NetState::new(Phase::Train), 1.0).expect("a network");
        Some(Self { solver, net, arrays: case.arrays() })
    }

    fn start(&self) -> State {
        let len = self.net.params.len();
        let mut weights = vec![0.0; len];
        for view in self.net.params.views() {
            let initial = &self.arrays[&format!("init/{}", view.name)];
            weights[view.range()].copy_from_slice(singles(initial));
        }
        State { weights, histories: vec![0.0; len] }
    }

    /// The mini-batch: there is one, and every iteration takes it.
    fn inputs(&self) -> impl Iterator<Item = (&str, &[f32])> {
        under(&self.arrays, "in/").map(|(name, array)| (name, singles(array)))
    }

    fn rate(&self, iteration: u64) -> f32 {
        self.solver.policy.rate(self.solver.base_lr, iteration)
    }

    fn doubles(&self, key: &str) -> &[f64] {
        match &self.arrays[key].values {
            Values::F64(values) => values,
            other => panic!("{key}: {} values that are not of double precision", other.len()),
        }
    }

    /// Caffe's snapshot, if the fixture has one.
    fn snapshot(&self, case: &Case) -> Option<State> {
        let path = case.path(&format!("_iter_{SNAPSHOT}.solverstate"));
        if !path.is_file() {
            return None;
        }
        let solver = SolverState::read(&path).expect("a state of Caffe");
        let weights = NetWeights::read(&case.beside(&solver.learned_net)).expect("weights of Caffe");
        assert_eq!(solver.iteration, SNAPSHOT);
        let views = self.net.params.views();
        assert_eq!(solver.history.len(), views.len());
        let mut state = self.start();
        for (view, (shape, history)) in views.iter().zip(&solver.history) {
            assert_eq!(shape, view.shape.dims(), "{}", view.name);
            state.histories[view.range()].copy_from_slice(history);
            let (layer, index) = view.name.rsplit_once('/').expect("layer/index");
            let layer = weights.layers.iter().find(|l| l.name == layer).expect("the layer");
            let (_, values) = &layer.blobs[index.parse::<usize>().expect("an index")];
            assert_eq!(values, singles(&self.arrays[&format!("iter4/{}", view.name)]), "{}", view.name);
            state.weights[view.range()].copy_from_slice(values);
        }
        Some(state)
    }
}

/// Something that trains: one iteration changes the state and gives the loss before the change.
trait Trainer {
    fn iterate(&mut self, training: &Training, iteration: u64) -> f64;
    fn state(&self) -> State;
}

/// Reference implementation and `core::solver`.
struct ByReference {
    net: ReferenceNet<f32>,
    state: State,
}

impl Trainer for ByReference {
    fn iterate(&mut self, training: &Training, iteration: u64) -> f64 {
        let Self { net, state } = self;
        net.set_params(&state.weights);
        training.inputs().for_each(|(name, values)| net.set_input(name, values));
        net.forward();
        net.backward();
        for view in training.net.params.views() {
            let gradient = net.param_grad(&view.name).expect("a parameter");
            let (rule, rate) = (training.solver.rule, training.rate(iteration) * view.lr_mult);
            let step = Step { rule, rate, decay: rule.weight_decay * view.decay_mult, elastic: None };
            let (weights, histories) = (&mut state.weights[view.range()], &mut state.histories[view.range()]);
            update(&step, weights, gradient, histories);
        }
        f64::from(net.loss())
    }

    fn state(&self) -> State {
        self.state.clone()
    }
}

impl Trainer for Run {
    fn iterate(&mut self, training: &Training, iteration: u64) -> f64 {
        self.step(training.inputs(), iteration, training.rate(iteration));
        self.blob("loss").expect("a loss")[0]
    }

    fn state(&self) -> State {
        State { weights: self.read(Packed::Weights), histories: self.read(Packed::Histories) }
    }
}

/// Trains from iteration `first` on and compares everything that is stored.
fn follow(
    report: &mut Report,
    case: &Case,
    training: &Training,
    trainer: &mut impl Trainer,
    first: u64,
    how: &str,
) {
    let (rates, losses) = (training.doubles("lr"), training.doubles("loss"));
    let snapshot = training.snapshot(case);
    let mut found = Vec::new();
    for iteration in first..losses.len() as u64 {
        found.push(trainer.iterate(training, iteration));
        let (rate, caffe) = (f64::from(training.rate(iteration)), rates[iteration as usize]);
        let close = (rate - caffe).abs() <= 4.0 * f64::from(f32::EPSILON) * caffe;
        let what = || format!("{rate} in iteration {iteration}, not {caffe}");
        report.note(case, "lr", how, close.then_some(()).ok_or_else(what));
        let state = trainer.state();
        for (_, prefix) in STORED.iter().filter(|(after, _)| *after == iteration + 1) {
            for view in training.net.params.views() {
                let key = format!("{prefix}{}", view.name);
                let values: Vec<f64> = state.weights[view.range()].iter().map(|w| f64::from(*w)).collect();
                let caffe = doubles(&training.arrays[&key]);
                report.note(case, &key, how, NET.check(case, &key, &caffe, &values));
            }
        }
        if let Some(caffe) = snapshot.as_ref().filter(|_| iteration + 1 == SNAPSHOT) {
            compare_histories(report, case, training, (&state, caffe), how);
        }
    }
    let caffe = &losses[first as usize..];
    report.note(case, "loss", how, NET.check(case, "loss", caffe, &found));
}

/// A history is the difference of the weights before and after, so its distance is at most that of both, of which the
/// later is the larger.
fn compare_histories(
    report: &mut Report,
    case: &Case,
    training: &Training,
    (found, caffe): (&State, &State),
    how: &str,
) {
    for view in training.net.params.views() {
        let most = 2.0 * NET.distance(case.rounding(&format!("iter4/{}", view.name)));
        let pairs = found.histories[view.range()].iter().zip(&caffe.histories[view.range()]);
        let mut distances = pairs.map(|(f, c)| (f64::from(*f) - f64::from(*c)).abs());
        // Written so that NaN fails.
        let close = distances.all(|distance| distance <= most);
        let outcome = close.then_some(()).ok_or_else(|| format!("more than {most:e} away"));
        report.note(case, &format!("history of {}", view.name), how, outcome);
    }
}

/// Calls `run` with every training that can be run.
fn each(mut run: impl FnMut(&Case, &Training)) -> usize {
    let trainings = cases("solvers").into_iter().filter_map(|case| Training::new(&case).map(|t| (case, t)));
    trainings.map(|(case, training)| run(&case, &training)).count()
}

#[test]
fn what_is_not_built_is_listed() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in cases("solvers") {
        let Err(error) = read_solver(&case.path(".prototxt")) else { continue };
        let message = error.to_string();
        assert!(message.contains("not supported yet"), "not refused as unfinished: {message}");
        let text = std::fs::read_to_string(case.path(".prototxt")).expect("a solver");
        let kind =
            text.lines().find_map(|line| line.strip_prefix("type: ")).expect("a type").trim_matches('"');
        match case.committed {
            true => found.entry(kind.to_owned()).or_default().push(case.name),
            false => println!("not built yet: {message}"),
        }
    }
    let owned = |names: &&[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = NOT_BUILT.iter().map(|(what, names)| ((*what).to_owned(), owned(names))).collect();
    assert_eq!(found, expected);
    for (what, names) in &found {
        println!("not built yet: the solver {what}, for {}", names.join(", "));
    }
}

#[test]
fn the_reference_follows_caffe() {
    let mut report = Report::default();
    report.cases = each(|case, training| {
        let trainer = |state: State| ByReference { net: ReferenceNet::new(training.net.clone()), state };
        follow(&mut report, case, training, &mut trainer(training.start()), 0, "reference, f32");
        if let Some(state) = training.snapshot(case) {
            let how = "reference, f32, from Caffe's snapshot";
            follow(&mut report, case, training, &mut trainer(state), SNAPSHOT, how);
        }
    });
    report.finish("reference, f32", RUNNABLE);
}

#[test]
fn the_engine_follows_caffe() {
    let mut report = Report::default();
    let tiers = tiers("fixtures of solvers");
    report.cases = each(|case, training| {
        for isa in &tiers {
            let options = options(*isa, Vec::new(), training.solver.rule);
            let trainer = |state: State| {
                let run = Run::new(&training.net, &state.weights, &options);
                run.write(Packed::Histories, &state.histories);
                run
            };
            follow(&mut report, case, training, &mut trainer(training.start()), 0, &isa.to_string());
            if let Some(state) = training.snapshot(case) {
                let how = format!("{isa}, from Caffe's snapshot");
                follow(&mut report, case, training, &mut trainer(state), SNAPSHOT, &how);
            }
        }
    });
    report.finish("engine", RUNNABLE);
}
