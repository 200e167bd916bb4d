//! The same within one process: blocks of steps that are noted as a timeline has them, and blocks that are not, in turn. What the
//! machine does meanwhile meets both alike, so that shares of a percent are seen, which pairs of processes do not show.

use std::path::Path;
use std::time::Instant;

use quadrille_core::device::Span;
use quadrille_core::plan::Schedule;
use quadrille_core::plan::priority::Estimates;
use quadrille_core::run::StepTimes;
use quadrille_cpu::{CpuEvent, Recording, Ticket};
use serde_json::{Value, json};

use crate::engine::Engine;
use crate::nets::training;
use crate::ours::SMALL;
use crate::record::{interval, median};

/// Steps of a block: as many as `--trace` notes if nobody says otherwise.
const STEPS: usize = 20;
/// Intervals of each thread for which there is memory, for each task, and for which there is room, as in trainings.
const USUAL: usize = 4;
const MOST: usize = 1 << 20;

/// What a timeline keeps of steps, beside what threads note.
struct Notes {
    spans: Vec<Span>,
    entries: Vec<[Ticket; 2]>,
}

impl Notes {
    fn new(tasks: usize) -> Self {
        Self { spans: Vec::with_capacity(tasks), entries: Vec::with_capacity(tasks) }
    }

    fn step(&mut self, times: &StepTimes<CpuEvent>) {
        if !times.spans().is_empty() {
            self.spans.extend_from_slice(times.spans());
            self.entries.extend(times.events().iter().map(CpuEvent::entries));
        }
    }
}

/// Nanoseconds of a block, and how many intervals its threads noted.
fn block(engine: &Engine, recording: Option<&Recording>) -> Result<(f64, usize), String> {
    let tasks = STEPS * engine.plan.nodes.len();
    let mut notes = recording.map(|_| Notes::new(tasks));
    recording.iter().for_each(|recording| recording.start(USUAL * tasks, MOST));
    let start = Instant::now();
    engine.steps_ahead(STEPS, |times| notes.iter_mut().for_each(|notes| notes.step(times)))?;
    recording.iter().for_each(|recording| recording.stop());
    let took = start.elapsed().as_nanos() as f64;
    let noted =
        recording.iter().flat_map(|recording| recording.threads()).map(|thread| thread.intervals.len());
    Ok((took, noted.sum()))
}

/// What a network's steps cost by pairs of blocks, printed and as a part of the record.
pub fn measure(net: &str, pairs: usize, threads: usize) -> Result<Value, String> {
    let batch = if SMALL.contains(&net) { 64 } else { 32 };
    let net_file = Path::new("models").join(net).join("train_val.prototxt");
    let engine =
        Engine::new(&training(&net_file, batch)?, Schedule::Critical, threads, &Estimates::default())?;
    let recording = engine.recording();
    let (mut without, mut with, mut noted) = (Vec::new(), Vec::new(), 0);
    // The first of each finds its memory.
    block(&engine, None)?;
    block(&engine, Some(&recording))?;
    for pair in 0..pairs {
        for traces in [pair % 2 == 1, pair % 2 == 0] {
            let (time, intervals) = block(&engine, traces.then_some(&recording))?;
            if traces { &mut with } else { &mut without }.push(time);
            noted += intervals;
        }
    }
    if noted == 0 {
        return Err(format!("{net}: nothing was noted"));
    }
    let costs: Vec<f64> = with.iter().zip(&without).map(|(with, without)| with / without - 1.0).collect();
    let (middle, [low, high]) = (median(&costs), interval(&costs));
    let step = |times: &[f64]| median(times) * 1e-6 / STEPS as f64;
    println!(
        "{net:16} {:12.3} {:12.3} {:7.2} %  95 % within {:.2} to {:.2} %, {} intervals a step",
        step(&without),
        step(&with),
        100.0 * middle,
        100.0 * low,
        100.0 * high,
        noted / (STEPS * pairs)
    );
    Ok(json!({
        "network": net,
        "images": batch,
        "steps_of_a_block": STEPS,
        "pairs": pairs,
        "without_ms": step(&without),
        "traced_ms": step(&with),
        "median_cost": middle,
        "median_cost_within_95_percent": [low, high],
        "intervals_of_a_step": noted / (STEPS * pairs),
    }))
}
