//! Snapshots of a run: what every worker puts in, and how it comes out again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use quadrille_core::net::{LayerId, Net, ParamLayout};
use quadrille_io::weights::{self, Placed};
use quadrille_io::{LayerWeights, NetWeights, RunFolder, Snapshot};

use crate::failure::{Code, Failure};

/// What a worker has to remember.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerState {
    /// Its packed weights.
    pub weights: Vec<f32>,
    /// Its packed histories.
    pub history: Vec<f32>,
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
    latest: Option<(PathBuf, Vec<f32>)>,
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
        table.latest = Some((path, state.result));
        Ok(())
    }

    /// The snapshot that was written last, and the weights that count in it.
    pub fn latest(&self) -> Option<(PathBuf, Vec<f32>)> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner).latest.clone()
    }
}

impl RunState {
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
            put(&format!("worker{rank}/history"), &worker.history);
        }
        snapshot
    }

    /// Reads a run back for a net of `layout` and `workers` workers.
    ///
    /// # Errors
    /// If the file is damaged, or is of another network or number of workers, or differs from the run in one of
    /// the values of `identity`.
    pub fn read(
        path: &Path,
        layout: &ParamLayout,
        workers: usize,
        identity: &BTreeMap<String, String>,
    ) -> Result<Self, Failure> {
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
            states.push(WorkerState { weights, history: get(&format!("worker{rank}/history"))? });
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
