//! What the workers of a run have in common: what they begin with, and the centre where a master or shared memory holds it.

use std::sync::Arc;

use quadrille_comm::choice::Way;
use quadrille_comm::handshake::{Fingerprint, handshake};
use quadrille_comm::protocol::async_easgd::ElasticCentre;
use quadrille_comm::protocol::async_sgd::GradientCentre;
use quadrille_comm::protocol::hogwild::{Attendant, SharedCentre};
use quadrille_comm::protocol::original_easgd::RoundRobin;
use quadrille_comm::protocol::parameter_server::ParameterServer;
use quadrille_comm::protocol::{Keeper, Method};
use quadrille_comm::transport::Endpoint;
use quadrille_core::net::Net;
use quadrille_core::solver::PackedRule;

use crate::failure::{Code, Failure};
use crate::settings::Settings;
use crate::state::WorkerArrays;
use crate::world::World;

/// What all workers of a run know when they join.
pub struct Common {
    /// How they exchange.
    pub method: Method,
    /// How packed buffers travel where all exchange at once.
    pub way: Way,
    /// What they have to agree on.
    pub fingerprint: Fingerprint,
    /// The packed weights of the first centre, and the histories of whoever takes steps for all.
    pub first: WorkerArrays,
    /// The solver's rule, for whoever takes steps for all.
    pub rule: PackedRule,
    /// The centre, if it is in memory that all workers of this process change.
    pub shared: Option<Arc<SharedCentre>>,
    /// How many workers there are in all.
    pub workers: usize,
    /// How many processes there are, if there are several.
    processes: Option<usize>,
    /// Updates that a master's centre has behind it.
    updates: u64,
}

impl Common {
    /// What workers that begin at iteration `iteration` with `first` have in common.
    pub fn new(
        settings: &Settings,
        net: &Net,
        fingerprint: Fingerprint,
        iteration: u64,
        mut first: WorkerArrays,
        world: &World,
    ) -> Self {
        if !settings.method.sends_gradients() {
            first.history = Vec::new();
        }
        let parts = usize::try_from(settings.solver.iter_size).unwrap_or(usize::MAX);
        let in_memory =
            settings.workers > 1 && settings.method.keeper() == Keeper::SharedMemory && world.leads();
        Self {
            method: settings.method,
            way: settings.way(&net.params),
            fingerprint,
            rule: PackedRule::of_net(net, settings.solver.rule, parts),
            shared: in_memory.then(|| Arc::new(SharedCentre::new(&first.weights, settings.workers))),
            workers: settings.workers,
            processes: world.size(),
            updates: iteration.saturating_mul(settings.workers as u64),
            first,
        }
    }

    /// How many threads serve the workers, with ranks behind theirs: a master; or, where the memory of the centre is far from
    /// all workers but the first, one for each of those.
    pub fn servants(&self) -> usize {
        match self.method.keeper() {
            _ if self.workers < 2 => 0,
            Keeper::Workers => 0,
            Keeper::Master => 1,
            Keeper::SharedMemory => self.processes.map_or(0, |processes| processes - 1),
        }
    }

    /// The life of one of those: it serves until all workers, or its worker, have left.
    ///
    /// # Errors
    /// If a worker is lost.
    pub fn serve(&self, mut transport: Endpoint) -> Result<(), Failure> {
        handshake(&mut transport, &self.fingerprint)?;
        let WorkerArrays { weights, history } = &self.first;
        match self.method {
            method if method.keeper() == Keeper::SharedMemory => {
                let shared =
                    self.shared.clone().ok_or_else(|| Failure::new(Code::Bug, "a centre without memory"))?;
                let rule = method.sends_gradients().then(|| self.rule.clone());
                Attendant::new(transport, self.workers, shared, rule).serve()?;
            }
            Method::OriginalEasgd => {
                drop(RoundRobin::new(transport, weights).going(self.way.parts.clone()).serve()?)
            }
            method if method.sends_gradients() => {
                let centre = GradientCentre::new(self.rule.clone(), weights, history, self.updates);
                drop(ParameterServer::new(transport, centre).serve()?);
            }
            _ => drop(ParameterServer::new(transport, ElasticCentre::new(weights)).serve()?),
        }
        Ok(())
    }
}
