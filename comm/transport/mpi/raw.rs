//! The calls of MPI that the service thread makes, behind a safe face; the crate's unsafe code.
//!
//! rsmpi ties each message in flight to a scope, whose buffers are borrowed until it ends. A service thread has no such
//! scope: messages come and go for as long as the process lives. So a message in flight owns its buffer here, and gives it
//! back when MPI says that it is done.
//!
//! Obligations, for all unsafe blocks of this file:
//! - *One thread.* A [`Net`] is made by the thread that initialised MPI and cannot be sent to another (it holds a raw
//!   pointer's worth of `PhantomData`), nor can an [`InFlight`]. So `MPI_THREAD_FUNNELED` is enough.
//! - *Initialised, not finalised.* A [`Net`] holds the `Universe`; [`Net::finalize`] takes it, and nothing can be called
//!   afterwards. Whoever cannot finalise forgets it.
//! - *Buffers live.* What MPI reads from or writes to is the heap memory of a `Vec` that an [`InFlight`] owns and does not
//!   touch. If one is dropped before it is done its memory is leaked, since MPI may still use it.
//! - *Handles are MPI's.* Handles come from MPI or from rsmpi's constants, and are passed on as they are.

use std::ffi::c_int;
use std::marker::PhantomData;
use std::mem::{ManuallyDrop, MaybeUninit};

use mpi::Threading;
use mpi::environment::Universe;
use mpi::ffi;
use mpi::traits::{AsRaw, Communicator, CommunicatorCollectives};

/// A type of values that can travel.
pub(super) trait Word: Copy + Default {
    fn datatype() -> ffi::MPI_Datatype;
}

impl Word for f32 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: a constant of rsmpi's shim.
        unsafe { ffi::RSMPI_FLOAT }
    }
}

impl Word for u64 {
    fn datatype() -> ffi::MPI_Datatype {
        // SAFETY: as above.
        unsafe { ffi::RSMPI_UINT64_T }
    }
}

/// An error that MPI returned, with the call.
#[derive(Debug, Clone, Copy)]
pub(super) struct MpiError {
    pub(super) call: &'static str,
    pub(super) code: c_int,
}

fn checked(call: &'static str, code: c_int) -> Result<(), MpiError> {
    if code == 0 { Ok(()) } else { Err(MpiError { call, code }) }
}

/// A message whose buffer MPI is still using.
pub(super) struct InFlight<W> {
    request: ffi::MPI_Request,
    /// `None` once it is given back.
    buffer: ManuallyDrop<Option<Vec<W>>>,
    here: PhantomData<*const ()>,
}

impl<W: Word> InFlight<W> {
    /// The buffer, if MPI is done with it. Not to be called again once it is.
    pub(super) fn finished(&mut self) -> Result<Option<Vec<W>>, MpiError> {
        let mut flag = 0;
        // SAFETY: the request is one that MPI gave; see the top of the file. A status that is to be ignored may be null in
        // MPI's own sense, which the constant is.
        let code = unsafe { ffi::MPI_Test(&mut self.request, &mut flag, ffi::RSMPI_STATUS_IGNORE) };
        checked("MPI_Test", code)?;
        Ok(if flag == 0 { None } else { self.buffer.take() })
    }
}

/// A message that has come, but has no buffer yet.
pub(super) struct Arrival {
    /// The process that sent it.
    pub(super) from: usize,
    /// Its tag.
    pub(super) tag: i32,
    message: ffi::MPI_Message,
    status: ffi::MPI_Status,
}

impl Arrival {
    /// How many values of type `W` it has.
    pub(super) fn len<W: Word>(&self) -> Result<usize, MpiError> {
        let mut count = 0;
        // SAFETY: the status is that of the probe that made this.
        checked("MPI_Get_count", unsafe { ffi::MPI_Get_count(&self.status, W::datatype(), &mut count) })?;
        usize::try_from(count).map_err(|_| MpiError { call: "MPI_Get_count", code: count })
    }

    /// Begins to receive it into `buffer`, which gets as many values as it has.
    pub(super) fn receive<W: Word>(
        mut self,
        mut buffer: Vec<W>,
        len: usize,
    ) -> Result<InFlight<W>, MpiError> {
        buffer.clear();
        buffer.resize(len, W::default());
        let (count, mut request) = (count_of(len)?, MaybeUninit::uninit());
        // SAFETY: the buffer has room for `len` values and is owned by what is returned; if the call fails it is dropped, as
        // no operation was started.
        let code = unsafe {
            ffi::MPI_Imrecv(
                buffer.as_mut_ptr().cast(),
                count,
                W::datatype(),
                &mut self.message,
                request.as_mut_ptr(),
            )
        };
        checked("MPI_Imrecv", code)?;
        // SAFETY: the call succeeded, so it wrote the request.
        let request = unsafe { request.assume_init() };
        Ok(InFlight { request, buffer: ManuallyDrop::new(Some(buffer)), here: PhantomData })
    }
}

fn count_of(len: usize) -> Result<c_int, MpiError> {
    c_int::try_from(len).map_err(|_| MpiError { call: "a message of more than 2^31 values", code: 0 })
}

/// All processes that were started together.
pub(super) struct Net {
    universe: Universe,
    comm: ffi::MPI_Comm,
    here: PhantomData<*const ()>,
}

impl Net {
    /// Initialises MPI for the thread that calls. `None` if it is initialised already or cannot serve a process that has
    /// several threads.
    pub(super) fn initialise() -> Option<Self> {
        let (universe, threading) = mpi::initialize_with_threading(Threading::Funneled)?;
        if threading < Threading::Funneled {
            return None;
        }
        let comm = universe.world().as_raw();
        // SAFETY: the communicator of all processes, and a constant of the shim. From here on errors are returned; by default
        // they end the process with a code of MPI's own.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(comm, ffi::RSMPI_ERRORS_RETURN) };
        (code == 0).then_some(Net { universe, comm, here: PhantomData })
    }

    pub(super) fn rank(&self) -> usize {
        self.universe.world().rank() as usize
    }

    pub(super) fn size(&self) -> usize {
        self.universe.world().size() as usize
    }

    /// What each process on this node says of itself, this one's place among them, and theirs among all. Every process of
    /// the job calls this once; it waits for those of the node.
    pub(super) fn gather_on_node(&self, own: &[u64]) -> (usize, Vec<Vec<u64>>) {
        let world = self.universe.world();
        let node = world.split_shared(world.rank());
        let mut all = vec![0; own.len() * node.size() as usize];
        node.all_gather_into(own, &mut all[..]);
        (node.rank() as usize, all.chunks(own.len()).map(<[u64]>::to_vec).collect())
    }

    /// Begins to send all of `buffer`.
    pub(super) fn send<W: Word>(&self, to: usize, tag: i32, buffer: Vec<W>) -> Result<InFlight<W>, MpiError> {
        let (count, mut request) = (count_of(buffer.len())?, MaybeUninit::uninit());
        // SAFETY: the buffer is owned by what is returned; if the call fails it is dropped, as no operation was started.
        let code = unsafe {
            ffi::MPI_Isend(
                buffer.as_ptr().cast(),
                count,
                W::datatype(),
                to as c_int,
                tag,
                self.comm,
                request.as_mut_ptr(),
            )
        };
        checked("MPI_Isend", code)?;
        // SAFETY: the call succeeded, so it wrote the request.
        let request = unsafe { request.assume_init() };
        Ok(InFlight { request, buffer: ManuallyDrop::new(Some(buffer)), here: PhantomData })
    }

    /// The next message of anybody, if one is there.
    pub(super) fn arrival(&self) -> Result<Option<Arrival>, MpiError> {
        let (mut flag, mut message, mut status) = (0, MaybeUninit::uninit(), MaybeUninit::uninit());
        // SAFETY: plain output arguments.
        let code = unsafe {
            ffi::MPI_Improbe(
                ffi::RSMPI_ANY_SOURCE,
                ffi::RSMPI_ANY_TAG,
                self.comm,
                &mut flag,
                message.as_mut_ptr(),
                status.as_mut_ptr(),
            )
        };
        checked("MPI_Improbe", code)?;
        if flag == 0 {
            return Ok(None);
        }
        // SAFETY: with the flag set the call wrote both.
        let (message, status): (ffi::MPI_Message, ffi::MPI_Status) =
            unsafe { (message.assume_init(), status.assume_init()) };
        Ok(Some(Arrival { from: status.MPI_SOURCE as usize, tag: status.MPI_TAG, message, status }))
    }

    /// Begins to wait for all processes; done when all have come.
    pub(super) fn barrier(&self) -> Result<InFlight<u64>, MpiError> {
        let mut request = MaybeUninit::uninit();
        // SAFETY: a plain output argument.
        checked("MPI_Ibarrier", unsafe { ffi::MPI_Ibarrier(self.comm, request.as_mut_ptr()) })?;
        // SAFETY: the call succeeded, so it wrote the request.
        let request = unsafe { request.assume_init() };
        Ok(InFlight { request, buffer: ManuallyDrop::new(Some(Vec::new())), here: PhantomData })
    }

    /// Ends MPI in good order, which may wait for the others.
    pub(super) fn finalize(self) {
        drop(self.universe);
    }

    /// Leaves MPI as it is: with a process missing `MPI_Finalize` may never return.
    pub(super) fn forget(self) {
        std::mem::forget(self.universe);
    }
}

/// Which MPI this program runs with, in one line.
pub(super) fn library() -> String {
    let text = mpi::environment::library_version().unwrap_or_default();
    text.lines().next().unwrap_or_default().trim_end_matches('\0').trim().to_owned()
}

/// Ends the process at once, without what libraries want to do at the end: that of MPI may wait for processes that are gone.
pub(super) fn exit_now(code: u8) -> ! {
    // SAFETY: ends the process; no Rust code runs afterwards.
    unsafe { libc::_exit(c_int::from(code)) }
}
