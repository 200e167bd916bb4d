//! What memory a run needs, where it goes, and whether it is there: decided before anything is allocated.

use quadrille_cpu::{ArenaPlace, EngineOptions, Homes, MappedWorker, Program, Purpose};
use quadrille_numa::Strictness;
use quadrille_numa::cpu_list;
use quadrille_numa::memory::Census;
use quadrille_numa::memory::plan::{
    FastMemory, MemoryPlan, Need, Placed, QuadrantNeeds, TooLittle, Wish, said,
};
use quadrille_numa::verify::thread_place;

use crate::crews::Crews;
use crate::engine::{Engine, MappedEngine, on_gpu};
use crate::failure::{Code, Failure};
use crate::holdings::Holdings;

/// Mini-batches that the host holds of each program: two ahead, one in the making, one in use.
const HELD_BATCHES: u64 = 4;

/// What one worker needs.
pub struct WorkerNeeds {
    /// Its mini-batch.
    pub batch: usize,
    /// Its programs: training, and each of its tests.
    pub programs: usize,
    /// Of each of its devices, in the order of [`Purpose::all`].
    pub devices: Vec<Vec<Need>>,
    /// Copies of packed buffers that the host makes, in bytes.
    pub copies: u64,
}

impl WorkerNeeds {
    /// Those of a worker whose arrays have places; one on a GPU needs next to nothing of the host.
    pub fn of(mapped: &MappedEngine, programs: usize, batch: usize) -> Self {
        let devices = match mapped {
            MappedEngine::Cpu(mapped) => mapped.needs(),
            MappedEngine::Cuda(_) => Vec::new(),
        };
        Self { batch, programs, devices, copies: 0 }
    }

    /// The same with copies of packed buffers, so many times that of the weights.
    pub fn with_copies(self, times: usize) -> Self {
        let weights = self.bytes(|purpose| purpose == Purpose::Weights) / self.devices.len().max(1) as u64;
        Self { copies: times as u64 * weights, ..self }
    }

    fn bytes(&self, counts: impl Fn(Purpose) -> bool) -> u64 {
        let needs = self.devices.iter().flat_map(|needs| Purpose::all(self.programs).zip(needs));
        needs.filter(|(purpose, _)| counts(*purpose)).map(|(_, need)| need.bytes).sum()
    }

    /// Mini-batches that the host holds, in bytes.
    fn held(&self) -> u64 {
        HELD_BATCHES * self.bytes(|purpose| matches!(purpose, Purpose::Staging(_)))
    }

    /// What grows with the mini-batch.
    fn growing(&self) -> u64 {
        let staging = self.bytes(|purpose| purpose == Purpose::Staging(0));
        self.bytes(|purpose| purpose == Purpose::Values(0)) + (1 + HELD_BATCHES) * staging
    }

    /// The needs of each quadrant. What the host holds stands behind those of the first.
    fn quadrants(&self) -> Vec<Vec<Need>> {
        let mut quadrants = self.devices.clone();
        let host = self.held() + self.copies;
        let what = "mini-batches read ahead, copies".to_owned();
        let need = Need { what, bytes: host, wish: Wish::Dram, divisible: false };
        if let Some(first) = quadrants.first_mut() {
            first.push(need);
        }
        quadrants
    }
}

/// Where the memory of all workers goes.
pub struct Placement {
    /// Of each worker the nodes of each device's arenas.
    pub homes: Vec<Vec<Homes>>,
    /// The node of data sets that are held in memory.
    pub data: Option<usize>,
    /// For the first lines.
    pub lines: Vec<String>,
}

/// Plans the memory of all workers, and of the data sets that they have together: those are there already, since what is read
/// says how much it is, and go to their place behind the first worker's needs, near those who read.
///
/// # Errors
/// If there is too little, with what would do.
pub fn plan(machine: &Crews, workers: &[WorkerNeeds], data: &Holdings<'_>) -> Result<Placement, Failure> {
    if workers.iter().all(|worker| worker.devices.is_empty()) {
        return Ok(Placement { homes: vec![Vec::new(); workers.len()], data: None, lines: Vec::new() });
    }
    // Workers on GPUs leave their quadrants alone.
    let own = machine.quadrants.chunks(machine.workers[0].len());
    let pairs = own.zip(workers).flat_map(|(own, worker)| own.iter().zip(worker.quadrants()));
    let mut quadrants: Vec<QuadrantNeeds> =
        pairs.map(|(quadrant, needs)| QuadrantNeeds::of(quadrant, needs)).collect();
    if let Some(first) = quadrants.first_mut() {
        first.needs.extend(data.need());
    }
    let capacity = data.not_counted(machine.capacity.clone());
    let plan = MemoryPlan::new(&quadrants, &capacity, machine.fast_memory);
    let plan = plan.map_err(|error| too_little(&error, workers))?;
    let data = data.need().and_then(|_| plan.quadrants.first()?.last()?.node);
    let mut nodes = plan.quadrants.iter().map(|placed| placed.iter().map(Placed::home));
    let homes = workers.iter().map(|worker| {
        let devices = nodes.by_ref().take(worker.devices.len());
        devices.map(|nodes| Homes::new(worker.programs, nodes)).collect()
    });
    let homes = homes.collect();
    let label = |(index, line): (usize, String)| match index {
        0 => format!("placement   {line}"),
        _ => format!("            {line}"),
    };
    let lines = plan.lines().into_iter().enumerate().map(label).collect();
    Ok(Placement { homes, data, lines })
}

/// Too little memory, with the mini-batch that would fit: values and what the host reads ahead grow with it, all else stays.
fn too_little(error: &TooLittle, workers: &[WorkerNeeds]) -> Failure {
    let mut message = error.to_string();
    if let TooLittle::Machine { needed, available, .. } = error {
        let growing: u64 = workers.iter().map(WorkerNeeds::growing).sum();
        let batch = workers.iter().map(|worker| worker.batch).max().unwrap_or(0);
        let fixed = needed.saturating_sub(growing);
        let fits = u128::from(available.saturating_sub(fixed)) * batch as u128 / u128::from(growing.max(1));
        let (grows, stays) = (said(growing), said(fixed));
        message.push_str(&format!(
            "\n  of it {grows} for mini-batches of {batch} images on {} worker(s), {stays} whatever the mini-batch",
            workers.len()
        ));
        message.push_str(&match fits {
            0 => {
                "\n  hint: a much smaller --batch, fewer --workers and fewer --quadrants need less".to_owned()
            }
            fits => format!("\n  hint: --batch {fits} would fit"),
        });
    }
    Failure::new(Code::Environment, message)
}

/// The only worker of a command, with places for all arrays, and where their memory would go.
pub fn planned(
    machine: &Crews,
    programs: &[Program<'_>],
    options: &EngineOptions,
    batch: usize,
    data: &Holdings<'_>,
) -> Result<(MappedEngine, Placement), Failure> {
    let mapped = match machine.gpu(0) {
        Some(gpu) => MappedEngine::Cuda(on_gpu(gpu, programs, options, machine.on_gpus)?),
        None => MappedEngine::Cpu(MappedWorker::new(&machine.workers[0], programs, options)?),
    };
    let placement = plan(machine, &[WorkerNeeds::of(&mapped, programs.len(), batch)], data)?;
    Ok((mapped, placement))
}

/// Makes the only worker of a command, with its memory where it belongs, and lines that say where.
pub fn worker(
    machine: &Crews,
    programs: &[Program<'_>],
    options: &EngineOptions,
    batch: usize,
    data: &Holdings<'_>,
) -> Result<(Engine, Vec<String>), Failure> {
    let (mapped, placement) = planned(machine, programs, options, batch, data)?;
    let homes = placement.homes.first().map_or(&[][..], Vec::as_slice);
    data.settle(placement.data);
    let worker = mapped.place(homes)?;
    check(&worker, machine)?;
    Ok((worker, placement.lines))
}

/// Makes sure that what must be somewhere is there: fast memory, if it is required, and in strict runs whatever the system
/// was asked for.
pub fn check(worker: &Engine, machine: &Crews) -> Result<(), Failure> {
    let Engine::Cpu(worker) = worker else { return Ok(()) };
    if let (Strictness::Strict, Some(note)) = (machine.strictness, worker.notes().first()) {
        return Err(Failure::new(Code::Environment, format!("--numa strict: {note}")));
    }
    if machine.fast_memory != FastMemory::Require {
        return Ok(());
    }
    match worker.places().iter().find(|place| place.elsewhere() > 0 || place.pages.is_err()) {
        None => Ok(()),
        Some(place) => {
            let ArenaPlace { device, what, .. } = place;
            let message = format!("--fast-memory require: {what} of quadrant {device}: {}", pages(place));
            Err(Failure::new(Code::Environment, message))
        }
    }
}

/// Where the pages of an arena are.
fn pages(place: &ArenaPlace) -> String {
    match (&place.pages, place.node) {
        (Err(refusal), _) => format!("nobody knows where its pages are ({refusal})"),
        (Ok(census), Some(node)) => {
            format!("{} pages are not on node {node}: {census}", census.elsewhere(node))
        }
        (Ok(census), None) => format!("{census}, bound to no node"),
    }
}

/// What was found of one quadrant's memory and threads after a step.
#[derive(Default)]
struct Found {
    pages: Census,
    bound: usize,
    wrong: Vec<String>,
    unknown: Vec<String>,
    pinned: usize,
    threads: usize,
}

impl Found {
    fn line(&self) -> String {
        let mut words = vec![match self.bound {
            0 => format!("{} page(s) bound to no node ({})", self.pages.touched(), self.pages),
            _ if self.wrong.is_empty() => format!("all pages on their nodes ({})", self.pages),
            _ => self.wrong.join(", "),
        }];
        words.extend(self.unknown.first().cloned());
        words.push(format!("{} of {} thread(s) on their CPUs", self.pinned, self.threads));
        words.join("; ")
    }
}

/// Asks the system where each page of a worker's memory and each of its threads is (`--verify-placement`).
///
/// # Errors
/// If any is elsewhere.
pub fn verify(worker: &Engine, first: usize) -> Result<(), Failure> {
    let Engine::Cpu(worker) = worker else { return Ok(()) };
    let mut quadrants: Vec<Found> = Vec::new();
    for place in worker.places() {
        let found = entry(&mut quadrants, place.device);
        found.bound += usize::from(place.node.is_some());
        match &place.pages {
            Ok(census) => found.pages.add(census),
            Err(_) => found.unknown.push(format!("{}: {}", place.what, pages(&place))),
        }
        if place.elsewhere() > 0 {
            found.wrong.push(format!("{}: {}", place.what, pages(&place)));
        }
    }
    for thread in worker.threads() {
        let found = entry(&mut quadrants, thread.device);
        found.threads += 1;
        let (Some(cpu), Some(place)) = (thread.cpu, thread.id.and_then(thread_place)) else { continue };
        if place.is_on(cpu) {
            found.pinned += 1;
        } else {
            let allowed = cpu_list::format(&place.allowed);
            found.wrong.push(format!("a thread ran on CPU {} (allowed {allowed}), not {cpu}", place.ran_on));
        }
    }
    for (device, found) in quadrants.iter().enumerate() {
        say!("verify      quadrant {}: {}", first + device, found.line());
    }
    match quadrants.iter().all(|found| found.wrong.is_empty()) {
        true => Ok(()),
        false => Err(Failure::new(
            Code::Environment,
            "--verify-placement: memory or threads are not where they belong",
        )),
    }
}

fn entry(quadrants: &mut Vec<Found>, device: usize) -> &mut Found {
    quadrants.resize_with(quadrants.len().max(device + 1), Found::default);
    &mut quadrants[device]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(values: u64, staging: u64) -> WorkerNeeds {
        let bytes = |purpose| match purpose {
            Purpose::Values(0) => values,
            Purpose::Staging(0) => staging,
            Purpose::Weights => 1000,
            _ => 0,
        };
        let need =
            |purpose| Need { what: String::new(), bytes: bytes(purpose), wish: Wish::Dram, divisible: false };
        WorkerNeeds {
            batch: 100,
            programs: 1,
            devices: vec![Purpose::all(1).map(need).collect(); 2],
            copies: 0,
        }
        .with_copies(3)
    }

    #[test]
    fn the_host_holds_copies_and_batches_ahead() {
        let needs = needs(50_000, 100);
        assert_eq!((needs.copies, needs.held(), needs.growing()), (3000, 800, 101_000));
        let quadrants = needs.quadrants();
        assert_eq!(quadrants[0].last().map(|need| need.bytes), Some(3800));
        assert_eq!(quadrants[0].len(), quadrants[1].len() + 1);
    }

    #[test]
    fn too_large_a_batch_is_told_what_would_fit() {
        let error = TooLittle::Machine { needed: 106_000, available: 55_500, limited_by: None };
        let failure = too_little(&error, &[needs(50_000, 100)]);
        assert_eq!(failure.code, Code::Environment as u8);
        assert!(failure.message.ends_with("--batch 50 would fit"), "{failure}");
        let error = TooLittle::Machine { needed: 106_000, available: 5000, limited_by: None };
        let failure = too_little(&error, &[needs(50_000, 100)]);
        assert!(failure.message.contains("a much smaller --batch"), "{failure}");
    }
}
