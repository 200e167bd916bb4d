//! Computing paths, their priorities, and the lanes that a device has for them.

use std::fmt;

use crate::device::Lane;
use crate::layer::SubTask;
use crate::plan::LaneRole;
use crate::task::LaneId;

/// The kinds of sub-tasks, whose computing paths run side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Load, forward and ∇A.
    Activation,
    /// Sums of gradients over devices.
    Transfer,
    /// ∇W, and what sums its results up on a device.
    Weight,
    /// ∇B.
    Bias,
    /// Updates.
    Update,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Activation, Self::Transfer, Self::Weight, Self::Bias, Self::Update];

    /// The kind of a sub-task.
    pub fn of(sub: SubTask) -> Self {
        match (LaneRole::of(sub), sub) {
            (LaneRole::Critical, _) => Self::Activation,
            (LaneRole::Transfer, _) => Self::Transfer,
            (LaneRole::Gradient, SubTask::GradBias) => Self::Bias,
            (LaneRole::Gradient, _) => Self::Weight,
            (LaneRole::Update, _) => Self::Update,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Activation => "activation",
            Self::Transfer => "transfer",
            Self::Weight => "weight",
            Self::Bias => "bias",
            Self::Update => "update",
        })
    }
}

/// α and β of the paper: how much lower the priorities of ∇W and ∇B are than that of their layer path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weights {
    /// Of ∇W.
    pub alpha: i32,
    /// Of ∇B.
    pub beta: i32,
}

impl Weights {
    /// As low as it takes, with `width` layer paths side by side, to come behind ∇A of all of them and behind transfers.
    pub fn behind(width: usize) -> Self {
        let lower = i32::try_from(width).unwrap_or(i32::MAX / 4) + 1;
        Self { alpha: lower, beta: lower }
    }
}

/// All sub-tasks of one kind on the layer paths of one rank, of layers whose gradients are asked for about equally soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputingPath {
    /// What they do.
    pub kind: Kind,
    /// On which path of its block each is: 0 for the longest.
    pub rank: usize,
    /// Of gradients and updates, how soon the next forward asks for them: 0 for the layers that it comes to first.
    pub band: usize,
    /// The higher, the sooner they run.
    pub priority: i32,
}

/// The computing paths of a net with so many layer paths side by side, that has sub-tasks of these kinds, by falling priority.
/// The longest layer path has priority 0, the next -1 and so on; ∇W and ∇B have that of their path, less α and β. Transfers
/// come behind ∇A; updates behind the gradients of their band, and each of the `bands` behind the one before, for the next
/// iteration alone waits for them.
pub fn computing_paths(width: usize, kinds: &[Kind], weights: Weights, bands: usize) -> Vec<ComputingPath> {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX / 4);
    let count = number(width);
    let mut paths = Vec::new();
    for kind in kinds {
        let ranks = if matches!(kind, Kind::Transfer | Kind::Update) { 1 } else { width };
        let bands = if matches!(kind, Kind::Activation | Kind::Transfer) { 1 } else { bands.max(1) };
        for (rank, band) in (0..ranks).flat_map(|rank| (0..bands).map(move |band| (rank, band))) {
            let of_path = -number(rank);
            let priority = match kind {
                Kind::Activation => of_path,
                Kind::Transfer => -count,
                Kind::Weight => of_path - weights.alpha,
                Kind::Bias => of_path - weights.beta,
                Kind::Update => -count - weights.alpha.max(weights.beta),
            };
            // As far apart as the priorities of one band are at most.
            let behind = number(band).saturating_mul(count + (weights.alpha - weights.beta).abs() + 1);
            paths.push(ComputingPath { kind: *kind, rank, band, priority: priority.saturating_sub(behind) });
        }
    }
    paths.sort_by_key(|path| (-path.priority, path.kind, path.rank, path.band));
    paths
}

/// What a device has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LaneLimits {
    /// Lanes, at least 1.
    pub lanes: usize,
    /// Lanes for forward and ∇A, at least 1: layer paths beyond them share the last.
    pub activation_lanes: usize,
    /// Lanes for ∇W and as many for ∇B, at least 1: each has a workspace of its own.
    pub gradient_lanes: usize,
    /// How often there are these lanes, and one for updates: for layers that the next forward comes to sooner or later, so that
    /// gradients which it waits for first need not stand behind others. At least 1, which does where it waits for all of them.
    pub bands: usize,
    /// Different priorities, at least 1.
    pub priorities: usize,
    /// Whether, where a layer path has to have the priority of the longest, its first ∇A waits for the first of that: the
    /// paper's second method. The first, the order in the queue, is always used.
    pub extra_waits: bool,
}

impl Default for LaneLimits {
    /// Those of a quadrant: queues cost next to nothing, and each can have a priority of its own, but every lane for gradients
    /// has a workspace for their partial sums.
    fn default() -> Self {
        Self {
            lanes: 10,
            activation_lanes: 4,
            gradient_lanes: 1,
            bands: 1,
            priorities: usize::from(u8::MAX),
            extra_waits: false,
        }
    }
}

/// The lanes of a device, and the one of each computing path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneSet {
    /// The lanes, by falling priority of their paths.
    pub lanes: Vec<Lane>,
    /// The lane of each computing path.
    pub of: Vec<LaneId>,
}

/// How many lanes each kind has.
#[derive(Clone, Copy)]
struct Counts {
    activation: usize,
    gradient: usize,
    bands: usize,
    /// Whether ∇B, updates and transfers have lanes of their own; else they are with ∇W.
    own: [bool; 3],
}

impl Counts {
    /// What stands for a lane: the most urgent kind in it, which of that kind's lanes it is, and its band.
    fn lane_of(self, path: &ComputingPath) -> (Kind, usize, usize) {
        let (kind, band) = (path.kind, path.band.min(self.bands - 1));
        let gradient = path.rank.min(self.gradient - 1);
        match kind {
            Kind::Activation => (kind, path.rank.min(self.activation - 1), 0),
            Kind::Bias if self.own[0] => (kind, gradient, band),
            Kind::Update if self.own[1] => (kind, 0, band),
            Kind::Transfer if self.own[2] => (kind, 0, 0),
            Kind::Update | Kind::Transfer => (Kind::Weight, 0, band),
            Kind::Weight | Kind::Bias => (Kind::Weight, gradient, band),
        }
    }

    /// The next smaller choice, or `None` if only one lane is left to have.
    fn fewer(mut self) -> Option<Self> {
        match self.own.iter().position(|own| *own) {
            _ if self.gradient > 1 => self.gradient -= 1,
            _ if self.bands > 1 => self.bands -= 1,
            _ if self.activation > 2 => self.activation -= 1,
            Some(own) => self.own[own] = false,
            None if self.activation > 1 => self.activation -= 1,
            None => return None,
        }
        Some(self)
    }
}

impl LaneSet {
    /// Lanes for `paths`: as few as they need, and as many as there may be. Where there are too few, the least urgent share
    /// one. Of priorities, that between ∇A and gradients is the last to go, then that between the longest path and the others.
    pub fn new(paths: &[ComputingPath], limits: LaneLimits) -> Self {
        let width = paths.iter().map(|path| path.rank + 1).max().unwrap_or(1);
        let all = Counts {
            activation: width.min(limits.activation_lanes.max(1)),
            gradient: width.min(limits.gradient_lanes.max(1)),
            bands: paths.iter().map(|path| path.band + 1).max().unwrap_or(1),
            own: [true; 3],
        };
        let keys = |counts: Counts| {
            let mut keys: Vec<(Kind, usize, usize)> = Vec::new();
            for key in paths.iter().map(|path| counts.lane_of(path)) {
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            keys
        };
        let fits = |counts: &Counts| keys(*counts).len() <= limits.lanes.max(1);
        let counts = std::iter::successors(Some(all), |counts| counts.fewer()).find(fits);
        let Some(counts) = counts else {
            let lane = Lane { id: LaneId(0), priority: 0 };
            return Self { lanes: vec![lane], of: vec![LaneId(0); paths.len()] };
        };
        let keys = keys(counts);
        let lane = |path: &ComputingPath| keys.iter().position(|key| *key == counts.lane_of(path));
        let of: Vec<LaneId> = paths.iter().map(|path| LaneId(lane(path).unwrap_or(0))).collect();
        let highest = |lane: usize| {
            let priorities =
                paths.iter().zip(&of).filter(|(_, of)| of.0 == lane).map(|(path, _)| path.priority);
            priorities.max().unwrap_or(0)
        };
        let wanted: Vec<(Kind, i32)> =
            keys.iter().enumerate().map(|(lane, (kind, ..))| (*kind, highest(lane))).collect();
        let levels = levels(&wanted, limits.priorities.max(1));
        let lane = |(id, priority)| Lane { id: LaneId(id), priority };
        Self { lanes: levels.into_iter().enumerate().map(lane).collect(), of }
    }
}

/// The priority of each lane, 0 for the most urgent, of `lanes` by falling wish, when there are only so many.
fn levels(lanes: &[(Kind, i32)], most: usize) -> Vec<u8> {
    let mut steps: Vec<(u8, usize)> = Vec::new();
    for (place, pair) in lanes.windows(2).enumerate().filter(|(_, pair)| pair[0].1 != pair[1].1) {
        let is_gradient = |kind| matches!(kind, Kind::Weight | Kind::Bias | Kind::Update);
        let weight = match (pair[0].0, pair[1].0) {
            (above, below) if !is_gradient(above) && is_gradient(below) => 0,
            (Kind::Activation, _) if place == 0 => 1,
            (Kind::Activation, Kind::Transfer) => 2,
            (Kind::Activation, _) => 3,
            (_, Kind::Update) => 4,
            _ => 5,
        };
        steps.push((weight, place + 1));
    }
    steps.sort_unstable();
    steps.truncate(most.min(usize::from(u8::MAX)) - 1);
    let level = |lane: usize| steps.iter().filter(|(_, place)| *place <= lane).count();
    (0..lanes.len()).map(|lane| u8::try_from(level(lane)).unwrap_or(u8::MAX)).collect()
}
