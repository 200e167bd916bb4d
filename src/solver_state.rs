//! Caffe's own snapshots: a `.solverstate` with the `.caffemodel` that it names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quadrille_core::net::Net;
use quadrille_io::SolverState;
use quadrille_io::weights::Tensors;

use crate::desk::Latest;
use crate::failure::{Code, Failure};
use crate::settings::Settings;
use crate::state::{Course, RunState, WorkerArrays, WorkerState};
use crate::weights::read_weights;

/// Whether a snapshot is one of Caffe's.
pub fn is_of_caffe(path: &Path) -> bool {
    path.to_string_lossy().contains(".solverstate")
}

fn refuse(path: &Path, message: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Data, format!("{}: this state does not fit: {message}", path.display()))
}

/// Reads a state that Caffe or this program wrote, for all workers alike. Caffe stores neither random state nor place in the
/// data: both are those of our own run after as many iterations. `weights` are those of parameters that the file of
/// weights lacks; their names are returned.
///
/// # Errors
/// If a file is damaged or missing, or is of another network or solver.
pub fn read(
    path: &Path,
    net: &Net,
    settings: &Settings,
    mut weights: Vec<f32>,
) -> Result<(RunState, Vec<String>), Failure> {
    let state = SolverState::read(path)?;
    let (views, kind) = (net.params.views(), settings.solver.rule.kind);
    let expected = kind.histories() * views.len();
    if state.history.len() != expected {
        return Err(refuse(
            path,
            format!(
                "it has {} histories; {} keeps {} of each of {} parameters, {expected} in all; is it of another solver?",
                state.history.len(),
                kind.name(),
                kind.histories(),
                views.len()
            ),
        ));
    }
    let mut missing = Vec::new();
    if !state.learned_net.is_empty() {
        let file = learned_net(path, &state.learned_net)?;
        missing = read_weights(&[file], net, &mut weights)?.missing(net);
    }
    let len = net.params.len();
    let mut history = vec![0.0; kind.histories() * len];
    let places = (0..kind.histories()).flat_map(|which| views.iter().map(move |view| (which * len, view)));
    for ((start, view), (shape, values)) in places.zip(&state.history) {
        let range = view.range();
        if values.len() != range.len() {
            return Err(refuse(
                path,
                format!("the history of {} has shape {shape:?}, not {}", view.name, view.shape),
            ));
        }
        history[start + range.start..start + range.end].copy_from_slice(values);
    }
    let course = Course { plateau: state.plateau(), ..Course::new(settings.average_loss()) };
    let worker =
        WorkerState { arrays: Arc::new(WorkerArrays { weights, history }), kept: Tensors::new(), course };
    Ok((RunState::equal(state.iteration, worker, settings), missing))
}

/// The file of weights that a state names: from the current folder, as Caffe looks for it, or beside the state.
fn learned_net(state: &Path, named: &str) -> Result<PathBuf, Failure> {
    let named = Path::new(named);
    let beside = named.file_name().map(|name| state.with_file_name(name));
    let places: Vec<PathBuf> = std::iter::once(named.to_owned()).chain(beside).collect();
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        Failure::new(
            Code::Missing,
            format!("{}: its weights are not there; looked for {}", state.display(), tried.join(", ")),
        )
    })
}

/// Writes the state of the first worker for Caffe, beside its weights in `caffemodel`.
pub fn write(
    path: &Path,
    caffemodel: &Path,
    net: &Net,
    settings: &Settings,
    latest: &Latest,
) -> Result<(), Failure> {
    let (iteration, first) = (latest.state.iteration, &latest.state.workers[0]);
    let plateau = first.course.plateau;
    let follows = settings.solver.rate_follows_loss();
    let len = net.params.len().max(1);
    let histories = first.arrays.history.chunks(len).flat_map(|packed| {
        let views = net.params.views().iter();
        views.map(move |view| (view.shape.dims().to_vec(), packed[view.range()].to_vec()))
    });
    let state = SolverState {
        iteration,
        learned_net: caffemodel.display().to_string(),
        current_step: settings.solver.policy.steps_after(iteration, &plateau),
        plateau: follows.then_some((plateau.minimum_loss, plateau.last_event)),
        history: histories.collect(),
    };
    Ok(state.write(path)?)
}
