//! The rules beside the equations as the paper writes them, on numbers that are exact in both.

use super::*;
use crate::solver::{Elastic, Rule, Step, update};

/// η, ρ and μ: powers of two, so that everything stays exact for some steps.
const RATE: f64 = 0.5;
const RHO: f64 = 0.5;
const MOMENTUM: f64 = 0.5;
const STEPS: usize = 5;

/// Weight, velocity and centre of one parameter, by equations (1) to (6), each written as it is printed.
#[derive(Clone, Debug)]
struct Model {
    /// `W_i`.
    weights: Vec<f64>,
    /// `V_i`, with the paper's sign.
    velocities: Vec<f64>,
    /// `W̄`.
    centre: f64,
}

impl Model {
    fn new(workers: usize) -> Self {
        let weights = (0..workers).map(|rank| 24.0 - 8.0 * rank as f64).collect();
        Self { weights, velocities: vec![0.0; workers], centre: 16.0 }
    }

    /// Equation (1) on worker `i` with the centre `centre`.
    fn equation_1(&mut self, i: usize, gradient: f64, centre: f64) {
        let w = self.weights[i];
        self.weights[i] = w - RATE * (gradient + RHO * (w - centre));
    }

    /// Equation (2) over the workers that are served.
    fn equation_2(&mut self, served: &[usize]) {
        let sum: f64 = served.iter().map(|i| self.weights[*i] - self.centre).sum();
        self.centre += RATE * RHO * sum;
    }

    /// Equations (3) and (4) on weights of the index `i`.
    fn equations_3_4(&mut self, i: usize, gradient: f64) {
        self.velocities[i] = MOMENTUM * self.velocities[i] - RATE * gradient;
        self.weights[i] += self.velocities[i];
    }

    /// Equations (5) and (6) on worker `i` with the centre `centre`.
    fn equations_5_6(&mut self, i: usize, gradient: f64, centre: f64) {
        let w = self.weights[i];
        self.velocities[i] = MOMENTUM * self.velocities[i] - RATE * gradient;
        self.weights[i] = w + self.velocities[i] - RATE * RHO * (w - centre);
    }
}

/// A gradient that depends on the weight, so that a step with a wrong weight shows itself.
fn gradient(weight: f64, step: usize) -> f64 {
    0.5 * weight - 4.0 * step as f64 + 2.0
}

/// The number as the program has it.
fn exact(value: f64) -> f32 {
    assert_eq!(f64::from(value as f32), value, "the test itself is exact");
    value as f32
}

/// One worker as the program has it: weight and history, of which only the worker knows the latter.
#[derive(Clone, Debug)]
struct Replica {
    weight: [f32; 1],
    history: [f32; 1],
}

impl Replica {
    fn of(model: &Model, i: usize) -> Self {
        Self { weight: [exact(model.weights[i])], history: [0.0] }
    }

    fn step(&mut self, momentum: f64, gradient: f64, centre: Option<f32>) {
        let centre = centre.map(|centre| [centre]);
        let elastic = centre.as_ref().map(|centre| Elastic { centre, strength: exact(RATE * RHO) });
        let rule = Rule::sgd(exact(momentum), 0.0);
        let rate = exact(RATE);
        let step = Step { rule, iteration: 0, rate, decay: 0.0, scale: 1.0, elastic };
        update(&step, &mut self.weight, &[exact(gradient)], &mut self.history, &mut []);
    }

    fn is(&self, model: &Model, i: usize) -> bool {
        // The program's velocity has the other sign: it is what is taken away.
        (f64::from(self.weight[0]), -f64::from(self.history[0])) == (model.weights[i], model.velocities[i])
    }
}

#[test]
fn all_workers_at_once_follow_equations_one_and_two() {
    for workers in 1..=4 {
        let mut model = Model::new(workers);
        let mut replicas: Vec<Replica> = (0..workers).map(|i| Replica::of(&model, i)).collect();
        let mut centre = [exact(model.centre)];
        let all: Vec<usize> = (0..workers).collect();
        for step in 0..STEPS {
            let (before, seen) = (model.centre, centre[0]);
            let sum: f32 = replicas.iter().map(|replica| replica.weight[0]).sum();
            update_centre(&mut centre, &[sum], workers, exact(RATE * RHO));
            model.equation_2(&all);
            for (i, replica) in replicas.iter_mut().enumerate() {
                let gradient = gradient(model.weights[i], step);
                replica.step(0.0, gradient, Some(seen));
                model.equation_1(i, gradient, before);
                assert_eq!(
                    f64::from(replica.weight[0]),
                    model.weights[i],
                    "worker {i} of {workers}, step {step}"
                );
            }
            assert_eq!(f64::from(centre[0]), model.centre, "{workers} workers, step {step}");
        }
    }
}

#[test]
fn one_worker_after_the_other_follows_the_same_equations() {
    // Round robin with momentum: the sum of equation (2) runs over the worker that is served.
    let workers = 3;
    let mut model = Model::new(workers);
    let mut replicas: Vec<Replica> = (0..workers).map(|i| Replica::of(&model, i)).collect();
    let mut centre = [exact(model.centre)];
    for step in 0..STEPS {
        let i = step % workers;
        let (before, gradient) = (model.centre, gradient(model.weights[i], step));
        let mut travelling = replicas[i].weight;
        meet_centre(&mut centre, &mut travelling, exact(RATE * RHO));
        model.equation_2(&[i]);
        assert_eq!(f64::from(travelling[0]), before, "what comes back is the centre before the step");
        replicas[i].step(MOMENTUM, gradient, Some(travelling[0]));
        model.equations_5_6(i, gradient, before);
        assert!(replicas[i].is(&model, i), "step {step}: {:?} is not {model:?}", replicas[i]);
        assert_eq!(f64::from(centre[0]), model.centre, "step {step}");
    }
}

#[test]
fn a_master_with_momentum_follows_equations_three_and_four() {
    let mut model = Model::new(1);
    let mut master = Replica::of(&model, 0);
    for step in 0..STEPS {
        let gradient = gradient(model.weights[0], step);
        master.step(MOMENTUM, gradient, None);
        model.equations_3_4(0, gradient);
        assert!(master.is(&model, 0), "step {step}: {master:?} is not {model:?}");
    }
    assert!(model.velocities[0] != 0.0);
}

#[test]
fn without_momentum_five_and_six_are_one() {
    let (mut one, mut other) = (Model::new(1), Model::new(1));
    one.equation_1(0, 3.0, 16.0);
    other.velocities[0] = 0.0;
    other.equations_5_6(0, 3.0, 16.0);
    assert_eq!(one.weights, other.weights);
}

#[test]
fn centre_is_the_mean_when_beta_is_one() {
    let mut centre = [10.0, -4.0];
    update_centre(&mut centre, &[8.0, 2.0], 4, 0.25);
    assert_eq!(centre, [2.0, 0.5]);
}

#[test]
fn one_worker_served_by_itself_gives_the_bits_of_a_sum_over_one() {
    let values = [0.1f32, -3.7, 1e-7, 5e6, 0.0];
    for elastic in [0.3f32, 0.9, 1e-4] {
        for c in values {
            for w in values {
                let mut centre = [c];
                update_centre(&mut centre, &[w], 1, elastic);
                assert_eq!(centre[0].to_bits(), centre_after(c, w, elastic).to_bits());
            }
        }
    }
}
