//! A worker's devices, of either kind: the quadrants of a CPU, or a GPU.

use quadrille_core::device::{Device, DeviceError, DeviceInfo, Event, Lane, Region, Scalars, Span};
use quadrille_core::net::{BlobId, Net, NetLayer, StorageId};
use quadrille_core::task::{Copy, LaneId, Task};
use quadrille_cpu::{
    BlobBytes, Choice, CpuDevice, CpuEvent, CpuWorker, EngineOptions, Homes, MappedWorker, Program,
    Recording, Ticket,
};
use quadrille_gpu::{Cuda, CudaDevice, CudaEvent, CudaWorker, Options};

use crate::crews::OnGpus;
use crate::failure::{Code, Failure};

/// A worker's devices with all they will run: quadrants before they have any memory, or a GPU, which has it already.
pub enum MappedEngine {
    /// Quadrants.
    Cpu(MappedWorker),
    /// A GPU.
    Cuda(CudaWorker),
}

/// What the GPU of a worker runs: the programs of its only device.
pub fn on_gpu(
    gpu: &Cuda,
    programs: &[Program<'_>],
    options: &EngineOptions,
    how: OnGpus,
) -> Result<CudaWorker, Failure> {
    let on_one = |program: &Program<'_>| {
        let [_] = program.nets else {
            return Err(Failure::new(Code::Bug, "a worker has one GPU"));
        };
        Ok(())
    };
    programs.iter().try_for_each(on_one)?;
    let programs = programs.iter().map(|p| quadrille_gpu::Program { net: &p.nets[0], plans: p.plans });
    let OnGpus { arithmetic, graph } = how;
    let options = Options { arithmetic, graph, ..Options::new(options.rule, options.elastic) };
    Ok(gpu.worker(&programs.collect::<Vec<_>>(), &options)?)
}

impl MappedEngine {
    /// Makes the devices, with memory on nodes as `homes` say for each quadrant.
    pub fn place(self, homes: &[Homes]) -> Result<Engine, Failure> {
        Ok(match self {
            Self::Cpu(mapped) => Engine::Cpu(mapped.place(homes)?),
            Self::Cuda(worker) => Engine::Cuda(worker),
        })
    }
}

/// A worker's devices with all they run.
pub enum Engine {
    /// Quadrants.
    Cpu(CpuWorker),
    /// A GPU.
    Cuda(CudaWorker),
}

impl Engine {
    /// The devices, as seen by one of the programs.
    pub fn devices(&self, program: usize) -> Vec<WorkerDevice> {
        match self {
            Self::Cpu(worker) => worker.devices(program).into_iter().map(WorkerDevice::Cpu).collect(),
            Self::Cuda(worker) => vec![WorkerDevice::Cuda(worker.device(program))],
        }
    }

    /// What was chosen for each layer of the first program, whose net on the first device is `net`.
    pub fn choices(&self, net: &Net) -> Vec<Choice> {
        match self {
            Self::Cpu(worker) => worker.choices().to_vec(),
            Self::Cuda(worker) => {
                let kernel = |name: &str| worker.choices().iter().find(|(layer, _)| layer == name);
                let last = |top: &BlobId| worker.has_channels_last(net.blob(*top).data);
                let layout = |layer: &NetLayer| match layer.tops.iter().any(last) {
                    true => "channels last",
                    false => "plain",
                };
                let choice = |layer: &NetLayer| Choice {
                    layer: layer.name.clone(),
                    label: layer.label(),
                    type_name: layer.layer.type_name(),
                    implementation: kernel(&layer.name).map_or("view", |(_, kernel)| kernel),
                    layout: layout(layer).into(),
                    reorders: false,
                    grains: Vec::new(),
                };
                net.layers.iter().map(choice).collect()
            }
        }
    }

    /// From when on the times of all devices count.
    pub fn origin(&self) -> std::time::Instant {
        match self {
            Self::Cpu(worker) => worker.origin(),
            Self::Cuda(worker) => worker.origin(),
        }
    }

    /// What the threads run while the first program does, to be noted; `None` of a GPU.
    pub fn recording(&self) -> Option<Recording> {
        match self {
            Self::Cpu(worker) => Some(worker.recording(0)),
            Self::Cuda(_) => None,
        }
    }

    /// What was refused, or found.
    pub fn notes(&self) -> &[String] {
        match self {
            Self::Cpu(worker) => worker.notes(),
            Self::Cuda(worker) => worker.notes(),
        }
    }

    /// What the values and gradients of one of the programs take on all devices.
    pub fn blob_bytes(&self, program: usize) -> BlobBytes {
        match self {
            Self::Cpu(worker) => worker.blob_bytes(program),
            Self::Cuda(worker) => {
                let [taken, apart] = worker.blob_bytes(program);
                BlobBytes { taken, apart }
            }
        }
    }
}

/// One device of a worker.
#[derive(Clone)]
pub enum WorkerDevice {
    /// A quadrant.
    Cpu(CpuDevice),
    /// A GPU.
    Cuda(CudaDevice),
}

/// A task of a [`WorkerDevice`].
#[derive(Clone)]
pub enum WorkerEvent {
    /// Of a quadrant.
    Cpu(CpuEvent),
    /// Of a GPU.
    Cuda(CudaEvent),
}

impl WorkerEvent {
    /// The first and the last entry that the task has in a lane of a quadrant.
    pub fn entries(&self) -> Option<[Ticket; 2]> {
        match self {
            Self::Cpu(event) => Some(event.entries()),
            Self::Cuda(_) => None,
        }
    }
}

/// Calls the same function of whichever it is.
macro_rules! either {
    ($kind:ident, $value:expr, $it:ident => $call:expr) => {
        match $value {
            $kind::Cpu($it) => $call,
            $kind::Cuda($it) => $call,
        }
    };
}

impl Event for WorkerEvent {
    fn is_done(&self) -> bool {
        either!(Self, self, event => event.is_done())
    }

    fn span(&self) -> Option<Span> {
        either!(Self, self, event => event.span())
    }
}

impl WorkerDevice {
    /// Bytes that an element of a value or gradient takes.
    pub fn element_bytes(&self, id: StorageId) -> usize {
        either!(Self, self, device => device.element_bytes(id))
    }

    /// Whether all `len` values of a region are finite, also of a storage that shares its memory.
    pub fn is_finite(&self, region: Region, len: usize) -> Result<bool, DeviceError> {
        either!(Self, self, device => device.is_finite(region, len))
    }
}

impl Device for WorkerDevice {
    type Event = WorkerEvent;

    fn info(&self) -> &DeviceInfo {
        either!(Self, self, device => device.info())
    }

    fn lanes(&self) -> &[Lane] {
        either!(Self, self, device => device.lanes())
    }

    fn begin(&self, scalars: &Scalars) -> Result<(), DeviceError> {
        either!(Self, self, device => device.begin(scalars))
    }

    fn submit(&self, lane: LaneId, task: &Task) -> Result<WorkerEvent, DeviceError> {
        Ok(match self {
            Self::Cpu(device) => WorkerEvent::Cpu(device.submit(lane, task)?),
            Self::Cuda(device) => WorkerEvent::Cuda(device.submit(lane, task)?),
        })
    }

    fn copy(&self, lane: LaneId, copy: &Copy) -> Result<WorkerEvent, DeviceError> {
        Ok(match self {
            Self::Cpu(device) => WorkerEvent::Cpu(device.copy(lane, copy)?),
            Self::Cuda(device) => WorkerEvent::Cuda(device.copy(lane, copy)?),
        })
    }

    fn wait_on(&self, lane: LaneId, event: &WorkerEvent) -> Result<(), DeviceError> {
        match (self, event) {
            (Self::Cpu(device), WorkerEvent::Cpu(event)) => device.wait_on(lane, event),
            (Self::Cuda(device), WorkerEvent::Cuda(event)) => device.wait_on(lane, event),
            _ => Err(DeviceError::Unknown {
                device: self.info().name.clone(),
                what: "an event of a device of another kind".into(),
            }),
        }
    }

    fn tells_tasks(&self) -> bool {
        either!(Self, self, device => device.tells_tasks())
    }

    fn settle(&self, event: &WorkerEvent) -> Result<(), DeviceError> {
        match (self, event) {
            (Self::Cpu(device), WorkerEvent::Cpu(event)) => device.settle(event),
            (Self::Cuda(device), WorkerEvent::Cuda(event)) => device.settle(event),
            _ => self.synchronize(),
        }
    }

    fn run_ahead(&self) {
        either!(Self, self, device => device.run_ahead());
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        either!(Self, self, device => device.synchronize())
    }

    fn write(&self, region: Region, values: &[f32]) -> Result<(), DeviceError> {
        either!(Self, self, device => device.write(region, values))
    }

    fn read(&self, region: Region, out: &mut [f32]) -> Result<(), DeviceError> {
        either!(Self, self, device => device.read(region, out))
    }
}
