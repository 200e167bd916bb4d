//! What the workers of a run have in common: what they begin with, and the centre where a master or shared memory holds it.

use std::sync::Arc;

use quadrille_comm::choice::Way;
use quadrille_comm::handshake::{Fingerprint, handshake};
use quadrille_comm::protocol::async_easgd::ElasticCentre;
use quadrille_comm::protocol::async_sgd::GradientCentre;
use quadrille_comm::protocol::hogwild::SharedCentre;
use quadrille_comm::protocol::original_easgd::RoundRobin;
use quadrille_comm::protocol::parameter_server::ParameterServer;
use quadrille_comm::protocol::{Keeper, Method};
use quadrille_comm::transport::Endpoint;
use quadrille_core::net::ParamLayout;
use quadrille_core::solver::PackedRule;

use crate::failure::Failure;
use crate::settings::Settings;
use crate::state::WorkerArrays;

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
    /// The centre, if it is in memory that all workers change.
    pub shared: Option<Arc<SharedCentre>>,
    /// Updates that a master's centre has behind it.
    updates: u64,
}

impl Common {
    /// What workers that begin at iteration `iteration` with `first` have in common.
    pub fn new(
        settings: &Settings,
        layout: &ParamLayout,
        fingerprint: Fingerprint,
        iteration: u64,
        mut first: WorkerArrays,
    ) -> Self {
        if !settings.method.sends_gradients() {
            first.history = Vec::new();
        }
        let parts = usize::try_from(settings.solver.iter_size).unwrap_or(usize::MAX);
        let in_memory = settings.workers > 1 && settings.method.keeper() == Keeper::SharedMemory;
        Self {
            method: settings.method,
            way: settings.way(layout),
            fingerprint,
            rule: PackedRule::new(layout, settings.solver.rule, parts),
            shared: in_memory.then(|| Arc::new(SharedCentre::new(&first.weights, settings.workers))),
            updates: iteration.saturating_mul(settings.workers as u64),
            first,
        }
    }

    /// Whether several workers have a master: a thread beside them, with the last rank of their transport.
    pub fn has_master(&self) -> bool {
        self.method.keeper() == Keeper::Master
    }

    /// The life of the master: it serves until all workers have left.
    ///
    /// # Errors
    /// If a worker is lost.
    pub fn serve(&self, mut transport: Endpoint) -> Result<(), Failure> {
        handshake(&mut transport, &self.fingerprint)?;
        let WorkerArrays { weights, history } = &self.first;
        match self.method {
            Method::OriginalEasgd => drop(RoundRobin::new(transport, weights).serve()?),
            method if method.sends_gradients() => {
                let centre = GradientCentre::new(self.rule.clone(), weights, history, self.updates);
                drop(ParameterServer::new(transport, centre).serve()?);
            }
            _ => drop(ParameterServer::new(transport, ElasticCentre::new(weights)).serve()?),
        }
        Ok(())
    }
}
