//! What a training tells and leaves at its end.

use quadrille_io::data::DataSource;
use quadrille_io::weights_hash;
use serde_json::json;

use crate::breakdown::Breakdown;
use crate::desk::Latest;
use crate::failure::{Code, Failure};
use crate::job::{PhaseJob, say_bad_records};
use crate::output::{LogStyle, style};
use crate::prepare::Prepared;
use crate::progress::{Progress, six_digits};
use crate::solver_state;
use crate::train::{Outcome, Run};
use crate::weights::write_caffemodel;
use crate::world::World;

/// Updates that were left out: of all workers together where each has its own.
fn left_out(p: &Prepared<'_>, outcomes: &[Outcome]) -> u64 {
    let each = outcomes.iter().map(|outcome| outcome.left_out);
    if p.settings.method.is_synchronous() { each.max().unwrap_or(0) } else { each.sum() }
}

/// The phases that have data.
fn jobs<'a>(p: &'a Prepared<'_>) -> impl Iterator<Item = &'a PhaseJob> {
    std::iter::once(&p.train).chain(p.tests.iter().map(|test| &test.job))
}

/// Puts what the processes found of bad records together in the one that leads.
///
/// # Errors
/// If a process is lost.
pub fn gather_bad_records(p: &Prepared<'_>, world: &World) -> Result<(), Failure> {
    let misunderstood = |text: &str| {
        Failure::new(Code::Bug, format!("a process says of bad records what it should not: {text}"))
    };
    for bad in jobs(p).filter_map(|job| job.feed.data_set()).map(DataSource::bad) {
        if !world.leads() {
            world.tell(0, &bad.to_text())?;
            continue;
        }
        for other in 1..world.size().unwrap_or(1) {
            let text = world.hear(other)?;
            if !bad.add(&text) {
                return Err(misunderstood(&text));
            }
        }
    }
    Ok(())
}

/// Writes what Caffe reads beside the last snapshot, and says what that is.
///
/// # Errors
/// If a file cannot be written, or with [`Code::Data`] if it would be more than Caffe can read.
fn leave_for_caffe(p: &Prepared<'_>, latest: &Latest) -> Result<String, Failure> {
    let path = &latest.path;
    let format = if p.settings.solver.snapshot_hdf5 { ".h5" } else { "" };
    let caffemodel = path.with_extension(format!("caffemodel{format}"));
    write_caffemodel(&caffemodel, &p.net, latest.state.counting())?;
    // With a centre, no worker's histories belong to the weights that count.
    if p.settings.is_elastic() {
        return Ok(format!(".caffemodel{format}"));
    }
    let state = path.with_extension(format!("solverstate{format}"));
    solver_state::write(&state, &caffemodel, &p.net, &p.settings, latest)?;
    Ok(format!(".caffemodel{format}, .solverstate{format}"))
}

/// The table of where the time went.
fn say_time(label: &str, time: &Breakdown) {
    say!("time        {label}worker 0");
    time.lines().iter().for_each(|line| say!("{line}"));
}

/// Tells what came out.
pub fn conclude(
    p: &Prepared<'_>,
    run: &Run<'_>,
    outcomes: &[Outcome],
    progress: &mut Progress,
) -> Result<(), Failure> {
    let snapshot = run.desk.finish()?;
    gather_bad_records(p, &run.world)?;
    let first = &outcomes[0];
    let images = (first.iterations - run.first) as f64 * p.images_per_iteration() as f64;
    let (seconds, hash) = (first.clock.training.as_secs_f64(), weights_hash(&first.result));
    let time = Breakdown::new(&first.clock, p.settings.method);
    let data_share = time.data_wait / seconds.max(1e-9);
    let label = p.settings.label().map_or(String::new(), |label| format!("{label}: "));
    let summary = json!({
        "accuracy": first.test.accuracy.map(six_digits),
        "test_loss": first.test.loss.map(six_digits),
        "iterations": first.iterations,
        "seconds": progress.in_all(seconds),
        "seconds_before": progress.in_all(0.0),
        "test_seconds": first.clock.testing.as_secs_f64(),
        "images_per_second": images / seconds.max(1e-9),
        "communication_share": time.communication_share(),
        "time": time.to_json(),
        "data_share": data_share,
        "left_out": left_out(p, outcomes),
        "rollbacks": run.mishaps.known.len(),
        "bad_records": jobs(p).map(|job| job.feed.bad_records()).sum::<u64>(),
        "weights_hash": hash,
        "method": p.settings.method_name(),
        "workers": p.settings.workers,
        "quadrants": p.machine.workers[0].len(),
        "threads": p.machine.workers[0].first().map_or(0, |c| c.cpus.len()),
        "isa": p.machine.isa(),
        "precision": p.settings.precision.to_string(),
        "seed": p.settings.seed,
        "clock": p.settings.label().unwrap_or("real"),
        "machine": p.settings.machine.as_ref().map(|machine| &machine.name),
    });
    progress.finish(&summary)?;
    if let Some(latest) = &snapshot {
        let beside = match leave_for_caffe(p, latest) {
            Ok(beside) => format!(" (and {beside})"),
            // The snapshot has all of it, and whoever restarts the run goes by that.
            Err(failure) if !first.complete || failure.code == Code::Data as u8 => {
                say!("note        not all files for Caffe beside the snapshot: {failure}");
                String::new()
            }
            Err(failure) => return Err(failure),
        };
        say!("snapshot    {}{beside}", latest.path.display());
    }
    jobs(p).for_each(|job| say_bad_records(&job.feed));
    if style() == LogStyle::Caffe && first.complete {
        say!("Optimization Done.");
    }
    say_time(&label, &time);
    let accuracy = first.test.accuracy.map_or("not tested".to_owned(), |a| format!("{:.2} %", 100.0 * a));
    let in_all = match progress.in_all(seconds) {
        all if all > seconds => format!(" ({all:.1} s with starts before)"),
        _ => String::new(),
    };
    say!(
        "summary     {label}{}, accuracy {accuracy}, {seconds:.1} s{in_all}, {:.0} images/s, {:.1} % of the time in communication, \
         {:.1} % waiting for data, weights {hash}",
        p.settings.method_name(),
        images / seconds.max(1e-9),
        100.0 * time.communication_share(),
        100.0 * data_share
    );
    if first.complete { Ok(()) } else { Err(stopped(p, first.iterations, snapshot)) }
}

/// How a run ends that was asked to stop.
fn stopped(p: &Prepared<'_>, iterations: u64, snapshot: Option<Latest>) -> Failure {
    let how = snapshot.map_or(String::new(), |latest| match p.automatic {
        true => "; to go on, give the same command again".to_owned(),
        false => format!("; to go on, give the same command with --snapshot {}", latest.path.display()),
    });
    let message = format!("stopped after iteration {iterations} of {}{how}", p.settings.solver.max_iter);
    Failure::new(Code::Stopped, message)
}
