//! Hides an exchange behind forward and backward.
//!
//! A communication thread owns the transport and the protocol. The worker hands it the weights at the start of an
//! iteration, computes, and takes the centre when it needs it. Buffers are moved there and back, so the two threads
//! share nothing, and the worker allocates its buffers once.
//!
//! The thread also *builds* the protocol: MPI may only be asked for `MPI_THREAD_FUNNELED`, where the thread that
//! initialises MPI is the only one that may use it.
//!
//! In virtual time ([`crate::transport::timed`]) there is no such thread: what runs beside what is a matter of time lines there,
//! not of threads. The worker's thread does the exchange itself, on the exchange's own time line, between [`Exchanger::start`]
//! and forward.
//!
//! **It ends.** The worker waits only while the thread has work, and each wait of the thread is bounded by the peer
//! timeout. On an error the thread hands the error over and ends at once, which drops the transport: the other ranks
//! learn of it even if this worker is still computing.

use std::fmt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock::Moment;
use crate::collective::Traffic;
use crate::error::CommError;
use crate::protocol::ElasticMember;
use crate::transport::Buffer;
use crate::transport::timed::TimedClock;

/// A worker's own memory, where an exchange finds its weights and leaves the centre, so that both are copied beside forward and
/// backward, too. Nobody writes these weights meanwhile, and nobody reads this centre.
pub trait Shore: Send {
    /// Copies the worker's weights.
    ///
    /// # Errors
    /// If they cannot be read.
    fn weights(&mut self, to: &mut [f32]) -> Result<(), CommError>;

    /// Takes the centre.
    ///
    /// # Errors
    /// If it cannot be written.
    fn centre(&mut self, from: &[f32]) -> Result<(), CommError>;
}

/// What an exchange works on; comes back for the next one.
pub struct Cargo {
    /// This worker's weights before their update: of a worker with a shore, its room for them.
    pub weights: Buffer,
    /// Receives the centre before this exchange.
    pub centre: Buffer,
    /// Where weights come from and the centre goes; `None` if whoever starts the exchange copies them.
    pub shore: Option<Box<dyn Shore>>,
}

impl fmt::Debug for Cargo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.weights.len();
        f.debug_struct("Cargo").field("values", &values).field("shore", &self.shore.is_some()).finish()
    }
}

impl Cargo {
    /// Weights, and room for the centre.
    pub fn new(weights: Buffer, centre: Buffer) -> Self {
        Self { weights, centre, shore: None }
    }
}

/// Work for the communication thread; comes back with its results filled in.
enum Parcel {
    BeginTurn,
    Exchange { cargo: Cargo, elastic: f32, took: Duration, updating: Duration },
    EndTurn,
    Centre { centre: Buffer },
    Sum { values: Buffer },
    Leave,
}

/// The thread's answer: the parcel, and what this rank has sent so far.
type Answer = Result<(Parcel, Traffic), CommError>;

/// What an exchange brought.
#[derive(Debug)]
pub struct Exchanged {
    /// The weights, unchanged, and the centre before this exchange; for the next [`Exchanger::start`].
    pub cargo: Cargo,
    /// How long the exchange took.
    pub took: Duration,
    /// How long the centre took to change in all exchanges so far; see [`ElasticMember::updating`].
    pub updating: Duration,
    /// How long the worker had to wait for it: the share that was not hidden.
    pub waited: Duration,
    /// What this rank has sent since the start.
    pub traffic: Traffic,
}

/// Who does the work.
// A worker has one of them.
#[expect(clippy::large_enum_variant)]
enum Server {
    /// A thread.
    Thread {
        /// `None` once the thread is told to end.
        work: Option<SyncSender<Parcel>>,
        done: Receiver<Answer>,
        thread: Option<JoinHandle<()>>,
    },
    /// The worker itself, in virtual time.
    Timed {
        /// `None` once communication has failed.
        member: Option<Box<dyn ElasticMember>>,
        clock: TimedClock,
        /// An exchange that has been started and not been done yet.
        started: Option<Parcel>,
        /// What has been done, and when.
        answer: Option<(Answer, Moment)>,
    },
}

/// A worker's handle on its communication thread. Dropping it waits for the work in progress and ends the thread.
pub struct Exchanger {
    server: Server,
    rank: usize,
    size: usize,
    in_flight: bool,
    /// The error that ended communication; every later call returns it again.
    ended: Option<CommError>,
}

impl Exchanger {
    /// Starts the communication thread, which first calls `join` to connect and to join the method. An error of `join`
    /// is returned here. `join` is also the place to pin the thread and for the [`crate::handshake`].
    pub fn spawn<M: ElasticMember + 'static>(
        join: impl FnOnce() -> Result<M, CommError> + Send + 'static,
    ) -> Result<Self, CommError> {
        // One slot each way: there is never more than one parcel.
        let (work, parcels) = sync_channel(1);
        let (answers, done) = sync_channel(1);
        let (ready, joined) = sync_channel(1);
        let body = move || {
            let protocol = join();
            let place = protocol.as_ref().map(|protocol| (protocol.rank(), protocol.size()));
            // A worker that has left needs no answer, here and in `serve`.
            let _ = ready.send(place.map_err(CommError::clone));
            if let Ok(protocol) = protocol {
                serve(protocol, &parcels, &answers);
            }
        };
        let thread = std::thread::Builder::new().name("comm".to_owned()).spawn(body).map_err(|error| {
            CommError::Unavailable(format!("cannot start the communication thread: {error}"))
        })?;
        let (rank, size) = joined.recv().unwrap_or_else(|_| {
            Err(CommError::Unavailable("the communication thread panicked while it connected".to_owned()))
        })?;
        let server = Server::Thread { work: Some(work), done, thread: Some(thread) };
        Ok(Exchanger { server, rank, size, in_flight: false, ended: None })
    }

    /// The same in virtual time: a method on a transport whose time is `clock`, without a thread.
    pub fn timed<M: ElasticMember + 'static>(clock: TimedClock, member: M) -> Self {
        let (rank, size) = (member.rank(), member.size());
        let server = Server::Timed { member: Some(Box::new(member)), clock, started: None, answer: None };
        Exchanger { server, rank, size, in_flight: false, ended: None }
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of workers, P.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Waits until this worker may compute its gradients; see [`ElasticMember::begin_turn`].
    pub fn begin_turn(&mut self) -> Result<(), CommError> {
        self.round_trip(Parcel::BeginTurn).map(drop)
    }

    /// Starts an exchange and returns at once. `elastic` is ηρ of this step; see [`ElasticMember::exchange`].
    pub fn start(&mut self, cargo: Cargo, elastic: f32) -> Result<(), CommError> {
        let (took, updating) = (Duration::ZERO, Duration::ZERO);
        self.hand_over(Parcel::Exchange { cargo, elastic, took, updating })
    }

    /// In virtual time does the exchange that was started, from the time of its start on; the worker's own time does not go on.
    /// To be called before computing, so that others need not wait for that.
    pub fn proceed(&mut self) {
        if let Server::Timed { member, clock, started, answer } = &mut self.server
            && let Some(parcel) = started.take()
        {
            *answer = Some(clock.aside(|| serve_timed(member, parcel)));
        }
    }

    /// Waits until the exchange that was started is complete. An error of the communication thread comes out here.
    pub fn wait(&mut self) -> Result<Exchanged, CommError> {
        let start = self.now();
        match self.take_back()? {
            (Parcel::Exchange { cargo, took, updating, .. }, traffic) => {
                Ok(Exchanged { cargo, took, updating, waited: self.now().since(start), traffic })
            }
            _ => Err(self.other_answer()),
        }
    }

    /// Tells the others that this worker's gradients are found; see [`ElasticMember::end_turn`].
    pub fn end_turn(&mut self) -> Result<(), CommError> {
        self.round_trip(Parcel::EndTurn).map(drop)
    }

    /// Fills `centre` with the centre after all exchanges, on every worker; see [`ElasticMember::centre`].
    pub fn centre(&mut self, centre: Buffer) -> Result<Buffer, CommError> {
        match self.round_trip(Parcel::Centre { centre })? {
            Parcel::Centre { centre } => Ok(centre),
            _ => Err(self.other_answer()),
        }
    }

    /// Replaces `values` by their sum over all workers; see [`ElasticMember::all_reduce_sum`].
    pub fn all_reduce_sum(&mut self, values: Buffer) -> Result<Buffer, CommError> {
        match self.round_trip(Parcel::Sum { values })? {
            Parcel::Sum { values } => Ok(values),
            _ => Err(self.other_answer()),
        }
    }

    /// Ends this worker's part in good order; see [`ElasticMember::leave`].
    pub fn leave(&mut self) -> Result<(), CommError> {
        self.round_trip(Parcel::Leave).map(drop)
    }

    fn now(&self) -> Moment {
        match &self.server {
            Server::Thread { .. } => Moment::real(),
            Server::Timed { clock, .. } => clock.now(),
        }
    }

    fn round_trip(&mut self, parcel: Parcel) -> Result<Parcel, CommError> {
        self.hand_over(parcel)?;
        self.take_back().map(|(parcel, _)| parcel)
    }

    fn other_answer(&self) -> CommError {
        self.misuse("the communication thread answered another question")
    }

    fn hand_over(&mut self, parcel: Parcel) -> Result<(), CommError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        if self.in_flight {
            return Err(self.misuse("an exchange is in progress: wait for it first"));
        }
        match &mut self.server {
            Server::Thread { work, .. } => {
                if work.as_ref().is_none_or(|work| work.send(parcel).is_err()) {
                    return Err(self.end(self.misuse("the communication thread panicked")));
                }
            }
            Server::Timed { clock, started, .. } if matches!(parcel, Parcel::Exchange { .. }) => {
                clock.begin_aside();
                *started = Some(parcel);
            }
            Server::Timed { member, clock, answer, .. } => {
                let served = serve_timed(member, parcel);
                *answer = Some((served, clock.now()));
            }
        }
        self.in_flight = true;
        Ok(())
    }

    fn take_back(&mut self) -> Result<(Parcel, Traffic), CommError> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        if !self.in_flight {
            return Err(self.misuse("there is no exchange to wait for: start one first"));
        }
        self.in_flight = false;
        self.proceed();
        let answer = match &mut self.server {
            Server::Thread { done, .. } => done.recv().ok(),
            Server::Timed { clock, answer, .. } => answer.take().map(|(answer, end)| {
                clock.wait_until(end);
                answer
            }),
        };
        match answer {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(self.end(error)),
            None => Err(self.end(self.misuse("the communication thread panicked"))),
        }
    }

    fn end(&mut self, error: CommError) -> CommError {
        self.ended = Some(error.clone());
        error
    }

    fn misuse(&self, problem: &str) -> CommError {
        CommError::Protocol { rank: self.rank, peer: None, problem: problem.to_owned() }
    }
}

impl Drop for Exchanger {
    fn drop(&mut self) {
        if let Server::Thread { work, thread, .. } = &mut self.server {
            *work = None;
            if let Some(thread) = thread.take() {
                // A panic of the thread was reported by the call that met it; nobody is left to report it to.
                let _ = thread.join();
            }
        }
    }
}

/// Serves parcels until the worker leaves or communication fails.
fn serve<M: ElasticMember>(mut protocol: M, parcels: &Receiver<Parcel>, answers: &SyncSender<Answer>) {
    for mut parcel in parcels {
        if let Err(error) = serve_one(&mut protocol, &mut parcel) {
            // The transport goes first, so that the other ranks learn of it before this worker does.
            drop(protocol);
            let _ = answers.send(Err(error));
            return;
        }
        let _ = answers.send(Ok((parcel, protocol.traffic())));
    }
}

/// Serves a parcel, and fills in its results.
fn serve_one(protocol: &mut dyn ElasticMember, parcel: &mut Parcel) -> Result<(), CommError> {
    match parcel {
        Parcel::BeginTurn => protocol.begin_turn(),
        Parcel::Exchange { cargo: Cargo { weights, centre, shore }, elastic, took, updating } => {
            if let Some(shore) = shore {
                shore.weights(weights)?;
            }
            *took = protocol.exchange(weights, *elastic, centre)?;
            *updating = protocol.updating();
            shore.as_mut().map_or(Ok(()), |shore| shore.centre(centre))
        }
        Parcel::EndTurn => protocol.end_turn(),
        Parcel::Centre { centre } => protocol.centre(centre),
        Parcel::Sum { values } => protocol.all_reduce_sum(values),
        Parcel::Leave => protocol.leave(),
    }
}

/// Serves a parcel in the worker's own thread. After an error the method is dropped, so that the others learn of it.
fn serve_timed(member: &mut Option<Box<dyn ElasticMember>>, mut parcel: Parcel) -> Answer {
    let Some(protocol) = member else {
        return Err(CommError::Unavailable("communication has ended before".to_owned()));
    };
    match serve_one(&mut **protocol, &mut parcel) {
        Ok(()) => Ok((parcel, protocol.traffic())),
        Err(error) => {
            *member = None;
            Err(error)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Instant;

    use super::*;
    use crate::protocol::sync_easgd::SyncEasgd;
    use crate::transport::threads::{ThreadTransport, endpoints};

    fn pair() -> (ThreadTransport, ThreadTransport) {
        let mut ends = endpoints(2, Duration::from_secs(30));
        let second = ends.pop().unwrap();
        (ends.pop().unwrap(), second)
    }

    fn exchanger(end: ThreadTransport) -> Exchanger {
        Exchanger::spawn(move || Ok(SyncEasgd::new(end, &[8.0]))).unwrap()
    }

    #[test]
    fn the_worker_goes_on_while_the_exchange_waits_for_a_peer() {
        let (a, b) = pair();
        let (started, go) = mpsc::channel();
        let peer = std::thread::spawn(move || {
            // Takes part only once the other worker is past `start`: a `start` that waited would never end.
            go.recv_timeout(Duration::from_secs(20)).unwrap();
            SyncEasgd::new(b, &[8.0]).exchange(&[6.0], 0.25, &mut [0.0]).unwrap();
        });
        let mut worker = exchanger(a);
        assert_eq!((worker.rank(), worker.size()), (0, 2));
        let weights = Buffer::from(vec![2.0]);
        let place = weights.as_ptr();
        worker.start(Cargo::new(weights, Buffer::zeros(1)), 0.25).unwrap();
        assert!(matches!(
            worker.start(Cargo::new(Buffer::zeros(1), Buffer::zeros(1)), 0.25),
            Err(CommError::Protocol { .. })
        ));
        started.send(()).unwrap();
        let before = Instant::now();
        let done = worker.wait().unwrap();
        assert!(done.waited > Duration::ZERO && done.waited <= before.elapsed());
        assert!(done.took > Duration::ZERO);
        assert_eq!(
            (&done.cargo.weights[..], done.cargo.weights.as_ptr(), &done.cargo.centre[..]),
            (&[2.0][..], place, &[8.0][..])
        );
        assert_eq!(done.traffic, Traffic { messages: 1, bytes: 4 });
        peer.join().unwrap();
    }

    #[test]
    fn sums_and_the_last_centre_go_through_the_same_thread() {
        let (a, b) = pair();
        let run = |end| {
            let mut worker = exchanger(end);
            let cargo = Cargo::new(vec![worker.rank() as f32].into(), Buffer::zeros(1));
            worker.start(cargo, 0.25).unwrap();
            let seen = worker.wait().unwrap().cargo.centre;
            let sum = worker.all_reduce_sum(vec![3.0].into()).unwrap();
            [seen[0], sum[0], worker.centre(seen).unwrap()[0]]
        };
        let other = std::thread::spawn(move || run(b));
        // 8 + 0.25·((0 + 1) − 2·8) = 4.25.
        assert_eq!(run(a), [8.0, 6.0, 4.25]);
        assert_eq!(other.join().unwrap(), [8.0, 6.0, 4.25]);
    }

    /// A worker's weights and centre, and how often each was asked for.
    struct Kept {
        weights: f32,
        centre: mpsc::Sender<f32>,
        refuses: bool,
    }

    impl Shore for Kept {
        fn weights(&mut self, to: &mut [f32]) -> Result<(), CommError> {
            to.fill(self.weights);
            self.weights += 1.0;
            Ok(())
        }

        fn centre(&mut self, from: &[f32]) -> Result<(), CommError> {
            if self.refuses {
                return Err(CommError::Unavailable("no room".to_owned()));
            }
            self.centre.send(from[0]).map_err(|_| CommError::Unavailable("nobody listens".to_owned()))
        }
    }

    #[test]
    fn weights_are_taken_from_where_they_lie_and_the_centre_is_there_when_the_wait_ends() {
        let (a, b) = pair();
        let run = |end, refuses: bool| {
            let mut worker = exchanger(end);
            let (sender, seen) = mpsc::channel();
            let kept = Kept { weights: worker.rank() as f32, centre: sender, refuses };
            let mut cargo =
                Cargo { shore: Some(Box::new(kept)), ..Cargo::new(Buffer::zeros(1), Buffer::zeros(1)) };
            let mut found = Vec::new();
            for _ in 0..2 {
                worker.start(cargo, 0.25).unwrap();
                let done = match worker.wait() {
                    Ok(done) => done,
                    Err(error) => return Err(error),
                };
                found.push((done.cargo.weights[0], seen.try_recv().unwrap()));
                cargo = done.cargo;
            }
            Ok(found)
        };
        let other = std::thread::spawn(move || run(b, false));
        // 8 + 0.25·((0 + 1) − 2·8) = 4.25.
        assert_eq!(run(a, false), Ok(vec![(0.0, 8.0), (1.0, 4.25)]));
        assert_eq!(other.join().unwrap(), Ok(vec![(1.0, 8.0), (2.0, 4.25)]));
        let (a, b) = pair();
        let other = std::thread::spawn(move || run(b, false));
        assert_eq!(run(a, true), Err(CommError::Unavailable("no room".to_owned())));
        assert!(matches!(other.join().unwrap(), Err(CommError::PeerLost { .. })));
    }

    #[test]
    fn an_error_comes_out_of_wait_and_stays() {
        let (a, b) = pair();
        let mut worker = exchanger(a);
        worker.start(Cargo::new(Buffer::zeros(1), Buffer::zeros(1)), 0.5).unwrap();
        drop(b);
        let error = worker.wait().unwrap_err();
        assert!(matches!(error, CommError::PeerLost { rank: 0, peer: 1, .. }), "{error}");
        assert_eq!(worker.start(Cargo::new(Buffer::zeros(1), Buffer::zeros(1)), 0.5), Err(error.clone()));
        assert_eq!(worker.all_reduce_sum(Buffer::zeros(1)), Err(error));
    }

    #[test]
    fn a_failed_thread_tells_the_others_before_its_worker_asks() {
        let mut ends = endpoints(3, Duration::from_secs(10));
        let last = ends.pop().unwrap();
        let dead = ends.pop().unwrap();
        let mut first = exchanger(ends.pop().unwrap());
        first.start(Cargo::new(Buffer::zeros(1), Buffer::zeros(1)), 0.5).unwrap();
        drop(dead);
        // Nobody waits for the first worker's answer, yet the last rank must not wait for a second centre for long.
        let mut last = SyncEasgd::new(last, &[8.0]);
        let error = loop {
            if let Err(error) = last.exchange(&[1.0], 0.5, &mut [0.0]) {
                break error;
            }
        };
        assert!(matches!(error, CommError::PeerLost { rank: 2, peer: 0, .. }), "{error}");
    }

    #[test]
    fn waiting_for_nothing_is_refused_and_a_failed_join_is_returned() {
        let (a, _b) = pair();
        assert!(matches!(exchanger(a).wait(), Err(CommError::Protocol { .. })));
        let refused = CommError::Unavailable("no network".to_owned());
        let copy = refused.clone();
        let failed = Exchanger::spawn::<SyncEasgd<ThreadTransport>>(move || Err(copy));
        assert_eq!(failed.err(), Some(refused));
    }

    #[test]
    fn a_panic_of_the_thread_is_an_error() {
        let failed = Exchanger::spawn::<SyncEasgd<ThreadTransport>>(|| panic!("on purpose"));
        assert!(matches!(failed.err(), Some(CommError::Unavailable(_))));
    }
}
