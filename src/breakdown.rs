//! Where the time of a run goes, in the terms of Table 3 of the SC17 paper.
//!
//! # How what runs at once is counted
//!
//! Nothing is counted twice. Of an exchange and the forward and backward beside it the longer counts, and of the shorter only
//! what sticks out; the rest of it is given as hidden. So what counts adds up to the time of the iterations, and a method
//! that waits for messages all the time does not look like one that computes. The paper counts in the same way: forward and
//! backward are 44 % of Original EASGD* and, behind the messages, 3 % of Original EASGD. Mini-batches that are handed over beside
//! the step before are hidden, too.
//!
//! The time in which other workers have their turns (Original EASGD) is given by itself. It is made of what these workers do,
//! so the shares are those of a worker's own turns, as in the paper; the centre's update, which comes between turns, is taken
//! out of it.

use std::time::Duration;

use quadrille_comm::protocol::{Keeper, Method};
use serde_json::{Map, Value, json};

/// What an exchange took of a worker's time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spent {
    /// Waiting for its turn, while others have theirs.
    pub turn: Duration,
    /// The worker did nothing else: it waited, or copied what comes and goes.
    pub waited: Duration,
    /// The exchange from its begin to its end, whatever the worker did meanwhile.
    pub took: Duration,
    /// That part of it in which the worker did something else.
    pub beside: Duration,
    /// That part of it, or of the turn, in which the centre changed.
    pub updating: Duration,
}

/// A worker's times, as they are measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Iterations as a whole.
    pub training: Duration,
    /// Waiting for mini-batches to be read.
    pub data_wait: Duration,
    /// Handing mini-batches to the devices.
    pub data_copy: Duration,
    /// The same, beside the step before.
    pub data_copied_beside: Duration,
    /// Forward and backward, with what quadrants move between themselves.
    pub computing: Duration,
    /// Transfers between the quadrants of a worker.
    pub transfers: Duration,
    /// The worker's own updates.
    pub updates: Duration,
    /// Exchanges with others.
    pub exchanges: Spent,
    /// Tests, which are no part of iterations.
    pub testing: Duration,
}

impl Clock {
    /// Notes an exchange, or a part of one.
    pub fn note(&mut self, spent: Spent) {
        let all = &mut self.exchanges;
        all.turn += spent.turn;
        all.waited += spent.waited;
        all.took += spent.took;
        all.beside += spent.beside;
        all.updating += spent.updating;
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &Clock) -> Clock {
        let (now, then) = (&self.exchanges, &earlier.exchanges);
        Clock {
            training: self.training - earlier.training,
            data_wait: self.data_wait - earlier.data_wait,
            data_copy: self.data_copy - earlier.data_copy,
            data_copied_beside: self.data_copied_beside - earlier.data_copied_beside,
            computing: self.computing - earlier.computing,
            transfers: self.transfers - earlier.transfers,
            updates: self.updates - earlier.updates,
            exchanges: Spent {
                turn: now.turn - then.turn,
                waited: now.waited - then.waited,
                took: now.took - then.took,
                beside: now.beside - then.beside,
                updating: now.updating - then.updating,
            },
            testing: self.testing - earlier.testing,
        }
    }
}

/// The times of a worker in seconds, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// Iterations as a whole: the sum of all that follow but the hidden ones.
    pub total: f64,
    /// Waiting for mini-batches to be read.
    pub data_wait: f64,
    /// Handing mini-batches to the devices.
    pub data_copy: f64,
    /// Parameters or gradients between workers.
    pub comm_workers: f64,
    /// Parameters or gradients between a worker and whoever holds the centre beside the workers.
    pub comm_host: f64,
    /// Gradients between the quadrants of a worker.
    pub comm_quadrants: f64,
    /// Forward and backward.
    pub forward_backward: f64,
    /// The worker's own update.
    pub worker_update: f64,
    /// The update of the centre.
    pub centre_update: f64,
    /// Other workers' turns.
    pub turn: f64,
    /// All else: the loss, what is shown.
    pub other: f64,
    /// Of an exchange, what was behind forward and backward.
    pub hidden_communication: f64,
    /// Of forward and backward, what was behind a longer exchange.
    pub hidden_forward_backward: f64,
    /// Handing mini-batches to the devices, beside the step before.
    pub hidden_data_copy: f64,
}

impl Breakdown {
    /// Counts what `clock` has under `method`.
    pub fn new(clock: &Clock, method: Method) -> Self {
        let spent = &clock.exchanges;
        let transfers = clock.transfers.min(clock.computing).as_secs_f64();
        let computing = clock.computing.as_secs_f64() - transfers;
        let longer = spent.took > clock.computing + clock.data_wait + clock.data_copy;
        let beside = spent.beside.as_secs_f64();
        let hidden_compute = if longer { beside.min(computing) } else { 0.0 };
        let exchanged = spent.waited.as_secs_f64() + hidden_compute;
        // Between turns the centre changes while the next worker waits; else inside of an exchange.
        let by_turns = method == Method::OriginalEasgd;
        let updating = spent.updating.as_secs_f64();
        let part = (exchanged / spent.took.as_secs_f64().max(1e-12)).min(1.0);
        let centre_update = if by_turns { updating.min(spent.turn.as_secs_f64()) } else { updating * part };
        let turn = spent.turn.as_secs_f64() - if by_turns { centre_update } else { 0.0 };
        let communication = exchanged - if by_turns { 0.0 } else { centre_update };
        // The centre of Sync EASGD1 is in the memory of the host.
        let by_host = method.keeper() != Keeper::Workers || method == Method::SyncEasgd1;
        let (data_wait, data_copy) = (clock.data_wait.as_secs_f64(), clock.data_copy.as_secs_f64());
        let (total, worker_update) = (clock.training.as_secs_f64(), clock.updates.as_secs_f64());
        let counted = data_wait
            + data_copy
            + transfers
            + worker_update
            + centre_update
            + turn
            + communication
            + computing
            - hidden_compute;
        Self {
            total,
            data_wait,
            data_copy,
            comm_workers: if by_host { 0.0 } else { communication },
            comm_host: if by_host { communication } else { 0.0 },
            comm_quadrants: transfers,
            forward_backward: computing - hidden_compute,
            worker_update,
            centre_update,
            turn,
            other: (total - counted).max(0.0),
            hidden_communication: if longer { 0.0 } else { beside },
            hidden_forward_backward: hidden_compute,
            hidden_data_copy: clock.data_copied_beside.as_secs_f64(),
        }
    }

    /// Parameters, gradients and mini-batches on their way.
    pub fn communication(&self) -> f64 {
        self.data_copy + self.comm_workers + self.comm_host + self.comm_quadrants
    }

    /// Share of communication in the time outside of other workers' turns.
    pub fn communication_share(&self) -> f64 {
        self.communication() / self.own().max(1e-9)
    }

    /// The time outside of other workers' turns.
    fn own(&self) -> f64 {
        self.total - self.turn
    }

    /// Names for files, names for people, and seconds; the hidden ones last.
    fn rows(&self) -> [(&'static str, &'static str, f64); 13] {
        [
            ("data_wait", "waiting for data", self.data_wait),
            ("data_copy", "data copy", self.data_copy),
            ("comm_workers", "communication between workers", self.comm_workers),
            ("comm_host", "communication with master or shared memory", self.comm_host),
            ("comm_quadrants", "communication between quadrants", self.comm_quadrants),
            ("forward_backward", "forward and backward", self.forward_backward),
            ("worker_update", "worker's update", self.worker_update),
            ("centre_update", "centre's update", self.centre_update),
            ("other", "other", self.other),
            ("turn", "other workers' turns", self.turn),
            ("hidden_communication", "hidden: communication", self.hidden_communication),
            ("hidden_forward_backward", "hidden: forward and backward", self.hidden_forward_backward),
            ("hidden_data_copy", "hidden: data copy", self.hidden_data_copy),
        ]
    }

    /// Seconds by name, in microseconds' precision; what is nothing is left out.
    pub fn to_json(self) -> Value {
        let rounded = |seconds: f64| (seconds * 1e6).round() / 1e6;
        let rows = self.rows().map(|(name, _, seconds)| (name, rounded(seconds)));
        let given = rows.into_iter().filter(|(_, seconds)| *seconds != 0.0);
        Value::Object(given.map(|(name, seconds)| (name.to_owned(), json!(seconds))).collect::<Map<_, _>>())
    }

    /// The table at the end of a run: seconds, and shares of the time outside of other workers' turns.
    pub fn lines(&self) -> Vec<String> {
        let share = |seconds: f64| 100.0 * seconds / self.own().max(1e-9);
        let line = |(name, text, seconds): (&str, &str, f64)| {
            let counts = !name.starts_with("hidden") && name != "turn";
            let share = if counts { format!("{:6.1} %", share(seconds)) } else { "       -".to_owned() };
            format!("            {text:<44}{seconds:10.3} s {share}")
        };
        let rows = self.rows().into_iter().filter(|(_, _, seconds)| *seconds >= 5e-4);
        rows.map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(milliseconds: u64) -> Duration {
        Duration::from_millis(milliseconds)
    }

    /// What counts adds up to the whole.
    fn counted(b: &Breakdown) -> f64 {
        let rows = b.rows();
        rows[..rows.len() - 3].iter().map(|row| row.2).sum()
    }

    #[test]
    fn a_hidden_exchange_counts_with_what_sticks_out() {
        // 10 ms of work, an exchange of 4 ms of which 1 sticks out, half of it the centre's update.
        let exchanges =
            Spent { waited: ms(1), took: ms(4), beside: ms(3), updating: ms(2), ..Spent::default() };
        let clock = Clock {
            training: ms(15),
            data_copy: ms(1),
            computing: ms(10),
            updates: ms(2),
            exchanges,
            ..Clock::default()
        };
        let found = Breakdown::new(&clock, Method::SyncEasgd3);
        assert!((found.comm_workers - 0.0005).abs() < 1e-9 && (found.centre_update - 0.0005).abs() < 1e-9);
        assert!((found.hidden_communication - 0.003).abs() < 1e-9 && found.comm_host == 0.0);
        assert!((found.other - 0.001).abs() < 1e-9 && (counted(&found) - 0.015).abs() < 1e-9, "{found:?}");
        assert!((found.communication_share() - 0.0015 / 0.015).abs() < 1e-9);
        assert!(Breakdown::new(&clock, Method::SyncEasgd1).comm_host > 0.0);
    }

    #[test]
    fn work_behind_a_longer_exchange_is_what_is_hidden() {
        // The paper's Original EASGD: of 4 turns of 8 ms one is the worker's own; 6 ms of work behind 7 ms of messages.
        let exchanges = Spent { turn: ms(25), waited: ms(1), took: ms(7), beside: ms(6), updating: ms(1) };
        let clock = Clock { training: ms(32), computing: ms(6), exchanges, ..Clock::default() };
        let found = Breakdown::new(&clock, Method::OriginalEasgd);
        assert!((found.comm_host - 0.007).abs() < 1e-9 && found.forward_backward.abs() < 1e-9);
        assert!((found.hidden_forward_backward - 0.006).abs() < 1e-9 && found.hidden_communication == 0.0);
        assert!((found.centre_update - 0.001).abs() < 1e-9 && (found.turn - 0.024).abs() < 1e-9);
        assert!((found.communication_share() - 7.0 / 8.0).abs() < 1e-9);
        assert!((counted(&found) - 0.032).abs() < 1e-9, "{found:?}");
        let lines = found.lines().join("\n");
        assert!(
            lines.contains("87.5 %") && lines.contains("other workers' turns") && !lines.contains("data")
        );
        assert_eq!(found.to_json()["turn"], 0.024);
        assert!(found.to_json().get("data_copy").is_none());
    }

    #[test]
    fn an_interval_is_what_was_added() {
        let mut clock = Clock { training: ms(5), ..Clock::default() };
        let before = clock;
        clock.training += ms(3);
        clock.note(Spent { turn: ms(1), waited: ms(2), ..Spent::default() });
        let added = clock.since(&before);
        assert_eq!((added.training, added.exchanges.waited, added.exchanges.turn), (ms(3), ms(2), ms(1)));
    }
}
