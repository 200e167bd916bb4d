//! What kernels use and what a device has, as the resource tracker sees it (Table 2 of the paper).

/// What a kernel was seen to use.
///
/// From a CUDA device it is the launch configuration, registers and shared memory from the driver, and the duration from events.
/// On a quadrant a block is a grain, of one thread; shared memory is what a grain wants to keep in its core's cache.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelUsage {
    /// What it is called.
    pub name: String,
    /// #β: blocks of its grid, or grains.
    pub blocks: u64,
    /// τ: threads of a block.
    pub threads: u32,
    /// Registers of a thread. The paper's soft constraint: they decide how many blocks run at once, not how many kernels.
    pub registers: u32,
    /// sm: bytes of shared memory of a block.
    pub shared: u64,
    /// T: nanoseconds that it takes alone.
    pub nanoseconds: f64,
}

/// What a device has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// #SM: multiprocessors, or cores.
    pub units: u32,
    /// ρ_max: blocks that a unit holds at once.
    pub blocks: u32,
    /// τ_max: threads that a unit holds at once.
    pub threads: u32,
    /// Registers of a unit.
    pub registers: u32,
    /// sm_max: bytes of shared memory of a unit.
    pub shared: u64,
    /// C: kernels that run at once.
    pub kernels: u32,
    /// T_launch: nanoseconds of the host for each kernel.
    pub launch: f64,
}

impl Limits {
    /// Blocks of a kernel that all units together hold at once by the hard constraints: threads, shared memory, and the number
    /// of blocks itself. At least one for each unit, since what does not fit could not be launched.
    pub fn wave(&self, kernel: &KernelUsage) -> u64 {
        let threads = self.threads / kernel.threads.max(1);
        let shared = self.shared.checked_div(kernel.shared).unwrap_or(u64::MAX);
        let each = u64::from(self.blocks.min(threads)).min(shared);
        u64::from(self.units.max(1)) * each.max(1)
    }

    /// Blocks of a kernel's last wave: all of them if there is but one. Waves before it fill the device and leave no room for
    /// others.
    pub fn last_wave(&self, kernel: &KernelUsage) -> u64 {
        let (blocks, wave) = (kernel.blocks.max(1), self.wave(kernel));
        (blocks - 1) % wave + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_wave_is_what_full_waves_leave() {
        let limits = Limits {
            units: 10,
            blocks: 8,
            threads: 1024,
            registers: 65536,
            shared: 48 << 10,
            kernels: 16,
            launch: 5000.0,
        };
        let kernel = |blocks, threads, shared| KernelUsage {
            name: "k".into(),
            blocks,
            threads,
            registers: 32,
            shared,
            nanoseconds: 1e5,
        };
        // By threads, by shared memory, by blocks, and never nothing.
        for (threads, shared, wave) in
            [(256, 0, 40), (64, 16 << 10, 30), (32, 0, 80), (2048, 0, 10), (32, 1 << 20, 10)]
        {
            assert_eq!(limits.wave(&kernel(1, threads, shared)), wave);
        }
        for (blocks, last) in [(0, 1), (1, 1), (39, 39), (40, 40), (41, 1), (80, 40), (85, 5)] {
            assert_eq!(limits.last_wave(&kernel(blocks, 256, 0)), last, "{blocks}");
        }
    }
}
