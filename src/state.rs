//! What a run has to remember, and how it lies in a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use quadrille_core::net::ParamLayout;
use quadrille_core::solver::{Plateau, SmoothedLoss};
use quadrille_io::snapshot::{Array, FileContent, Manifest, RandomNumbers, Snapshot, WEIGHTS, WorkerEntry};
use quadrille_io::weights::Tensors;
use serde_json::Value;

use crate::failure::{Code, Failure};
use crate::settings::Settings;

/// The arrays of a worker.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct WorkerArrays {
    /// Its packed weights.
    pub weights: Vec<f32>,
    /// Its packed histories: as many times the length of the weights as the solver's rule keeps.
    pub history: Vec<f32>,
}

impl WorkerArrays {
    /// Whether all are the same, bit by bit.
    fn equals(&self, other: &Self) -> bool {
        let same = |a: &[f32], b: &[f32]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
        };
        same(&self.weights, &other.weights) && same(&self.history, &other.history)
    }
}

/// What a worker has to remember.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerState {
    /// Its arrays; workers that are replicas of each other share them.
    pub arrays: Arc<WorkerArrays>,
    /// What its layers keep from one mini-batch to the next, by name; of most networks nothing.
    pub kept: Tensors,
    /// What its rate and display remember.
    pub course: Course,
}

impl WorkerState {
    /// What a snapshot says of the worker.
    pub fn entry(&self, owned: Owned, iteration: u64, about: &About) -> WorkerEntry {
        let [next_step, next_sample] = about.counters(iteration);
        WorkerEntry {
            iteration,
            next_sample,
            epoch: next_sample.checked_div(about.images).unwrap_or(0),
            next_step,
            course: self.course.to_text(),
            file: file_name(owned.owner),
            own_weights: owned.has_own_weights(),
            kept: (!self.kept.is_empty()).then(|| kept_name(owned.rank)),
        }
    }

    /// The file of the arrays of the worker, which is its own.
    pub fn file<'a>(&'a self, owned: Owned, layout: &'a ParamLayout) -> FileContent<'a> {
        let state = &*self.arrays;
        let mut content = Vec::new();
        if owned.has_own_weights() {
            content.extend(arrays(layout, "weights/", &state.weights));
        }
        for (which, history) in state.history.chunks(layout.len().max(1)).enumerate() {
            content.extend(arrays(layout, &history_name(which), history));
        }
        FileContent { name: file_name(owned.owner), arrays: content }
    }

    /// The file of what its layers keep, if they do.
    pub fn kept_file(&self, rank: usize) -> Option<FileContent<'_>> {
        let arrays = self.kept.iter();
        let arrays = arrays.map(|(name, (shape, values))| Array { name: name.clone(), shape, values });
        (!self.kept.is_empty()).then(|| FileContent { name: kept_name(rank), arrays: arrays.collect() })
    }

    /// Gives the worker's arrays up for those of `other` if they are the same.
    pub fn share(&mut self, other: &Self) {
        if self.arrays.equals(&other.arrays) {
            self.arrays = other.arrays.clone();
        }
    }
}

/// Whose arrays lie in which file of a snapshot.
#[derive(Clone, Copy, Debug)]
pub struct Owned {
    /// A worker.
    pub rank: usize,
    /// That whose file is its own, too: itself, or one with the same arrays.
    pub owner: usize,
    /// Whether there is a centre.
    pub has_centre: bool,
}

impl Owned {
    /// Whether the file has weights, or they are those that count.
    fn has_own_weights(self) -> bool {
        self.has_centre || self.owner > 0
    }
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
    /// The packed weights of the centre, if there is one.
    pub centre: Option<Vec<f32>>,
    /// One for each worker, of which there is at least one.
    pub workers: Vec<WorkerState>,
}

/// What is said of a run in every snapshot of it.
#[derive(Clone, Debug)]
pub struct About {
    /// The network's name.
    pub network: String,
    /// What a run that goes on must have in common.
    pub identity: BTreeMap<String, String>,
    /// The settings, for people.
    pub settings: Value,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Mini-batches of a worker in an iteration.
    pub parts: u64,
    /// Images of a mini-batch.
    pub batch: u64,
    /// Images of the data set; 0 if samples do not come from one.
    pub images: u64,
}

impl About {
    /// What a snapshot says of the run.
    pub fn manifest(&self, iteration: u64, workers: Vec<WorkerEntry>) -> Manifest {
        Manifest {
            iteration,
            network: self.network.clone(),
            identity: self.identity.clone(),
            settings: self.settings.clone(),
            random_numbers: self.random_numbers(),
            workers,
            files: Vec::new(),
        }
    }

    /// Where the counters of a worker stand after so many iterations: the next mini-batch, and the next sample.
    fn counters(&self, iteration: u64) -> [u64; 2] {
        let step = iteration.saturating_mul(self.parts);
        [step, step.saturating_mul(self.batch)]
    }

    fn random_numbers(&self) -> RandomNumbers {
        let drawn = [
            ("order of samples", "stream 1 of each worker: a permutation for each epoch, at next_sample"),
            ("changes to samples", "stream 2 of each worker: block next_sample"),
            (
                "seeds of steps",
                "stream 4 of each worker: block next_step; layers draw from streams so seeded",
            ),
            ("fillers", "streams from 2147483648 on, one a parameter; not drawn from after the start"),
        ];
        RandomNumbers {
            generator: "Philox4x32-10, key = seed, counter = (block, stream, worker)".to_owned(),
            seed: self.seed,
            drawn: drawn.map(|(what, how)| (what.to_owned(), how.to_owned())).into(),
        }
    }
}

/// The name of a worker's histories in its file: of the first of each parameter, or of the second.
fn history_name(which: usize) -> String {
    if which == 0 { "history/".to_owned() } else { format!("history{}/", which + 1) }
}

/// The parameters of a packed array.
fn arrays<'a>(layout: &'a ParamLayout, prefix: &str, packed: &'a [f32]) -> Vec<Array<'a>> {
    let views = layout.views().iter();
    let array = views.map(|view| Array {
        name: format!("{prefix}{}", view.name),
        shape: view.shape.dims(),
        values: &packed[view.range()],
    });
    array.collect()
}

impl RunState {
    /// All workers in the same state, and the centre, if there is one, where they are.
    pub fn equal(iteration: u64, state: WorkerState, settings: &Settings) -> Self {
        let centre = settings.is_elastic().then(|| state.arrays.weights.clone());
        Self { iteration, centre, workers: vec![state; settings.workers] }
    }

    /// The packed weights that count: the centre, or the first worker's where all are equal.
    pub fn counting(&self) -> &[f32] {
        self.centre.as_ref().unwrap_or(&self.workers[0].arrays.weights)
    }

    /// The workers whose arrays are in the files of a snapshot, and for each worker that whose file is its own, too.
    fn owners(&self) -> Vec<usize> {
        let same = |a: &WorkerState, b: &WorkerState| Arc::ptr_eq(&a.arrays, &b.arrays);
        let owner = |worker: &WorkerState| self.workers.iter().position(|other| same(worker, other));
        self.workers.iter().map(|worker| owner(worker).unwrap_or(0)).collect()
    }

    /// What a snapshot says of the state.
    pub fn manifest(&self, about: &About) -> Manifest {
        let workers = self.workers.iter().zip(self.owners()).enumerate();
        let has_centre = self.centre.is_some();
        let entry = |(rank, (worker, owner)): (usize, (&WorkerState, usize))| {
            worker.entry(Owned { rank, owner, has_centre }, self.iteration, about)
        };
        about.manifest(self.iteration, workers.map(entry).collect())
    }

    /// The file of the weights that count.
    pub fn counting_file<'a>(&'a self, layout: &'a ParamLayout) -> FileContent<'a> {
        FileContent { name: WEIGHTS.to_owned(), arrays: arrays(layout, "", self.counting()) }
    }

    /// The files of a snapshot. Nothing is copied, and what is the same for several workers is there once.
    pub fn files<'a>(&'a self, layout: &'a ParamLayout) -> Vec<FileContent<'a>> {
        let mut files = vec![self.counting_file(layout)];
        let owners: BTreeSet<usize> = self.owners().into_iter().collect();
        let has_centre = self.centre.is_some();
        let own = |owner: usize| Owned { rank: owner, owner, has_centre };
        files.extend(owners.into_iter().map(|owner| self.workers[owner].file(own(owner), layout)));
        files.extend(self.workers.iter().enumerate().filter_map(|(rank, worker)| worker.kept_file(rank)));
        files
    }

    /// Takes a run out of a snapshot that lies at `path`, for a net of `layout` under `settings`.
    ///
    /// # Errors
    /// If the snapshot is of another network or number of workers, or differs from the run in what `about` says of it.
    pub fn of_snapshot(
        path: &Path,
        mut snapshot: Snapshot,
        layout: &ParamLayout,
        settings: &Settings,
        about: &About,
    ) -> Result<Self, Failure> {
        let manifest = snapshot.manifest;
        let (workers, had) = (settings.workers, manifest.workers.len());
        if had != workers {
            return Err(refuse(path, format!("it is of {had} workers, not {workers}; add --workers {had}")));
        }
        let mut file = |name: &str| snapshot.files.remove(name).unwrap_or_default();
        // First what says most: a shape that differs, then the rest.
        let counting = unpack(path, &mut file(WEIGHTS), "", layout)?;
        check_identity(path, &manifest, about)?;
        let mut owned: BTreeMap<&str, Arc<WorkerArrays>> = BTreeMap::new();
        let mut states = Vec::new();
        for (rank, entry) in manifest.workers.iter().enumerate() {
            let arrays = match owned.get(entry.file.as_str()) {
                Some(arrays) => arrays.clone(),
                None => {
                    let mut tensors = file(&entry.file);
                    let weights = match entry.own_weights {
                        true => unpack(path, &mut tensors, "weights/", layout)?,
                        false => counting.clone(),
                    };
                    let mut history = Vec::new();
                    for which in 0..settings.solver.rule.kind.histories() {
                        history.extend(unpack(path, &mut tensors, &history_name(which), layout)?);
                    }
                    let arrays = Arc::new(WorkerArrays { weights, history });
                    owned.insert(&entry.file, arrays.clone());
                    arrays
                }
            };
            let course = Course::of_text(&entry.course, settings.average_loss());
            let course = course.ok_or_else(|| refuse(path, format!("it has no course of worker {rank}")))?;
            let kept = entry.kept.as_deref().map(&mut file).unwrap_or_default();
            states.push(WorkerState { arrays, kept, course });
        }
        let centre = settings.is_elastic().then_some(counting);
        Ok(Self { iteration: manifest.iteration, centre, workers: states })
    }
}

fn file_name(rank: usize) -> String {
    format!("worker{rank}.safetensors")
}

/// The file of what a worker's layers keep.
fn kept_name(rank: usize) -> String {
    format!("layers{rank}.safetensors")
}

/// Refuses a snapshot of a run that saw other samples or means something else.
fn check_identity(path: &Path, manifest: &Manifest, about: &About) -> Result<(), Failure> {
    for (name, value) in &about.identity {
        let other = manifest.identity.get(name).map_or("unknown", String::as_str);
        if other != value {
            let remedy = remedy(name, other).map_or_else(String::new, |flag| format!("; add {flag}"));
            let what = if name == "quadrants" { "number of quadrants" } else { name };
            let message = format!("its {what} is {other}, that of this run is {value}{remedy}");
            return Err(refuse(path, message));
        }
    }
    let [next_step, next_sample] = about.counters(manifest.iteration);
    let elsewhere = |worker: &WorkerEntry| [worker.next_step, worker.next_sample] != [next_step, next_sample];
    if manifest.workers.iter().any(elsewhere) || manifest.random_numbers != about.random_numbers() {
        return Err(refuse(path, "its random numbers are counted in another way".to_owned()));
    }
    Ok(())
}

/// The flag by which a run has the same as a snapshot, if it is a matter of flags.
fn remedy(name: &str, value: &str) -> Option<String> {
    let flag = ["method", "seed", "batch", "quadrants"].into_iter().find(|flag| *flag == name)?;
    Some(format!("--{flag} {value}"))
}

fn refuse(path: &Path, message: String) -> Failure {
    Failure::new(Code::Data, format!("{}: this snapshot does not fit: {message}", path.display()))
}

/// Takes a packed array out of the arrays of a file.
fn unpack(
    path: &Path,
    tensors: &mut Tensors,
    prefix: &str,
    layout: &ParamLayout,
) -> Result<Vec<f32>, Failure> {
    let mut packed = vec![0.0; layout.len()];
    for view in layout.views() {
        let name = format!("{prefix}{}", view.name);
        let Some((dims, values)) = tensors.remove(&name) else {
            return Err(refuse(path, format!("it has no {name:?}; is it of another network?")));
        };
        if dims != view.shape.dims() {
            return Err(refuse(
                path,
                format!("{name:?} has shape {dims:?}, the network needs {}", view.shape),
            ));
        }
        packed[view.range()].copy_from_slice(&values);
    }
    Ok(packed)
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
