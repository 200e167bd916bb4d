//! Dropout on the engine: the mask is the oracle's, for any number of threads and whatever the cut over quadrants.

use quadrille_core::device::{Device, Region, Scalars};
use quadrille_core::layer::{Dropout, InnerProduct, Layer};
use quadrille_core::net::{LayerSpec, Net, NetSpec};
use quadrille_core::plan::Stage;
use quadrille_core::reference::ReferenceNet;
use quadrille_core::rng::step_seed;
use quadrille_core::run::{StepTimes, run_step};
use quadrille_cpu::isa::Isa;

use crate::common::{
    inner_product, input, integers, labels, loss, nets, network, options, plan, tiers, worker,
};

const BATCH: usize = 13;
const DIMS: [usize; 3] = [4, 3, 5];
const PER_IMAGE: usize = 60;

/// A dropout between the data and a loss.
fn make(batch: usize) -> NetSpec {
    let drop = Layer::Dropout(Dropout { ratio: 0.3, active: true });
    let ip = InnerProduct { bias: false, ..inner_product(3) };
    network(
        vec![
            input("data", &[batch, DIMS[0], DIMS[1], DIMS[2]]),
            input("label", &[batch]),
            LayerSpec::new("drop", drop, &["data"], &["drop"]),
            LayerSpec::new("ip", Layer::InnerProduct(ip), &["drop"], &["ip"]),
            LayerSpec::new("loss", loss(1), &["ip", "label"], &["loss"]),
        ],
        true,
    )
}

fn storage(net: &Net, name: &str) -> quadrille_core::net::StorageId {
    net.blobs.iter().find(|b| b.name == name).expect("a blob").data
}

/// What `quadrants` leave of the mini-batch in a step.
fn dropped(isa: Isa, quadrants: usize, threads: usize, seed: u64) -> Vec<f32> {
    let nets = nets(make, BATCH, quadrants);
    let plan = plan(&nets, Stage::Gradients);
    let worker = worker(&nets, &plan, threads, &options(isa)).expect("a worker");
    let devices = worker.devices(0);
    let (data, classes) = (integers(1, BATCH * PER_IMAGE, 9), labels(2, BATCH, 3));
    let mut first = 0;
    for (device, net) in devices.iter().zip(&nets) {
        let end = first + net.batch();
        let stage = |name| Region::Stage(storage(net, name));
        device.write(stage("data"), &data[first * PER_IMAGE..end * PER_IMAGE]).expect("a stage");
        device.write(stage("label"), &classes[first..end]).expect("a stage");
        first = end;
    }
    let scalars = Scalars { seed, ..Scalars::default() };
    run_step(&devices, &plan, &scalars, &mut StepTimes::default()).expect("a step");
    let mut values = Vec::new();
    for (device, net) in devices.iter().zip(&nets) {
        let mut part = vec![0.0; net.batch() * PER_IMAGE];
        device.read(Region::Storage(storage(net, "drop")), &mut part).expect("a storage");
        values.extend(part);
    }
    values
}

#[test]
fn the_mask_depends_neither_on_quadrants_nor_on_threads() {
    let seed = step_seed(3, 1, 20);
    let mut oracle = ReferenceNet::<f32>::new(nets(make, BATCH, 1).remove(0));
    oracle.set_input("data", &integers(1, BATCH * PER_IMAGE, 9));
    oracle.set_input("label", &labels(2, BATCH, 3));
    oracle.set_draw(seed, 0);
    oracle.forward();
    let expected = oracle.blob("drop").expect("a blob");
    let zeros = expected.iter().filter(|v| **v == 0.0).count();
    assert!(
        (BATCH * PER_IMAGE / 5..BATCH * PER_IMAGE / 2).contains(&zeros),
        "mistrusted: {zeros} are dropped"
    );
    for isa in tiers("masks") {
        for quadrants in [1, 2, 3] {
            for threads in [1, 3] {
                let found = dropped(isa, quadrants, threads, seed);
                assert_eq!(found, expected, "{isa}, {quadrants} quadrants, {threads} threads");
            }
        }
        let other = dropped(isa, 2, 1, step_seed(3, 1, 21));
        assert_ne!(other, expected, "another iteration has another mask");
    }
}
