//! Whole iterations, and how long each sub-task of each layer took in them.

use std::time::{Duration, Instant};

use quadrille_core::device::{Scalars, Span};
use quadrille_core::layer::SubTask;
use quadrille_core::net::LayerId;
use quadrille_core::plan::{CostModel, Node, Plan};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::task::{Buffer, Place};

use super::busy::Busy;
use crate::engine::WorkerEvent;
use crate::failure::Failure;
use crate::feed::Batches;
use crate::pass::Pass;
use crate::trace::Trace;

/// Iterations that are run before the clock counts, unless they take longer than `WARM_UP_TIME`.
const WARM_UP: usize = 5;
const WARM_UP_TIME: Duration = Duration::from_secs(2);

/// One sub-task of one layer on all devices.
pub struct Row {
    /// The layer.
    pub layer: LayerId,
    /// What was done.
    pub sub: SubTask,
    /// Median over the iterations of the device that took longest: the time of its threads over their number, or of a GPU from
    /// the begin to the end of the task.
    pub ms: f64,
    /// Floating-point operations, over all devices.
    pub flops: u64,
    /// Bytes of the arrays that are read and written, over all devices; each array counts once.
    pub bytes: u64,
}

/// What was measured.
pub struct Measured {
    /// In the order of the plan.
    pub rows: Vec<Row>,
    /// Median of whole iterations, with the wait for data.
    pub iteration_ms: f64,
    /// What of it was waiting for data; `None` if data was made up.
    pub data_wait: Option<Wait>,
    /// How many.
    pub iterations: usize,
    /// The share of an iteration, between 0 and 1, in which a thread was at no task, median over the iterations and mean over
    /// the threads; of GPUs, in which a device had no task in work.
    pub outside: f64,
}

/// How long iterations waited for data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    /// Mean of an iteration, and not the median, since waits come in bursts.
    pub ms: f64,
    /// Share of the time of all iterations, between 0 and 1.
    pub share: f64,
}

/// Runs the plan on the next mini-batch, or on what is loaded already. Returns how long it waited for data.
fn iterate(
    pass: &Pass,
    plan: &Plan,
    batches: Option<&mut Batches>,
    times: &mut StepTimes<WorkerEvent>,
) -> Result<Duration, Failure> {
    // So small a rate that the weights stay as they are.
    let scalars = Scalars { rate: 1e-6, seed: 1, ..Scalars::default() };
    let waited = batches.map_or(Ok(Duration::ZERO), |batches| batches.load(pass))?;
    run_step(&pass.devices, plan, &scalars, times)?;
    Ok(waited)
}

/// What the tasks of iterations took.
struct Samples<'a> {
    plan: &'a Plan,
    /// The row of each task.
    place: Vec<usize>,
    /// Milliseconds of each row.
    rows: Vec<Vec<f64>>,
    outside: Vec<f64>,
}

impl Samples<'_> {
    /// Takes an iteration in, which took so long as a whole. Where threads note what they run, those that they did not note, such as
    /// behind the iterations that a trace covers, are left out.
    fn take(&mut self, times: &StepTimes<WorkerEvent>, busy: Option<&mut Busy>, whole: Duration) {
        let (plan, whole) = (self.plan, whole.as_nanos() as f64);
        let devices = plan.devices;
        let mut sums = vec![0.0; self.rows.len() * devices];
        let nodes = || plan.nodes.iter().zip(&self.place).map(|(node, row)| (node.device.0, row));
        let busy_share = if let Some(busy) = busy {
            let Some(of_tasks) = busy.of_step(times) else { return };
            for ((device, row), time) in nodes().zip(&of_tasks) {
                sums[row * devices + device] += *time as f64 / busy.threads()[device].max(1) as f64;
            }
            of_tasks.iter().sum::<u64>() as f64 / (busy.threads().iter().sum::<usize>() as f64 * whole)
        } else {
            for ((device, row), span) in nodes().zip(times.spans()) {
                sums[row * devices + device] += (span.end - span.start) as f64;
            }
            let busy: u64 = (0..devices).map(|d| covered(device_spans(plan, times.spans(), d))).sum();
            busy as f64 / (devices as f64 * whole)
        };
        for (samples, devices) in self.rows.iter_mut().zip(sums.chunks(devices)) {
            samples.push(devices.iter().copied().fold(0.0, f64::max) * 1e-6);
        }
        self.outside.push(1.0 - busy_share);
    }
}

/// Runs `plan` `iterations` times (at least once) after a warm-up, which `trace` leaves out, on `batches` or on what is loaded already.
/// `busy` says what threads did, and begins where `trace` does.
pub fn measure(
    pass: &Pass,
    plan: &Plan,
    iterations: u64,
    mut batches: Option<&mut Batches>,
    mut trace: Option<&mut Trace>,
    mut busy: Option<Busy>,
) -> Result<Measured, Failure> {
    let (mut rows, place) = rows(pass, plan);
    let mut samples = Samples { plan, place, rows: vec![Vec::new(); rows.len()], outside: Vec::new() };
    let mut wholes = Vec::new();
    let mut times = StepTimes::default();
    let start = Instant::now();
    for _ in 0..WARM_UP {
        iterate(pass, plan, batches.as_deref_mut(), &mut times)?;
        if start.elapsed() > WARM_UP_TIME {
            break;
        }
    }
    trace.iter().for_each(|trace| trace.begin());
    let mut waited = Duration::ZERO;
    for _ in 0..iterations.max(1) {
        busy.iter_mut().for_each(|busy| busy.begin(plan.nodes.len()));
        let start = Instant::now();
        waited += iterate(pass, plan, batches.as_deref_mut(), &mut times)?;
        let whole = start.elapsed();
        wholes.push(whole.as_secs_f64() * 1e3);
        if let Some(trace) = trace.as_deref_mut() {
            trace.phase("iteration", start, whole);
            trace.step(plan.stage, &times);
            trace.iteration();
        }
        samples.take(&times, busy.as_mut(), whole);
    }
    for (row, samples) in rows.iter_mut().zip(&samples.rows) {
        row.ms = median(samples);
    }
    // Not below 0 by the grain of a clock.
    let outside = median(&samples.outside).clamp(0.0, 1.0);
    let waited_ms = waited.as_secs_f64() * 1e3;
    let data_wait = batches.map(|_| Wait {
        ms: waited_ms / wholes.len() as f64,
        share: waited_ms / wholes.iter().sum::<f64>().max(f64::MIN_POSITIVE),
    });
    Ok(Measured { rows, iteration_ms: median(&wholes), data_wait, iterations: wholes.len(), outside })
}

/// The median of whole iterations in ms, on what is loaded already, of which no task is timed.
pub fn whole_iterations(pass: &Pass, plan: &Plan, iterations: u64) -> Result<f64, Failure> {
    let mut times = StepTimes::default();
    let mut once = || -> Result<f64, Failure> {
        let start = Instant::now();
        iterate(pass, plan, None, &mut times)?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    };
    // The first one is a warm-up.
    once()?;
    let samples: Result<Vec<f64>, Failure> = (0..iterations.max(1)).map(|_| once()).collect();
    Ok(median(&samples?))
}

/// A row for each layer and sub-task of the plan, and the row of each task.
fn rows(pass: &Pass, plan: &Plan) -> (Vec<Row>, Vec<usize>) {
    let mut rows: Vec<Row> = Vec::new();
    let mut place_of = |node: &Node| {
        let (layer, sub) = (node.task.layer, node.task.sub);
        let known = rows.iter().position(|r| (r.layer, r.sub) == (layer, sub));
        let index = known.unwrap_or_else(|| {
            rows.push(Row { layer, sub, ms: 0.0, flops: 0, bytes: 0 });
            rows.len() - 1
        });
        rows[index].flops += CostModel::flops(&pass.nets, node);
        rows[index].bytes += CostModel::bytes_kept(&pass.nets, node, |place| element_bytes(pass, place));
        index
    };
    let place = plan.nodes.iter().map(&mut place_of).collect();
    (rows, place)
}

/// Bytes of an element of an array: blobs may be kept in bf16.
fn element_bytes(pass: &Pass, place: &Place) -> usize {
    match place.buffer {
        Buffer::Storage(id) | Buffer::Images(id, _) => pass.devices[place.device.0].element_bytes(id),
        _ => size_of::<f32>(),
    }
}

fn device_spans<'a>(plan: &'a Plan, spans: &'a [Span], device: usize) -> impl Iterator<Item = Span> + 'a {
    let of_device = move |(node, span): (&Node, &Span)| (node.device.0 == device).then_some(*span);
    plan.nodes.iter().zip(spans).filter_map(of_device)
}

/// Nanoseconds in which at least one of the spans was open.
fn covered(spans: impl Iterator<Item = Span>) -> u64 {
    let mut spans: Vec<Span> = spans.collect();
    spans.sort_unstable_by_key(|span| span.start);
    let (mut sum, mut end) = (0, 0);
    for span in spans {
        sum += span.end.saturating_sub(span.start.max(end));
        end = end.max(span.end);
    }
    sum
}

/// The middle of some numbers; 0 of none.
fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_overlap_count_once() {
        let span = |start, end| Span { start, end };
        let spans = [span(5, 9), span(0, 4), span(1, 2), span(8, 12), span(20, 21)];
        assert_eq!(covered(spans.into_iter()), 4 + 7 + 1);
        assert_eq!(covered(std::iter::empty()), 0);
    }

    #[test]
    fn the_median_is_the_middle() {
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[])), (2.0, 0.0));
    }
}
