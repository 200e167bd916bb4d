//! How nets are rewritten for the devices that compute them.

use quadrille_core::net::{Net, Phase, StorageNeeds};
use quadrille_cpu::isa::Numerics;
use quadrille_cpu::{EngineError, adders, passing_layers, rectifying_layers, stepping_layers, storage_needs};

use crate::cli::MachineArgs;
use crate::failure::Failure;
use crate::settings::Settings;

/// How nets are rewritten for devices.
#[derive(Clone, Copy, Debug)]
pub struct Rewriting<'a> {
    /// Whether layers are computed together: chains of them, sums of residual blocks and ReLUs with their neighbours, and updates
    /// and sums of gradients with these.
    pub fusion: bool,
    /// Whether nobody but the worker's own update asks for its gradients, so that it need not store all of them.
    alone: bool,
    /// Whether values and gradients share memory by lifetime, and the bottoms of a Concat with its top.
    pub memory_sharing: bool,
    /// Tier and precision of the kernels.
    numerics: Numerics,
    /// Forced implementations.
    kernels: &'a [(String, String)],
    /// Mini-batches of an iteration.
    parts: usize,
    /// Whether updates ask for the norm of all gradients.
    clips: bool,
    /// Whether the worker has a GPU, where all arrays are plain and no update is one with its gradient.
    pub gpu: bool,
}

impl<'a> Rewriting<'a> {
    /// As the flags say, for kernels of these tier and precision, in a run of so many workers.
    pub fn new(args: &'a MachineArgs, numerics: Numerics, workers: usize) -> Self {
        let (fusion, memory_sharing) = (!args.no_fusion, !args.no_memory_sharing);
        let (alone, kernels) = (workers == 1, args.kernels.as_slice());
        let (parts, clips, gpu) = (1, false, false);
        Self { fusion, alone, memory_sharing, numerics, kernels, parts, clips, gpu }
    }

    /// The same for a worker on a GPU, if it is on one.
    pub fn on(self, gpu: bool) -> Self {
        Self { gpu: self.gpu || gpu, ..self }
    }

    /// The same for a training that needs what `settings` ask for.
    pub fn for_settings(self, settings: &Settings) -> Self {
        let solver = &settings.solver;
        let parts = usize::try_from(solver.iter_size).unwrap_or(usize::MAX);
        let alone = self.alone && !settings.updates_apart();
        // Whoever wants to see every array needs each in its own memory, and every layer by itself.
        let seen = solver.debug_info;
        let (fusion, memory_sharing) = (self.fusion && !seen, self.memory_sharing && !seen);
        Self { fusion, memory_sharing, alone, parts, clips: solver.rule.clip.is_some(), ..self }
    }

    /// What devices compute in place of `net`.
    pub fn of(self, net: Net) -> Result<Net, Failure> {
        let mut net = if self.fusion { net.fused() } else { net };
        if net.phase == Phase::Train {
            net = net.gathering(self.parts).clipping(self.clips);
        }
        if self.gpu {
            let needs = StorageNeeds::from(net.storages.clone());
            return Ok(if self.memory_sharing { net.sharing_memory(&needs) } else { net });
        }
        if self.fusion {
            net = net.summing();
            let can = rectifying_layers(&net, self.numerics, self.kernels).map_err(EngineError::Kernel)?;
            net = net.rectifying(|layer| can.contains(&layer));
        }
        if self.fusion && self.alone {
            let can = stepping_layers(&net, self.numerics, self.kernels).map_err(EngineError::Kernel)?;
            net = net.stepping(|layer| can.contains(&layer));
            let can = passing_layers(&net, self.numerics, self.kernels).map_err(EngineError::Kernel)?;
            net = net.stepping_in_passing(|layer| can.contains(&layer));
        }
        if !self.memory_sharing {
            return Ok(net);
        }
        if self.fusion {
            let can = adders(&net, self.numerics, self.kernels).map_err(EngineError::Kernel)?;
            net = net.adding(&can);
        }
        let needs = storage_needs(&net, self.numerics, self.kernels).map_err(EngineError::Kernel)?;
        Ok(net.sharing_memory(&needs))
    }
}
