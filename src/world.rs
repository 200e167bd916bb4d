//! The processes that train together: this one, or several that a launcher of MPI started.

use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quadrille_comm::CommError;
use quadrille_comm::transport::mpi::{self, MpiTransport, Node, Options, Sharing, connect, launched};
use quadrille_comm::transport::{Buffer, Endpoint, Kind, Tag, Transport, threads};
use quadrille_numa::{Core, detect, release_current_thread};

use crate::failure::{Code, Failure};
use crate::output;
use crate::places::Places;

const TEXT: Tag = Tag { exchange: 0, kind: Kind::Text };

/// The processes of a training.
pub struct World {
    several: Option<Several>,
    /// What was decided, for the first lines.
    pub lines: Vec<String>,
    /// Whether other processes run on CPUs of this one.
    pub shares_cpus: bool,
    /// The CPUs of each process on this node, if there are several processes.
    pub beside: Vec<Vec<usize>>,
}

/// Several processes.
struct Several {
    mpi: mpi::World,
    /// For what processes tell each other beside the method.
    line: Mutex<MpiTransport>,
    /// The code that the others were told, once this process fails.
    told: Mutex<Option<u8>>,
}

impl World {
    /// This process alone.
    pub fn alone() -> Self {
        Self { several: None, lines: Vec::new(), shares_cpus: false, beside: Vec::new() }
    }

    /// Connects with the processes that were started with this one, if there are any; one that was started by itself is
    /// alone. `asked` is set when the run is to stop.
    ///
    /// # Errors
    /// If a launcher started several, but they cannot be connected.
    pub fn join(peer_timeout: Duration, asked: Arc<AtomicBool>) -> Result<Self, Failure> {
        let Some(launch) = launched().filter(|launch| mpi::available() || launch.size() > 1) else {
            return Ok(Self::alone());
        };
        if mpi::available() && !launch.managed {
            // Some libraries would begin a world of this process alone, others end it with a code of their own.
            return Err(worlds_of_one(launch.size(), true));
        }
        let machine = detect().map_err(|error| Failure::new(Code::Environment, error.to_string()))?;
        let mpi = connect(Options { peer_timeout, asked, cpus: machine.cpus.clone() })?;
        let (size, started) = (mpi.size(), launch.size());
        if size == 1 && started > 1 {
            return Err(worlds_of_one(started, launch.tasks.is_some()));
        }
        if size == 1 {
            mpi.finish();
            return Ok(Self::alone());
        }
        let (node, rank) = (mpi.node().clone(), mpi.rank());
        let mut lines = vec![format!("processes   {size}, one worker in each; {}", mpi::describe())];
        let (cpus, line) = share(&machine.cores, &node);
        lines.extend(line);
        if let Some(cpus) = &cpus {
            // Every thread that is started from here on has these.
            release_current_thread(cpus);
        }
        if rank > 0 {
            output::silence();
        }
        let shares_cpus = node.sharing == Sharing::Overlapping
            || node.sharing == Sharing::Same && machine.cores.len() < node.size;
        let line = Mutex::new(mpi.processes());
        let several = Some(Several { mpi, line, told: Mutex::default() });
        Ok(Self { several, lines, shares_cpus, beside: everybody(&machine.cores, node) })
    }

    /// How many processes there are, if there are several.
    pub fn size(&self) -> Option<usize> {
        self.several.as_ref().map(|several| several.mpi.size())
    }

    /// This process.
    pub fn rank(&self) -> usize {
        self.several.as_ref().map_or(0, |several| several.mpi.rank())
    }

    /// How many workers of other processes on this node come before those of this one.
    pub fn seats_before(&self) -> usize {
        self.several.as_ref().map_or(0, |several| several.mpi.node().rank)
    }

    /// Whether this process speaks for all: it prints, writes the run folder, and has the master.
    pub fn leads(&self) -> bool {
        self.rank() == 0
    }

    /// The number of workers, if the processes decide it.
    ///
    /// # Errors
    /// If another number is asked for.
    pub fn workers(&self, asked: Option<usize>) -> Result<Option<usize>, Failure> {
        match (self.size(), asked) {
            (Some(size), Some(asked)) if asked != size => Err(Failure::new(
                Code::Usage,
                format!(
                    "--workers {asked}: {size} processes were started, and each is a worker\n  hint: leave --workers out, or \
                     start {asked} processes"
                ),
            )),
            (size, _) => Ok(size),
        }
    }

    /// The workers of this process, of so many in all.
    pub fn own(&self, workers: usize) -> Range<usize> {
        match &self.several {
            None => 0..workers,
            Some(several) => several.mpi.rank()..several.mpi.rank() + 1,
        }
    }

    /// The endpoints of the workers of this process, and behind them, in the process that leads, those of `beside` further
    /// ranks.
    pub fn endpoints(&self, workers: usize, beside: usize, peer_timeout: Duration) -> Vec<Endpoint> {
        match &self.several {
            None => threads::endpoints(workers + beside, peer_timeout)
                .into_iter()
                .map(Endpoint::Threads)
                .collect(),
            Some(several) => several.mpi.workers(beside).into_iter().map(Endpoint::Mpi).collect(),
        }
    }

    /// Moves the thread that calls MPI to where a worker communicates.
    pub fn settle(&self, places: &Places) {
        if let Some(several) = &self.several {
            let places = places.clone();
            several.mpi.on_service_thread(move || places.settle(quadrille_numa::Role::Comm, 0));
        }
    }

    /// Whether another process was asked to stop.
    pub fn is_asked(&self) -> bool {
        self.several.as_ref().is_some_and(|several| several.mpi.is_asked())
    }

    /// Whether the worker of this process stops before `iteration`; `None` if there is one process only.
    pub fn stops_before(&self, iteration: u64) -> Option<bool> {
        self.several.as_ref().map(|several| several.mpi.stops_before(iteration))
    }

    /// Sends a text to another process.
    ///
    /// # Errors
    /// If it is lost.
    pub fn tell(&self, to: usize, text: &str) -> Result<(), Failure> {
        let Some(several) = &self.several else { return Ok(()) };
        // A byte in each value: messages are exact as numbers.
        let bytes: Vec<f32> = text.bytes().map(f32::from).collect();
        let mut line = several.line.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(line.send(to, TEXT, Buffer::from(bytes))?)
    }

    /// Waits for the next text of another process.
    ///
    /// # Errors
    /// If it is lost or silent.
    pub fn hear(&self, from: usize) -> Result<String, Failure> {
        self.listen(from, false)
    }

    /// The same; if `at_last`, a process may be silent for as long as it lives, since it reads or copies a data set.
    fn listen(&self, from: usize, at_last: bool) -> Result<String, Failure> {
        let Some(several) = &self.several else { return Ok(String::new()) };
        let mut line = several.line.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = loop {
            match line.recv(from, TEXT) {
                Err(CommError::Timeout { .. }) if at_last => {}
                other => break other?,
            }
        };
        let bytes: Vec<u8> = bytes.iter().map(|value| *value as u8).collect();
        String::from_utf8(bytes).map_err(|_| Failure::new(Code::Bug, "a text of another process is none"))
    }

    /// Waits until all processes have come here, however long they took to prepare, and gives every one the text of the one that
    /// leads.
    ///
    /// # Errors
    /// If a process is lost.
    pub fn meet(&self, text: &str) -> Result<String, Failure> {
        if !self.leads() {
            self.tell(0, "")?;
            return self.listen(0, true);
        }
        let others = 1..self.size().unwrap_or(1);
        others.clone().try_for_each(|other| self.listen(other, true).map(|_| ()))?;
        others.into_iter().try_for_each(|other| self.tell(other, text))?;
        Ok(text.to_owned())
    }

    /// Tells the others at once that this process fails.
    pub fn warn(&self, failure: Failure) -> Failure {
        let Some(several) = &self.several else { return failure };
        let mut told = several.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_some() {
            return failure;
        }
        let (code, over) = several.mpi.abandon(failure.code, failure.remoteness() > 0, failure.missed());
        *told = Some(code);
        match over.filter(|_| code != failure.code) {
            Some(process) => {
                let why = format!(
                    "process {process} ended with exit code {code} and says why; so this one ends, too"
                );
                Failure::follows(code, why)
            }
            None => failure,
        }
    }

    /// Ends this process's part. Where there are several this does not return: the process ends here, once all outputs of
    /// all of them are written, or at once if one has failed.
    ///
    /// # Errors
    /// That of `outcome`, if this process is alone.
    pub fn close(self, outcome: Result<(), Failure>) -> Result<(), Failure> {
        let rank = self.rank();
        let stopped = |failure: &Failure| failure.code == Code::Stopped as u8;
        let outcome = outcome.map_err(|failure| if stopped(&failure) { failure } else { self.warn(failure) });
        let Some(Several { mpi, .. }) = self.several else { return outcome };
        match &outcome {
            // What ends well for all is told once.
            Err(failure) if rank > 0 && stopped(failure) => {}
            Err(failure) if rank > 0 => {
                failure.tell(&format!("process {rank}: "));
            }
            Err(failure) => failure.tell(""),
            Ok(()) => {}
        }
        let mut code = outcome.as_ref().err().map_or(0, |failure| failure.code);
        // What this process did is worth nothing if another could not end it, such as the snapshot of all.
        if outcome.as_ref().err().is_none_or(stopped)
            && !mpi.finish()
            && let Some((process, failed)) = mpi.failed()
        {
            code = failed;
            let why =
                format!("process {process} ended with exit code {failed}; so this one ends with it, too");
            Failure::follows(code, why).tell(&format!("process {rank}: "));
        }
        mpi.quit(code)
    }

    /// Ends the process at once, although threads still run.
    pub fn exit(&self, code: u8) -> ! {
        match &self.several {
            Some(several) => several.mpi.quit(code),
            None => std::process::exit(i32::from(code)),
        }
    }
}

/// Several processes were started, but each of them is alone.
fn worlds_of_one(started: usize, by_slurm: bool) -> Failure {
    let how = if by_slurm { "srun" } else { "the launcher" };
    let hint = if by_slurm {
        "start it with srun --mpi=pmix (Open MPI) or srun --mpi=pmi2 (MPICH, Intel MPI); srun --mpi=list shows what there is"
    } else {
        "start it with the mpirun of the MPI that it was built with"
    };
    let library = mpi::describe();
    let message = format!(
        "{how} started {started} processes, but MPI ({library}) sees only this one, so {started} trainings would run that \
         know nothing of each other\n  hint: {hint}"
    );
    Failure::new(Code::Environment, message)
}

/// The CPUs of this process, where all of a node were granted the same, and what is said of that.
fn share(cores: &[Core], node: &Node) -> (Option<Vec<usize>>, Option<String>) {
    let Node { rank, size, sharing, .. } = *node;
    if size == 1 || cores.is_empty() {
        return (None, None);
    }
    let said = |text: String| Some(format!("            {size} on this node: {text}"));
    match sharing {
        Sharing::Apart => (None, said("each has the CPUs that it was granted".to_owned())),
        Sharing::Overlapping => {
            let text =
                "some were granted the same CPUs, others not; give each its own (srun --cpus-per-task)";
            (None, said(text.to_owned()))
        }
        Sharing::Same => {
            let text = match cores.len() {
                few if few < size => format!("all were granted the same {few} core(s), so several share one"),
                all => format!("all were granted the same {all} cores, so each takes a part of them"),
            };
            (Some(part(cores, rank, size)), said(text))
        }
    }
}

/// The CPUs of process `rank` of `size` that were granted the same cores.
fn part(cores: &[Core], rank: usize, size: usize) -> Vec<usize> {
    let own = if cores.len() < size {
        let first = rank % cores.len();
        first..first + 1
    } else {
        cores.len() * rank / size..cores.len() * (rank + 1) / size
    };
    cores[own].iter().flat_map(|core| core.cpus.iter().copied()).collect()
}

/// The CPUs of each process of a node.
fn everybody(cores: &[Core], node: Node) -> Vec<Vec<usize>> {
    match node.sharing {
        Sharing::Same if !cores.is_empty() => {
            (0..node.size).map(|rank| part(cores, rank, node.size)).collect()
        }
        _ => node.granted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(count: usize) -> Vec<Core> {
        (0..count).map(|core| Core { cpus: vec![core, core + count], node: 0, socket: 0, l3: None }).collect()
    }

    fn taken(count: usize, size: usize, sharing: Sharing) -> Vec<Option<Vec<usize>>> {
        let node = |rank| Node { rank, size, sharing, granted: Vec::new() };
        (0..size).map(|rank| share(&cores(count), &node(rank)).0).collect()
    }

    #[test]
    fn processes_that_were_granted_the_same_cores_divide_them() {
        let all: Vec<usize> = taken(6, 4, Sharing::Same).into_iter().flatten().flatten().collect();
        assert_eq!(all, [0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11]);
        assert_eq!(taken(2, 3, Sharing::Same), [Some(vec![0, 2]), Some(vec![1, 3]), Some(vec![0, 2])]);
        assert_eq!(taken(6, 2, Sharing::Apart), [None, None]);
        assert_eq!(taken(6, 2, Sharing::Overlapping), [None, None]);
        assert_eq!(taken(6, 1, Sharing::Same), [None]);
        let granted = vec![vec![0, 6], vec![1, 7]];
        let node = |sharing| Node { rank: 0, size: 2, sharing, granted: granted.clone() };
        assert_eq!(everybody(&cores(2), node(Sharing::Same)), [vec![0, 2], vec![1, 3]]);
        assert_eq!(everybody(&cores(2), node(Sharing::Apart)), granted);
    }

    #[test]
    fn the_way_out_of_worlds_of_one_is_named() {
        let failure = worlds_of_one(4, true);
        assert_eq!(failure.code, 71);
        assert!(failure.message.contains("--mpi=pmix") && failure.message.contains("4 trainings"));
        assert!(worlds_of_one(4, false).message.contains("mpirun"));
    }
}
