//! A lower instruction-set tier trains to the same accuracy: LeNet on the bundled data set, from the same weights and by
//! the same mini-batches on every tier. (All 3,000 iterations of the default are for a hand: `quadrille train --isa avx2`.)

use quadrille_cpu::isa::Isa;
use serde_json::Value;

use crate::common::Stage;

/// Iterations; the learning rate falls to 0 in them.
const ITERATIONS: usize = 100;
/// Far above chance, a tenth, and below what every tier reaches, 95.5 % of 10,000 images.
const LEAST: f64 = 0.94;
/// Rounding decides a handful of images, not fifty.
const APART: f64 = 0.005;
/// Iterations in which rounding has not parted the tiers yet.
const ALIKE: usize = 5;

fn losses(metrics: &[Value]) -> Vec<f64> {
    metrics.iter().filter_map(|record| record["loss"].as_f64()).collect()
}

#[test]
fn every_tier_trains_lenet_to_the_same_accuracy() {
    let stage = Stage::new();
    let mut first: Option<(f64, Vec<f64>)> = None;
    for isa in Isa::available() {
        let run = isa.to_string();
        let flags =
            format!("--isa {isa} --workers 1 --seed 1 --max-iter {ITERATIONS} --test-interval {ITERATIONS}");
        let said = stage.succeed(&format!("train --run {run} {flags}")).stdout;
        assert!(said.contains("LeNet") && said.contains(&run), "{said}");
        let accuracy = stage.summary(&run)["accuracy"].as_f64().expect("an accuracy");
        println!("{isa}: accuracy {accuracy} after {ITERATIONS} iterations");
        assert!(accuracy >= LEAST, "{isa}: {accuracy}");
        let losses = losses(&stage.metrics(&run));
        assert_eq!(losses.len(), ITERATIONS, "{isa}");
        let (of_first, losses_of_first) = first.get_or_insert_with(|| (accuracy, losses.clone()));
        assert!((accuracy - *of_first).abs() <= APART, "{isa}: {accuracy}, not {of_first}");
        for (at, (loss, expected)) in losses.iter().zip(losses_of_first).take(ALIKE).enumerate() {
            assert!(
                (loss - *expected).abs() < 1e-3 * *expected,
                "{isa}, iteration {at}: {loss}, not {expected}"
            );
        }
    }
    for isa in Isa::ALL.into_iter().filter(|isa| !isa.is_available()) {
        println!("left out: this CPU has no {isa}");
    }
}
