//! All arrays of a fixture against what was computed.

use std::collections::BTreeMap;

use quadrille_core::net::Net;
use quadrille_io::npz::{Archive, Array};

use crate::bounds::Bound;
use crate::by_reference::Computed;
use crate::fixture::{Case, singles};
use crate::network::Prepared;

/// The keys under which Caffe's results lie.
pub fn is_result(key: &str) -> bool {
    ["blob/", "diff/", "pdiff/", "param_after/"].iter().any(|prefix| key.starts_with(prefix))
}

pub fn doubles(array: &Array) -> Vec<f64> {
    singles(array).iter().map(|value| f64::from(*value)).collect()
}

/// Whether blobs of this name are in `net`: fused, a net has fewer.
fn exists(net: &Net, key: &str) -> bool {
    let name = key.strip_prefix("blob/").or_else(|| key.strip_prefix("diff/"));
    name.is_none_or(|name| net.blobs.iter().any(|blob| blob.name == name))
}

/// What was compared, and where it did not agree.
#[derive(Default)]
pub struct Report {
    pub cases: usize,
    pub arrays: usize,
    failures: Vec<String>,
}

impl Report {
    /// Compares what was computed with `net`, a form of `prepared`, with every result of the fixture.
    pub fn compare(
        &mut self,
        case: &Case,
        arrays: &Archive,
        (prepared, net): (&Prepared, &Net),
        computed: &Computed,
        bound: Bound,
        how: &str,
    ) {
        let results = arrays.iter().filter(|(key, _)| is_result(key) && exists(net, key));
        for (key, array) in results {
            let caffe = doubles(array);
            let statistics =
                key.strip_prefix("pdiff/").is_some_and(|name| prepared.running_sum(name).is_some());
            let outcome = if statistics {
                // Here their gradients carry what is added to them; it is compared as `param_after`.
                caffe
                    .iter()
                    .all(|g| *g == 0.0)
                    .then_some(())
                    .ok_or_else(|| "a gradient of statistics".to_owned())
            } else {
                let found = computed.get(key).ok_or_else(|| "is not there".to_owned());
                found.and_then(|found| bound.check(case, key, &caffe, found))
            };
            self.note(case, key, how, outcome);
        }
    }

    /// Compares arrays that lie under another prefix.
    pub fn compare_blobs(
        &mut self,
        case: &Case,
        results: &BTreeMap<String, Vec<f64>>,
        computed: &Computed,
        bound: Bound,
        how: &str,
    ) {
        for (key, caffe) in results {
            let name = key.split_once('/').map_or(key.as_str(), |(_, name)| name);
            let found = computed.get(&format!("blob/{name}")).ok_or_else(|| "is not there".to_owned());
            self.note(case, key, how, found.and_then(|found| bound.check(case, key, caffe, found)));
        }
    }

    pub fn note(&mut self, case: &Case, key: &str, how: &str, outcome: Result<(), String>) {
        self.arrays += 1;
        self.failures.extend(outcome.err().map(|what| format!("{}: {key} by {how}: {what}", case.name)));
    }

    /// Says what was done, and fails if anything did not agree.
    pub fn finish(self, what: &str, least: usize) {
        let Self { cases, arrays, failures } = self;
        println!("{what}: {arrays} arrays of {cases} fixtures compared");
        assert!(failures.is_empty(), "{} of {arrays} do not agree:\n{}", failures.len(), failures.join("\n"));
        assert!(cases >= least, "only {cases} fixtures were found");
    }
}
