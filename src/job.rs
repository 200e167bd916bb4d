//! What a command works on: solver, network, data and machine, with everything that was decided on the way.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quadrille_core::layer::{Data, Input, Layer};
use quadrille_core::net::{BlobId, LayerId, Net, NetSpec, NetState, Phase};
use quadrille_core::site::{Fault, Site, did_you_mean};
use quadrille_core::solver::{NetSource, SolverSpec};
use quadrille_core::task::Tile;
use quadrille_io::data::{
    BadRecords, DataSource, LabelRule, Opening, Room, RowFiles, SearchPath, Staging, Tolerance, open,
};
use quadrille_io::prototxt::{parse_net, parse_solver, read_net, read_solver};
use quadrille_io::snapshot::MANIFEST;
use quadrille_numa::memory::capacity::available;

use crate::bundled;
use crate::cli::DataArgs;
use crate::failure::{Code, Failure};
use crate::feed::{Feed, GivenBatches};
use crate::given::Given;
use crate::made_up;
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
    /// Processes on this node that hold the data set, if there are several.
    pub processes: usize,
}

impl Samples<'_> {
    /// What a data set may take.
    fn room(&self) -> Room {
        Room::of(available().map(|bytes| bytes / self.processes.max(1) as u64))
    }
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
    /// The net whose parameters it has, if not its own.
    params_of: Option<Arc<Net>>,
}

impl PhaseJob {
    fn of(spec: NetSpec, state: NetState, feed: Feed, batch: usize) -> Self {
        Self { spec, state, feed, batch, params_of: None }
    }

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
            let feed = |arrays| Feed::Arrays(Arc::new(arrays));
            return Ok(opened.map(|(arrays, batch)| Self::of(spec, state.clone(), feed(arrays), batch)));
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
                let dataset = open(
                    source,
                    phase,
                    Opening { data, search: &search, tolerance, staging, room: samples.room() },
                )?;
                source.sample = Some(dataset.sample());
                found = Some((index, Some(dataset)));
            }
        }
        let Some((index, dataset)) = found else { return Ok(None) };
        check_one_source(&spec, state)?;
        let Layer::Data(source) = spec.layers[index].layer.clone() else { return Ok(None) };
        let dataset = match (dataset, source.sample) {
            (Some(dataset), _) => dataset,
            (None, shape) => {
                let noise = made_up::dataset(&spec, state, shape.unwrap_or_default(), source.batch)?;
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
        Ok(Some(Self::of(spec, state, feed, batch)))
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
        let source = format!("{subject} of type HDF5Data: a file that cannot be read ends the run");
        Samples::refuse(&[("--bad-record", samples.tolerance != Tolerance::Fail)], &source)?;
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
        check_one_source(spec, state)?;
        Ok(Some(Self::of(spec.clone(), state.clone(), feed, batch)))
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
                let mut net = Net::build(&spec, &self.state, share)?;
                if let Some(other) = &self.params_of {
                    net = net.with_params_of(other)?;
                }
                if quadrants > 1 {
                    check_cut(&net)?;
                }
                Ok(net)
            })
            .collect()
    }

    /// The same with the parameters of `train`, whose weights it is to test.
    ///
    /// # Errors
    /// If a layer has other parameters than there.
    pub fn with_params_of(self, train: &Self) -> Result<Self, Failure> {
        let [a, b] = [train, &self].map(|job| job.feed.data_set().map(DataSource::shape));
        let job = Self { params_of: Some(Arc::new(train.nets(&[1])?.swap_remove(0))), ..self };
        let Err(failure) = job.nets(&[1]) else { return Ok(job) };
        let (Some(a), Some(b)) = (a, b) else { return Err(failure) };
        if a == b {
            return Err(failure);
        }
        let size = |[c, h, w]: [usize; 3]| format!("{c}x{h}x{w}");
        let (test, a, b) = (job.feed.name(), size(a), size(b));
        let message = format!(
            "{test}: images to test are {b}, but those to train are {a}, so the weights cannot be shared"
        );
        Err(Failure::new(Code::Data, message))
    }

    /// The nets of the phase as devices compute them.
    pub fn device_nets(&self, threads: &[usize], rewriting: Rewriting<'_>) -> Result<Vec<Net>, Failure> {
        self.nets(threads)?.into_iter().map(|net| rewriting.of(net)).collect()
    }
}

/// Gives a tile of an input its number of images.
///
/// # Errors
/// If it is none of so many images.
pub fn cut_input(input: &mut Input, batch: usize, images: usize) -> Result<(), Fault> {
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

/// A mini-batch has arrays for one layer.
fn check_one_source(spec: &NetSpec, state: &NetState) -> Result<(), Failure> {
    let sources: Vec<&str> = spec
        .layers
        .iter()
        .filter(|l| l.belongs(state) && l.layer.is_source())
        .map(|layer| layer.name.as_str())
        .collect();
    if sources.len() < 2 {
        return Ok(());
    }
    let site = Site { file: spec.file.clone(), ..Site::default() };
    let (count, phase, names) = (sources.len(), state.phase, sources.join(", "));
    let message = format!("{count} layers read data in phase {phase} ({names}); one is possible");
    let hint = "a layer DummyData makes constants, and --inputs feeds several layers Input";
    Err(Fault::new("layer", message).hint(hint).at(&site, "network").into())
}

/// Every label of the data must be a class of every loss that looks at it.
fn label_rules(spec: &NetSpec, state: &NetState) -> Result<Vec<LabelRule>, Failure> {
    let net = Net::build(spec, state, 1.0)?;
    let of_data = |mut blob: BlobId| loop {
        let producer = net.layer(net.blob(blob).producer);
        match producer.bottoms.first() {
            Some(bottom) if producer.layer.is_view() => blob = *bottom,
            _ => break producer.layer.is_source(),
        }
    };
    let losses = net.layers.iter().zip((0..).map(LayerId)).filter_map(|(layer, id)| {
        layer.bottoms.get(1).filter(|labels| of_data(**labels))?;
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

/// A layer that looks at several images at once cannot be cut into tiles of images.
///
/// # Errors
/// If there is one: with its name and its field.
pub fn check_cut(net: &Net) -> Result<(), Failure> {
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
