//! Values that are not finite: how they are found, how the first of them gets its name, and what becomes of the iteration.
//!
//! # What is looked at, and when
//!
//! The loss of every mini-batch, always: it costs a comparison. Kernels may swallow a NaN (a maximum of two values can), so
//! weights are looked at, too: with `stop` in iterations that are displayed and before snapshots, one pass over them each;
//! with `skip` and `rollback`, which promise more, gradients before every update and weights after it, in the place where
//! they lie. These two let updates have a plan of their own, so that there is something to leave out.
//!
//! # How the first one gets its name
//!
//! Only when one was found, forward is run once more on the same mini-batch, layer by layer, and after each layer its
//! parameters and tops are looked at, before a later layer uses their memory. Where a single worker applies gradients as it
//! finds them (`stop`), its update is done by then, so parameters are those behind it; the message says so.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use clap::ValueEnum;
use quadrille_core::device::{Packed, Region, Scalars};
use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, ParamLayout};
use quadrille_core::plan::{Node, Plan, Stage};
use quadrille_core::run::{StepTimes, run_step};
pub use quadrille_cpu::kernel::finite::all_finite;

use quadrille_io::RunFolder;

use crate::cli::TrainArgs;
use crate::failure::{Code, Failure};
use crate::pass::Pass;
use crate::resume::is_automatic;

/// So many iterations in a row may be left out: then it is not the data.
const IN_A_ROW: u64 = 10;
/// So often a run goes back to a snapshot.
const ROLLBACKS: usize = 5;

/// What becomes of a run in which a value is not finite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnNonfinite {
    /// It ends with code 77 and says where the value is.
    #[default]
    Stop,
    /// The update of the iteration is left out, by all workers where they exchange at once.
    Skip,
    /// It goes back to the last snapshot, and leaves that update out when it comes there again.
    Rollback,
}

impl OnNonfinite {
    /// Whether gradients and weights are looked at in every iteration.
    pub fn is_close(self) -> bool {
        self != Self::Stop
    }

    /// Whether a run may go on after `failure`, from a snapshot.
    pub fn goes_back_over(self, failure: &Failure) -> bool {
        self == Self::Rollback && failure.code == Code::NotFinite as u8
    }
}

/// What a worker does about values that are not finite.
#[derive(Clone, Debug)]
pub struct Watch {
    mode: OnNonfinite,
    /// Iterations whose updates all workers leave out, since the run came back from them.
    known: Vec<u64>,
    in_a_row: u64,
    /// How many updates were left out.
    pub left_out: u64,
}

/// What becomes of a run that goes back to its snapshots.
#[derive(Debug, Default)]
pub struct Mishaps {
    /// The iterations that it came back from.
    pub known: Vec<u64>,
    /// The iteration in which a worker failed last, and the folder of the run.
    last: Mutex<(Option<u64>, Option<PathBuf>)>,
}

impl Mishaps {
    fn last(&self) -> MutexGuard<'_, (Option<u64>, Option<PathBuf>)> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The run has this folder.
    pub fn note_folder(&self, folder: &RunFolder) {
        self.last().1 = Some(folder.path().to_owned());
    }

    /// A worker failed in an iteration.
    pub fn note(&self, failure: &Failure, iteration: u64) {
        if failure.code == Code::NotFinite as u8 {
            let earliest = &mut self.last().0;
            *earliest = Some(earliest.map_or(iteration, |earlier| earlier.min(iteration)));
        }
    }

    /// What to do after `failure`: the flags with which the run goes back to its last snapshot.
    ///
    /// # Errors
    /// With the failure if it cannot go back, or has done so too often.
    pub fn back(&mut self, args: &TrainArgs, failure: Failure) -> Result<TrainArgs, Failure> {
        let (iteration, folder) = std::mem::take(&mut *self.last());
        let (Some(iteration), Some(path)) = (iteration, folder) else { return Err(failure) };
        if args.on_nonfinite != OnNonfinite::Rollback {
            return Err(failure);
        }
        let refuse = |why: &str| failure.clone().saying(format!("{}\n  {why}", failure.message));
        if self.known.len() == ROLLBACKS {
            return Err(refuse(&format!(
                "the run went back to a snapshot {ROLLBACKS} times: that is enough"
            )));
        }
        let generations = RunFolder::open(&path)?.generations()?;
        let newest = generations.first().ok_or_else(|| refuse("there is no snapshot yet to go back to"))?;
        say!("not finite  {}", failure.message);
        say!("rollback    to {}, without the update of iteration {iteration}", newest.path.display());
        self.known.push(iteration);
        let resume = if is_automatic(args) { args.resume.clone() } else { Some(path.clone()) };
        let (run, snapshot, weights) = (Some(path), None, Vec::new());
        Ok(TrainArgs { resume, run, snapshot, weights, ..args.clone() })
    }
}

/// Where a worker is when it finds something.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The worker.
    pub rank: usize,
    /// The iteration.
    pub iteration: u64,
    /// Its learning rate.
    pub rate: f32,
}

fn not_finite(message: String) -> Failure {
    Failure::new(Code::NotFinite, message)
}

impl Watch {
    /// For a run that came back from the iterations `known`.
    pub fn new(mode: OnNonfinite, known: &[u64]) -> Self {
        Self { mode, known: known.to_vec(), in_a_row: 0, left_out: 0 }
    }

    /// Whether gradients and weights are looked at in every iteration.
    pub fn is_close(&self) -> bool {
        self.mode.is_close()
    }

    /// Whether the update of an iteration is left out whatever comes of it.
    pub fn leaves_out(&self, iteration: u64) -> bool {
        self.known.contains(&iteration)
    }

    /// Judges what was found before an update, if it was: whether the run can go on without this update.
    ///
    /// # Errors
    /// If it cannot.
    pub fn judge(&self, at: Moment, losses: &[f32], found: &Found) -> Result<(), Failure> {
        let Moment { rank, iteration, rate } = at;
        let what = match losses.iter().find(|loss| !loss.is_finite()) {
            Some(loss) => {
                format!("the loss of worker {rank} in iteration {iteration} is {loss} (learning rate {rate})")
            }
            None => format!(
                "worker {rank} has a gradient that is not finite in iteration {iteration} (learning rate {rate})"
            ),
        };
        if self.mode == OnNonfinite::Skip && !found.in_parameters {
            return Ok(());
        }
        let hint = match (self.mode, found.in_parameters) {
            (OnNonfinite::Skip, true) => {
                "leaving updates out does not mend parameters; try --on-nonfinite rollback"
            }
            _ => "lower base_lr, or look for bad values in the data",
        };
        Err(not_finite(format!(
            "{what}: {}; nothing was written after the last snapshot\n  hint: {hint}",
            found.text
        )))
    }

    /// Notes that an update is left out, if it is.
    ///
    /// # Errors
    /// If this has happened too often.
    pub fn note(&mut self, at: Moment, left_out: bool) -> Result<(), Failure> {
        if !left_out {
            self.in_a_row = 0;
            return Ok(());
        }
        (self.in_a_row, self.left_out) = (self.in_a_row + 1, self.left_out + 1);
        if self.in_a_row < IN_A_ROW {
            return Ok(());
        }
        let Moment { rank, iteration, .. } = at;
        Err(not_finite(format!(
            "worker {rank} left out the updates of {IN_A_ROW} iterations in a row, up to iteration {iteration}, for values \
             that are not finite\n  hint: lower base_lr, or look for bad values in the data"
        )))
    }
}

/// The first value that is not finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    /// Where it is.
    pub text: String,
    /// Whether it is a parameter.
    pub in_parameters: bool,
}

impl Found {
    /// What is said of an update that is left out for it.
    pub fn left_out(&self, at: Moment) -> String {
        let Moment { rank, iteration, .. } = at;
        format!(
            "worker {rank} has values that are not finite in iteration {iteration}, {}: this update is left out",
            self.text
        )
    }
}

/// Looks for the first value that is not finite, in forward order, by running forward of `plan` once more.
pub fn first(pass: &Pass, plan: &Plan, scalars: &Scalars) -> Result<Found, Failure> {
    // Forward changes what layers keep from step to step, and nothing else that outlives the step.
    let kept = pass.kept()?;
    let found = look(pass, plan, scalars);
    if !kept.is_empty() {
        pass.put_kept(&kept)?;
    }
    let nothing = "where it began cannot be seen any more".to_owned();
    Ok(found?.unwrap_or(Found { text: nothing, in_parameters: false }))
}

fn look(pass: &Pass, plan: &Plan, scalars: &Scalars) -> Result<Option<Found>, Failure> {
    let net = &pass.nets[0];
    let weights = packed(pass, Packed::Weights)?;
    let mut times = StepTimes::default();
    for (index, layer) in net.layers.iter().enumerate() {
        let id = LayerId(index);
        let behind =
            if plan.stage == Stage::Iteration { ", behind the update of this iteration" } else { "" };
        for view in layer.params.iter().map(|param| net.params.view(*param)) {
            if !all_finite(&weights[view.range()]) {
                let text = format!("first in parameter {} of layer {}{behind}", view.name, layer.name);
                return Ok(Some(Found { text, in_parameters: true }));
            }
        }
        let mut computed = false;
        for node in plan.nodes.iter().filter(|node| is_forward(node) && node.task.layer == id) {
            run_step(&pass.devices, &plan.alone(node), scalars, &mut times)?;
            computed = true;
        }
        for top in layer.tops.iter().filter(|_| computed) {
            for (device, net) in pass.devices.iter().zip(&pass.nets) {
                let blob = net.blob(*top);
                if !device.is_finite(Region::Storage(blob.data), blob.shape.count())? {
                    let (layer, kind) = (&layer.name, layer.layer.type_name());
                    let text = format!("first in blob {} of layer {layer} ({kind})", blob.name);
                    return Ok(Some(Found { text, in_parameters: false }));
                }
            }
        }
    }
    // Where gradients are applied as they are found, not all of them are stored.
    if plan.stage == Stage::Iteration {
        return Ok(None);
    }
    let which = if plan.stage == Stage::Part { Packed::Sums } else { Packed::Gradients };
    let name = first_parameter(&net.params, &packed(pass, which)?);
    Ok(name.map(|name| Found { text: format!("first in the gradient of {name}"), in_parameters: false }))
}

fn is_forward(node: &Node) -> bool {
    matches!(node.task.sub, SubTask::Load | SubTask::Forward)
}

fn packed(pass: &Pass, which: Packed) -> Result<Vec<f32>, Failure> {
    let mut values = vec![0.0; pass.nets[0].params.len()];
    pass.read(Region::Packed(which), &mut values)?;
    Ok(values)
}

/// The first parameter in a packed buffer that has a value which is not finite.
pub fn first_parameter<'a>(layout: &'a ParamLayout, packed: &[f32]) -> Option<&'a str> {
    let views = layout.views().iter();
    let mut bad = views.filter(|view| !all_finite(&packed[view.range()]));
    bad.next().map(|view| view.name.as_str())
}

/// Whether a packed buffer of the first device is finite. All devices of a worker hold the same.
pub fn is_finite(pass: &Pass, which: Packed) -> Result<bool, Failure> {
    let len = pass.nets[0].params.len();
    Ok(pass.devices[0].is_finite(Region::Packed(which), len)?)
}

/// Refuses weights that the update of an iteration has spoilt, or one before it.
pub fn check_weights(pass: &Pass, at: Moment) -> Result<(), Failure> {
    if is_finite(pass, Packed::Weights)? {
        return Ok(());
    }
    let weights = packed(pass, Packed::Weights)?;
    let name = first_parameter(&pass.nets[0].params, &weights).unwrap_or("a padding");
    let Moment { rank, iteration, rate } = at;
    Err(not_finite(format!(
        "the weights of worker {rank} are not finite behind the update in iteration {iteration} (learning rate {rate}), first \
         in parameter {name}; nothing was written after the last snapshot\n  hint: lower base_lr"
    )))
}

/// Refuses packed arrays of weights or histories that are not finite: they are worth no snapshot, since whoever went on from
/// it would fail at once.
pub fn check_arrays(
    layout: &ParamLayout,
    rank: usize,
    iterations: u64,
    arrays: &[&[f32]],
) -> Result<(), Failure> {
    // An array holds as many packed buffers as there are histories, and nothing if there are none.
    let buffers = arrays.iter().flat_map(|array| array.chunks(layout.len().max(1)));
    let mut bad = buffers.filter(|buffer| !all_finite(buffer));
    let Some(buffer) = bad.next() else { return Ok(()) };
    let name = first_parameter(layout, buffer).unwrap_or("a padding");
    Err(not_finite(format!(
        "worker {rank}: weights are not finite after {iterations} iterations, first in parameter {name}; no snapshot was \
         written of them\n  hint: lower base_lr"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Moment = Moment { rank: 1, iteration: 7, rate: 0.5 };

    fn found(in_parameters: bool) -> Found {
        Found { text: "first in blob ip".to_owned(), in_parameters }
    }

    #[test]
    fn only_skip_goes_on_and_only_with_sound_parameters() {
        for (mode, in_parameters, goes_on) in [
            (OnNonfinite::Stop, false, false),
            (OnNonfinite::Rollback, false, false),
            (OnNonfinite::Skip, false, true),
            (OnNonfinite::Skip, true, false),
        ] {
            let watch = Watch::new(mode, &[]);
            let judged = watch.judge(AT, &[1.0, f32::NAN], &found(in_parameters));
            assert_eq!(judged.is_ok(), goes_on, "{mode:?} {in_parameters}");
            if let Err(failure) = judged {
                assert_eq!(failure.code, Code::NotFinite as u8);
                let said = "the loss of worker 1 in iteration 7 is NaN (learning rate 0.5): first in blob ip";
                assert!(failure.message.contains(said), "{failure}");
            }
        }
        let failure = Watch::new(OnNonfinite::Stop, &[]).judge(AT, &[1.0], &found(false)).expect_err("stop");
        assert!(failure.message.contains("worker 1 has a gradient that is not finite"), "{failure}");
    }

    #[test]
    fn a_row_of_bad_iterations_ends_and_a_good_one_begins_it_anew() {
        let mut watch = Watch::new(OnNonfinite::Skip, &[3]);
        assert!(watch.leaves_out(3) && !watch.leaves_out(4));
        let mut times =
            |left_out: &[bool]| left_out.iter().map(|l| watch.note(AT, *l)).filter(Result::is_err).count();
        assert_eq!(times(&[true; IN_A_ROW as usize - 1]), 0);
        assert_eq!(times(&[false]), 0);
        assert_eq!(times(&[true; IN_A_ROW as usize]), 1);
        assert_eq!(watch.left_out, 2 * IN_A_ROW - 1);
    }
}
