//! What a command works on: solver, network, data and machine, with everything that was decided on the way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quadrille_core::layer::{Data, Input, Layer};
use quadrille_core::net::{LayerId, Net, NetSpec, NetState, Phase};
use quadrille_core::site::{Fault, Site, did_you_mean};
use quadrille_core::solver::{NetSource, SolverSpec};
use quadrille_core::task::Tile;
use quadrille_cpu::CrewSpec;
use quadrille_cpu::isa::{Isa, Numerics, Precision};
use quadrille_gpu::Cuda;
use quadrille_io::data::{
    BadRecords, DataSource, LabelRule, Opening, RowFiles, SearchPath, Staging, Tolerance, open,
};
use quadrille_io::prototxt::{parse_net, parse_solver, read_net, read_solver};
use quadrille_io::snapshot::MANIFEST;
use quadrille_numa::memory::capacity::Capacity;
use quadrille_numa::memory::plan::FastMemory;
use quadrille_numa::parts::{Copies, choose};
use quadrille_numa::{Machine, Partition, Quadrant, Strictness, Wishes};

use crate::bundled;
use crate::cli::{DataArgs, MachineArgs};
use crate::engine::DeviceChoice;
use crate::failure::{Code, Failure};
use crate::feed::{Feed, GivenBatches};
use crate::given::Given;
use crate::made_up;
use crate::parts::Quadrants;
use crate::places::{Places, unpinned_if_refused};
use crate::rewriting::Rewriting;
use crate::staging;

/// Reads a solver, or the bundled one.
pub fn load_solver(path: Option<&Path>) -> Result<SolverSpec, Failure> {
    match path {
        Some(path) => Ok(read_solver(path)?),
        None => Ok(parse_solver(bundled::SOLVER, bundled::SOLVER_NAME)?),
    }
}

/// A network that a solver file names.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    /// The solver file.
    pub solver: &'a Path,
    /// Where its fields stand.
    pub site: &'a Site,
    /// The network.
    pub source: &'a NetSource,
}

/// Reads the network of `model`, or else the one that a solver names, or else the bundled one.
pub fn load_net(model: Option<&Path>, named: Option<Named<'_>>) -> Result<(NetSpec, PathBuf), Failure> {
    let path = match (model, named) {
        (Some(model), _) => {
            bundled::model_file(model).map_err(|message| Failure::new(Code::Missing, message))?
        }
        (None, Some(Named { solver, site, source })) => match source {
            NetSource::File { field, path } => find_named(solver, site, field, path)?,
            NetSource::Inline(spec) => return Ok((NetSpec::clone(spec), solver.to_owned())),
        },
        (None, None) => {
            return Ok((parse_net(bundled::NET, bundled::NET_NAME)?, bundled::NET_NAME.into()));
        }
    };
    Ok((read_net(&path)?, path))
}

/// A file in the folder of one of `places` whose name is nearly that of the place.
fn file_like(places: &[PathBuf]) -> Option<String> {
    places.iter().find_map(|place| {
        let folder = place.parent().filter(|folder| !folder.as_os_str().is_empty());
        let entries = std::fs::read_dir(folder.unwrap_or(Path::new("."))).ok()?;
        let mut names: Vec<String> =
            entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        let close = did_you_mean(place.file_name()?.to_str()?, names.iter().map(String::as_str))?;
        Some(place.with_file_name(close).display().to_string())
    })
}

/// A file, or a snapshot, that a solver names: from the current folder, as in Caffe; from the solver's folder; or from a
/// folder above it, since Caffe's own solvers are written for the root of Caffe's sources.
pub fn find_named(path: &Path, site: &Site, field: &str, name: &str) -> Result<PathBuf, Failure> {
    let folders = path.parent().map(Path::ancestors).into_iter().flatten();
    let places: Vec<PathBuf> =
        std::iter::once(PathBuf::from(name)).chain(folders.map(|folder| folder.join(name))).collect();
    let is_there = |place: &&PathBuf| place.is_file() || place.join(MANIFEST).is_file();
    places.iter().find(is_there).cloned().ok_or_else(|| {
        let mut tried: Vec<String> = places.iter().map(|p| p.display().to_string()).collect();
        tried.dedup();
        let mut message = format!(
            "{}:{}: {field}: no file {name:?}; looked for {}",
            path.display(),
            site.line_of(field),
            tried.join(", ")
        );
        if let Some(close) = file_like(&places) {
            message.push_str(&format!("\n  hint: did you mean {close:?}?"));
        }
        Failure::new(Code::Missing, message)
    })
}

/// Where samples come from, beside what the network says.
#[derive(Clone, Copy, Default)]
pub struct Samples<'a> {
    /// The folder of the flag `--data`.
    pub folder: Option<&'a Path>,
    /// Whether they are made up.
    pub made_up: bool,
    /// The shape of those that are made up.
    pub shape: Option<[usize; 3]>,
    /// What happens with records that cannot be used.
    pub tolerance: Tolerance,
    /// The folder of the flag `--stage-to`.
    pub stage_to: Option<&'a Path>,
    /// Whether each worker trains on a part of its own.
    pub by_rank: bool,
    /// Arrays that are fed in place of any data set.
    pub given: Option<&'a Given>,
}

impl<'a> Samples<'a> {
    /// As the flags say, with nothing made up.
    pub fn of(args: &'a DataArgs) -> Self {
        let (folder, stage_to) = (args.data.as_deref(), args.stage_to.as_deref());
        Self { folder, tolerance: args.bad_record, stage_to, ..Self::default() }
    }

    /// Complains about those of the flags that are given, since they do nothing with `source`.
    fn refuse(flags: &[(&str, bool)], source: &str) -> Result<(), Failure> {
        match flags.iter().find(|(_, given)| *given) {
            Some((flag, _)) => Err(Failure::new(Code::Usage, format!("{flag} does not work with {source}"))),
            None => Ok(()),
        }
    }
}

/// A phase of a network with its data set.
#[derive(Clone)]
pub struct PhaseJob {
    /// The whole network file, with the samples' shape and the batch filled in.
    pub spec: NetSpec,
    /// The phase, and whatever else decides which layers belong to the net.
    pub state: NetState,
    /// Its mini-batches, as the layers ask for them.
    pub feed: Feed,
    /// Images of a worker's mini-batch.
    pub batch: usize,
}

impl PhaseJob {
    /// Opens the data of a net in `state`. `None` if no layer belongs to it or none of them is a data layer.
    pub fn open(
        spec: &NetSpec,
        state: &NetState,
        file: &Path,
        samples: Samples<'_>,
        batch: Option<usize>,
    ) -> Result<Option<Self>, Failure> {
        let phase = state.phase;
        let mut spec = spec.clone();
        if let Some(given) = samples.given {
            let flags = [("--stage-to", samples.stage_to.is_some()), ("--data-shards rank", samples.by_rank)];
            Samples::refuse(&flags, "--inputs: all workers read the one file")?;
            let opened = GivenBatches::open(given, &mut spec, state)?;
            return Ok(opened.map(|(arrays, batch)| Self {
                feed: Feed::Arrays(Arc::new(arrays)),
                batch,
                spec,
                state: state.clone(),
            }));
        }
        if let Some(job) = Self::open_rows(&mut spec, state, file, samples, batch)? {
            return Ok(Some(job));
        }
        let mut found = None;
        for (index, layer) in spec.layers.iter_mut().enumerate().filter(|(_, l)| l.belongs(state)) {
            let subject = format!("layer {:?}", layer.name);
            let Layer::Data(source) = &mut layer.layer else { continue };
            if found.is_some() {
                let fault =
                    Fault::new("type", format!("a second data layer in phase {phase}; one is possible"));
                return Err(fault.at(&layer.site, &subject).into());
            }
            source.batch = batch.unwrap_or(source.batch);
            if source.batch == 0 {
                let field = source.kind.field("batch_size");
                let fault = Fault::new(&field, "missing; expected at least 1 image in a mini-batch");
                return Err(fault.at(&layer.site, &subject).into());
            }
            if !samples.made_up {
                source.transform.check().map_err(|fault| fault.at(&layer.site, &subject))?;
            }
            if samples.made_up {
                let shape = made_up::sample_shape(source, phase, file, samples.shape);
                source.sample = Some(shape.map_err(|fault| fault.at(&layer.site, &subject))?);
                found = Some((index, None));
            } else {
                let search = SearchPath::usual(file, bundled::repository().as_deref());
                let (data, tolerance, listener) =
                    (samples.folder, samples.tolerance, staging::Listener::default());
                let tell = |event| listener.hear(event);
                let staging = samples.stage_to.map(|to| Staging { to, tell: &tell });
                let dataset = open(source, phase, Opening { data, search: &search, tolerance, staging })?;
                source.sample = Some(dataset.sample());
                found = Some((index, Some(dataset)));
            }
        }
        let Some((index, dataset)) = found else { return Ok(None) };
        let Layer::Data(source) = spec.layers[index].layer.clone() else { return Ok(None) };
        let dataset = match (dataset, source.sample) {
            (Some(dataset), _) => dataset,
            (None, shape) => {
                let noise = made_up::dataset(&spec, phase, shape.unwrap_or_default(), source.batch)?;
                let whole = Data { transform: source.transform.of_made_up(), ..source.clone() };
                DataSource::new(Arc::new(noise), &whole, None, samples.tolerance)?
            }
        };
        // A state can have several sources in one file, one a phase; the others keep an unknown shape.
        let (batch, state) = (source.batch, state.clone());
        let dataset = dataset.with_labels(label_rules(&spec, &state)?)?;
        // A test is of the whole data set.
        let cut = samples.by_rank && state.phase == Phase::Train;
        let feed = Feed::DataSet(Arc::new(if cut { dataset.by_rank() } else { dataset }));
        Ok(Some(Self { batch, spec, state, feed }))
    }

    /// Opens the files of a net that a layer HDF5Data feeds; `None` if there is none.
    fn open_rows(
        spec: &mut NetSpec,
        state: &NetState,
        file: &Path,
        samples: Samples<'_>,
        batch: Option<usize>,
    ) -> Result<Option<Self>, Failure> {
        let mut sources = spec.layers.iter_mut().filter(|l| l.belongs(state) && l.layer.is_source());
        let Some(layer) = sources.find(|layer| matches!(layer.layer, Layer::Hdf5Data(_))) else {
            return Ok(None);
        };
        let subject = format!("layer {:?}", layer.name);
        let Layer::Hdf5Data(hdf5) = &mut layer.layer else { return Ok(None) };
        if samples.made_up {
            let fault = Fault::new("type", "the arrays of HDF5Data stand in files and cannot be made up");
            return Err(fault.hint("leave --dummy-data out").at(&layer.site, &subject).into());
        }
        let source = format!("{subject} of type HDF5Data: workers take turns in its files");
        Samples::refuse(&[("--data-shards rank", samples.by_rank)], &source)?;
        let search = SearchPath::usual(file, bundled::repository().as_deref());
        let mut files = RowFiles::open(&hdf5.source, samples.folder, &search, &layer.tops)?;
        if let Some(to) = samples.stage_to {
            let listener = staging::Listener::default();
            files = files.staged(Staging { to, tell: &|event| listener.hear(event) })?;
        }
        hdf5.batch = batch.unwrap_or(hdf5.batch);
        hdf5.samples = files.samples().to_vec();
        let (batch, feed) = (hdf5.batch, Feed::Rows(Arc::new(files), hdf5.shuffle));
        if batch == 0 {
            let fault = Fault::new("hdf5_data_param.batch_size", "missing; expected at least 1 sample");
            return Err(fault.at(&layer.site, &subject).into());
        }
        let count = spec.layers.iter().filter(|l| l.belongs(state) && l.layer.is_source()).count();
        if count > 1 {
            let site = Site { file: spec.file.clone(), ..Site::default() };
            let message = format!("{count} layers read data in phase {}; one is possible", state.phase);
            return Err(Fault::new("layer", message).at(&site, "network").into());
        }
        Ok(Some(Self { spec: spec.clone(), state: state.clone(), feed, batch }))
    }

    /// The nets of the phase as the file has them, one for each quadrant: its tile of the mini-batch is in proportion to
    /// its threads.
    pub fn nets(&self, threads: &[usize]) -> Result<Vec<Net>, Failure> {
        let quadrants = threads.len();
        Tile::shares(self.batch, threads)
            .into_iter()
            .map(|tile| {
                let mut spec = self.spec.clone();
                for layer in spec.layers.iter_mut().filter(|l| l.belongs(&self.state)) {
                    match &mut layer.layer {
                        Layer::Data(data) => data.batch = tile.images,
                        Layer::Hdf5Data(hdf5) => hdf5.batch = tile.images,
                        Layer::Input(input) if quadrants > 1 => {
                            let cut = cut_input(input, self.batch, tile.images);
                            cut.map_err(|fault| fault.at(&layer.site, &format!("layer {:?}", layer.name)))?;
                        }
                        _ => {}
                    }
                }
                let share = tile.images as f32 / self.batch as f32;
                let net = Net::build(&spec, &self.state, share)?;
                if quadrants > 1 {
                    check_cut(&net)?;
                }
                Ok(net)
            })
            .collect()
    }

    /// The nets of the phase as devices compute them.
    pub fn device_nets(&self, threads: &[usize], rewriting: Rewriting<'_>) -> Result<Vec<Net>, Failure> {
        self.nets(threads)?.into_iter().map(|net| rewriting.of(net)).collect()
    }
}

/// Gives a tile of an input its number of images.
fn cut_input(input: &mut Input, batch: usize, images: usize) -> Result<(), Fault> {
    for shape in &mut input.shapes {
        match shape.first_mut() {
            Some(first) if *first == batch => *first = images,
            _ => {
                let message =
                    format!("{shape:?} is not {batch} images along its first axis, which quadrants share");
                return Err(Fault::new("input_param.shape", message).hint("use --quadrants 1"));
            }
        }
    }
    Ok(())
}

/// Every label must be a class of every loss.
fn label_rules(spec: &NetSpec, state: &NetState) -> Result<Vec<LabelRule>, Failure> {
    let net = Net::build(spec, state, 1.0)?;
    let losses = net.layers.iter().zip((0..).map(LayerId)).filter_map(|(layer, id)| {
        let (classes, ignored) = layer.layer.classes(&net.bottom_shapes(id))?;
        let loss = format!("layer {:?} ({}:{})", layer.name, layer.site.file, layer.site.line);
        Some(LabelRule { classes, ignored, loss })
    });
    Ok(losses.collect())
}

/// A test of a training: a network with its data, and how many mini-batches of them.
#[derive(Clone)]
pub struct TestJob {
    /// Network and data.
    pub job: PhaseJob,
    /// Mini-batches of a test.
    pub batches: u64,
}

/// Training and testing share their weights: makes sure that both phases have the same.
pub fn check_same_parameters(train: &PhaseJob, test: &PhaseJob) -> Result<(), Failure> {
    let (net, other) = (train.nets(&[1])?.swap_remove(0), test.nets(&[1])?.swap_remove(0));
    if net.params == other.params {
        return Ok(());
    }
    let [a, b] = [train, test].map(|job| job.feed.data_set().map(DataSource::shape));
    if let (Some(a), Some(b)) = (a, b)
        && a != b
    {
        let size = |[c, h, w]: [usize; 3]| format!("{c}x{h}x{w}");
        let (test, a, b) = (test.feed.name(), size(a), size(b));
        let message = format!(
            "{test}: images to test are {b}, but those to train are {a}, so the weights cannot be shared"
        );
        return Err(Failure::new(Code::Data, message));
    }
    let site = Site { file: train.spec.file.clone(), ..Site::default() };
    let message = "the phases TRAIN and TEST have other parameters, but share their weights";
    let hint = "give layers with parameters the same names and sizes in both, or no include { phase: ... }";
    Err(Fault::new("layer", message).hint(hint).at(&site, "network").into())
}

/// A layer that looks at several images at once cannot be cut into tiles of images.
fn check_cut(net: &Net) -> Result<(), Failure> {
    for (index, layer) in net.layers.iter().enumerate() {
        if let Some(field) = layer.layer.mixes_images(&net.bottom_shapes(LayerId(index))) {
            let what = if field.ends_with(".axis") { "0 makes" } else { "makes" };
            let fault = Fault::new(
                field,
                format!("{what} images depend on each other, so quadrants cannot share a mini-batch"),
            )
            .hint("use --quadrants 1");
            return Err(fault.at(&layer.site, &format!("layer {:?}", layer.name)).into());
        }
    }
    Ok(())
}

/// Lists the records of a data set that could not be used, if there were any.
pub fn say_bad_records(feed: &Feed) {
    if let Some(dataset) = feed.data_set() {
        say_bad(dataset.bad(), dataset.len(), dataset.name());
    }
}

/// Lists bad records of so many, if there were any.
pub fn say_bad(bad: &BadRecords, len: usize, name: &str) {
    const LISTED: usize = 20;
    let (count, lines) = bad.list();
    if count > 0 {
        say!("bad records {count} of {len} of {name}");
        lines.iter().take(LISTED).for_each(|line| say!("            {line}"));
        if count > LISTED as u64 {
            say!("            and {} more", count - LISTED as u64);
        }
    }
}

/// Complains that a command needs data and the network names none.
pub fn no_data(spec: &NetSpec, phase: Phase) -> Failure {
    let site = Site { file: spec.file.clone(), ..Site::default() };
    let fault = Fault::new("layer", format!("no layer of type \"Data\" feeds the network in phase {phase}"));
    fault
        .hint(
            "add a Data layer with a source; or hand arrays in with train --inputs FILE.npz, which feeds Input \
             layers; or use the time command, which makes data up",
        )
        .at(&site, "network")
        .into()
}

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
    /// The GPUs that workers take in turn; none if quadrants compute.
    pub gpus: Vec<Cuda>,
    /// Whether GPUs may round factors to TF32.
    pub tf32: bool,
    /// What was decided, for the first lines.
    pub how: String,
    /// What the machine made us note.
    pub notes: Vec<String>,
}

impl Crews {
    /// The GPU of one of the workers of this process, if GPUs compute.
    pub fn gpu(&self, seat: usize) -> Option<&Cuda> {
        self.gpus.get(seat % self.gpus.len().max(1))
    }

    /// What each worker has.
    pub fn of_each(&self) -> String {
        match self.gpus.is_empty() {
            true => format!("{} quadrant(s)", self.workers[0].len()),
            false => "1 GPU".into(),
        }
    }

    /// The instruction set, for records.
    pub fn isa(&self) -> String {
        if self.gpus.is_empty() { self.numerics.isa.to_string() } else { "cuda".into() }
    }

    /// What the kernels are for.
    pub fn kernels(&self) -> String {
        match (self.gpus.is_empty(), self.tf32) {
            (true, _) => self.numerics.to_string(),
            (false, false) => "CUDA in f32".into(),
            (false, true) => "CUDA in TF32".into(),
        }
    }

    /// What was decided: the cut, and below it where the other threads are.
    pub fn say_how(&self) {
        let (cut, others) = match self.how.match_indices("; ").nth(1) {
            Some((at, between)) => (&self.how[..at], Some(&self.how[at + between.len()..])),
            None => (self.how.as_str(), None),
        };
        say!("machine     {cut}");
        others.iter().for_each(|others| say!("            {others}"));
    }
}

/// Threads of each of a worker's crews.
pub fn threads_of(crews: &[CrewSpec]) -> Vec<usize> {
    crews.iter().map(|crew| crew.cpus.len()).collect()
}

/// Quadrants of each worker with one for each NUMA node: as many of the nodes as the mini-batch and an even cut allow.
pub fn one_for_each_node(machine: &Machine, workers: usize, batch: usize) -> usize {
    let nodes = machine.nodes.iter().filter(|n| !n.cpus.is_empty()).count().max(1);
    let most = (nodes / workers).clamp(1, batch.max(1));
    let even = (1..=most).rev().find(|q| nodes.is_multiple_of(q * workers) || q * workers >= nodes);
    even.unwrap_or(1)
}

/// Cuts the machine into the quadrants of `workers` workers with mini-batches of `batch` images. `copies` says what a part
/// would hold, if that is asked for.
pub fn crews(
    args: &MachineArgs,
    workers: usize,
    batch: usize,
    copies: impl FnOnce() -> Result<Copies, Failure>,
) -> Result<Crews, Failure> {
    let usage = |message: String| Failure::new(Code::Usage, message);
    numerics_of(args).check().map_err(|reason| {
        let tier = args.isa.map_or_else(String::new, |isa| format!(" with --isa {isa}"));
        usage(format!("--precision {}{tier}: {reason}", args.precision))
    })?;
    check_gpus(args)?;
    let gpus = args.device.open()?;
    let machine = quadrille_numa::detect().map_err(|e| Failure::new(Code::Environment, e.to_string()))?;
    let nodes = machine.nodes.iter().filter(|n| !n.cpus.is_empty()).count().max(1);
    let even = one_for_each_node(&machine, workers, batch);
    let choice = match args.quadrants {
        Some(Quadrants::Auto) => Some(choose(&machine, even, &Copies { batch, ..copies()? })),
        _ => None,
    };
    let chosen = choice.as_ref().map(|choice| choice.parts);
    let asked = args.quadrants.and_then(Quadrants::count).or(chosen);
    let quadrants = asked.unwrap_or(if gpus.is_empty() { even } else { 1 });
    if quadrants > batch {
        return Err(usage(format!(
            "--quadrants {quadrants}: the mini-batch has {batch} images, so at most {batch} quadrants can share it \
             (this machine has {} CPUs in {nodes} NUMA node(s))",
            machine.cpus.len()
        )));
    }
    let asked = (workers > 1 || quadrants != nodes || args.quadrants.is_some())
        .then_some(workers.saturating_mul(quadrants));
    let wishes = Wishes { workers, smt: args.smt, reserve: args.reserve, ..Wishes::new(asked, args.threads) };
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

/// Refuses flags that say how quadrants compute where GPUs do.
fn check_gpus(args: &MachineArgs) -> Result<(), Failure> {
    let device = &args.device;
    let is_f32 = args.precision == Precision::F32;
    let wrong = match device {
        DeviceChoice::Cpu => [("--tf32", args.tf32), ("", false), ("", false), ("", false)],
        DeviceChoice::Cuda(_) => [
            ("--quadrants", args.quadrants.is_some_and(|q| q.count() != Some(1))),
            ("--kernel", !args.kernels.is_empty()),
            ("--isa", args.isa.is_some()),
            ("--precision", !is_f32),
        ],
    };
    match wrong.iter().find(|(_, given)| *given) {
        Some((flag, _)) => {
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
    let crew = |index: usize| {
        let quadrant = &partition.quadrants[index];
        let cpus: Vec<Option<usize>> = (0..quadrant.threads).map(|t| quadrant.cpu_of_thread(t)).collect();
        CrewSpec { name: format!("quadrant {index}"), cpus }
    };
    let threads: usize = partition.quadrants.iter().map(|q| q.threads).sum();
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
        tf32: args.tf32,
        how: partition.how.clone(),
        notes: machine.notes.clone(),
    }
}
