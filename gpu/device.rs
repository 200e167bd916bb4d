//! `CudaDevice`: a GPU as a device of the one scheduler. Its lanes are streams.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Instant;

use quadrille_core::device::{Device, DeviceError, DeviceInfo, Event, Lane, Region, Scalars, Span};
use quadrille_core::net::StorageId;
use quadrille_core::solver::RuleKind;
use quadrille_core::task::{Copy, LaneId, Task};

use crate::driver::{self, Arena, Blas, Dnn, Gpu, HostBuffer, Slice, Stream};
use crate::program::{BoundProgram, Ready};
use crate::step::{Clock, Graphs, Moment};

/// Elements of each half of the buffer through which the host reads and writes: 4 MiB.
const CHUNK: usize = 1 << 20;

/// A lane: a stream, and what its tasks use while they run.
pub(crate) struct LaneStream {
    pub blas: Option<Mutex<Blas>>,
    pub dnn: Option<Mutex<Dnn>>,
    pub workspace: Slice,
    /// Goes after the libraries' handles, which have it.
    pub stream: Stream,
}

/// The host's way to the GPU's memory, on a stream of its own, so that reading and writing wait for no task.
pub(crate) struct Copier {
    stream: Stream,
    /// Two halves: one is filled while the other is copied.
    buffers: [HostBuffer; 2],
    /// Behind the last copy from each half.
    pub done: [driver::Event; 2],
    next: usize,
}

impl Copier {
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, String> {
        let (lowest, _) = gpu.priorities()?;
        let buffer = || HostBuffer::new(gpu, CHUNK);
        Ok(Self {
            stream: Stream::new(gpu, lowest)?,
            buffers: [buffer()?, buffer()?],
            done: [driver::Event::new(gpu)?, driver::Event::new(gpu)?],
            next: 0,
        })
    }

    /// Copies to the GPU. The values are taken when this returns; that they are there, the next step waits for.
    fn write(&mut self, values: &[f32], to: Slice) -> Result<(), String> {
        for (index, chunk) in values.chunks(CHUNK).enumerate() {
            let half = self.next;
            self.next = 1 - half;
            self.done[half].synchronize()?;
            self.buffers[half].values_mut()[..chunk.len()].copy_from_slice(chunk);
            self.stream.copy_in(&self.buffers[half], 0, to.part(index * CHUNK, chunk.len()))?;
            self.stream.record(&self.done[half])?;
        }
        Ok(())
    }

    /// Values of the GPU, at most a chunk of them.
    fn read(&mut self, from: Slice) -> Result<&[f32], String> {
        let half = self.next;
        self.done[half].synchronize()?;
        self.stream.copy_out(from, &mut self.buffers[half])?;
        Ok(&self.buffers[half].values()[..from.len])
    }
}

/// Words of the kernels' `struct Scalars`.
pub(crate) const SCALARS: usize = 6;

/// `struct Scalars` of the kernels, word by word.
pub(crate) fn words(scalars: &Scalars, rule: RuleKind) -> [f32; SCALARS] {
    let [low, high] = [scalars.seed as u32, (scalars.seed >> 32) as u32].map(f32::from_bits);
    let correction = rule.rate_correction(scalars.iteration);
    [scalars.rate, scalars.elastic, correction, 0.0, low, high]
}

/// Matrices of so many rows and columns, one behind the other, each turned.
fn turned(values: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut out = vec![0.0; values.len()];
    for (from, to) in values.chunks(rows * columns).zip(out.chunks_mut(rows * columns)) {
        for (index, value) in from.iter().enumerate() {
            to[index % columns * rows + index / columns] = *value;
        }
    }
    out
}

/// A GPU with all that it runs.
pub(crate) struct Shared {
    pub info: DeviceInfo,
    pub gpu: Arc<Gpu>,
    pub streams: Vec<LaneStream>,
    pub lanes: Vec<Lane>,
    pub programs: Vec<BoundProgram>,
    /// Their plans as graphs, if there are any.
    pub graphs: Graphs,
    pub copier: Mutex<Copier>,
    pub clock: Mutex<Clock>,
    /// Where the scalars lie on the GPU.
    pub scalars: Slice,
    pub rule: RuleKind,
    /// Recorded when the scalars of a step are there: other lanes wait for it, and times count from it.
    pub ready: driver::Event,
    /// What host and GPU count from.
    pub origin: Instant,
    /// Why the device takes no more.
    pub failure: Mutex<Option<String>>,
    /// Where an array of the arena lies.
    pub arena: Arena,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Whatever is under way ends before the memory that it works on goes; a failure was told before.
        for lane in &self.streams {
            let _ = lane.stream.synchronize();
        }
        if let Ok(copier) = self.copier.lock() {
            let _ = copier.stream.synchronize();
        }
    }
}

impl Shared {
    fn failed(&self, reason: String) -> DeviceError {
        if let Ok(mut failure) = self.failure.lock() {
            failure.get_or_insert_with(|| reason.clone());
        }
        DeviceError::Failed { device: self.info.name.clone(), reason }
    }

    /// The result of calls to the driver; after a failure the device takes no more.
    pub fn done<T>(&self, result: Result<T, String>) -> Result<T, DeviceError> {
        result.map_err(|reason| self.failed(reason))
    }

    fn check_alive(&self) -> Result<(), DeviceError> {
        let failure = self.failure.lock().map_or(Some("a thread ended in the middle".into()), |f| f.clone());
        failure.map_or(Ok(()), |reason| Err(DeviceError::Failed { device: self.info.name.clone(), reason }))
    }

    pub fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> Result<std::sync::MutexGuard<'a, T>, DeviceError> {
        mutex.lock().map_err(|_| self.failed("a thread ended in the middle of a call".into()))
    }

    fn unknown(&self, what: String) -> DeviceError {
        DeviceError::Unknown { device: self.info.name.clone(), what }
    }

    /// Gives `visit` one chunk of the GPU's values after the other. Between two of them others have their turn: a step begins
    /// while weights that it does not change are on their way to other workers.
    fn read(&self, from: Slice, mut visit: impl FnMut(usize, &[f32])) -> Result<(), DeviceError> {
        for start in (0..from.len).step_by(CHUNK) {
            let mut copier = self.lock(&self.copier)?;
            let values = copier.read(from.part(start, CHUNK.min(from.len - start)));
            visit(start, self.done(values)?);
        }
        Ok(())
    }

    /// Makes sure that there is such a lane.
    fn check_lane(&self, lane: LaneId) -> Result<(), DeviceError> {
        self.check_alive()?;
        match lane.0 < self.streams.len() {
            true => Ok(()),
            false => Err(self.unknown(format!("lane {}", lane.0))),
        }
    }

    /// Waits until every lane is empty.
    pub fn synchronize(&self) -> Result<(), DeviceError> {
        let flushed = self.flush();
        let all = self.streams.iter().map(|lane| lane.stream.synchronize());
        self.done(all.fold(Ok(()), Result::and)).and(flushed)?;
        self.check_alive()
    }
}

impl LaneStream {
    /// Puts an operation into the stream.
    pub fn run(&self, op: &Ready) -> Result<(), String> {
        let lost = || "a thread ended in the middle of a call".to_owned();
        match op {
            Ready::Launch(launch) => launch.launch(&self.stream, self.workspace),
            Ready::Copy(from, to) => self.stream.copy(*from, *to),
            Ready::Product(product, arrays) => {
                let [a, b, c] = arrays.map(|array| array.slice(self.workspace));
                let blas = self.blas.as_ref().ok_or("a lane without cuBLAS")?;
                blas.lock().map_err(|_| lost())?.multiply(product, a, b, c)
            }
            Ready::Convolve(convolver, arrays, workspace) => {
                let dnn = self.dnn.as_ref().ok_or("a lane without cuDNN")?;
                let arrays = arrays.map(|array| array.slice(self.workspace));
                let workspace = self.workspace.part(workspace.start, workspace.len);
                convolver.run(&*dnn.lock().map_err(|_| lost())?, arrays, workspace)
            }
        }
    }
}

/// One GPU, running one program.
#[derive(Clone)]
pub struct CudaDevice {
    shared: Arc<Shared>,
    program: usize,
}

/// A task of a [`CudaDevice`].
#[derive(Clone)]
pub struct CudaEvent {
    shared: Arc<Shared>,
    moment: Moment,
}

impl Event for CudaEvent {
    fn is_done(&self) -> bool {
        self.shared.is_done(self.moment)
    }

    fn span(&self) -> Option<Span> {
        self.shared.span(self.moment)
    }
}

impl CudaDevice {
    pub(crate) fn new(shared: Arc<Shared>, program: usize) -> Self {
        Self { shared, program }
    }

    fn bound(&self) -> &BoundProgram {
        &self.shared.programs[self.program]
    }

    fn slice(&self, region: Region, len: usize) -> Result<Slice, DeviceError> {
        self.shared.check_alive()?;
        let span = self.bound().map.region(region, len);
        let span = span.ok_or_else(|| self.shared.unknown(format!("{len} elements of {region:?}")))?;
        Ok(self.shared.arena.slice(span.start, span.len))
    }

    /// Channels and pixels of a region whose channels lie last.
    fn channels_last(&self, region: Region) -> Option<[usize; 2]> {
        match region {
            Region::Storage(id) => self.bound().map.channels_last(id),
            _ => None,
        }
    }

    /// Bytes that an element of a value or gradient takes on this device.
    pub fn element_bytes(&self, _: StorageId) -> usize {
        size_of::<f32>()
    }

    /// Whether all `len` values of a region are finite. Also of a storage that shares its memory, whose values are there from
    /// the task that wrote them to the next that writes to the same memory.
    ///
    /// # Errors
    /// If the device has failed, or the net has no such region.
    pub fn is_finite(&self, region: Region, len: usize) -> Result<bool, DeviceError> {
        let slice = match region {
            Region::Storage(id) => {
                self.shared.check_alive()?;
                let stored = self.bound().map.stored(id).filter(|span| span.len == len);
                let unknown = || self.shared.unknown(format!("{len} elements of {region:?}"));
                stored.map(|span| self.shared.arena.slice(span.start, span.len)).ok_or_else(unknown)?
            }
            other => self.slice(other, len)?,
        };
        let mut finite = true;
        self.shared.read(slice, |_, values| finite &= values.iter().all(|value| value.is_finite()))?;
        Ok(finite)
    }
}

impl Device for CudaDevice {
    type Event = CudaEvent;

    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn lanes(&self) -> &[Lane] {
        &self.shared.lanes
    }

    fn begin(&self, scalars: &Scalars) -> Result<(), DeviceError> {
        self.shared.check_alive()?;
        self.shared.begin_step(self.program, scalars)
    }

    fn submit(&self, lane: LaneId, task: &Task) -> Result<CudaEvent, DeviceError> {
        let shared = &self.shared;
        shared.check_lane(lane)?;
        if !self.bound().tasks.contains_key(task) {
            return Err(shared.unknown(format!("{task:?}")));
        }
        let moment = shared.add_task(lane.0, *task)?;
        Ok(CudaEvent { shared: shared.clone(), moment })
    }

    fn copy(&self, _: LaneId, copy: &Copy) -> Result<CudaEvent, DeviceError> {
        Err(self.shared.unknown(format!("{copy:?}: a worker has one GPU")))
    }

    fn wait_on(&self, lane: LaneId, event: &CudaEvent) -> Result<(), DeviceError> {
        self.shared.check_lane(lane)?;
        if !Arc::ptr_eq(&self.shared, &event.shared) {
            return Err(self.shared.unknown("an event of another worker".into()));
        }
        self.shared.add_wait(lane.0, event.moment)
    }

    /// Never: a step may be a graph, and the events of tasks are used again in the next one.
    fn tells_tasks(&self) -> bool {
        false
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        self.shared.synchronize()
    }

    fn write(&self, region: Region, values: &[f32]) -> Result<(), DeviceError> {
        let to = self.slice(region, values.len())?;
        let turned = self.channels_last(region).map(|[channels, pixels]| turned(values, [channels, pixels]));
        let values = turned.as_deref().unwrap_or(values);
        let mut copier = self.shared.lock(&self.shared.copier)?;
        self.shared.done(copier.write(values, to))
    }

    fn read(&self, region: Region, out: &mut [f32]) -> Result<(), DeviceError> {
        let from = self.slice(region, out.len())?;
        let to = &mut *out;
        self.shared.read(from, |start, values| to[start..start + values.len()].copy_from_slice(values))?;
        if let Some([channels, pixels]) = self.channels_last(region) {
            out.copy_from_slice(&turned(out, [pixels, channels]));
        }
        Ok(())
    }
}
