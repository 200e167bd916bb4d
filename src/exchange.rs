//! What a worker does with other workers in an iteration: one of the methods, or nothing.

use std::time::{Duration, Instant};

use quadrille_comm::handshake::{Fingerprint, handshake};
use quadrille_comm::overlap::Exchanger;
use quadrille_comm::protocol::Method;
use quadrille_comm::protocol::sync_easgd::SyncEasgd;
use quadrille_comm::protocol::sync_sgd::SyncSgd;
use quadrille_comm::transport::Buffer;
use quadrille_comm::transport::threads::ThreadTransport;
use quadrille_core::device::{Packed, Region};
use quadrille_numa::Role;

use crate::failure::Failure;
use crate::pass::Pass;
use crate::places::Places;

/// A worker's part in the method.
pub enum Exchange {
    /// A single worker has nobody to talk to.
    Alone,
    /// Gradients are averaged between backward and update.
    SyncSgd {
        /// The group of workers.
        group: SyncSgd<ThreadTransport>,
        /// The packed gradients on their way.
        gradients: Vec<f32>,
    },
    /// The centre comes and the weights go while forward and backward run (Sync EASGD3).
    SyncEasgd {
        /// The communication thread.
        exchanger: Exchanger,
        /// Buffers that travel to the communication thread and back: weights and centre.
        buffers: Option<(Buffer, Buffer)>,
    },
}

impl Exchange {
    /// Joins the group: every worker calls this once, and none goes on before all run the same job. `places` has that
    /// of the communication thread.
    pub fn join(
        method: Method,
        places: &Places,
        mut transport: ThreadTransport,
        fingerprint: Fingerprint,
        centre: Vec<f32>,
    ) -> Result<Self, Failure> {
        let len = centre.len();
        match method {
            Method::SyncSgd => {
                handshake(&mut transport, &fingerprint)?;
                Ok(Self::SyncSgd { group: SyncSgd::new(transport), gradients: vec![0.0; len] })
            }
            Method::SyncEasgd3 => {
                let places = places.clone();
                let exchanger = Exchanger::spawn(move || {
                    places.settle(Role::Comm, 0);
                    handshake(&mut transport, &fingerprint)?;
                    Ok(SyncEasgd::new(transport, &centre))
                })?;
                Ok(Self::SyncEasgd { exchanger, buffers: Some((Buffer::zeros(len), Buffer::zeros(len))) })
            }
        }
    }

    /// Before forward: the weights of this iteration leave, if the method sends weights.
    pub fn start(&mut self, pass: &Pass, elastic: f32) -> Result<(), Failure> {
        if let Self::SyncEasgd { exchanger, buffers } = self
            && let Some((mut weights, centre)) = buffers.take()
        {
            pass.read(Region::Packed(Packed::Weights), &mut weights)?;
            exchanger.start(weights, elastic, centre)?;
        }
        Ok(())
    }

    /// Between backward and update: what the update needs from others arrives. Returns how long this took, the
    /// part of communication that was not hidden.
    pub fn finish(&mut self, pass: &Pass) -> Result<Duration, Failure> {
        let start = Instant::now();
        match self {
            Self::Alone => return Ok(Duration::ZERO),
            Self::SyncSgd { group, gradients } => {
                pass.read(Region::Packed(Packed::Gradients), gradients)?;
                group.exchange(gradients)?;
                pass.write_all(Region::Packed(Packed::Gradients), gradients)?;
            }
            Self::SyncEasgd { exchanger, buffers } => {
                let exchanged = exchanger.wait()?;
                pass.write_all(Region::Packed(Packed::Centre), &exchanged.centre)?;
                *buffers = Some((exchanged.weights, exchanged.centre));
            }
        }
        Ok(start.elapsed())
    }

    /// The weights that count: the centre, or the worker's own where all are equal. Every worker calls this.
    pub fn result(&mut self, pass: &Pass, weights: &mut [f32]) -> Result<(), Failure> {
        if let Self::SyncEasgd { exchanger, buffers } = self
            && let Some((own, centre)) = buffers.take()
        {
            let centre = exchanger.centre(centre)?;
            weights.copy_from_slice(&centre);
            *buffers = Some((own, centre));
            return Ok(());
        }
        pass.read(Region::Packed(Packed::Weights), weights)
    }

    /// Adds `values` up over all workers. Every worker calls this.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<(), Failure> {
        match self {
            Self::Alone => {}
            Self::SyncSgd { group, .. } => group.all_reduce_sum(values)?,
            Self::SyncEasgd { exchanger, .. } => {
                let sums = exchanger.all_reduce_sum(values.to_vec().into())?;
                values.copy_from_slice(&sums);
            }
        }
        Ok(())
    }
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
        Failure::new(crate::failure::Code::Usage, message)
    })
}
