//! Whole networks: one mini-batch forward and backward, the same network in phase TEST, and the weights file.

use std::collections::BTreeMap;

use quadrille_core::net::Phase;
use quadrille_core::reference::Real;
use quadrille_core::solver::Rule;
use quadrille_io::NetWeights;
use quadrille_io::npz::Archive;

use crate::bounds::{Bound, NEAR_TIES, NET};
use crate::by_engine::{self, every_implementation, options, tiers};
use crate::by_reference;
use crate::compared::{Report, doubles};
use crate::fixture::{Case, absent, cases, singles, under};
use crate::network::{Prepared, prepare, prepare_in};

/// Networks that come with the sources.
const COMMITTED: usize = 1;

/// What a network gives in phase TEST, by the keys of the fixture.
fn tested(arrays: &Archive) -> BTreeMap<String, Vec<f64>> {
    under(arrays, "test/").map(|(name, array)| (format!("test/{name}"), doubles(array))).collect()
}

/// The network in phase TEST with the parameters that training's forward left.
fn prepare_test(case: &Case, arrays: &Archive) -> Prepared {
    let mut prepared = prepare_in(Phase::Test, false, case, arrays).expect("a network");
    for (name, array) in under(arrays, "param_after/") {
        prepared.params.retain(|(known, _)| known != name);
        prepared.params.push((name.to_owned(), singles(array).to_vec()));
    }
    prepared
}

/// Calls `run` with every network in phase TRAIN and in phase TEST.
fn each(mut run: impl FnMut(&Case, &Archive, &Prepared, &Prepared)) -> usize {
    let cases = cases("nets");
    for case in &cases {
        let arrays = case.arrays();
        let prepared = prepare(case, &arrays).unwrap_or_else(|error| panic!("{error}"));
        run(case, &arrays, &prepared, &prepare_test(case, &arrays));
    }
    cases.len()
}

fn reference<T: Real>(bound: Bound, how: &str) {
    let mut report = Report::default();
    report.cases = each(|case, arrays, train, test| {
        let computed = by_reference::compute::<T>(train);
        report.compare(case, arrays, (train, &train.net), &computed, bound, how);
        report.compare_blobs(case, &tested(arrays), &by_reference::compute::<T>(test), bound, how);
    });
    report.finish(how, COMMITTED);
}

#[test]
fn the_reference_in_double_precision_is_caffe_in_double_precision() {
    reference::<f64>(Bound::Double, "reference, f64");
}

#[test]
fn the_reference_in_single_precision_agrees() {
    reference::<f32>(NET, "reference, f32");
}

#[test]
fn every_implementation_of_the_engine_agrees() {
    let mut report = Report::default();
    let tiers = tiers("fixtures of networks");
    report.cases = each(|case, arrays, train, test| {
        for isa in &tiers {
            for (index, kernels) in every_implementation(&train.net, *isa).into_iter().enumerate() {
                let how = format!("{isa}, implementations number {index}");
                let computed =
                    by_engine::compute(train, &train.net, &options(*isa, kernels, Rule::default()));
                report.compare(case, arrays, (train, &train.net), &computed, NET, &how);
            }
            for (index, kernels) in every_implementation(&test.net, *isa).into_iter().enumerate() {
                let how = format!("{isa}, implementations number {index}");
                let computed = by_engine::compute(test, &test.net, &options(*isa, kernels, Rule::default()));
                report.compare_blobs(case, &tested(arrays), &computed, NET, &how);
            }
        }
    });
    report.finish("every implementation", COMMITTED);
}

#[test]
fn the_engine_agrees_as_it_chooses_with_layers_fused_and_apart() {
    let mut report = Report::default();
    let tiers = tiers("fixtures of networks");
    report.cases = each(|case, arrays, train, test| {
        for isa in &tiers {
            let options = options(*isa, Vec::new(), Rule::default());
            for fused in [false, true] {
                let how = format!("{isa}, {}", if fused { "fused" } else { "apart" });
                let form = |prepared: &Prepared| {
                    if fused { prepared.net.clone().fused() } else { prepared.net.clone() }
                };
                let (train_net, test_net) = (form(train), form(test));
                let computed = by_engine::compute(train, &train_net, &options);
                report.compare(case, arrays, (train, &train_net), &computed, NET, &how);
                let computed = by_engine::compute(test, &test_net, &options);
                report.compare_blobs(case, &tested(arrays), &computed, NET, &how);
            }
        }
    });
    report.finish("as the engine chooses", COMMITTED);
}

#[test]
fn the_weights_file_of_caffe_holds_the_parameters() {
    let cases = each(|case, arrays, train, _| {
        let weights = NetWeights::read(&case.path(".caffemodel")).expect("weights of Caffe");
        let net = &train.net;
        let mut seen: Vec<&str> = Vec::new();
        for layer in weights.layers.iter().filter(|layer| !layer.blobs.is_empty()) {
            let of_net = net.layers.iter().find(|l| l.name == layer.name).expect("a layer of the network");
            for (id, (shape, values)) in of_net.params.iter().zip(layer.blobs.iter().flatten()) {
                let name = net.params.view(*id).name.as_str();
                let expected = &arrays[&format!("param/{name}")];
                assert_eq!((shape, values.as_slice()), (&expected.shape, singles(expected)), "{name}");
                seen.push(name);
            }
        }
        for (name, _) in under(arrays, "param/") {
            assert!(seen.contains(&name), "{}: {name} is not in the weights file", case.name);
        }
    });
    println!("weights files: {cases}");
    assert!(cases >= COMMITTED);
}

#[test]
fn only_lenet_is_too_large_to_come_with_the_sources() {
    for group in ["layers", "nets", "solvers"] {
        let too_large: &[&str] = if group == "nets" { &["lenet"] } else { &[] };
        for name in absent(group) {
            assert!(
                too_large.contains(&name.as_str()),
                "{group}/{name} is listed, but its file is not there"
            );
            println!("skipped: {group}/{name}: there is no shared/oracle");
        }
    }
}

#[test]
fn near_ties_are_closer_than_single_precision_can_tell() {
    for tie in NEAR_TIES {
        let case = cases("nets").into_iter().find(|case| case.name == tie.case).expect("a fixture");
        let prepared = prepare(&case, &case.arrays()).expect("a network");
        let computed = by_reference::compute::<f64>(&prepared);
        let [a, b] = tie.places.map(|at| computed[&format!("blob/{}", tie.blob)][at]);
        let ulp = f64::from((a as f32).next_up()) - f64::from(a as f32);
        assert!(a != b && (a - b).abs() < ulp / 2.0, "{}: {a} and {b}, where an ulp is {ulp}", tie.case);
    }
}
