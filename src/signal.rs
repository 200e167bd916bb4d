//! Ctrl-C, the signals of batch systems and the end of a job's time: the handler sets a flag, and the run ends at an
//! iteration that all workers agree on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::failure::{Code, Failure};
use crate::world::World;

/// Listens to SIGINT, SIGTERM and SIGUSR1, and returns the flag that they set. A second SIGINT ends the program at once; so
/// does a second SIGTERM, but not in a job of a batch system, which may send it again and again while a snapshot is written.
pub fn listen() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
    let asked = Arc::new(AtomicBool::new(false));
    // Other things than signals ask, too, and then the first signal must not end the program.
    let signalled = Arc::new(AtomicBool::new(false));
    let in_job = std::env::var_os("SLURM_JOB_ID").is_some();
    let failed = |e: std::io::Error| Failure::new(Code::Environment, format!("no signal handler: {e}"));
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        if signal == SIGINT || signal == SIGTERM && !in_job {
            // Looks at the flag before the next line's handler sets it: only the second signal ends.
            let conditional =
                signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, signalled.clone());
            conditional.map_err(failed)?;
        }
        signal_hook::flag::register(signal, signalled.clone()).map_err(failed)?;
        signal_hook::flag::register(signal, asked.clone()).map_err(failed)?;
    }
    Ok(asked)
}

/// When a run stops by itself, so that its snapshot is written before a job's time is over.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wall {
    /// When the job ends.
    end: SystemTime,
    /// How long before that the run stops.
    margin: Duration,
}

impl Wall {
    /// How long before the end a run stops if nobody says otherwise.
    const MARGIN: Duration = Duration::from_secs(60);

    /// That of the Slurm job in which this process runs, if its end is known and still to come. Without a `margin` it is a
    /// minute, or a tenth of what is left `now` if that is less.
    pub fn of_job(margin: Option<f64>, now: SystemTime) -> Option<Self> {
        Self::of(&std::env::var("SLURM_JOB_END_TIME").ok()?, margin, now)
    }

    fn of(end: &str, margin: Option<f64>, now: SystemTime) -> Option<Self> {
        let end = UNIX_EPOCH.checked_add(Duration::from_secs(end.trim().parse().ok()?))?;
        let left = end.duration_since(now).ok()?;
        let asked = margin.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Some(Self { end, margin: asked.unwrap_or(Self::MARGIN.min(left / 10)) })
    }

    /// Whether the run is to stop.
    fn is_reached(self, now: SystemTime) -> bool {
        now.checked_add(self.margin).is_none_or(|soon| soon >= self.end)
    }

    /// For the first lines.
    pub fn line(self, now: SystemTime) -> String {
        let left = self.end.duration_since(now).unwrap_or_default().as_secs();
        let margin = self.margin.as_secs_f64();
        format!(
            "time        the job ends in {left} s; the run stops {margin:.0} s before, with a snapshot (--stop-margin)"
        )
    }
}

/// When to stop, agreed between all workers.
pub struct StopAgreement {
    asked: Arc<AtomicBool>,
    wall: Option<Wall>,
    world: Arc<World>,
    course: Mutex<Course>,
}

/// How far workers are.
#[derive(Debug, Default)]
struct Course {
    /// How many iterations the worker that is furthest ahead has begun.
    begun: u64,
    /// The iteration before which all stop.
    end: Option<u64>,
}

impl StopAgreement {
    /// Between the workers of all processes of `world`; `asked` is what [`listen`] returned.
    pub fn new(asked: Arc<AtomicBool>, wall: Option<Wall>, world: Arc<World>) -> Self {
        Self { asked, wall, world, course: Mutex::default() }
    }

    /// When the run stops by itself, for the first lines; or that it does not, if `asked` for a margin.
    pub fn line(&self, asked: bool) -> Option<String> {
        let none = "note        --stop-margin: this is no Slurm job whose end is known, so the run stops when it is told to";
        self.wall.map(|wall| wall.line(SystemTime::now())).or(asked.then(|| none.to_owned()))
    }

    /// Whether the run is to stop: what need not be finished may be left.
    pub fn is_asked(&self) -> bool {
        if self.wall.is_some_and(|wall| wall.is_reached(SystemTime::now())) {
            self.asked.store(true, Ordering::Relaxed);
        }
        self.asked.load(Ordering::Relaxed) || self.world.is_asked()
    }

    /// Whether a worker stops before `iteration`, which it begins otherwise.
    ///
    /// The first that comes here once a signal has come decides: the last iteration is the furthest that any worker has
    /// begun, at least the one that it is about to begin itself. Whoever begins an iteration says so in the same breath, so
    /// nobody is further when that is decided, and nobody goes further afterwards; and whoever is behind, as workers of the
    /// asynchronous methods may be, comes there. So all have done the same number of iterations.
    pub fn stops_before(&self, iteration: u64) -> bool {
        let asked = self.is_asked();
        if let Some(stops) = self.world.stops_before(iteration) {
            return stops;
        }
        let mut course = self.course.lock().unwrap_or_else(PoisonError::into_inner);
        let begun = course.begun.max(iteration + 1);
        if asked {
            course.end.get_or_insert(begun);
        }
        if course.end.is_some_and(|end| iteration >= end) {
            return true;
        }
        course.begun = begun;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agreement() -> StopAgreement {
        StopAgreement::new(Arc::default(), None, Arc::new(World::alone()))
    }

    #[test]
    fn a_run_stops_before_the_time_of_its_job_is_over() {
        let at = |seconds: u64| UNIX_EPOCH + Duration::from_secs(seconds);
        let wall = |margin, now| Wall::of("10000", margin, at(now)).expect("a job that ends later");
        assert_eq!(wall(None, 1000).margin, Duration::from_secs(60));
        assert_eq!(wall(None, 9900).margin, Duration::from_secs(10));
        assert_eq!(wall(Some(0.5), 9900).margin, Duration::from_millis(500));
        let minute = wall(None, 1000);
        assert!(!minute.is_reached(at(9939)) && minute.is_reached(at(9940)) && minute.is_reached(at(20_000)));
        assert_eq!(Wall::of("10000", None, at(10_001)), None, "a job that should have ended");
        assert_eq!(Wall::of("never", None, at(0)), None);
        let stop = StopAgreement { wall: Some(minute), ..agreement() };
        assert!(stop.is_asked() && !stop.stops_before(3) && stop.stops_before(4));
    }

    #[test]
    fn a_worker_that_is_behind_comes_to_where_the_furthest_is() {
        let stop = agreement();
        assert!((0..5).all(|iteration| !stop.stops_before(iteration)), "one is in iteration 4");
        assert!(!stop.stops_before(0), "the other in the first");
        stop.asked.store(true, Ordering::Relaxed);
        assert!((1..5).all(|iteration| !stop.stops_before(iteration)));
        assert!(stop.stops_before(5));
        assert!(stop.stops_before(5), "whoever looks");
    }

    #[test]
    fn the_iteration_that_is_about_to_begin_is_the_last() {
        let stop = agreement();
        stop.asked.store(true, Ordering::Relaxed);
        assert!(!stop.stops_before(7));
        assert!(!stop.stops_before(7), "of all workers");
        assert!(stop.stops_before(8));
    }

    #[test]
    fn workers_in_a_race_do_as_many_iterations() {
        for _ in 0..50 {
            let stop = &agreement();
            let done: Vec<u64> = std::thread::scope(|scope| {
                let work = move |delay: u64| {
                    let mut iteration = 0;
                    while !stop.stops_before(iteration) {
                        (0..delay).for_each(|_| std::thread::yield_now());
                        iteration += 1;
                        if iteration == 30 {
                            stop.asked.store(true, Ordering::Relaxed);
                        }
                    }
                    iteration
                };
                let workers = [0, 1, 3].map(|delay| scope.spawn(move || work(delay)));
                workers.into_iter().map(|worker| worker.join().expect("it ends")).collect()
            });
            assert!(done[0] >= 30 && done.iter().all(|other| *other == done[0]), "{done:?}");
        }
    }
}
