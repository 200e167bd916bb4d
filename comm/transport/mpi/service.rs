//! The service thread: the only one that calls MPI.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::agreement::Poll;
use super::early::Early;
use super::raw::{Arrival, InFlight, MpiError, Net};
use super::shared::{Loss, Order, Shared};
use super::watch::{Finding, Watch};
use super::wire::{self, DATA, NOTICE, Notice};

/// Looks without a pause while an endpoint waits, then with a pause in which others may run, then with rests.
const LOOKS: u32 = 100;
const YIELDS: u32 = 2_000;
const SHORT_REST: Duration = Duration::from_micros(50);
const LONG_REST: Duration = Duration::from_millis(1);

/// For how long a process that fails tries to tell the others, and how long it stays at least: what MPI has taken is not yet
/// what the others have.
const LAST_WORDS: Duration = Duration::from_secs(1);
const LINGER: Duration = Duration::from_millis(50);

/// A process that leaves a job that has failed.
#[derive(Clone, Copy)]
struct Leaving {
    since: Instant,
    /// What it says.
    bye: Notice,
    /// Whoever is to blame, if that is to hear it from this process.
    blamed: Option<usize>,
}

/// How the work of a service thread ends: what it answers whoever told it to end.
pub(super) enum Ended {
    /// All processes have come, and MPI has ended or is about to.
    Together,
    /// A process is lost, or the others were told that this one is.
    Apart,
}

/// Values of a message that may lie in a buffer of any size up to that.
const SMALL: usize = 1024;
/// Buffers that are kept for later, of all sizes together.
const MOST_FREE: usize = 64;

/// A message that is coming in.
enum Incoming {
    Data(InFlight<f32>),
    Notice(InFlight<u64>),
}

/// A message that has come in.
enum Whole {
    Data(Vec<f32>),
    Notice(Vec<u64>),
}

/// See the top of the file.
pub(super) struct Service {
    net: Net,
    shared: Arc<Shared>,
    asked: Arc<AtomicBool>,
    watch: Option<Watch>,
    poll: Option<Poll>,
    /// Whether process 0 was told that this process is to stop.
    passed_on: bool,
    orders: Vec<Order>,
    data: Vec<InFlight<f32>>,
    notices: Vec<(usize, InFlight<u64>)>,
    incoming: VecDeque<(usize, Incoming)>,
    /// Processes whose next message has not come in as a whole.
    held_up: Vec<usize>,
    early: Early,
    /// Buffers for what comes in, from what was sent.
    free: Vec<Vec<f32>>,
    free_notices: Vec<Vec<u64>>,
    barrier: Option<InFlight<u64>>,
    closing: bool,
    leaving: Option<Leaving>,
    idle: u32,
}

impl Service {
    /// `before` is the id of the process before this one in the ring, if it is on this node.
    pub(super) fn new(net: Net, shared: Arc<Shared>, asked: Arc<AtomicBool>, before: Option<u64>) -> Self {
        let several = shared.size > 1;
        let watch = several.then(|| Watch::new(before, shared.patience.timeout, Instant::now()));
        Service {
            net,
            shared,
            asked,
            watch,
            poll: None,
            passed_on: false,
            orders: Vec::new(),
            data: Vec::new(),
            notices: Vec::new(),
            incoming: VecDeque::new(),
            held_up: Vec::new(),
            early: Early::default(),
            free: Vec::new(),
            free_notices: Vec::new(),
            barrier: None,
            closing: false,
            leaving: None,
            idle: 0,
        }
    }

    /// Serves until the process ends its part, then answers.
    pub(super) fn serve(mut self, answer: &SyncSender<Ended>) {
        let ended = loop {
            match self.step() {
                Ok(None) => {}
                Ok(Some(ended)) => break ended,
                // What MPI cannot do any more is not worth another try.
                Err(error) => {
                    eprintln!("quadrille: {} failed with code {} of MPI", error.call, error.code);
                    self.lose(Loss { blamed: self.shared.rank, code: None, told: false });
                    break Ended::Apart;
                }
            }
        };
        // What is still in flight keeps its memory.
        match ended {
            Ended::Together => {
                self.net.finalize();
                let _ = answer.send(Ended::Together);
            }
            Ended::Apart => {
                self.net.forget();
                let _ = answer.send(Ended::Apart);
            }
        }
    }

    /// Does what there is to do.
    fn step(&mut self) -> Result<Option<Ended>, MpiError> {
        let mut busy = self.take_orders()?;
        while let Some(arrival) = self.net.arrival()? {
            self.begin_to_receive(arrival)?;
            busy = true;
        }
        busy |= self.deliver()?;
        busy |= self.clear_sent()?;
        if !busy {
            self.keep_watch()?;
        }
        self.pass_on_request()?;
        if let Some(ended) = self.end()? {
            return Ok(Some(ended));
        }
        self.rest(busy);
        Ok(None)
    }

    fn take_orders(&mut self) -> Result<bool, MpiError> {
        let mut orders = std::mem::take(&mut self.orders);
        self.shared.take_orders(&mut orders);
        let some = !orders.is_empty();
        for order in orders.drain(..) {
            match order {
                Order::Send { process, address, payload } => {
                    let sealed = wire::seal(payload, address);
                    self.data.push(self.net.send(process, DATA, sealed)?);
                }
                Order::Run(work) => work(),
                Order::Finish => {
                    self.closing = true;
                    self.barrier = Some(self.net.barrier()?);
                }
                Order::Abandon { code, blamed } => self.abandon(code, blamed)?,
            }
        }
        self.orders = orders;
        Ok(some)
    }

    fn abandon(&mut self, code: u8, blamed: usize) -> Result<(), MpiError> {
        let bye = Notice::Bye { code, blamed };
        let told = self.shared.loss().is_some_and(|loss| loss.told);
        let (mut others, last) = audience(self.shared.rank, self.shared.size, blamed, told);
        self.leaving = Some(Leaving { since: Instant::now(), bye, blamed: last });
        others.try_for_each(|other| self.notify(other, bye))?;
        // Whoever of this process still waits for the others, a snapshot for example, waits in vain.
        self.lose(Loss { blamed, code: Some(code), told: true });
        Ok(())
    }

    /// Tells whoever is to blame, which may be but stopped or slow and would hold its node until it missed the others. It is
    /// the last call of MPI, which may end this process over another one that turns out to be dead: what can leave at once does.
    fn tell_blamed(&mut self, blamed: usize, bye: Notice) {
        if self.notify(blamed, bye).is_ok() {
            std::thread::sleep(LINGER);
        }
    }

    fn begin_to_receive(&mut self, arrival: Arrival) -> Result<(), MpiError> {
        let from = arrival.from;
        if let Some(watch) = self.watch.as_mut().filter(|_| from == before(&self.shared)) {
            watch.hear(Instant::now());
        }
        let incoming = if arrival.tag == NOTICE {
            let len = arrival.len::<u64>()?;
            Incoming::Notice(arrival.receive(self.free_notices.pop().unwrap_or_default(), len)?)
        } else {
            let len = arrival.len::<f32>()?;
            // The smallest that is large enough, but none of the large ones for a small message.
            let fits = self.free.iter().enumerate();
            let fits = fits.filter(|(_, buffer)| (len..=4 * len + SMALL).contains(&buffer.capacity()));
            let best = fits.min_by_key(|(_, buffer)| buffer.capacity()).map(|(index, _)| index);
            let buffer = best.map(|index| self.free.swap_remove(index)).unwrap_or_default();
            Incoming::Data(arrival.receive(buffer, len)?)
        };
        self.incoming.push_back((from, incoming));
        Ok(())
    }

    /// Hands on what has come in as a whole. What comes of one process keeps its order.
    fn deliver(&mut self) -> Result<bool, MpiError> {
        let mut some = false;
        // A process whose message is on its way holds up what it sent later, and nobody else's.
        self.held_up.clear();
        let mut at = 0;
        while at < self.incoming.len() {
            let (from, incoming) = &mut self.incoming[at];
            let from = *from;
            let whole = if self.held_up.contains(&from) {
                None
            } else {
                match incoming {
                    Incoming::Data(message) => message.finished()?.map(Whole::Data),
                    Incoming::Notice(message) => message.finished()?.map(Whole::Notice),
                }
            };
            let Some(whole) = whole else {
                self.held_up.push(from);
                at += 1;
                continue;
            };
            some = true;
            self.incoming.remove(at);
            match whole {
                // What is no message of ours is nobody's.
                Whole::Data(values) => {
                    if let Some((address, buffer)) = wire::open(values) {
                        self.early.put(&self.shared, address, buffer);
                    }
                }
                Whole::Notice(numbers) => {
                    self.take_notice(from, Notice::of(&numbers))?;
                    self.free_notices.push(numbers);
                }
            }
        }
        Ok(some)
    }

    fn take_notice(&mut self, from: usize, notice: Option<Notice>) -> Result<(), MpiError> {
        let shared = Arc::clone(&self.shared);
        match notice {
            None | Some(Notice::Beat) => {}
            Some(Notice::Bye { code, blamed }) => {
                // Of its own loss a process hears if it was silent for too long: over whoever tells it this one ends.
                let blamed = if blamed == shared.rank { from } else { blamed };
                self.lose(Loss { blamed, code: Some(code), told: true });
                if from == before(&shared) {
                    self.watch = None;
                }
            }
            Some(Notice::Lost { blamed }) => {
                self.lose(Loss { blamed, code: None, told: true });
            }
            Some(Notice::Stop) => self.ask_all()?,
            Some(Notice::HowFar) => {
                let begun = shared.agreement.hold();
                self.notify(0, Notice::Begun(begun))?;
            }
            Some(Notice::Begun(begun)) => {
                if let Some(end) = self.poll.as_mut().and_then(|poll| poll.note(from, begun)) {
                    self.tell_end(end)?;
                }
            }
            Some(Notice::End(end)) => shared.agreement.set_end(end),
        }
        Ok(())
    }

    /// Process 0 asks all how far they are, once.
    fn ask_all(&mut self) -> Result<(), MpiError> {
        if self.poll.is_some() {
            return Ok(());
        }
        let size = self.shared.size;
        let mut poll = Poll::new(size);
        let end = poll.note(0, self.shared.agreement.hold());
        self.poll = Some(poll);
        (1..size).try_for_each(|other| self.notify(other, Notice::HowFar))?;
        end.map_or(Ok(()), |end| self.tell_end(end))
    }

    fn tell_end(&mut self, end: u64) -> Result<(), MpiError> {
        self.shared.agreement.set_end(end);
        (1..self.shared.size).try_for_each(|other| self.notify(other, Notice::End(end)))
    }

    /// If this process was asked to stop, all learn of it.
    fn pass_on_request(&mut self) -> Result<(), MpiError> {
        if self.passed_on || !self.asked.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.passed_on = true;
        if self.shared.rank == 0 { self.ask_all() } else { self.notify(0, Notice::Stop) }
    }

    fn notify(&mut self, to: usize, notice: Notice) -> Result<(), MpiError> {
        let mut numbers = self.free_notices.pop().unwrap_or_default();
        numbers.clear();
        numbers.extend(notice.numbers());
        let message = self.net.send(to, NOTICE, numbers)?;
        self.notices.push((to, message));
        Ok(())
    }

    /// Notes a loss, and says whether it is news.
    fn lose(&mut self, loss: Loss) -> bool {
        self.shared.set_loss(loss)
    }

    /// Takes back the buffers of what has left, and hands on what was early.
    fn clear_sent(&mut self) -> Result<bool, MpiError> {
        let before = self.data.len() + self.notices.len();
        let mut at = 0;
        while at < self.data.len() {
            match self.data[at].finished()? {
                Some(buffer) => {
                    self.data.swap_remove(at);
                    self.keep_free(buffer);
                }
                None => at += 1,
            }
        }
        at = 0;
        while at < self.notices.len() {
            match self.notices[at].1.finished()? {
                Some(numbers) => {
                    self.notices.swap_remove(at);
                    self.free_notices.push(numbers);
                }
                None => at += 1,
            }
        }
        self.early.hand_on(&self.shared);
        Ok(self.data.len() + self.notices.len() < before)
    }

    /// Keeps a buffer for what comes in: a few of each size, since of most sizes as many leave as come.
    fn keep_free(&mut self, buffer: Vec<f32>) {
        let most = 2 + self.shared.size.ilog2() as usize;
        let same = self.free.iter().filter(|other| other.capacity() == buffer.capacity()).count();
        if same < most && self.free.len() < MOST_FREE {
            self.free.push(buffer);
        }
    }

    fn keep_watch(&mut self) -> Result<(), MpiError> {
        let shared = Arc::clone(&self.shared);
        let (previous, next) = (before(&shared), (shared.rank + 1) % shared.size);
        // Whoever has nothing more to do may end before all have seen that.
        let finding = self.watch.as_mut().map_or(Finding::Well, |watch| watch.look(Instant::now()));
        match finding {
            Finding::Well => Ok(()),
            // A process that takes no messages any more gets no more.
            Finding::Beat if self.notices.iter().any(|(to, _)| *to == next) => Ok(()),
            Finding::Beat => self.notify(next, Notice::Beat),
            Finding::Lost => {
                self.watch = None;
                // Between the others this one speaks for the process that cannot.
                if self.lose(Loss { blamed: previous, code: None, told: true }) && !self.closing {
                    let lost = Notice::Lost { blamed: previous };
                    let others = (0..shared.size).filter(|other| ![shared.rank, previous].contains(other));
                    others.into_iter().try_for_each(|other| self.notify(other, lost))?;
                }
                Ok(())
            }
        }
    }

    /// Whether the service is over.
    fn end(&mut self) -> Result<Option<Ended>, MpiError> {
        if let Some(Leaving { since, bye, blamed }) = self.leaving {
            let passed = since.elapsed();
            let said = self.notices.is_empty() && passed > LINGER || passed > LAST_WORDS;
            blamed.filter(|_| said).into_iter().for_each(|blamed| self.tell_blamed(blamed, bye));
            return Ok(said.then_some(Ended::Apart));
        }
        if let Some(barrier) = &mut self.barrier {
            if barrier.finished()?.is_some() {
                return Ok(Some(Ended::Together));
            }
            if self.shared.loss().is_some() {
                return Ok(Some(Ended::Apart));
            }
        }
        Ok(None)
    }

    fn rest(&mut self, busy: bool) {
        if busy {
            self.idle = 0;
            return;
        }
        self.idle = self.idle.saturating_add(1);
        let urgent = self.shared.is_waited_for()
            || !self.incoming.is_empty()
            || !self.data.is_empty()
            || self.barrier.is_some();
        match self.idle {
            ..=LOOKS if urgent => std::hint::spin_loop(),
            ..=YIELDS if urgent => std::thread::yield_now(),
            _ => {
                let rest = if urgent { SHORT_REST } else { LONG_REST };
                let most = self.watch.as_ref().map_or(rest, Watch::every);
                std::thread::park_timeout(rest.min(most));
            }
        }
    }
}

/// The process before this one in the ring.
fn before(shared: &Shared) -> usize {
    (shared.rank + shared.size - 1) % shared.size
}

/// Whom process `rank` of `size` tells that it ends, at once and last of all. Who was told of a loss need not tell: then all were.
/// The next in the ring has to know that this is no loss, too. Whoever is to blame hears it last, from those that nobody told and
/// from the next in the ring, to which it has talked.
fn audience(
    rank: usize,
    size: usize,
    blamed: usize,
    told: bool,
) -> (impl Iterator<Item = usize>, Option<usize>) {
    let next = move |rank: usize| (rank + 1) % size;
    let hears = move |other: usize| ![rank, blamed].contains(&other) && (!told || other == next(rank));
    let last = blamed != rank && (!told || rank == next(blamed));
    ((0..size).filter(move |other| hears(*other)), last.then_some(blamed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_hear_that_a_process_ends_and_whoever_is_to_blame_hears_it_last() {
        let hears = |rank, blamed, told| {
            let (others, last) = audience(rank, 4, blamed, told);
            (others.collect::<Vec<_>>(), last)
        };
        assert_eq!(hears(1, 1, false), (vec![0, 2, 3], None), "its own failure");
        assert_eq!(hears(0, 2, false), (vec![1, 3], Some(2)), "it has waited in vain");
        assert_eq!(hears(0, 2, true), (vec![1], None), "it was told");
        assert_eq!(hears(1, 2, true), (vec![], None), "its next is lost");
        assert_eq!(hears(3, 2, true), (vec![0], Some(2)), "it has watched the lost one");
    }
}
