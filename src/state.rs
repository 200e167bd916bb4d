//! Snapshots of a run: what every worker puts in, and how it comes out again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use quadrille_core::net::{LayerId, Net, ParamLayout};
use quadrille_core::solver::{Plateau, SmoothedLoss};
use quadrille_io::weights::{self, Placed};
use quadrille_io::{LayerWeights, NetWeights, RunFolder, Snapshot};

use crate::failure::{Code, Failure};
use crate::settings::Settings;

/// What a worker has to remember.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerState {
    /// Its packed weights.
    pub weights: Vec<f32>,
    /// Its packed histories: as many times the length of the weights as the solver's rule keeps.
    pub history: Vec<f32>,
    /// What its rate and display remember.
    pub course: Course,
}

/// What rate and display remember from iteration to iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    /// What a plateau has seen.
    pub plateau: Plateau,
    /// The last losses.
    pub loss: SmoothedLoss,
}

impl Course {
    /// At the start of a run whose losses are averaged over so many iterations.
    pub fn new(average_loss: usize) -> Self {
        Self { plateau: Plateau::default(), loss: SmoothedLoss::new(average_loss) }
    }

    /// All of it as text, to the last bit.
    fn to_text(&self) -> String {
        let Plateau { steps, minimum_loss, last_event } = self.plateau;
        let bits = |value: f32| format!("{:08x}", value.to_bits());
        let losses: Vec<String> = self.loss.kept().map(bits).collect();
        let numbers = [steps.to_string(), bits(minimum_loss), last_event.to_string(), bits(self.loss.mean())];
        numbers.into_iter().chain(losses).collect::<Vec<_>>().join(" ")
    }

    fn of_text(text: &str, average_loss: usize) -> Option<Self> {
        let mut words = text.split(' ');
        let bits = |word: &str| u32::from_str_radix(word, 16).ok().map(f32::from_bits);
        let steps = words.next()?.parse().ok()?;
        let minimum_loss = bits(words.next()?)?;
        let last_event = words.next()?.parse().ok()?;
        let mean = bits(words.next()?)?;
        let losses = words.map(bits).collect::<Option<Vec<f32>>>()?;
        let loss = SmoothedLoss::restored(average_loss, &losses, mean);
        Some(Self { plateau: Plateau { steps, minimum_loss, last_event }, loss })
    }
}

/// A run at the end of an iteration.
#[derive(Clone, Debug, PartialEq)]
pub struct RunState {
    /// Iterations done.
    pub iteration: u64,
    /// The packed weights that count: the centre, or the workers' own where all are equal.
    pub result: Vec<f32>,
    /// One for each worker.
    pub workers: Vec<WorkerState>,
}

/// Where workers leave their state; the last one writes the snapshot.
pub struct SnapshotDesk<'a> {
    folder: &'a RunFolder,
    layout: &'a ParamLayout,
    meta: BTreeMap<String, String>,
    workers: usize,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    result: Vec<f32>,
    states: BTreeMap<usize, WorkerState>,
    latest: Option<Latest>,
}

/// The snapshot that was written last.
#[derive(Clone)]
pub struct Latest {
    /// Its file.
    pub path: PathBuf,
    /// Iterations that were done.
    pub iteration: u64,
    /// The packed weights that count.
    pub result: Vec<f32>,
    /// The state of the first worker.
    pub first: WorkerState,
}

impl<'a> SnapshotDesk<'a> {
    /// A desk for `workers` workers whose snapshots carry `meta`.
    pub fn new(
        folder: &'a RunFolder,
        layout: &'a ParamLayout,
        meta: BTreeMap<String, String>,
        workers: usize,
    ) -> Self {
        Self { folder, layout, meta, workers, table: Mutex::default() }
    }

    /// Worker `rank` leaves its state after `iteration` iterations; `result` is the same from all.
    pub fn leave(
        &self,
        rank: usize,
        iteration: u64,
        state: WorkerState,
        result: &[f32],
    ) -> Result<(), Failure> {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        table.states.insert(rank, state);
        table.result = result.to_vec();
        if table.states.len() < self.workers {
            return Ok(());
        }
        let workers = std::mem::take(&mut table.states).into_values().collect();
        let state = RunState { iteration, result: std::mem::take(&mut table.result), workers };
        let path = self.folder.snapshot_path(iteration);
        state.to_snapshot(self.layout, &self.meta).write(&path)?;
        let RunState { iteration, result, workers } = state;
        let first = workers.into_iter().next();
        table.latest = first.map(|first| Latest { path, iteration, result, first });
        Ok(())
    }

    /// The snapshot that was written last, if there is one.
    pub fn latest(&self) -> Option<Latest> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).latest.clone()
    }
}

/// The name of a worker's histories in a snapshot: of the first of each parameter, or of the second.
fn history_name(rank: usize, which: usize) -> String {
    let number = if which == 0 { String::new() } else { (which + 1).to_string() };
    format!("worker{rank}/history{number}")
}

impl RunState {
    /// All workers in the same state.
    pub fn equal(iteration: u64, state: WorkerState, workers: usize) -> Self {
        Self { iteration, result: state.weights.clone(), workers: vec![state; workers] }
    }

    fn to_snapshot(&self, layout: &ParamLayout, meta: &BTreeMap<String, String>) -> Snapshot {
        let mut snapshot = Snapshot { meta: meta.clone(), tensors: BTreeMap::new() };
        snapshot.meta.insert("iteration".into(), self.iteration.to_string());
        snapshot.meta.insert("workers".into(), self.workers.len().to_string());
        let mut put = |prefix: &str, packed: &[f32]| {
            for view in layout.views() {
                let tensor = (view.shape.dims().to_vec(), packed[view.range()].to_vec());
                snapshot.tensors.insert(format!("{prefix}/{}", view.name), tensor);
            }
        };
        put("weights", &self.result);
        for (rank, worker) in self.workers.iter().enumerate() {
            put(&format!("worker{rank}/weights"), &worker.weights);
            for (which, history) in worker.history.chunks(layout.len().max(1)).enumerate() {
                put(&history_name(rank, which), history);
            }
        }
        for (rank, worker) in self.workers.iter().enumerate() {
            snapshot.meta.insert(format!("worker{rank}/course"), worker.course.to_text());
        }
        snapshot
    }

    /// Reads a run back for a net of `layout` under `settings`.
    ///
    /// # Errors
    /// If the file is damaged, or is of another network or number of workers, or differs from the run in one of
    /// the values of `identity`.
    pub fn read(
        path: &Path,
        layout: &ParamLayout,
        settings: &Settings,
        identity: &BTreeMap<String, String>,
    ) -> Result<Self, Failure> {
        let workers = settings.workers;
        let snapshot = Snapshot::read(path)?;
        let number = |name: &str| -> Result<u64, Failure> {
            let value = snapshot.meta.get(name).and_then(|v| v.parse().ok());
            value.ok_or_else(|| refuse(path, format!("it has no {name}")))
        };
        let iteration = number("iteration")?;
        let had = number("workers")?;
        if had != workers as u64 {
            return Err(refuse(path, format!("it is of {had} workers, not {workers}; add --workers {had}")));
        }
        let get = |prefix: &str| unpack(path, &snapshot, prefix, layout);
        // First what says most: a shape that differs, then the rest.
        let result = get("weights")?;
        for (name, value) in identity {
            let other = snapshot.meta.get(name).map_or("unknown", String::as_str);
            if other != value {
                return Err(refuse(path, format!("its {name} is {other}, that of this run is {value}")));
            }
        }
        let mut states = Vec::new();
        for rank in 0..workers {
            let weights = get(&format!("worker{rank}/weights"))?;
            let mut history = Vec::new();
            for which in 0..settings.solver.rule.kind.histories() {
                history.extend(get(&history_name(rank, which))?);
            }
            let course = snapshot.meta.get(&format!("worker{rank}/course"));
            let course = course.and_then(|text| Course::of_text(text, settings.average_loss()));
            let course = course.ok_or_else(|| refuse(path, format!("it has no course of worker {rank}")))?;
            states.push(WorkerState { weights, history, course });
        }
        Ok(Self { iteration, result, workers: states })
    }
}

fn refuse(path: &Path, message: String) -> Failure {
    Failure::new(Code::Data, format!("{}: this snapshot does not fit: {message}", path.display()))
}

fn unpack(path: &Path, snapshot: &Snapshot, prefix: &str, layout: &ParamLayout) -> Result<Vec<f32>, Failure> {
    let mut packed = vec![0.0; layout.len()];
    for view in layout.views() {
        let name = format!("{prefix}/{}", view.name);
        let Some((dims, values)) = snapshot.tensors.get(&name) else {
            return Err(refuse(path, format!("it has no {name:?}; is it of another network?")));
        };
        if dims != view.shape.dims() {
            return Err(refuse(
                path,
                format!("{name:?} has shape {dims:?}, the network needs {}", view.shape),
            ));
        }
        packed[view.range()].copy_from_slice(values);
    }
    Ok(packed)
}

/// Reads trained weights, file after file, by the names of layers: `.caffemodel`, `.safetensors` (a snapshot of ours,
/// too) or `.npz`. Parameters that no file has keep what is in `packed`. `net` is as the file has it, with no layers
/// fused.
///
/// # Errors
/// If a file is damaged, or a layer has another shape, or a file has no layer of the network.
pub fn read_weights(paths: &[PathBuf], net: &Net, packed: &mut [f32]) -> Result<Placed, Failure> {
    let mut placed = Placed::default();
    for path in paths {
        let file = weights::read(path)?;
        weights::place(&file, net, packed, &mut placed)
            .map_err(|message| Failure::new(Code::Data, format!("{}: {message}", path.display())))?;
    }
    Ok(placed)
}

/// The lines that say what weights a run starts from.
pub fn start_lines(paths: &[PathBuf], net: &Net, placed: &Placed) -> Vec<String> {
    let mut lines = vec![format!("start       weights of {}", listed(paths))];
    let missing = placed.missing(net);
    if !missing.is_empty() {
        lines.push(format!("            not in the file, so filled anew: {}", missing.join(" ")));
    }
    if !placed.ignored.is_empty() {
        lines.push(format!("            not in the network, so ignored: {}", placed.ignored.join(" ")));
    }
    lines
}

/// The files of `--weights`, as they were given.
pub fn listed(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(",")
}

/// Writes the weights as a `.caffemodel`, for Caffe's own tools.
pub fn write_caffemodel(path: &Path, net: &Net, packed: &[f32]) -> Result<(), Failure> {
    let layers = net.layers.iter().enumerate().filter(|(_, l)| !l.params.is_empty()).map(|(index, layer)| {
        // A shared parameter can have another shape in each of its layers.
        let shapes = net.param_shapes(LayerId(index));
        let values = layer.params.iter().map(|p| packed[net.params.view(*p).range()].to_vec());
        LayerWeights {
            name: layer.name.clone(),
            kind: layer.layer.type_name().to_owned(),
            blobs: shapes.iter().map(|shape| shape.dims().to_vec()).zip(values).collect(),
        }
    });
    Ok(NetWeights { name: net.name.clone(), layers: layers.collect() }.write(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_course_is_stored_to_the_last_bit() {
        for noted in [0, 1, 2, 5] {
            let mut course = Course::new(3);
            for i in 0..noted {
                let smoothed = course.loss.note(1.0 / (i + 3) as f32);
                course.plateau.note(&[2, 2], i as u64, smoothed);
            }
            let mut read = Course::of_text(&course.to_text(), 3).expect("a course");
            assert_eq!((read.plateau, read.to_text()), (course.plateau, course.to_text()));
            for loss in [0.1, 0.7, 0.3, 0.9] {
                assert_eq!(read.loss.note(loss).to_bits(), course.loss.note(loss).to_bits());
            }
        }
        for broken in ["", "1", "1 x 2 3", "1 00000000 2", "-1 00000000 2 00000000", "1 00000000 2 00000000 "]
        {
            assert!(Course::of_text(broken, 3).is_none(), "{broken}");
        }
    }
}
