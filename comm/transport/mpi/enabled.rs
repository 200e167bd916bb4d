//! Processes that MPI connects, over rsmpi.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::raw::{self, Net};
use super::service::{Ended, Service};
use super::shared::{Channel, Loss, Order, Shared};
use super::wire::Address;
use super::{Node, Options, Sharing};
use crate::error::{CommError, Doing, Peer};
use crate::transport::place::{Patience, Place};
use crate::transport::{Buffer, Tag, Transport, check_peer};

/// The channel of workers and masters.
const WORKERS: usize = 0;
/// The channel of processes.
const PROCESSES: usize = 1;

/// How long a rank that has waited in vain listens for who is to blame.
const GRACE: Duration = Duration::from_secs(2);

/// MPI itself starts and ends within this, or within a longer peer timeout.
const START: Duration = Duration::from_secs(120);
const END: Duration = Duration::from_secs(20);

/// CPUs of which processes of a node tell each other.
const MOST_CPUS: usize = 8192;

/// All processes of the job, as this one sees them.
pub struct World {
    shared: Arc<Shared>,
    node: Node,
    /// How the service thread ended.
    ended: Mutex<Receiver<Ended>>,
}

/// What the service thread knows when it begins.
struct Begun {
    shared: Arc<Shared>,
    node: Node,
}

/// Starts the service thread, which connects this process with the others that were started with it.
///
/// # Errors
/// [`CommError::Unavailable`] if MPI cannot be had or does not start in time.
pub fn connect(options: Options) -> Result<World, CommError> {
    let deadline = options.peer_timeout.max(START);
    let (ready, begun) = sync_channel(1);
    let (answer, ended) = sync_channel(1);
    let body = move || {
        let Some(net) = Net::initialise() else {
            let reason = "MPI did not start for a process of several threads (MPI_THREAD_FUNNELED)";
            let _ = ready.send(Err(CommError::Unavailable(reason.to_owned())));
            return;
        };
        let patience = Patience { timeout: options.peer_timeout, grace: GRACE };
        let shared = Arc::new(Shared::new(net.rank(), net.size(), patience));
        let (node, before) = meet_on_node(&net, &options.cpus);
        let service = Service::new(net, Arc::clone(&shared), options.asked, before);
        let _ = ready.send(Ok(Begun { shared, node }));
        service.serve(&answer);
    };
    let thread = std::thread::Builder::new().name("mpi".to_owned()).spawn(body);
    thread.map_err(|error| CommError::Unavailable(format!("cannot start the thread of MPI: {error}")))?;
    let late = |error| {
        CommError::Unavailable(match error {
            RecvTimeoutError::Timeout => format!(
                "MPI has not started for {} s: some of the processes of this job may never have begun",
                deadline.as_secs_f64()
            ),
            RecvTimeoutError::Disconnected => "the thread of MPI ended while it connected".to_owned(),
        })
    };
    let Begun { shared, node } = begun.recv_timeout(deadline).map_err(late)??;
    Ok(World { shared, node, ended: Mutex::new(ended) })
}

/// Finds out who is on this node, and the id of the process before this one in the ring if it is.
fn meet_on_node(net: &Net, cpus: &[usize]) -> (Node, Option<u64>) {
    // Rank, process id and where it means something, then CPUs, a bit for each.
    const HEAD: usize = 3;
    let mut own = vec![0; HEAD + MOST_CPUS / 64];
    own[..HEAD].copy_from_slice(&[net.rank() as u64, u64::from(std::process::id()), process_ids()]);
    for cpu in cpus.iter().filter(|cpu| **cpu < MOST_CPUS) {
        own[HEAD + cpu / 64] |= 1 << (cpu % 64);
    }
    let (rank, all) = net.gather_on_node(&own);
    let previous = ((net.rank() + net.size() - 1) % net.size()) as u64;
    let before = all.iter().find(|other| other[0] == previous && other[2] == own[2]).map(|other| other[1]);
    let masks: Vec<&[u64]> = all.iter().map(|one| &one[HEAD..]).collect();
    let cpus = |mask: &&[u64]| {
        let bits = (0..MOST_CPUS).filter(|cpu| mask[cpu / 64] >> (cpu % 64) & 1 == 1);
        bits.collect()
    };
    let granted = masks.iter().map(cpus).collect();
    (Node { rank, size: all.len(), sharing: sharing(&masks), granted }, before)
}

/// The number of the namespace of process ids: containers have their own.
fn process_ids() -> u64 {
    let name = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let name = name.to_string_lossy();
    name.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0)
}

fn sharing(masks: &[&[u64]]) -> Sharing {
    if masks.len() > 1 && masks.iter().all(|mask| mask == &masks[0]) {
        return Sharing::Same;
    }
    let overlap = |a: &[u64], b: &[u64]| a.iter().zip(b).any(|(a, b)| a & b != 0);
    let apart = (0..masks.len()).all(|at| masks[..at].iter().all(|other| !overlap(masks[at], other)));
    if apart { Sharing::Apart } else { Sharing::Overlapping }
}

impl World {
    /// This process, `0 ≤ rank < size`.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// The processes of this job on this node.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// The endpoints of this process in the group of workers: that of its worker, and behind it those of `beside_first`
    /// further ranks, which live in process 0. To be called once, by every process with the same number.
    pub fn workers(&self, beside_first: usize) -> Vec<MpiTransport> {
        let process = (0..self.size()).chain(std::iter::repeat_n(0, beside_first)).collect();
        self.endpoints(WORKERS, process)
    }

    /// The endpoint of this process in a group of all processes, for what does not concern the method. To be called once.
    pub fn processes(&self) -> MpiTransport {
        self.endpoints(PROCESSES, (0..self.size()).collect()).swap_remove(0)
    }

    fn endpoints(&self, number: usize, process: Vec<usize>) -> Vec<MpiTransport> {
        let channel = self.shared.open(number, process);
        let own = (0..channel.places.len()).filter(|rank| channel.places[*rank].is_some());
        let own: Vec<usize> = own.collect();
        let endpoint = |rank| {
            let (channel, shared) = (Arc::clone(&channel), Arc::clone(&self.shared));
            MpiTransport { rank, number, channel, shared }
        };
        own.into_iter().map(endpoint).collect()
    }

    /// Has the service thread do something, such as moving to its CPU.
    pub fn on_service_thread(&self, work: impl FnOnce() + Send + 'static) {
        self.shared.order(Order::Run(Box::new(work)));
    }

    /// Whether any process was asked to stop.
    pub fn is_asked(&self) -> bool {
        self.shared.agreement.is_asked()
    }

    /// Whether the worker of this process stops before `iteration`, which it begins otherwise. Once a process was asked to
    /// stop, all workers do the same number of iterations.
    pub fn stops_before(&self, iteration: u64) -> bool {
        self.shared.agreement.stops_before(iteration, self.shared.patience.timeout)
    }

    /// Ends this process's part in good order: waits for all others, then ends MPI. All outputs are to be written before,
    /// since launchers may end all processes once one has ended. False if the others are not all there any more, or MPI
    /// does not end in time.
    pub fn finish(&self) -> bool {
        self.shared.order(Order::Finish);
        let most = self.shared.patience.timeout + END;
        matches!(self.wait_for_end(most), Ok(Ended::Together))
    }

    /// The process that failed with an exit code, and the code, if one has told this one.
    pub fn failed(&self) -> Option<(usize, u8)> {
        self.shared.loss().and_then(|loss| Some((loss.blamed, loss.code?)))
    }

    fn wait_for_end(&self, most: Duration) -> Result<Ended, RecvTimeoutError> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).recv_timeout(most)
    }

    /// Tells the others that this process ends with an exit code, and whom it missed: the worker or master over which it ends,
    /// if one was waited for in vain. Returns the code to end with: where another process is to blame and said its own, that one,
    /// so that all end with the same.
    pub fn abandon(&self, code: u8, follows: bool, missed: Option<usize>) -> (u8, Option<usize>) {
        let loss = self.shared.loss();
        let said = loss.filter(|_| follows).and_then(|Loss { blamed, code, .. }| Some((code?, blamed)));
        let code = said.map_or(code, |(code, _)| code);
        // Whoever is no worker lives in process 0.
        let missed = missed.map(|rank| if rank < self.size() { rank } else { 0 });
        let blamed = loss.map(|loss| loss.blamed).or(missed).unwrap_or(self.rank());
        self.shared.order(Order::Abandon { code, blamed });
        // The service thread may be inside MPI for good.
        let _ = self.wait_for_end(END / 10);
        (code, said.map(|(_, blamed)| blamed))
    }

    /// Ends the process at once, without what libraries want to do at the end: that of MPI may wait for those that are gone.
    pub fn quit(&self, code: u8) -> ! {
        raw::exit_now(code)
    }
}

/// True if this build can communicate over MPI.
pub fn available() -> bool {
    true
}

/// One line on the MPI of this build, for the first lines of a run.
pub fn describe() -> String {
    raw::library()
}

/// The endpoint of a rank that lives in this process.
pub struct MpiTransport {
    rank: usize,
    number: usize,
    channel: Arc<Channel>,
    shared: Arc<Shared>,
}

impl MpiTransport {
    fn place(&self) -> Result<&Place, CommError> {
        self.channel.places[self.rank].as_ref().ok_or_else(|| {
            let problem = "an endpoint of another process; this is a defect".to_owned();
            CommError::Protocol { rank: self.rank, peer: None, problem }
        })
    }

    /// A rank of this process that ended over the loss of another process is not to blame.
    fn over_a_loss(&self, error: CommError) -> CommError {
        match (error, self.shared.loss()) {
            (CommError::PeerLost { rank, doing, .. }, Some(loss)) => {
                CommError::PeerLost { rank, peer: loss.blamed, doing }
            }
            (error, _) => error,
        }
    }

    fn wait_for(&self, awaited: Peer, tag: Tag) -> Result<(usize, Buffer), CommError> {
        let place = self.place()?;
        if let Some(found) = place.look(self.rank, awaited, tag).map_err(|error| self.over_a_loss(error))? {
            return Ok(found);
        }
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.shared.wake();
        let found = place.wait_for(self.rank, awaited, tag, self.shared.patience);
        self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
        found.map_err(|error| self.over_a_loss(error))
    }
}

impl Transport for MpiTransport {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.channel.process.len()
    }

    fn send(&mut self, to: usize, tag: Tag, payload: Buffer) -> Result<(), CommError> {
        let doing = Doing::Sending(tag);
        check_peer(self.rank, self.size(), to, doing)?;
        let lost = |peer| CommError::PeerLost { rank: self.rank, peer, doing };
        if let Some(place) = &self.channel.places[to] {
            let put = place.put(to, self.rank, tag, payload);
            return if put { Ok(()) } else { Err(self.over_a_loss(lost(to))) };
        }
        if let Some(blamed) = self.place()?.gone(to) {
            return Err(lost(blamed));
        }
        let address = Address { channel: self.number, from: self.rank, to, tag };
        self.shared.order(Order::Send { process: self.channel.process[to], address, payload });
        Ok(())
    }

    fn recv(&mut self, from: usize, tag: Tag) -> Result<Buffer, CommError> {
        check_peer(self.rank, self.size(), from, Doing::Receiving(tag))?;
        self.wait_for(Peer::Rank(from), tag).map(|(_, payload)| payload)
    }

    fn recv_any(&mut self, tag: Tag) -> Result<(usize, Buffer), CommError> {
        self.wait_for(Peer::Any, tag)
    }

    fn try_recv(&mut self, from: usize, tag: Tag) -> Result<Option<Buffer>, CommError> {
        check_peer(self.rank, self.size(), from, Doing::Receiving(tag))?;
        let found = self.place()?.look(self.rank, Peer::Rank(from), tag);
        let found = found.map_err(|error| self.over_a_loss(error))?;
        Ok(found.map(|(_, payload)| payload))
    }
}

impl Drop for MpiTransport {
    /// The ranks of this process learn of it here; the others when the process ends, and says why.
    fn drop(&mut self) {
        for (rank, place) in self.channel.places.iter().enumerate() {
            let Some(place) = place else { continue };
            place.set_gone(self.rank, self.rank);
            if rank == self.rank {
                place.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_tell_how_processes_share_a_node() {
        let of = |masks: &[[u64; 2]]| sharing(&masks.iter().map(|mask| &mask[..]).collect::<Vec<_>>());
        assert_eq!(of(&[[3, 0]]), Sharing::Apart);
        assert_eq!(of(&[[3, 1], [3, 1], [3, 1]]), Sharing::Same);
        assert_eq!(of(&[[3, 0], [12, 0], [0, 3]]), Sharing::Apart);
        assert_eq!(of(&[[3, 0], [6, 0]]), Sharing::Overlapping);
        assert_eq!(of(&[[3, 0], [3, 0], [12, 0]]), Sharing::Overlapping);
    }
}
