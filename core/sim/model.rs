//! What a simulated device has, and what a task asks of it.

use crate::net::Net;
use crate::plan::lanes::{KernelUsage, Limits};
use crate::plan::{CostModel, Node, Rates};

/// How tasks of one kind are cut into grains, and what each asks of a unit while it runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GrainRule {
    /// Operations, or bytes, that are worth a grain of their own.
    pub work: f64,
    /// Most grains of a task.
    pub most: u64,
    /// Threads of a grain.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory of a grain.
    pub shared: u64,
    /// Threads of a unit that get all it can do of this kind of work; with fewer, latencies show.
    pub saturating: u32,
}

impl GrainRule {
    /// Grains of one thread each, one for a core.
    pub const fn cores(work: f64, most: u64) -> Self {
        Self { work, most, threads: 1, registers: 0, shared: 0, saturating: 1 }
    }

    fn grains(&self, work: f64) -> u64 {
        ((work / self.work).ceil() as u64).clamp(1, self.most.max(1))
    }
}

/// A device: units (cores of a quadrant, or multiprocessors), the memory behind them, and a host that feeds its lanes. Rates
/// are per nanosecond, times in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceModel {
    /// What limits how much runs at once. Of a core: one block of one thread.
    pub limits: Limits,
    /// Operations of a unit.
    pub flops: f64,
    /// Bytes that a unit can move.
    pub bytes: f64,
    /// Bytes that all units together can move.
    pub memory: f64,
    /// Levels of priority that the device knows; lanes of lower priority share the last.
    pub levels: u8,
    /// Time of the host for a wait of one lane for another.
    pub wait: f64,
    /// From the moment at which a lane can go on until the first grain of its next task runs.
    pub start: f64,
    /// What a grain takes beside its work.
    pub grain: f64,
    /// Whether grains are handed out as a quadrant's crew does: lanes of one priority take turns, and what is bound by memory is
    /// offered to half of the units before other lanes had their chance.
    pub crew: bool,
    /// The cut of tasks that are bound by arithmetic.
    pub compute: GrainRule,
    /// The cut of tasks that are bound by memory.
    pub stream: GrainRule,
}

impl DeviceModel {
    /// A device that does one task after the other at full rates, whatever lane it is in.
    pub fn serial(rates: Rates) -> Self {
        let limits =
            Limits { units: 1, blocks: 1, threads: 1, registers: 0, shared: 0, kernels: 1, launch: 0.0 };
        Self {
            limits,
            flops: rates.flops,
            bytes: rates.bytes,
            memory: rates.bytes,
            levels: u8::MAX,
            wait: 0.0,
            start: 0.0,
            grain: rates.overhead,
            crew: false,
            compute: GrainRule::cores(1.0, 1),
            stream: GrainRule::cores(1.0, 1),
        }
    }

    /// A device of which only the limits are known, for kernels whose times are ([`Kernel::seen`]). A unit does an operation in a
    /// nanosecond however few threads it holds: what latencies leave idle nobody knows, so that kernels gain from each other what
    /// units they leave idle, and no more. Waits take `wait` nanoseconds of the host.
    pub fn of_limits(limits: Limits, wait: f64) -> Self {
        let serial = Self::serial(Rates { flops: 1.0, bytes: 1.0, overhead: 0.0 });
        Self { limits, memory: f64::from(limits.units), wait, ..serial }
    }

    /// The same device with so many units; what they share stays.
    pub fn with_units(mut self, units: u32) -> Self {
        self.limits.units = units;
        self
    }

    /// The kernel of some work: cut as the rule for what binds it on the whole device says.
    pub fn kernel(&self, flops: f64, bytes: f64) -> Kernel {
        let units = f64::from(self.limits.units);
        let computes = flops / (units * self.flops) >= bytes / self.memory.min(units * self.bytes);
        let (rule, work) = if computes { (self.compute, flops) } else { (self.stream, bytes) };
        let half = u64::from(self.limits.units).div_ceil(2);
        Kernel {
            grains: rule.grains(work),
            threads: rule.threads,
            registers: rule.registers,
            shared: rule.shared,
            saturating: rule.saturating,
            width: if self.crew && !computes { half } else { u64::MAX },
            flops,
            bytes,
        }
    }

    /// The kernel of a task of a plan of `nets`.
    pub fn kernel_of(&self, nets: &[Net], node: &Node) -> Kernel {
        self.kernel(CostModel::flops(nets, node) as f64, CostModel::bytes(nets, node) as f64)
    }

    /// Grains of a kernel that all units together hold at once.
    pub(super) fn wave(&self, kernel: &Kernel) -> u64 {
        let Limits { units, blocks, threads, registers, shared, .. } = self.limits;
        let per_block = u64::from(kernel.registers) * u64::from(kernel.threads);
        let by_registers = u64::from(registers).checked_div(per_block).unwrap_or(u64::MAX);
        let by_shared = shared.checked_div(kernel.shared).unwrap_or(u64::MAX);
        let each = u64::from(blocks.min(threads / kernel.threads.max(1))).min(by_registers).min(by_shared);
        u64::from(units) * each.max(1)
    }

    /// The same kernel in fewer and larger grains, if it has more than so many waves of them: quicker to simulate, and nearly the same
    /// where single waves do not matter.
    pub fn in_waves(&self, kernel: Kernel, most: u64) -> Kernel {
        kernel.in_grains(kernel.grains.min(self.wave(&kernel).saturating_mul(most)))
    }

    /// Nanoseconds of a kernel that has the device to itself, without what the host takes: full waves and the last.
    pub fn alone(&self, kernel: &Kernel) -> f64 {
        let wave = self.wave(kernel);
        let (full, rest) = (kernel.grains / wave, kernel.grains % wave);
        let of = |grains: u64| if grains == 0 { 0.0 } else { self.grain + 1.0 / self.speed(kernel, grains) };
        self.start + full as f64 * of(wave) + of(rest)
    }

    /// Nanoseconds that the device needs at least for all of these kernels, however they are scheduled: for their operations with all
    /// units at their peak, for their bytes at full bandwidth, and, where a unit holds one grain at a time, for the grains.
    pub fn least<'a>(&self, kernels: impl IntoIterator<Item = &'a Kernel>) -> f64 {
        let units = f64::from(self.limits.units);
        let one_by_one = self.limits.blocks == 1;
        let (mut flops, mut bytes, mut grains) = (0.0, 0.0, 0.0);
        for kernel in kernels {
            flops += kernel.flops / (units * self.flops);
            bytes += kernel.bytes / self.memory.min(units * self.bytes);
            let grain = self.grain + 1.0 / self.grain_speed(kernel, 0.0);
            grains += if one_by_one { kernel.grains as f64 * grain / units } else { 0.0 };
        }
        flops.max(bytes).max(grains)
    }

    /// The part of a grain that is done in a nanosecond while so many grains of the kernel have the device to themselves.
    fn speed(&self, kernel: &Kernel, grains: u64) -> f64 {
        let busy = grains.min(self.limits.units.into()) as f64;
        let resident = grains as f64 * f64::from(kernel.threads) / busy;
        let most = self.grain_speed(kernel, resident);
        let shared = self.memory / (grains as f64 * kernel.grain_bytes());
        most.min(if shared.is_nan() { f64::INFINITY } else { shared })
    }

    /// The part of a grain that is done in a nanosecond on a unit that holds so many threads, if memory keeps up.
    pub(super) fn grain_speed(&self, kernel: &Kernel, resident: f64) -> f64 {
        let threads = f64::from(kernel.threads.max(1));
        let share = threads / resident.max(f64::from(kernel.saturating)).max(threads);
        // Nothing to do is done at once.
        let of = |rate: f64, work: f64| if work > 0.0 { share * rate / work } else { f64::INFINITY };
        of(self.flops, kernel.grain_flops()).min(of(self.bytes, kernel.grain_bytes()))
    }

    /// What the resource tracker sees of a kernel.
    pub fn usage(&self, name: &str, kernel: &Kernel) -> KernelUsage {
        KernelUsage {
            name: name.to_owned(),
            blocks: kernel.grains,
            threads: kernel.threads,
            registers: kernel.registers,
            shared: kernel.shared,
            nanoseconds: self.alone(kernel),
        }
    }
}

/// What a task asks of its device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kernel {
    /// Grains, all alike, at least 1.
    pub grains: u64,
    /// Threads of a grain.
    pub threads: u32,
    /// Registers of a thread.
    pub registers: u32,
    /// Bytes of shared memory of a grain.
    pub shared: u64,
    /// Threads of a unit that get all it can do of this kind of work.
    pub saturating: u32,
    /// Grains that run at once before lower lanes had their chance.
    pub width: u64,
    /// Operations of all grains.
    pub flops: f64,
    /// Bytes of all grains.
    pub bytes: f64,
}

impl Kernel {
    pub(super) fn grain_flops(&self) -> f64 {
        self.flops / self.grains as f64
    }

    pub(super) fn grain_bytes(&self) -> f64 {
        self.bytes / self.grains as f64
    }

    /// A kernel that was seen, so that it takes as long alone on `model`; all of its work is taken for arithmetic.
    pub fn seen(usage: &KernelUsage, model: &DeviceModel) -> Self {
        let with = |flops: f64| Self {
            grains: usage.blocks.max(1),
            threads: usage.threads,
            registers: usage.registers,
            shared: usage.shared,
            saturating: usage.threads,
            width: u64::MAX,
            flops,
            bytes: 0.0,
        };
        // Beside what it takes in any case time is proportional to work.
        let (none, one) = (model.alone(&with(0.0)), model.alone(&with(1.0)));
        with((usage.nanoseconds - none).max(0.0) / (one - none))
    }

    /// The same kernel, cut into so many grains.
    pub fn in_grains(mut self, grains: u64) -> Self {
        self.grains = grains.max(1);
        self
    }

    /// The same kernel, corrected by a measurement: so that its grains, one after the other on one unit of `model` that has the
    /// memory to itself, take so many nanoseconds. What was measured is taken for arithmetic as far as it is not explained by
    /// bytes.
    pub fn measured(mut self, model: &DeviceModel, nanoseconds: f64) -> Self {
        let work = (nanoseconds - model.start - self.grains as f64 * model.grain).max(1.0);
        self.flops = work * model.flops;
        self.bytes = self.bytes.min(work * model.bytes.min(model.memory));
        self
    }
}
