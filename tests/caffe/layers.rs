//! Layers one by one, and small compositions.

use std::collections::BTreeMap;

use quadrille_core::reference::Real;
use quadrille_core::solver::Rule;
use quadrille_io::npz::Archive;

use crate::bounds::{Bound, LAYER};
use crate::by_engine::{self, every_implementation, options, tiers};
use crate::by_reference;
use crate::compared::Report;
use crate::fixture::{Case, cases};
use crate::network::{Prepared, prepare};

/// Fixtures that come with the sources and cannot be run: what they need, and their names. Whoever builds it takes the
/// names out.
const NOT_BUILT: &[(&str, &[&str])] = &[];

/// Of the 131 fixtures, how many can be run.
const RUNNABLE: usize = 131;

/// What a fixture needs that is not built yet: a type of layer, or a field.
fn missing(case: &Case, arrays: &Archive) -> Option<String> {
    let error = prepare(case, arrays).err()?;
    let kind = error.message.strip_prefix("layers of type \"").and_then(|rest| rest.split_once('"'));
    let is_open = error.message.contains("not supported yet");
    assert!(is_open, "{}: not refused as unfinished: {error}", case.name);
    Some(kind.map_or_else(|| error.field.clone(), |(kind, _)| kind.to_owned()))
}

/// Calls `run` with every fixture that can be run.
fn each(mut run: impl FnMut(&Case, &Archive, &Prepared)) {
    for case in cases("layers") {
        let arrays = case.arrays();
        if let Ok(prepared) = prepare(&case, &arrays) {
            run(&case, &arrays, &prepared);
        }
    }
}

#[test]
fn what_is_not_built_is_listed() {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in cases("layers") {
        let arrays = case.arrays();
        match missing(&case, &arrays) {
            Some(what) if case.committed => found.entry(what).or_default().push(case.name),
            Some(what) => println!("not built yet: {what}, for {}", case.name),
            None => {}
        }
    }
    let owned = |names: &&[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    let expected = NOT_BUILT.iter().map(|(what, names)| ((*what).to_owned(), owned(names))).collect();
    assert_eq!(found, expected);
    for (what, names) in &found {
        println!("not built yet: {what}, for {}", names.join(", "));
    }
}

fn reference<T: Real>(bound: Bound, how: &str) {
    let mut report = Report::default();
    each(|case, arrays, prepared| {
        report.cases += 1;
        let computed = by_reference::compute::<T>(prepared);
        report.compare(case, arrays, (prepared, &prepared.net), &computed, bound, how);
    });
    report.finish(how, RUNNABLE);
}

#[test]
fn the_reference_in_double_precision_is_caffe_in_double_precision() {
    reference::<f64>(Bound::Double, "reference, f64");
}

#[test]
fn the_reference_in_single_precision_agrees() {
    reference::<f32>(LAYER, "reference, f32");
}

#[test]
fn every_implementation_of_the_engine_agrees() {
    let mut report = Report::default();
    let tiers = tiers("fixtures of layers");
    each(|case, arrays, prepared| {
        report.cases += 1;
        for isa in &tiers {
            for kernels in every_implementation(&prepared.net, *isa) {
                let how = format!("{isa} {kernels:?}");
                let options = options(*isa, kernels, Rule::default());
                let computed = by_engine::compute(prepared, &prepared.net, &options);
                report.compare(case, arrays, (prepared, &prepared.net), &computed, LAYER, &how);
            }
        }
    });
    report.finish("every implementation", RUNNABLE);
}

#[test]
fn the_engine_agrees_as_it_chooses_with_layers_fused_and_apart() {
    let mut report = Report::default();
    let tiers = tiers("fixtures of layers");
    each(|case, arrays, prepared| {
        report.cases += 1;
        for isa in &tiers {
            let options = options(*isa, Vec::new(), Rule::default());
            for (net, how) in [(prepared.net.clone(), "apart"), (prepared.net.clone().fused(), "fused")] {
                let computed = by_engine::compute(prepared, &net, &options);
                report.compare(case, arrays, (prepared, &net), &computed, LAYER, &format!("{isa}, {how}"));
            }
        }
    });
    report.finish("as the engine chooses", RUNNABLE);
}
