//! A fixture by the reference implementation.

use std::collections::BTreeMap;

use quadrille_core::reference::{Real, ReferenceNet};

use crate::network::Prepared;

/// Arrays by the keys of the fixtures.
pub type Computed = BTreeMap<String, Vec<f64>>;

/// Runs the net forward and, in phase TRAIN, backward, in the precision `T`.
pub fn compute<T: Real>(prepared: &Prepared) -> Computed {
    let net = &prepared.net;
    let mut run = ReferenceNet::<T>::new(net.clone());
    run.set_params(&prepared.weights());
    for (name, values) in &prepared.inputs {
        run.set_input(name, &values.iter().map(|value| T::from_f32(*value)).collect::<Vec<_>>());
    }
    run.forward();
    if net.backward {
        run.backward();
    }
    let double = |values: &[T]| values.iter().map(|value| value.to_f64()).collect::<Vec<f64>>();
    let mut computed = Computed::new();
    for blob in &net.blobs {
        let name = &blob.name;
        computed.insert(format!("blob/{name}"), double(run.blob(name).expect("the blob exists")));
        if let Some(gradient) = run.blob_grad(name) {
            computed.insert(format!("diff/{name}"), double(gradient));
        }
    }
    for view in net.params.views() {
        let name = &view.name;
        let value = run.param(name).expect("the parameter exists");
        let gradient = run.param_grad(name).expect("the parameter exists");
        match prepared.running_sum(name) {
            Some(fraction) => {
                let kept = if net.backward { T::from_f32(fraction) } else { T::ONE };
                let sums = value.iter().zip(gradient).map(|(sum, term)| kept * *sum + *term);
                computed.insert(format!("param_after/{name}"), double(&sums.collect::<Vec<_>>()));
            }
            None => {
                computed.insert(format!("pdiff/{name}"), double(gradient));
            }
        }
    }
    computed
}
