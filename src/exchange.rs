//! What a worker does with other workers in an iteration: one of the methods, or nothing.

use std::time::Duration;

use quadrille_comm::handshake::handshake;
use quadrille_comm::overlap::{Cargo, Exchanger, Shore};
use quadrille_comm::protocol::async_easgd::AsyncEasgd;
use quadrille_comm::protocol::async_sgd::AsyncSgd;
use quadrille_comm::protocol::hogwild::{HogwildEasgd, HogwildSgd};
use quadrille_comm::protocol::original_easgd::OriginalEasgd;
use quadrille_comm::protocol::sync_easgd::SyncEasgd;
use quadrille_comm::protocol::sync_sgd::SyncSgd;
use quadrille_comm::protocol::{ElasticMember, Method};
use quadrille_comm::transport::{Buffer, Endpoint};
use quadrille_comm::{CommError, Moment};
use quadrille_core::device::{Device, DeviceError, Packed, Region};
use quadrille_core::run::Running;
use quadrille_numa::Role;

use crate::averaging::{self, Averaging};
use crate::breakdown::Spent;
use crate::centre::Common;
use crate::engine::WorkerDevice;
use crate::failure::{Code, Failure};
use crate::pace::Pace;
use crate::pass::Pass;
use crate::places::Places;
use crate::state::WorkerArrays;
use crate::worker::Worker;

/// A worker's part in the method.
pub enum Exchange {
    /// A single worker has nobody to talk to.
    Alone,
    /// Gradients are averaged before the update.
    SyncSgd(Averaging),
    /// Gradients go to a master, which takes the step; its weights come back (Async SGD, Async MSGD).
    AsyncSgd {
        /// The line to the master.
        member: AsyncSgd<Endpoint>,
        /// Gradients on their way there, weights on their way back.
        values: Vec<f32>,
    },
    /// The worker takes its step on weights that all share (Hogwild SGD).
    HogwildSgd {
        /// The part in the shared weights.
        member: HogwildSgd<Endpoint>,
        /// Gradients, then weights.
        values: Vec<f32>,
    },
    /// The centre comes and the weights go: all methods of the EASGD family.
    Elastic(Elastic),
}

/// A worker's part in an elastic method.
pub struct Elastic {
    /// The communication thread.
    exchanger: Exchanger,
    /// What travels to the communication thread and back: weights and centre, and the devices between which they go.
    cargo: Option<Cargo>,
    /// Whether the exchange runs beside forward and backward.
    overlaps: bool,
    /// Whether the worker computes in its turn only.
    turns: bool,
    /// Whether all workers exchange at once.
    synchronous: bool,
    /// The pull of the exchange of this iteration, if it has one.
    pull: Option<f32>,
    /// How long the centre took to change in exchanges so far.
    updated: Duration,
}

impl Exchange {
    /// Joins the group: every worker calls this once, and none goes on before all run the same job.
    pub fn join(common: &Common, worker: &Worker, mut transport: Endpoint) -> Result<Self, Failure> {
        let len = common.first.weights.len();
        let values = vec![0.0; if common.method.sends_gradients() { len } else { 0 }];
        match common.method {
            Method::SyncSgd => {
                handshake(&mut transport, &common.fingerprint)?;
                let (nets, plan) = (&worker.pass.nets, &worker.plans.gradients);
                let parts = averaging::parts(&nets[0].params, common.workers, !common.way.parts.is_empty());
                let group = SyncSgd::new(transport).going(common.way.clone());
                Ok(Self::SyncSgd(Averaging::new(group, &worker.pace, nets, plan, parts)))
            }
            Method::AsyncSgd | Method::AsyncMsgd => {
                handshake(&mut transport, &common.fingerprint)?;
                Ok(Self::AsyncSgd { member: AsyncSgd::new(transport, len), values })
            }
            Method::HogwildSgd => {
                handshake(&mut transport, &common.fingerprint)?;
                let rule = common.rule.clone();
                let member = match &common.shared {
                    Some(shared) => HogwildSgd::new(transport, shared.clone(), rule),
                    None => HogwildSgd::far(transport, common.workers, rule),
                };
                Ok(Self::HogwildSgd { member, values })
            }
            _ => Ok(Self::Elastic(Elastic::join(common, (&worker.places, &worker.pace), transport)?)),
        }
    }

    /// Before forward: the weights of this iteration leave, if the method sends weights. `pull` is eta * rho if this
    /// iteration exchanges.
    pub fn start(&mut self, pass: &Pass, pace: &Pace, pull: Option<f32>) -> Result<Spent, Failure> {
        match self {
            Self::Elastic(elastic) => elastic.start(pass, pace, pull),
            _ => Ok(Spent::default()),
        }
    }

    /// Before forward: by a virtual clock, what was started is done now.
    pub fn proceed(&mut self) {
        if let Self::Elastic(elastic) = self {
            elastic.exchanger.proceed();
        }
    }

    /// Beside the step that finds gradients: what leaves as soon as it is found. Not where votes decide whether it may.
    ///
    /// # Errors
    /// If a device or another worker fails.
    pub fn beside(&mut self, pass: &Pass, step: &Running<'_, WorkerDevice>) -> Result<(), Failure> {
        match self {
            Self::SyncSgd(averaging) => averaging.beside(pass, step),
            _ => Ok(()),
        }
    }

    /// By a virtual clock, the share of a step that goes by before anything leaves beside it, of 1.
    pub fn first_share(&self) -> f64 {
        match self {
            Self::SyncSgd(averaging) => averaging.first_share(),
            _ => 1.0,
        }
    }

    /// Lets the rest of a step go by, of which `gone` has by a virtual clock, and what leaves beside it leave. Returns when the step
    /// ended; nothing by the real clock, by which all of it has.
    ///
    /// # Errors
    /// If a device or another worker fails.
    pub fn beside_virtually(
        &mut self,
        pass: &Pass,
        pace: &Pace,
        gone: f64,
    ) -> Result<Option<Moment>, Failure> {
        let Some(clock) = pace.virtual_clock() else { return Ok(None) };
        match self {
            Self::SyncSgd(averaging) if gone < 1.0 => averaging.beside_virtually(pass, pace, clock).map(Some),
            _ => {
                pace.go_on(gone, 1.0);
                Ok(Some(clock.now()))
            }
        }
    }

    /// What was exchanged beside a step whose last task ended at `computed`, with each time of it.
    pub fn spent_beside(&self, computed: Moment) -> (Spent, &[(Moment, Duration)]) {
        match self {
            Self::SyncSgd(averaging) => averaging.spent_beside(computed),
            _ => (Spent::default(), &[]),
        }
    }

    /// Between backward and update: what the update needs from others arrives. `vote` is whether this worker has to leave
    /// its update out; `None` where nobody ever does. Returns what this took, and whether the update is left out: by all
    /// workers if one has to and they exchange at once, else by this one.
    pub fn finish(&mut self, pass: &Pass, pace: &Pace, vote: Option<bool>) -> Result<(Spent, bool), Failure> {
        let start = pace.now();
        let mut leaves_out = vote.unwrap_or(false);
        match self {
            Self::Alone | Self::AsyncSgd { .. } | Self::HogwildSgd { .. } => {
                Ok((Spent::default(), leaves_out))
            }
            Self::SyncSgd(averaging) => {
                if let Some(own) = vote {
                    // Before gradients that are not finite go anywhere.
                    let mut votes = [f32::from(own)];
                    averaging.group().all_reduce_sum(&mut votes)?;
                    leaves_out = votes[0] > 0.0;
                }
                if !leaves_out {
                    averaging.finish(pass)?;
                }
                Ok((alone_with_it(pace.now().since(start), Duration::ZERO), leaves_out))
            }
            Self::Elastic(elastic) => {
                // Weights that are finite have travelled: the centre's step stands.
                let mut spent = elastic.finish(pass, pace)?;
                if let Some(own) = vote.filter(|_| elastic.synchronous) {
                    let start = pace.now();
                    let votes = elastic.exchanger.all_reduce_sum(vec![f32::from(own)].into())?;
                    leaves_out = votes[0] > 0.0;
                    spent.waited += pace.now().since(start);
                }
                Ok((spent, leaves_out))
            }
        }
    }

    /// In place of the worker's own update where gradients are sent: the step is taken at the learning rate `rate`, and the
    /// worker goes on with the weights that come back. `None` if the worker has to update.
    pub fn step(&mut self, pass: &Pass, pace: &Pace, rate: f32) -> Result<Option<Spent>, Failure> {
        let start = pace.now();
        let (weights, updating) = match self {
            Self::Alone | Self::SyncSgd(_) | Self::Elastic(_) => return Ok(None),
            Self::AsyncSgd { member, values } => {
                let before = member.updating();
                pass.read(Region::Packed(Packed::Gradients), values)?;
                member.exchange(values, rate)?;
                (values, member.updating() - before)
            }
            Self::HogwildSgd { member, values } => {
                let before = member.updating();
                pass.read(Region::Packed(Packed::Gradients), values)?;
                member.exchange(values, rate)?;
                (values, member.updating() - before)
            }
        };
        pass.write_all(Region::Packed(Packed::Weights), weights)?;
        Ok(Some(alone_with_it(pace.now().since(start), updating)))
    }

    /// The weights that count: the centre, or the worker's own where all are equal. Every worker calls this.
    pub fn result(&mut self, pass: &Pass, weights: &mut [f32]) -> Result<(), Failure> {
        match self {
            Self::Alone | Self::SyncSgd(_) => pass.read(Region::Packed(Packed::Weights), weights),
            Self::AsyncSgd { member, .. } => Ok(member.state(weights)?),
            Self::HogwildSgd { member, .. } => Ok(member.centre(weights)?),
            Self::Elastic(elastic) => elastic.centre(weights),
        }
    }

    /// Before a snapshot: where somebody takes steps for all, every worker goes on with the weights of the centre, and
    /// `arrays`, its own state, become the centre's. Every worker calls this.
    pub fn adopt(&mut self, pass: &Pass, arrays: &mut WorkerArrays) -> Result<(), Failure> {
        match self {
            Self::Alone | Self::SyncSgd(_) | Self::Elastic(_) => return Ok(()),
            Self::AsyncSgd { member, .. } => {
                let len = arrays.weights.len();
                let mut state = vec![0.0; len + arrays.history.len()];
                member.state(&mut state)?;
                let (weights, history) = state.split_at(len);
                arrays.weights.copy_from_slice(weights);
                arrays.history.copy_from_slice(history);
            }
            Self::HogwildSgd { member, .. } => {
                member.centre(&mut arrays.weights)?;
                arrays.history.fill(0.0);
            }
        }
        pass.write_all(Region::Packed(Packed::Weights), &arrays.weights)
    }

    /// What a wait for others outside of an exchange is.
    pub fn meeting(&self, waited: Duration) -> Spent {
        match self {
            Self::Elastic(elastic) if elastic.turns => Spent { turn: waited, ..Spent::default() },
            _ => Spent { waited, ..Spent::default() },
        }
    }

    /// Adds `values` up over all workers. Every worker calls this.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<(), Failure> {
        match self {
            Self::Alone => {}
            Self::SyncSgd(averaging) => averaging.group().all_reduce_sum(values)?,
            Self::AsyncSgd { member, .. } => member.all_reduce_sum(values)?,
            Self::HogwildSgd { member, .. } => member.all_reduce_sum(values)?,
            Self::Elastic(elastic) => {
                let sums = elastic.exchanger.all_reduce_sum(values.to_vec().into())?;
                values.copy_from_slice(&sums);
            }
        }
        Ok(())
    }

    /// Ends the worker's part in good order. Every worker calls this last.
    pub fn leave(&mut self) -> Result<(), Failure> {
        match self {
            Self::Alone | Self::SyncSgd(_) => Ok(()),
            Self::AsyncSgd { member, .. } => Ok(member.leave()?),
            Self::HogwildSgd { member, .. } => Ok(member.leave()?),
            Self::Elastic(elastic) => Ok(elastic.exchanger.leave()?),
        }
    }
}

/// What an exchange took that a worker had nothing beside.
fn alone_with_it(took: Duration, updating: Duration) -> Spent {
    Spent { waited: took, took, updating, ..Spent::default() }
}

impl Elastic {
    fn join(common: &Common, at: (&Places, &Pace), transport: Endpoint) -> Result<Self, Failure> {
        let (method, centre) = (common.method, common.first.weights.clone());
        let len = centre.len();
        let exchanger = match method {
            Method::OriginalEasgd => {
                let parts = common.way.parts.clone();
                spawn(common, at, transport, move |end| OriginalEasgd::new(end, len).going(parts))
            }
            Method::AsyncEasgd | Method::AsyncMeasgd => {
                spawn(common, at, transport, move |end| AsyncEasgd::new(end, len))
            }
            Method::HogwildEasgd => {
                let (shared, workers) = (common.shared.clone(), common.workers);
                spawn(common, at, transport, move |end| match shared {
                    Some(shared) => HogwildEasgd::new(end, shared),
                    None => HogwildEasgd::far(end, workers, len),
                })
            }
            _ => {
                let way = common.way.clone();
                spawn(common, at, transport, move |end| SyncEasgd::going(end, &centre, way))
            }
        }?;
        let turns = method == Method::OriginalEasgd;
        let cargo = Some(Cargo::new(Buffer::zeros(len), Buffer::zeros(len)));
        let (overlaps, synchronous) = (method.overlaps(), method.is_synchronous());
        let updated = Duration::ZERO;
        Ok(Self { exchanger, cargo, overlaps, turns, synchronous, pull: None, updated })
    }

    fn start(&mut self, pass: &Pass, pace: &Pace, pull: Option<f32>) -> Result<Spent, Failure> {
        let start = pace.now();
        self.pull = pull;
        if self.turns && pull.is_some() {
            self.exchanger.begin_turn()?;
        }
        let turn = pace.now();
        if self.overlaps {
            self.send(pass)?;
        }
        Ok(Spent { turn: turn.since(start), waited: pace.now().since(turn), ..Spent::default() })
    }

    /// The weights, which no update has changed yet, leave.
    fn send(&mut self, pass: &Pass) -> Result<(), Failure> {
        if let Some(pull) = self.pull
            && let Some(mut cargo) = self.cargo.take()
        {
            cargo.shore.get_or_insert_with(|| Box::new(Devices(pass.devices.clone())));
            self.exchanger.start(cargo, pull)?;
        }
        Ok(())
    }

    fn finish(&mut self, pass: &Pass, pace: &Pace) -> Result<Spent, Failure> {
        if self.pull.is_none() {
            return Ok(Spent::default());
        }
        let start = pace.now();
        if !self.overlaps {
            self.send(pass)?;
        }
        let exchanged = self.exchanger.wait()?;
        self.cargo = Some(exchanged.cargo);
        if self.turns {
            self.exchanger.end_turn()?;
        }
        let (took, beside) = (exchanged.took, exchanged.took.saturating_sub(exchanged.waited));
        let updating = exchanged.updating - std::mem::replace(&mut self.updated, exchanged.updating);
        Ok(Spent { turn: Duration::ZERO, waited: pace.now().since(start), took, beside, updating })
    }

    fn centre(&mut self, weights: &mut [f32]) -> Result<(), Failure> {
        if let Some(cargo) = self.cargo.take() {
            let centre = self.exchanger.centre(cargo.centre)?;
            weights.copy_from_slice(&centre);
            self.cargo = Some(Cargo { centre, ..cargo });
        }
        Ok(())
    }
}

/// A worker's devices, between which and the communication thread weights and centre go. No task writes weights between an
/// exchange's start and its end, and none reads the centre: updates alone do, and they wait for the exchange.
struct Devices(Vec<WorkerDevice>);

impl Shore for Devices {
    fn weights(&mut self, to: &mut [f32]) -> Result<(), CommError> {
        self.0[0].read(Region::Packed(Packed::Weights), to).map_err(unavailable)
    }

    fn centre(&mut self, from: &[f32]) -> Result<(), CommError> {
        let mut devices = self.0.iter();
        devices.try_for_each(|device| device.write(Region::Packed(Packed::Centre), from)).map_err(unavailable)
    }
}

fn unavailable(error: DeviceError) -> CommError {
    CommError::Unavailable(error.to_string())
}

/// Starts the communication thread of a worker, which joins the method. In virtual time there is none.
fn spawn<M: ElasticMember + 'static>(
    common: &Common,
    (places, pace): (&Places, &Pace),
    mut transport: Endpoint,
    make: impl FnOnce(Endpoint) -> M + Send + 'static,
) -> Result<Exchanger, Failure> {
    if let Some(clock) = pace.virtual_clock() {
        handshake(&mut transport, &common.fingerprint)?;
        return Ok(Exchanger::timed(clock.clone(), make(transport)));
    }
    let (places, fingerprint) = (places.clone(), common.fingerprint);
    let exchanger = Exchanger::spawn(move || {
        places.settle(Role::Comm, 0);
        handshake(&mut transport, &fingerprint)?;
        Ok(make(transport))
    });
    Ok(exchanger?)
}

/// Number of a text, for the handshake.
pub fn fingerprint_of(text: &str) -> u64 {
    // FNV-1a: the handshake looks for mistakes, not for attackers.
    text.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// How long a silent worker may be silent.
pub fn peer_timeout(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds).ok().filter(|d| !d.is_zero()).ok_or_else(|| {
        let message = format!("--peer-timeout {seconds}: expected a positive number of seconds");
        Failure::new(Code::Usage, message)
    })
}
