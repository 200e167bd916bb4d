//! The public face with CUDA.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use quadrille_core::device::{DeviceError, DeviceInfo, Lane};
use quadrille_core::net::{Net, StorageId};
use quadrille_core::plan::lanes::Limits;
use quadrille_core::task::Task;

use crate::driver::{self, Arena, Blas, Compiler, Convolver, Dnn, Event, Gpu, Module, Slice, Stream};
use crate::layer::DnnWorkspace;
use crate::memory::{PackedMap, Space};
use crate::op::{Convolve, Geometry, Op, Span};
use crate::program::{BoundProgram, Convolvers, Loader, MappedProgram, dnn_workspace, refusals};
use crate::source::{COMMON, SOURCES, Signatures};
use crate::spec::{Arithmetic, CudaError, Options, Program, Sighting};
use crate::step::{Clock, Graphs};

use crate::device::{Copier, LaneStream, SCALARS, Shared};
pub use crate::device::{CudaDevice, CudaEvent};

/// How many GPUs there are.
///
/// # Errors
/// If there is none, or no driver.
pub fn count() -> Result<usize, DeviceError> {
    let environment = |reason| DeviceError::Environment { device: "cuda:all".into(), reason };
    match driver::count().map_err(environment)? {
        0 => Err(environment("the driver sees no GPU".into())),
        count => Ok(count),
    }
}

/// One line for `topo`: the GPUs, or why there are none.
pub fn describe() -> String {
    let gpus = driver::count().and_then(|count| (0..count).map(Gpu::open).collect::<Result<Vec<_>, _>>());
    match gpus {
        Err(reason) => format!("none: {reason}"),
        Ok(gpus) if gpus.is_empty() => "none: the driver sees no GPU".into(),
        Ok(gpus) => {
            let each =
                gpus.iter().enumerate().map(|(ordinal, gpu)| format!("cuda:{ordinal} {}", summary(gpu)));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

/// A GPU in words.
fn summary(gpu: &Gpu) -> String {
    let (major, minor, gib) = (gpu.capability / 10, gpu.capability % 10, gpu.memory >> 30);
    let multiprocessors = gpu.multiprocessors;
    format!("{} (capability {major}.{minor}, {multiprocessors} multiprocessors, {gib} GiB)", gpu.name)
}

/// A GPU that was opened, with the kernels that were compiled for it so far.
#[derive(Clone)]
pub struct Cuda {
    gpu: Arc<Gpu>,
    name: String,
    compiler: Compiler,
    modules: Arc<Mutex<HashMap<usize, Arc<Module>>>>,
}

impl Cuda {
    /// GPU number `ordinal`.
    ///
    /// # Errors
    /// If there is no such GPU, or what compiles kernels is missing.
    pub fn open(ordinal: usize) -> Result<Self, DeviceError> {
        let name = format!("cuda:{ordinal}");
        let environment = |reason| DeviceError::Environment { device: name.clone(), reason };
        let gpu = Gpu::open(ordinal).map_err(environment)?;
        let compiler = Compiler::find().map_err(environment)?;
        Ok(Self { gpu, name, compiler, modules: Arc::default() })
    }

    /// Its name as `--device` has it, such as cuda:0, and the driver's.
    pub fn name(&self) -> String {
        format!("{} ({})", self.name, self.gpu.name)
    }

    /// What it has, as the driver says it: GLP4NN's figures.
    ///
    /// # Errors
    /// If the driver does not say it.
    pub fn limits(&self) -> Result<Limits, DeviceError> {
        let environment = |reason| DeviceError::Environment { device: self.name.clone(), reason };
        self.gpu.limits().map_err(environment)
    }

    /// A worker on the GPU, with all arrays of the nets of `programs` in its memory, and the kernels that their plans ask for.
    /// Programs share weights, gradients, histories and centre.
    ///
    /// # Errors
    /// If the GPU has too little memory, a layer has no kernel, or a plan is not valid.
    pub fn worker(&self, programs: &[Program<'_>], options: &Options) -> Result<CudaWorker, CudaError> {
        let environment =
            |reason| CudaError::Device(DeviceError::Environment { device: self.name.clone(), reason });
        self.check(options.arithmetic).map_err(environment)?;
        let streams = streams(&self.gpu, &lanes_of(programs)).map_err(environment)?;
        let Libraries { found_blas, dnn, notes } = Libraries::find(&self.gpu, &streams, programs, options);
        let chosen = RefCell::new(Convolvers::new());
        let of = dnn.as_ref().map(|dnn| {
            let chosen = &chosen;
            move |geometry: &Geometry, direction| {
                dnn_workspace((dnn, chosen), options.arithmetic, geometry, direction)
            }
        });
        let layout = Layout::new(programs, options, found_blas, of.as_ref().map(|of| of as _))?;
        let choices = layout.programs.first().map_or(Vec::new(), |program| program.choices.clone());
        let place = Place { cuda: self, options, chosen: &chosen, dnn: dnn.is_some() };
        let (mut shared, memory) = place.shared(layout, streams, lanes_of(programs)).map_err(environment)?;
        let plans: Vec<_> = programs.iter().map(|program| program.plans).collect();
        let recorded = match options.graph {
            true => {
                shared.warm_up(&plans)?;
                Some(shared.record_graphs(&plans))
            }
            false => None,
        };
        let graphs = graphs_note(&shared.graphs, recorded);
        let notes = [memory].into_iter().chain(notes).chain(refusals(&chosen.borrow())).chain([graphs]);
        let notes = notes.map(|note| format!("gpu         {note}")).collect();
        Ok(CudaWorker { shared: Arc::new(shared), arithmetic: options.arithmetic, choices, notes })
    }

    /// Refuses what the GPU has no units for.
    fn check(&self, arithmetic: Arithmetic) -> Result<(), String> {
        let (major, minor) = (self.gpu.capability / 10, self.gpu.capability % 10);
        match arithmetic {
            Arithmetic::Bf16 if major < 8 => Err(format!(
                "bf16 needs a GPU of compute capability 8.0 or later; {} has {major}.{minor} (leave --precision out)",
                self.gpu.name
            )),
            _ => Ok(()),
        }
    }

    /// The kernels of a source, compiled when they are first asked for.
    fn module(&self, index: usize) -> Result<Arc<Module>, String> {
        let mut modules = self.modules.lock().map_err(|_| "a thread ended while it compiled kernels")?;
        if let Some(module) = modules.get(&index) {
            return Ok(module.clone());
        }
        let ((name, text), target) = (SOURCES[index], self.compiler.target(self.gpu.capability));
        let image = self.compiler.compile(name, &format!("{COMMON}{text}"), target)?;
        let module = Module::load(&self.gpu, &image)?;
        modules.insert(index, module.clone());
        Ok(module)
    }
}

/// A worker's GPU with all that it runs.
pub struct CudaWorker {
    shared: Arc<Shared>,
    arithmetic: Arithmetic,
    choices: Vec<(String, &'static str)>,
    notes: Vec<String>,
}

/// Floating-point operations of a multiprocessor in a clock, by the data sheets of the large GPU of each capability: the driver
/// does not say it.
fn flops_per_clock(capability: i32, arithmetic: Arithmetic) -> f64 {
    // Volta, Turing and the large Ampere have half as many adders in a multiprocessor as later ones.
    let plain = if capability <= 80 { 128.0 } else { 256.0 };
    let tf32 = match capability {
        ..80 => return plain,
        80 => 1024.0,
        81..89 => 256.0,
        89 => 512.0,
        90..100 => 2048.0,
        100..120 => 4096.0,
        _ => 512.0,
    };
    match arithmetic {
        Arithmetic::F32 => plain,
        Arithmetic::Tf32 => tf32,
        Arithmetic::Bf16 => 2.0 * tf32,
    }
}

/// The lanes of a GPU, a stream each: as many as a plan of `programs` has. Streams belong to all programs, so the priority of
/// one is that of the first plan that has it: a training's. Those that the GPU does not tell apart become one.
fn lanes_of(programs: &[Program<'_>]) -> Vec<Lane> {
    let mut lanes: Vec<Lane> = Vec::new();
    for plan in programs.iter().flat_map(|program| program.plans) {
        lanes.extend(plan.lanes.iter().skip(lanes.len()));
    }
    lanes
}

impl CudaWorker {
    /// The device, as seen by one of the programs.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn device(&self, program: usize) -> CudaDevice {
        assert!(program < self.shared.programs.len(), "program {program}");
        CudaDevice::new(self.shared.clone(), program)
    }

    /// From when on the times of its tasks count.
    pub fn origin(&self) -> Instant {
        self.shared.origin
    }

    /// Whether steps are launched as graphs; a step whose tasks are to have times of their own is not.
    pub fn has_graphs(&self) -> bool {
        self.shared.graphs.sizes().next().is_some()
    }

    /// From the next step on, launches steps as graphs, where there are any, or task by task.
    pub fn use_graphs(&self, them: bool) {
        self.shared.graphs.use_them(them);
    }

    /// Runs tasks of the first program one kernel after the other, each alone, and says what they use. What is in memory after that
    /// is no step's.
    ///
    /// # Errors
    /// If the device fails, or does not know a task.
    pub fn first_sight(&self, tasks: &[Task]) -> Result<Vec<Sighting>, DeviceError> {
        self.shared.first_sight(tasks)
    }

    /// What computes each layer of the first program.
    pub fn choices(&self) -> &[(String, &'static str)] {
        &self.choices
    }

    /// Whether the channels of a storage of the first program lie behind the pixels.
    pub fn has_channels_last(&self, id: StorageId) -> bool {
        self.shared.programs.first().is_some_and(|program| program.map.channels_last(id).is_some())
    }

    /// What was decided and found, for the first lines of a run.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The most that the GPU can do, by the clocks that its driver says: GFLOP/s of multiply-adds as its products are computed,
    /// in tensor cores for all but f32, and GB/s from and to memory, which moves two words a clock.
    pub fn ceilings(&self) -> [f64; 2] {
        let gpu = &self.shared.gpu;
        let flops = flops_per_clock(gpu.capability, self.arithmetic);
        let [compute, memory] = gpu.clocks.map(|khz| f64::from(khz) * 1e-6);
        let bytes = f64::from(gpu.memory_bits) / 8.0;
        [gpu.multiprocessors as f64 * flops * compute, 2.0 * bytes * memory]
    }

    /// Bytes of a program's values and gradients: in memory, and what they would take if none shared memory.
    ///
    /// # Panics
    /// If there is no such program.
    pub fn blob_bytes(&self, program: usize) -> [usize; 2] {
        self.shared.programs[program].map.blobs().map(|elements| elements * size_of::<f32>())
    }
}

/// What became of recording graphs, if it was tried.
fn graphs_note(graphs: &Graphs, recorded: Option<Result<(), String>>) -> String {
    match recorded {
        None => "each task is launched by itself, without CUDA graphs".into(),
        Some(Err(reason)) => format!("each task is launched by itself; no CUDA graph: {reason}"),
        Some(Ok(())) => {
            let sizes = graphs.sizes().map(|[tasks, nodes]| format!("{tasks} tasks in {nodes} operations"));
            format!("a step is one CUDA graph: {}", sizes.collect::<Vec<_>>().join(", "))
        }
    }
}

/// A stream for each lane, of a priority from the GPU's own range.
fn streams(gpu: &Arc<Gpu>, lanes: &[Lane]) -> Result<Vec<Stream>, String> {
    let (lowest, highest) = gpu.priorities()?;
    // The highest is the smallest number. Lanes beyond the range have the lowest.
    let priority = |lane: &Lane| (highest + i32::from(lane.priority)).min(lowest);
    lanes.iter().map(|lane| Stream::new(gpu, priority(lane))).collect()
}

/// The libraries that are there and wanted, and what to say of them.
struct Libraries {
    found_blas: bool,
    dnn: Option<Dnn>,
    notes: Vec<String>,
}

impl Libraries {
    fn find(gpu: &Arc<Gpu>, streams: &[Stream], programs: &[Program<'_>], options: &Options) -> Self {
        use quadrille_core::layer::Layer;
        let nets = || programs.iter().flat_map(|program| &program.net.layers);
        let has = |is: fn(&Layer) -> bool| nets().any(|layer| is(&layer.layer));
        let mut notes = Vec::new();
        let wants_blas = options.libraries.blas && has(|layer| matches!(layer, Layer::InnerProduct(_)));
        let found_blas = wants_blas && Blas::is_present();
        if wants_blas && !found_blas {
            notes.push("cuBLAS was not found: inner products by kernels of our own".into());
        }
        let wants_dnn = options.libraries.dnn && has(|layer| matches!(layer, Layer::Convolution(_)));
        let dnn = match (wants_dnn && Dnn::is_present(), streams.first()) {
            (true, Some(stream)) => Dnn::new(gpu, stream),
            _ => Err("cuDNN was not found".into()),
        };
        match &dnn {
            Ok(_) => notes.push(format!("convolutions by cuDNN {}", Dnn::version())),
            Err(reason) if wants_dnn => {
                notes.push(format!("{reason}: convolutions by kernels of our own"));
            }
            Err(_) => {}
        }
        Self { found_blas, dnn: dnn.ok(), notes }
    }
}

/// Where everything lies, before there is memory.
struct Layout {
    space: Space,
    programs: Vec<MappedProgram>,
    scalars: Span,
    /// Of each lane.
    workspaces: Vec<Span>,
    /// Of each lane, for cuBLAS.
    blas: Vec<Option<Span>>,
}

impl Layout {
    fn new(
        programs: &[Program<'_>],
        options: &Options,
        by_blas: bool,
        dnn: Option<DnnWorkspace<'_>>,
    ) -> Result<Self, CudaError> {
        let nets = || programs.iter().map(|program| program.net);
        let first = nets().next().ok_or_else(|| CudaError::Plan("there is nothing to run".into()))?;
        if nets().any(|net| !is_like(net, first)) {
            let reason = "nets with other parameters cannot share one packed buffer";
            return Err(CudaError::Plan(reason.into()));
        }
        let gathers = nets().any(|net| net.parts > 1);
        let (mut space, histories) = (Space::default(), options.rule.kind.histories());
        let packed = PackedMap::new(&mut space, first.params.len(), histories, options.elastic, gathers);
        let scalars = space.reserve(SCALARS);
        let mapped: Result<Vec<MappedProgram>, CudaError> = programs
            .iter()
            .map(|program| MappedProgram::new(program, packed, scalars, &mut space, options, by_blas, dnn))
            .collect();
        let mapped = mapped?;
        let lanes = 0..lanes_of(programs).len();
        let needed = |lane: usize| {
            let each = mapped.iter().zip(programs).map(|(mapped, p)| mapped.workspace(p.plans, lane));
            each.max().unwrap_or(0)
        };
        let workspaces = lanes.clone().map(|lane| space.reserve(needed(lane))).collect();
        let tasks = || mapped.iter().flat_map(|program| program.tasks.values());
        let multiplies = tasks().flat_map(|task| &task.ops).any(|op| matches!(op, Op::Product(_)));
        let blas = lanes.map(|_| multiplies.then(|| space.reserve(driver::BLAS_WORKSPACE))).collect();
        Ok(Self { space, programs: mapped, scalars, workspaces, blas })
    }
}

/// Whether two nets have the same packed buffer.
fn is_like(one: &Net, other: &Net) -> bool {
    let places = |net: &Net| -> Vec<(String, usize)> {
        net.params.views().iter().map(|view| (view.name.clone(), view.offset)).collect()
    };
    places(one) == places(other) && one.params.len() == other.params.len()
}

/// What a layout is put into memory with.
struct Place<'a> {
    cuda: &'a Cuda,
    options: &'a Options,
    chosen: &'a RefCell<Convolvers>,
    dnn: bool,
}

impl Place<'_> {
    /// The device in memory, and a line about that.
    fn shared(
        &self,
        layout: Layout,
        streams: Vec<Stream>,
        lanes_of_plans: Vec<Lane>,
    ) -> Result<(Shared, String), String> {
        let Layout { space, programs, scalars, workspaces, blas } = layout;
        let (bytes, free) = (space.len() * size_of::<f32>(), self.cuda.gpu.free_memory()?);
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        if bytes > free {
            return Err(format!(
                "{} MiB are needed and {} MiB free on {}; a smaller mini-batch needs less",
                mib(bytes),
                mib(free),
                self.cuda.gpu.name
            ));
        }
        let arena = Arena::new(&self.cuda.gpu, space.len())?;
        let slice = |span: Span| arena.slice(span.start, span.len);
        let (workspaces, blas) = (workspaces.into_iter().map(slice), blas.into_iter().map(|b| b.map(slice)));
        let lanes = streams.into_iter().zip(workspaces).zip(blas);
        let streams: Result<Vec<LaneStream>, String> =
            lanes.map(|((stream, workspace), blas)| self.lane(stream, workspace, blas)).collect();
        let programs = self.load(programs, &slice)?;
        let info = DeviceInfo {
            name: self.cuda.name(),
            threads: self.cuda.gpu.multiprocessors,
            isa: format!("sm_{}", self.cuda.gpu.capability),
        };
        let shared = Shared {
            info,
            streams: streams?,
            lanes: lanes_of_plans,
            programs,
            graphs: Graphs::default(),
            copier: Mutex::new(Copier::new(&self.cuda.gpu)?),
            clock: Mutex::new(Clock::new(&self.cuda.gpu)?),
            scalars: slice(scalars),
            rule: self.options.rule.kind,
            ready: Event::new(&self.cuda.gpu)?,
            origin: Instant::now(),
            failure: Mutex::new(None),
            gpu: self.cuda.gpu.clone(),
            arena,
        };
        let line = format!(
            "{}; {} MiB of its memory in one piece; kernels by NVRTC {}",
            summary(&self.cuda.gpu),
            mib(bytes),
            self.cuda.compiler.version()
        );
        Ok((shared, line))
    }

    fn lane(&self, stream: Stream, workspace: Slice, blas: Option<Slice>) -> Result<LaneStream, String> {
        let arithmetic = self.options.arithmetic;
        let blas = blas.map(|space| Blas::new(&self.cuda.gpu, &stream, space, arithmetic)).transpose()?;
        let dnn = self.dnn.then(|| Dnn::new(&self.cuda.gpu, &stream)).transpose()?;
        Ok(LaneStream { stream, workspace, blas: blas.map(Mutex::new), dnn: dnn.map(Mutex::new) })
    }

    /// Compiles the kernels that are needed, and binds all operations.
    fn load(
        &self,
        programs: Vec<MappedProgram>,
        slice: &dyn Fn(Span) -> Slice,
    ) -> Result<Vec<BoundProgram>, String> {
        let modules = |index: usize| self.cuda.module(index);
        let convolver = |c: &Convolve| -> Result<Arc<Convolver>, String> {
            let chosen = self.chosen.borrow().get(&(c.geometry, c.direction)).cloned();
            chosen.and_then(Result::ok).flatten().ok_or_else(|| "a convolution that cuDNN does not do".into())
        };
        let signatures = Signatures::read();
        let loader =
            Loader { signatures: &signatures, modules: &modules, resolve: slice, convolver: &convolver };
        programs.into_iter().map(|program| loader.bind(program)).collect()
    }
}
