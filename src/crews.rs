//! The machine of a run: which crews and GPUs its workers have.

use quadrille_cpu::CrewSpec;
use quadrille_cpu::isa::{Isa, Numerics, Precision};
use quadrille_gpu::{Arithmetic, Cuda};
use quadrille_numa::memory::capacity::Capacity;
use quadrille_numa::memory::plan::FastMemory;
use quadrille_numa::parts::{Copies, choose};
use quadrille_numa::{Caches, Cut, Machine, Partition, Quadrant, Strictness, Wishes};

use crate::cli::MachineArgs;
use crate::device_choice::Switch;
use crate::failure::{Code, Failure};
use crate::parts::Quadrants;
use crate::places::{Places, unpinned_if_refused};

/// How the machine was cut.
pub struct Crews {
    /// For each worker, one crew a quadrant.
    pub workers: Vec<Vec<CrewSpec>>,
    /// For each worker, the places of its other threads.
    pub places: Vec<Places>,
    /// The kernels' tier and the precision of products.
    pub numerics: Numerics,
    /// Whether every thread has a CPU of its own.
    pub exclusive: bool,
    /// The quadrants of all workers, one worker after the other.
    pub quadrants: Vec<Quadrant>,
    /// What memory there was before anything was allocated.
    pub capacity: Capacity,
    /// How fast memory is used.
    pub fast_memory: FastMemory,
    /// What becomes of what the system refuses.
    pub strictness: Strictness,
    /// Of each worker of this process its GPU; `None` if its quadrants compute.
    pub gpus: Vec<Option<Cuda>>,
    /// How GPUs compute.
    pub on_gpus: OnGpus,
    /// What was decided, for the first lines.
    pub how: String,
    /// Of quadrants behind several third-level caches that the system takes for one, what was measured.
    pub caches: Vec<String>,
    /// What the machine made us note.
    pub notes: Vec<String>,
}

/// How GPUs compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OnGpus {
    /// How products are computed.
    pub arithmetic: Arithmetic,
    /// Whether steps are launched as graphs.
    pub graph: bool,
}

impl Crews {
    /// The GPU of one of the workers of this process, if a GPU is what computes for it.
    pub fn gpu(&self, seat: usize) -> Option<&Cuda> {
        self.gpus.get(seat)?.as_ref()
    }

    /// Whether GPUs compute for some of the workers of this process, and quadrants for some.
    fn kinds(&self) -> [bool; 2] {
        let gpus = self.gpus.iter().any(Option::is_some);
        [gpus, !gpus || self.gpus.iter().any(Option::is_none)]
    }

    /// What each worker has.
    pub fn of_each(&self) -> String {
        let quadrants = format!("{} quadrant(s)", self.workers[0].len());
        match self.kinds() {
            [false, _] => quadrants,
            [true, false] => "1 GPU".into(),
            [true, true] => format!("1 GPU or {quadrants}"),
        }
    }

    /// Which of this process's workers, of which the first has this rank, has which device, if any has a GPU.
    pub fn who_is_where(&self, first: usize) -> Option<String> {
        let device = |gpu: &Option<Cuda>| gpu.as_ref().map_or("the CPU".into(), Cuda::name);
        let each = self.gpus.iter().enumerate();
        let each = each.map(|(seat, gpu)| format!("worker {} on {}", first + seat, device(gpu)));
        self.kinds()[0].then(|| each.collect::<Vec<_>>().join(", "))
    }

    /// The instruction set, for records.
    pub fn isa(&self) -> String {
        match self.kinds() {
            [false, _] => self.numerics.isa.to_string(),
            [true, false] => "cuda".into(),
            [true, true] => format!("cuda and {}", self.numerics.isa),
        }
    }

    /// How products are computed by the first worker.
    pub fn precision(&self) -> String {
        match self.gpu(0) {
            Some(_) => self.on_gpus.arithmetic.to_string(),
            None => self.numerics.precision.to_string(),
        }
    }

    /// What the kernels are for.
    pub fn kernels(&self) -> String {
        let cuda = format!("CUDA in {}", self.on_gpus.arithmetic);
        match self.kinds() {
            [false, _] => self.numerics.to_string(),
            [true, false] => cuda,
            [true, true] => format!("{cuda} and {}", self.numerics),
        }
    }

    /// Leaves of the memory what one of several processes on this machine may plan with, each on these CPUs.
    pub fn share_memory(&mut self, processes: &[Vec<usize>]) -> Result<(), Failure> {
        if processes.len() > 1 {
            let machine =
                quadrille_numa::detect().map_err(|e| Failure::new(Code::Environment, e.to_string()))?;
            self.capacity = std::mem::take(&mut self.capacity).of_one_among(processes, &machine);
        }
        Ok(())
    }

    /// What was decided: the cut, and below it where the other threads are.
    pub fn say_how(&self) {
        let (cut, others) = match self.how.match_indices("; ").nth(1) {
            Some((at, between)) => (&self.how[..at], Some(&self.how[at + between.len()..])),
            None => (self.how.as_str(), None),
        };
        say!("machine     {cut}");
        let others = others.into_iter().chain(self.caches.iter().map(String::as_str));
        others.for_each(|others| say!("            {others}"));
    }
}

/// Threads of each of a worker's crews.
pub fn threads_of(crews: &[CrewSpec]) -> Vec<usize> {
    crews.iter().map(|crew| crew.cpus.len()).collect()
}

/// Quadrants of each worker with one for each NUMA node: as many of the nodes as the mini-batch and an even cut allow. Where workers
/// can share nodes only by parts, such as two the three of a chip, nodes are cut so that all workers have as many parts of them.
pub fn one_for_each_node(machine: &Machine, workers: usize, batch: usize) -> usize {
    let nodes = machine.nodes.iter().filter(|n| !n.cpus.is_empty()).count().max(1);
    even_quadrants([nodes, machine.cores.len()], workers, batch.max(1))
}

fn even_quadrants([nodes, cores]: [usize; 2], workers: usize, batch: usize) -> usize {
    let joined = |q: &usize| nodes.is_multiple_of(q * workers) || q * workers >= nodes;
    let even = (1..=(nodes / workers).clamp(1, batch)).rev().find(joined);
    let parts =
        || (1..=batch.min(nodes)).find(|q| (q * workers).is_multiple_of(nodes) && q * workers <= cores);
    let enough = || (1..=batch).find(|q| q * workers >= nodes);
    even.or_else(parts).or_else(enough).unwrap_or(1)
}

/// Cuts the machine into the quadrants of `workers` workers with mini-batches of `batch` images. `copies` says what a part
/// would hold, if that is asked for. These are the workers of this process; `first` of others on this node have devices
/// before them.
pub fn crews(
    args: &MachineArgs,
    first: usize,
    workers: usize,
    batch: usize,
    copies: impl FnOnce() -> Result<Copies, Failure>,
) -> Result<Crews, Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    check_gpus(args)?;
    let gpus = args.device.open(first..first + workers)?;
    if gpus.iter().any(Option::is_none) {
        numerics_of(args).check().map_err(|reason| {
            let tier = args.isa.map_or_else(String::new, |isa| format!(" with --isa {isa}"));
            usage(format!("--precision {}{tier}: {reason}", args.precision))
        })?;
    }
    let machine = quadrille_numa::detect().map_err(|e| Failure::new(Code::Environment, e.to_string()))?;
    let nodes = machine.nodes.iter().filter(|n| !n.cpus.is_empty()).count().max(1);
    let even = one_for_each_node(&machine, workers, batch);
    let choice = match args.quadrants {
        Some(Quadrants::Auto) => Some(choose(&machine, even, &Copies { batch, ..copies()? })),
        _ => None,
    };
    let chosen = choice.as_ref().map(|choice| choice.parts);
    let asked = match args.quadrants {
        Some(Quadrants::L3) => Some(caches_of_each(&machine, workers)?),
        other => other.and_then(Quadrants::count).or(chosen),
    };
    // The same in all processes of a training, whichever devices their own workers have.
    let quadrants = asked.unwrap_or(if args.device.is_cuda() { 1 } else { even });
    if quadrants > batch {
        return Err(usage(format!(
            "--quadrants {quadrants}: the mini-batch has {batch} images, so at most {batch} quadrants can share it \
             (this machine has {} CPUs in {nodes} NUMA node(s))",
            machine.cpus.len()
        )));
    }
    let cut = match args.quadrants {
        Some(Quadrants::L3) => Cut::Caches,
        None if workers == 1 && quadrants == nodes => Cut::Nodes,
        _ => Cut::Into(workers.saturating_mul(quadrants)),
    };
    let wishes = Wishes { workers, smt: args.smt, reserve: args.reserve, ..Wishes::at(cut, args.threads) };
    let mut partition = quadrille_numa::cut(&machine, &wishes)
        .map_err(|e| usage(format!("--workers {workers} with {quadrants} quadrant(s) each: {e}")))?;
    let refused = unpinned_if_refused(&mut partition, args.strictness)?;
    let mut crews = Crews { gpus, ..assign(&machine, &partition, workers, args) };
    crews.notes.extend(refused);
    crews
        .notes
        .extend(choice.map(|choice| format!("--quadrants auto takes {}: {}", choice.parts, choice.why)));
    Ok(crews)
}

/// Third-level caches that each of so many workers has, if they can share them evenly.
fn caches_of_each(machine: &Machine, workers: usize) -> Result<usize, Failure> {
    let usage = |message: String| Failure::new(Code::Usage, format!("--quadrants l3: {message}"));
    let caches = quadrille_numa::third_level_caches(machine).map_err(|error| usage(error.to_string()))?;
    if caches.is_multiple_of(workers) {
        return Ok(caches / workers);
    }
    let several = if caches == 1 { "" } else { "s" };
    Err(usage(format!(
        "{workers} workers cannot share the {caches} third-level cache{several} of this machine evenly; ask for a number of quadrants"
    )))
}

/// Refuses flags that say how quadrants compute where only GPUs do, and the other way round.
fn check_gpus(args: &MachineArgs) -> Result<(), Failure> {
    let device = &args.device;
    let wrong = [
        (device.is_cpu(), "--tf32", args.tf32),
        (device.is_cpu(), "--cuda-graph", args.cuda_graph == Some(Switch::On)),
        (device.is_cuda(), "--quadrants", args.quadrants.is_some_and(|q| q.count() != Some(1))),
        (device.is_cuda(), "--kernel", !args.kernels.is_empty()),
        (device.is_cuda(), "--isa", args.isa.is_some()),
        (true, "--tf32", args.tf32 && args.precision != Precision::F32),
    ];
    match wrong.iter().find(|(applies, _, given)| *applies && *given) {
        Some((true, "--tf32", _)) if !device.is_cpu() => Err(Failure::new(
            Code::Usage,
            "--tf32: with --precision bf16 products are rounded further already",
        )),
        Some((_, flag, _)) => {
            Err(Failure::new(Code::Usage, format!("{flag} has no meaning with --device {device}")))
        }
        None => Ok(()),
    }
}

/// The tier that is asked for, or else the highest of this CPU, and the precision.
fn numerics_of(args: &MachineArgs) -> Numerics {
    Numerics { isa: args.isa.unwrap_or_else(Isa::detect), precision: args.precision }
}

/// Gives the quadrants of a machine to workers, each as many.
pub fn assign(machine: &Machine, partition: &Partition, workers: usize, args: &MachineArgs) -> Crews {
    let per_worker = partition.quadrants.len() / workers;
    let caches: Vec<Caches> =
        partition.quadrants.iter().map(|quadrant| Caches::of(machine, quadrant)).collect();
    let crew = |index: usize| {
        let quadrant = &partition.quadrants[index];
        let cpus: Vec<Option<usize>> = (0..quadrant.threads).map(|t| quadrant.cpu_of_thread(t)).collect();
        CrewSpec { name: format!("quadrant {index}"), cpus, caches: caches[index].of_threads.clone() }
    };
    let threads: usize = partition.quadrants.iter().map(|q| q.threads).sum();
    let arithmetic = match (args.precision, args.tf32) {
        (Precision::Bf16, _) => Arithmetic::Bf16,
        (Precision::F32, true) => Arithmetic::Tf32,
        (Precision::F32, false) => Arithmetic::F32,
    };
    Crews {
        workers: (0..workers).map(|w| (0..per_worker).map(|q| crew(w * per_worker + q)).collect()).collect(),
        places: (0..workers)
            .map(|worker| Places::of(partition, worker, &machine.cpus, args.reserve))
            .collect(),
        numerics: numerics_of(args),
        exclusive: threads <= machine.cpus.len(),
        quadrants: partition.quadrants.iter().take(workers * per_worker).cloned().collect(),
        // Of a machine that is only described nobody knows what else runs there.
        capacity: if machine.here { Capacity::now(machine) } else { Capacity::of_idle(machine) },
        fast_memory: args.fast_memory,
        strictness: args.strictness,
        gpus: Vec::new(),
        on_gpus: OnGpus { arithmetic, graph: args.cuda_graph != Some(Switch::Off) },
        how: partition.how.clone(),
        caches: caches.into_iter().filter_map(|found| found.note).collect(),
        notes: machine.notes.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::even_quadrants;

    #[test]
    fn nodes_are_shared_evenly_by_whole_ones_or_by_parts() {
        let of = |nodes, workers, batch| even_quadrants([nodes, 16 * nodes], workers, batch);
        assert_eq!([of(4, 1, 64), of(4, 2, 64), of(4, 4, 64), of(4, 8, 64)], [4, 2, 1, 1]);
        assert_eq!([of(1, 1, 64), of(1, 2, 64), of(6, 3, 64), of(6, 1, 4)], [1, 1, 2, 3]);
        // Three nodes of a Granite Rapids and two workers: each node in halves, three to each worker.
        assert_eq!([of(3, 2, 64), of(6, 4, 64), of(5, 2, 64)], [3, 3, 5]);
        // Too few images, or cores, for that.
        assert_eq!([of(3, 2, 2), even_quadrants([3, 5], 2, 64), of(3, 2, 1)], [2, 2, 1]);
    }
}
