//! What a run says of itself: in snapshots, to other workers, and in its folder.

use std::collections::BTreeMap;

use quadrille_comm::handshake::Fingerprint;
use quadrille_core::net::Net;
use serde_json::{Value, json};

use crate::crews::Crews;
use crate::exchange::fingerprint_of;
use crate::job::PhaseJob;
use crate::prepare::Prepared;
use crate::settings::Settings;
use crate::state::About;

/// What snapshots say of the run.
pub fn about(settings: &Settings, train: &PhaseJob, net: &Net, machine: &Crews) -> About {
    About {
        network: net.name.clone(),
        identity: identity(settings, train, net, machine),
        settings: settings.to_json(),
        seed: settings.seed,
        parts: settings.solver.iter_size,
        batch: train.batch as u64,
        images: train.feed.data_set().map_or(0, |data| data.len() as u64),
    }
}

/// What decides which samples a run sees, what its state means, and in which order its sums are formed.
fn identity(settings: &Settings, train: &PhaseJob, net: &Net, machine: &Crews) -> BTreeMap<String, String> {
    let order = if settings.sums() { settings.algorithm(&net.params).order() } else { "none" };
    let layers: Vec<_> = net.layers.iter().map(|l| (&l.name, &l.layer)).collect();
    [
        ("list of layers", format!("{:016x}", fingerprint_of(&format!("{layers:?}")))),
        ("method", settings.method_name().to_owned()),
        ("order of sums over workers", order.to_owned()),
        ("seed", settings.seed.to_string()),
        ("solver type", settings.solver.rule.kind.name().to_owned()),
        ("batch", train.batch.to_string()),
        ("iter_size", settings.solver.iter_size.to_string()),
        ("quadrants", machine.workers[0].len().to_string()),
        ("data", train.feed.hash().to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// What all workers have to agree on.
pub fn fingerprint(p: &Prepared<'_>) -> Fingerprint {
    let mut settings = p.settings.to_json();
    // It is compared by itself, so that a difference is told by its name.
    settings.as_object_mut().map(|settings| settings.remove("seed"));
    Fingerprint {
        program: fingerprint_of(env!("CARGO_PKG_VERSION")),
        network: fingerprint_of(&format!("{:?} {:?}", p.net.params, p.about.identity.get("list of layers"))),
        solver: fingerprint_of(&settings.to_string()),
        plan: fingerprint_of(&plan_of(p)),
        data: fingerprint_of(&format!("{} {}", p.train.feed.hash(), p.train.batch)),
        seed: p.settings.seed,
        parameters: p.net.params.len() as u64,
    }
}

/// What decides in which order a worker forms sums: the same on all workers, or replicas would drift apart.
fn plan_of(p: &Prepared<'_>) -> String {
    format!("{} {:?}", p.machine.workers[0].len(), p.rewriting)
}

/// What is stored with the run.
pub fn configuration(p: &Prepared<'_>) -> Value {
    let mut configuration = p.settings.to_json();
    let quadrants = p.machine.workers[0].len();
    configuration["network"] = json!({"name": p.net.name, "file": p.net.file.to_string()});
    configuration["batch"] = json!(p.train.batch);
    configuration["quadrants"] = json!(quadrants);
    configuration["threads"] = json!(p.machine.workers[0].first().map_or(0, |c| c.cpus.len()));
    configuration["isa"] = json!(p.machine.isa());
    configuration["schedule"] = json!(p.settings.scheduling.schedule.to_string());
    configuration["stream_pool"] = json!(p.settings.scheduling.pool.to_string());
    configuration["fusion"] = json!(p.rewriting.fusion);
    configuration["memory_sharing"] = json!(p.rewriting.memory_sharing);
    configuration["data"] = json!({"name": p.train.feed.name(), "hash": p.train.feed.hash()});
    configuration
}
