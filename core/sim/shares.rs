//! How grains that run share what there is of a device.

use super::model::Kernel;

/// What is shared: memory, arithmetic of the units that are busy, and what these can move.
const KINDS: usize = 3;
/// Rounds after which levels are taken as they are. Two or three are the rule.
const ROUNDS: usize = 16;

/// What grains of one kernel ask for.
pub(super) struct Demand {
    grains: f64,
    /// The part of a grain that is done in a nanosecond if nothing is short.
    most: f64,
    /// What a grain takes of each kind.
    work: [f64; KINDS],
    /// By what a grain counts where something is short: of memory as one, of units by its threads.
    weight: [f64; KINDS],
}

impl Demand {
    /// That of so many grains, each of which could go on so fast by itself.
    pub fn of(kernel: &Kernel, grains: u64, most: f64) -> Self {
        let (bytes, threads) = (kernel.grain_bytes(), f64::from(kernel.threads));
        Self {
            grains: grains as f64,
            most,
            work: [bytes, kernel.grain_flops(), bytes],
            weight: [1.0, threads, threads],
        }
    }

    /// How fast a grain goes on if of each kind it gets no more than `levels` for each weight, but for the kind `but`.
    fn speed(&self, levels: &[f64; KINDS], but: usize) -> f64 {
        let kinds = (0..KINDS).filter(|kind| *kind != but && self.work[*kind] > 0.0);
        kinds.map(|kind| levels[kind] * self.weight[kind] / self.work[kind]).fold(self.most, f64::min)
    }
}

/// What there is of each kind in a nanosecond, and who asks for it.
///
/// Where more is asked for than there is, each grain gets what it asks for up to an even share by weight, and goes on as much slower.
/// It asks for no more than it can use at the speed that the other kinds allow: what waits for arithmetic leaves memory to others,
/// and what waits for memory leaves arithmetic.
pub(super) struct Shares {
    pub most: [f64; KINDS],
    pub demands: Vec<Demand>,
}

impl Shares {
    /// The part of a grain of each demand that is done in a nanosecond.
    pub fn speeds(&self) -> Vec<f64> {
        let mut levels = [f64::INFINITY; KINDS];
        // A level that falls lets others rise, and these then fall less: levels close in on what agrees.
        for _ in 0..ROUNDS {
            let before = levels;
            for kind in 0..KINDS {
                levels[kind] = self.level(kind, &levels);
            }
            let same = |kind: usize| {
                levels[kind] == before[kind] || (levels[kind] / before[kind] - 1.0).abs() < 1e-9
            };
            // If one kind alone is short from the beginning no other lets anybody ask for less of it.
            let short = |levels: &[f64; KINDS]| levels.iter().filter(|level| level.is_finite()).count();
            if (short(&before) == 0 && short(&levels) < 2) || (0..KINDS).all(same) {
                break;
            }
        }
        self.demands.iter().map(|demand| demand.speed(&levels, KINDS)).collect()
    }

    /// The most that each weight may get of a kind, so that all together get what there is.
    fn level(&self, kind: usize, levels: &[f64; KINDS]) -> f64 {
        let asked = |demand: &Demand| demand.speed(levels, kind) * demand.work[kind] / demand.weight[kind];
        let hungry = || self.demands.iter().filter(|demand| demand.work[kind] > 0.0);
        let all = hungry().map(|demand| demand.speed(levels, kind) * demand.work[kind] * demand.grains);
        if all.sum::<f64>() <= self.most[kind] {
            return f64::INFINITY;
        }
        let mut hungry: Vec<(f64, f64)> =
            hungry().map(|demand| (asked(demand), demand.grains * demand.weight[kind])).collect();
        hungry.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut left, mut weights) = (self.most[kind], hungry.iter().map(|(_, weight)| weight).sum::<f64>());
        for (asked, weight) in hungry {
            if asked > left / weights {
                return left / weights;
            }
            left -= asked * weight;
            weights -= weight;
        }
        f64::INFINITY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demand(grains: u64, threads: u32, flops: f64, bytes: f64, most: f64) -> Demand {
        let kernel = Kernel {
            grains,
            threads,
            registers: 0,
            shared: 0,
            saturating: 1,
            width: u64::MAX,
            flops: flops * grains as f64,
            bytes: bytes * grains as f64,
        };
        Demand::of(&kernel, grains, most)
    }

    fn used(shares: &Shares) -> Vec<f64> {
        let speeds = shares.speeds();
        let of = |kind: usize| {
            shares.demands.iter().zip(&speeds).map(|(d, speed)| d.grains * d.work[kind] * speed).sum()
        };
        (0..KINDS).map(of).collect()
    }

    /// Sixty grains that wait for arithmetic ask for all of memory by themselves, but can use a tenth of it.
    #[test]
    fn what_waits_for_one_thing_leaves_the_other() {
        let products = demand(60, 128, 100.0, 10.0, 1.0);
        let copies = demand(10, 512, 0.0, 100.0, 1.0);
        let shares = Shares { most: [600.0, 600.0, 1e9], demands: vec![products, copies] };
        let speeds = shares.speeds();
        assert!((speeds[0] - 0.1).abs() < 1e-9, "arithmetic is shared by sixty: {speeds:?}");
        assert!((speeds[1] - 0.54).abs() < 1e-9, "540 of 600 bytes are left: {speeds:?}");
    }

    #[test]
    fn nobody_gets_more_than_there_is_and_nothing_is_wasted() {
        for case in 0..200_u32 {
            let of = |salt: u32, most: u32| f64::from((case * 7919 + salt * 104_729) % most + 1);
            let demands: Vec<Demand> = (0..1 + case % 5)
                .map(|id| {
                    let (flops, bytes) =
                        (of(id, 50) * f64::from(id % 3), of(id + 9, 90) * f64::from((id + 1) % 3));
                    demand(
                        of(id + 3, 40) as u64,
                        32 * of(id + 4, 8) as u32,
                        flops,
                        bytes,
                        1.0 / of(id + 5, 4),
                    )
                })
                .collect();
            let shares = Shares { most: [of(20, 900), of(21, 900), of(22, 3000)], demands };
            let (used, speeds) = (used(&shares), shares.speeds());
            for kind in 0..KINDS {
                assert!(
                    used[kind] <= shares.most[kind] * (1.0 + 1e-6),
                    "case {case}: {used:?} of {:?}",
                    shares.most
                );
            }
            for (demand, speed) in shares.demands.iter().zip(&speeds) {
                let short =
                    |kind: usize| demand.work[kind] > 0.0 && used[kind] > shares.most[kind] * (1.0 - 1e-6);
                let free = (speed / demand.most - 1.0).abs() < 1e-9;
                assert!(
                    free || (0..KINDS).any(short),
                    "case {case}: slow for nothing, {used:?} of {:?}",
                    shares.most
                );
            }
        }
    }
}
