//! The kill campaign: a training is killed again and again, at random moments and in the moments in which a snapshot is
//! being written, finished or removed; it always goes on from the last finished snapshot and ends with the bits of a run
//! that nobody disturbed.
//!
//! `QUADRILLE_KILLS` and `QUADRILLE_SEED` set how often and with which random numbers; see `scripts/kill-campaign`.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use quadrille_core::rng::{Purpose, Stream};
use quadrille_io::snapshot::Snapshot;

use crate::common::{NET, Running, SOLVER, Stage, from_environment, hash_of};

const ITERATIONS: u64 = 24;
/// Solver, number of workers and so on of a run, and the snapshots that it keeps.
const WAYS: [&str; 3] =
    ["--workers 1 --keep-snapshots 2", "--workers 2", "--workers 2 --method sync-sgd --keep-snapshots 1"];

/// When a process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// After any time up to that of a whole run.
    Any,
    /// While something unfinished lies in the folder of snapshots.
    Unfinished,
    /// When a snapshot has just got its name: others may be on their way out.
    Finished,
}

/// Everything that happens by chance.
struct Dice {
    stream: Stream,
    thrown: u64,
}

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.thrown += 1;
        (u64::from(self.stream.bits(self.thrown)) * end) >> 32
    }

    fn moment(&mut self) -> Moment {
        [Moment::Any, Moment::Unfinished, Moment::Unfinished, Moment::Finished][self.below(4) as usize]
    }
}

/// A run that is killed until it comes to its end.
struct Victim<'a> {
    stage: &'a Stage,
    command: String,
    /// Iterations of the newest finished snapshot.
    newest: Option<u64>,
}

/// What a kill met.
#[derive(Debug, PartialEq)]
enum Fate {
    Killed { left_something_unfinished: bool },
    CameToItsEnd,
}

fn names(stage: &Stage) -> Vec<String> {
    let entries = fs::read_dir(stage.path("out/snapshots")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn is_unfinished(name: &str) -> bool {
    name.starts_with('.') && name.contains(".part-")
}

fn newest(stage: &Stage) -> Option<u64> {
    names(stage).iter().filter_map(|name| name.strip_prefix("iteration_")?.parse().ok()).max()
}

impl Victim<'_> {
    /// Starts the run again, and kills it at a moment. `patience` is the time of a whole run.
    fn strike(&mut self, moment: Moment, patience: Duration, dice: &mut Dice) -> Fate {
        let mut running = self.stage.start(&self.command);
        let end = Instant::now() + patience;
        let wait = match moment {
            Moment::Any => patience.as_micros() as u64,
            Moment::Unfinished => 1500,
            Moment::Finished => 600,
        };
        let is_time = || match moment {
            Moment::Any => true,
            Moment::Unfinished => names(self.stage).iter().any(|name| is_unfinished(name)),
            Moment::Finished => newest(self.stage) > self.newest,
        };
        while !is_time() && Instant::now() < end && running.child.try_wait().expect("a child").is_none() {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_micros(dice.below(wait)));
        // Too late for a process that is gone, which is no error.
        let _ = running.child.kill();
        self.judge(running)
    }

    /// What must hold after every kill.
    fn judge(&mut self, running: Running) -> Fate {
        let outcome = running.finish();
        assert!(matches!(outcome.code, None | Some(0)), "{outcome:?}");
        let began = outcome.stdout.lines().find_map(|line| line.strip_prefix("start       snapshot "));
        let began =
            began.map(|line| line.rsplit_once(' ').expect("an iteration").1.parse().expect("a number"));
        let anew = outcome.stdout.contains("has no snapshot yet: from the start");
        match self.newest {
            Some(newest) => {
                assert!(!anew && began.is_none_or(|it: u64| it == newest), "{newest}: {outcome:?}")
            }
            None => assert_eq!(began, None, "{outcome:?}"),
        }
        assert!(!outcome.stdout.contains("damaged"), "{outcome:?}");
        let newest = newest(self.stage);
        assert!(newest >= self.newest, "{newest:?} after {:?}: {outcome:?}", self.newest);
        self.newest = newest;
        if let Some(iteration) = newest {
            let path = self.stage.path(&format!("out/snapshots/iteration_{iteration}"));
            let snapshot = Snapshot::read(&path).expect("the newest finished snapshot is good");
            assert_eq!(snapshot.manifest.iteration, iteration);
        }
        if outcome.code == Some(0) {
            return Fate::CameToItsEnd;
        }
        Fate::Killed { left_something_unfinished: names(self.stage).iter().any(|name| is_unfinished(name)) }
    }

    /// What must hold of a run that came to its end.
    fn check_end(&self, hash: &str) {
        assert_eq!(hash_of(&self.stage.summary("out")), hash, "{}", self.command);
        let records = self.stage.metrics("out");
        let training = records.iter().filter(|record| record.get("loss").is_some());
        assert!(training.map(|record| record["iteration"].as_u64()).eq((0..ITERATIONS).map(Some)));
        assert!(!names(self.stage).iter().any(|name| is_unfinished(name)), "{:?}", names(self.stage));
    }
}

#[test]
fn a_run_that_is_killed_goes_on_from_its_last_finished_snapshot() {
    let kills = from_environment("QUADRILLE_KILLS", 6);
    let seed = from_environment("QUADRILLE_SEED", 1);
    println!("{kills} kills, seed {seed}");
    let mut dice = Dice { stream: Stream::new(seed, Purpose::Dummy, 0), thrown: 0 };
    let stage = Stage::new();
    // Large enough that writing takes a while, and dropouts are drawn anew after each start.
    let dropout = "layer { name: \"drop\" type: \"Dropout\" bottom: \"pool\" top: \"pool\" }\n\
                   layer { name: \"wide\" type: \"InnerProduct\" bottom: \"pool\" top: \"wide\" inner_product_param { \
                   num_output: 500 weight_filler { type: \"xavier\" } } }\nlayer {\n  name: \"ip\"";
    let net = NET.replacen("layer {\n  name: \"ip\"", dropout, 1);
    stage.write(
        "net.prototxt",
        net.replacen("bottom: \"pool\"\n  top: \"ip\"", "bottom: \"wide\"\n  top: \"ip\"", 1),
    );
    stage.write("solver.prototxt", format!("{SOLVER}snapshot: 1\n"));
    let mut done: BTreeMap<Moment, [u64; 2]> = BTreeMap::new();
    let (mut killed, mut ends) = (0, 0);
    while killed < kills {
        let way = WAYS[ends % WAYS.len()];
        let flags = format!("--threads 1 --max-iter {ITERATIONS} --test-interval 0 {way}");
        let start = Instant::now();
        let hash = hash_of(&stage.train(&format!("undisturbed{ends}"), &flags));
        let patience = start.elapsed();
        let command = format!("train --solver solver.prototxt --run out --resume auto {flags}");
        let mut victim = Victim { stage: &stage, command, newest: None };
        loop {
            // Once enough were killed this one may live.
            let moment = dice.moment();
            let fate = match killed < kills {
                true => victim.strike(moment, patience, &mut dice),
                false => victim.judge(stage.start(&victim.command)),
            };
            let Fate::Killed { left_something_unfinished } = fate else { break };
            killed += 1;
            let counts = done.entry(moment).or_default();
            counts[0] += 1;
            counts[1] += u64::from(left_something_unfinished);
        }
        victim.check_end(&hash);
        ends += 1;
        fs::remove_dir_all(stage.path("out")).expect("the run");
    }
    for (moment, [kills, unfinished]) in &done {
        println!("{moment:?}: {kills} kills, {unfinished} of them left something unfinished");
    }
    println!("{killed} kills, {ends} runs came to their end with the bits of undisturbed ones");
}
