//! Solvers: eight iterations of a small LeNet from Caffe's parameters, and the second four from Caffe's own snapshot.

use std::ops::Range;

use quadrille_core::device::Packed;
use quadrille_core::net::{Net, NetState, ParamView, Phase};
use quadrille_core::reference::ReferenceNet;
use quadrille_core::solver::{Plateau, RuleKind, SolverSpec, Step, update};
use quadrille_io::npz::Archive;
use quadrille_io::prototxt::{parse_net, read_solver};
use quadrille_io::{NetWeights, SolverState};

use crate::bounds::NET;
use crate::by_engine::{Run, options, tiers};
use crate::compared::{Report, doubles};
use crate::fixture::{Case, cases, double_values, singles, under};

/// The fixtures that come with the sources.
const RUNNABLE: usize = 4;
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
    fn new(case: &Case) -> Self {
        let solver = read_solver(&case.path(".prototxt")).expect("a solver");
        let file = solver.train_net.name();
        let text = std::fs::read_to_string(case.beside(file)).expect("the network of the solvers");
        let spec = parse_net(&text, file).expect("a network");
        let net = Net::build(&spec, &NetState::new(Phase::Train), 1.0).expect("a network");
        let net = net.gathering(solver.iter_size as usize).clipping(solver.rule.clip.is_some());
        Self { solver, net, arrays: case.arrays() }
    }

    fn start(&self) -> State {
        let len = self.net.params.len();
        let mut weights = vec![0.0; len];
        for view in self.net.params.views() {
            let initial = &self.arrays[&format!("init/{}", view.name)];
            weights[view.range()].copy_from_slice(singles(initial));
        }
        State { weights, histories: vec![0.0; self.solver.rule.kind.histories() * len] }
    }

    /// Mini-batches of an iteration; all iterations have the same ones.
    fn parts(&self) -> usize {
        self.net.parts
    }

    /// One of them.
    fn inputs(&self, part: usize) -> impl Iterator<Item = (&str, &[f32])> {
        under(&self.arrays, "in/").map(move |(name, array)| {
            let values = singles(array);
            let each = values.len() / self.parts();
            (name, &values[part * each..(part + 1) * each])
        })
    }

    fn rate(&self, iteration: u64) -> f32 {
        self.solver.rate(iteration, &Plateau::default())
    }

    /// Where each history lies among the packed ones, in Caffe's order, with what it belongs to.
    fn histories(&self) -> impl Iterator<Item = (Range<usize>, &ParamView)> {
        let (views, len) = (self.net.params.views(), self.net.params.len());
        (0..self.solver.rule.kind.histories()).flat_map(move |which| {
            views.iter().map(move |view| {
                let range = view.range();
                (which * len + range.start..which * len + range.end, view)
            })
        })
    }

    fn doubles(&self, key: &str) -> &[f64] {
        double_values(&self.arrays[key])
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
        assert_eq!(solver.history.len(), self.histories().count());
        let mut state = self.start();
        for ((range, view), (shape, history)) in self.histories().zip(&solver.history) {
            assert_eq!(shape, view.shape.dims(), "{}", view.name);
            state.histories[range].copy_from_slice(history);
        }
        for view in views {
            let (layer, index) = view.name.rsplit_once('/').expect("layer/index");
            let layer = weights.layers.iter().find(|l| l.name == layer).expect("the layer");
            let (_, values) =
                layer.blobs[index.parse::<usize>().expect("an index")].as_ref().expect("values");
            assert_eq!(values, singles(&self.arrays[&format!("iter4/{}", view.name)]), "{}", view.name);
            state.weights[view.range()].copy_from_slice(values);
        }
        Some(state)
    }
}

/// Something that trains: one iteration changes the state and gives the loss of each mini-batch before the change.
trait Trainer {
    fn iterate(&mut self, training: &Training, iteration: u64) -> Vec<f64>;
    fn state(&self) -> State;
}

/// Reference implementation and `core::solver`.
struct ByReference {
    net: ReferenceNet<f32>,
    state: State,
}

impl Trainer for ByReference {
    fn iterate(&mut self, training: &Training, iteration: u64) -> Vec<f64> {
        let Self { net, state } = self;
        let (views, len) = (training.net.params.views(), training.net.params.len());
        net.set_params(&state.weights);
        let (mut gradients, mut losses) = (vec![0.0; len], Vec::new());
        for part in 0..training.parts() {
            training.inputs(part).for_each(|(name, values)| net.set_input(name, values));
            net.forward();
            net.backward();
            for view in views {
                let found = net.param_grad(&view.name).expect("a parameter");
                gradients[view.range()].iter_mut().zip(found).for_each(|(sum, g)| *sum += g);
            }
            losses.push(f64::from(net.loss()));
        }
        let rule = training.solver.rule;
        let norm = gradients.iter().map(|g| f64::from(g * g)).sum::<f64>().sqrt() as f32;
        let clipped = rule.clip.map_or(1.0, |most| if norm > most { most / norm } else { 1.0 });
        let scale = clipped / training.parts() as f32;
        let (first, second) = state.histories.split_at_mut(len);
        for view in views {
            let (range, decay) = (view.range(), rule.weight_decay * view.decay_mult);
            let rate = training.rate(iteration) * view.lr_mult;
            let step = Step { rule, iteration, rate, decay, scale, elastic: None };
            let second = second.get_mut(range.clone()).unwrap_or_default();
            let (weights, first) = (&mut state.weights[range.clone()], &mut first[range.clone()]);
            update(&step, weights, &gradients[range], first, second);
        }
        losses
    }

    fn state(&self) -> State {
        self.state.clone()
    }
}

impl Trainer for Run {
    fn iterate(&mut self, training: &Training, iteration: u64) -> Vec<f64> {
        let parts = training.parts();
        let mini_batches = (0..parts).map(|part| {
            self.part(training.inputs(part), iteration, training.rate(iteration), part + 1 == parts);
            self.blob("loss").expect("a loss")[0]
        });
        mini_batches.collect()
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
    for iteration in first..rates.len() as u64 {
        found.extend(trainer.iterate(training, iteration));
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
    let caffe = &losses[first as usize * training.parts()..];
    report.note(case, "loss", how, NET.check(case, "loss", caffe, &found));
}

/// The history of momentum SGD is the difference of the weights before and after, so its distance is at most that of both, of
/// which the later is the larger. Of the other solvers no distance is stored: the weights say whether their histories are
/// right, and what goes on from Caffe's snapshot whether they are read right.
fn compare_histories(
    report: &mut Report,
    case: &Case,
    training: &Training,
    (found, caffe): (&State, &State),
    how: &str,
) {
    if !matches!(training.solver.rule.kind, RuleKind::Sgd { .. }) {
        return;
    }
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
    cases("solvers").into_iter().map(|case| run(&case, &Training::new(&case))).count()
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
