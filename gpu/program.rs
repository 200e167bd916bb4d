//! One net on one GPU: the operations of every task, bound to their arrays.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, Net};
use quadrille_core::plan::Plan;
use quadrille_core::task::{Task, Tile};

use crate::driver::{Convolver, Dnn, Function, Module, Prepared, Slice};
use crate::layer::{DnnWorkspace, Surroundings, TaskOps};
use crate::layout::channels_last;
use crate::memory::{NetMap, PackedMap, Space};
use crate::op::{Convolve, Direction, Geometry, Launch, Op, Product, Span};
use crate::source::Signatures;
use crate::spec::{Arithmetic, CudaError, Options, Program};

/// The tasks of a net, whose arrays have places, but no memory yet.
#[derive(Debug)]
pub(crate) struct MappedProgram {
    /// Where its arrays lie.
    pub map: NetMap,
    /// What each task does.
    pub tasks: HashMap<Task, TaskOps>,
    /// For the log: each layer and what computes it.
    pub choices: Vec<(String, &'static str)>,
}

/// cuDNN's part: one entry for each convolution and direction, `None` where it has no algorithm, or why it refuses the shape.
pub(crate) type Convolvers = HashMap<(Geometry, Direction), Result<Option<Arc<Convolver>>, String>>;

/// Elements of workspace that cuDNN takes for a convolution; `None` if it has no algorithm for it.
pub(crate) fn dnn_workspace(
    (dnn, chosen): (&Dnn, &RefCell<Convolvers>),
    arithmetic: Arithmetic,
    geometry: &Geometry,
    direction: Direction,
) -> Option<usize> {
    let mut chosen = chosen.borrow_mut();
    let entry = chosen.entry((*geometry, direction));
    // A shape that the library refuses is one for our own kernels.
    let found = || Ok(Convolver::new(dnn, geometry, direction, arithmetic)?.map(Arc::new));
    let convolver = entry.or_insert_with(found).as_ref().ok()?.as_ref()?;
    Some(convolver.workspace.div_ceil(size_of::<f32>()))
}

/// What cuDNN refused, and how often, for the first lines: a library that fails looks like one that is slow.
pub(crate) fn refusals(chosen: &Convolvers) -> Vec<String> {
    let mut reasons: BTreeMap<&String, usize> = BTreeMap::new();
    chosen.values().filter_map(|found| found.as_ref().err()).for_each(|reason| {
        *reasons.entry(reason).or_default() += 1;
    });
    let line = |(reason, count)| format!("{count} convolution(s) by kernels of our own: {reason}");
    reasons.into_iter().map(line).collect()
}

impl MappedProgram {
    /// Places all arrays of the program's net, and lists what its plans' tasks do, by cuBLAS and cuDNN where they are there
    /// and to be used.
    ///
    /// # Errors
    /// If a plan asks for what one GPU does not do, or a layer has no kernel.
    pub fn new(
        program: &Program<'_>,
        packed: PackedMap,
        scalars: Span,
        space: &mut Space,
        options: &Options,
        blas: bool,
        dnn: Option<DnnWorkspace<'_>>,
    ) -> Result<Self, CudaError> {
        let Program { net, plans } = *program;
        check_plans(program)?;
        let last = channels_last(net, options, dnn.is_some());
        let map = NetMap::new(net, packed, last, space).map_err(CudaError::Layer)?;
        let around = Surroundings { net, map: &map, scalars, options, blas, dnn };
        let mut tasks = HashMap::new();
        let nodes = plans.iter().flat_map(|plan| &plan.nodes);
        let asked: BTreeSet<(LayerId, SubTask, Tile)> =
            nodes.map(|node| (node.task.layer, node.task.sub, node.task.tile)).collect();
        for (layer, sub, tile) in asked {
            let task = Task { layer, sub, tile };
            let ops = around.bind(task).map_err(CudaError::Layer)?;
            let missing = || CudaError::Plan(format!("layer {} has no {sub}", layer.0));
            tasks.insert(task, ops.ok_or_else(missing)?);
        }
        let choices = choices(net, &tasks);
        Ok(Self { map, tasks, choices })
    }

    /// Elements of workspace that the tasks in a lane need at most.
    pub fn workspace(&self, plans: &[&Plan], lane: usize) -> usize {
        let nodes = plans.iter().flat_map(|plan| &plan.nodes).filter(|node| node.lane.0 == lane);
        let tasks = nodes.filter_map(|node| self.tasks.get(&node.task));
        tasks.map(|task| task.workspace).max().unwrap_or(0)
    }
}

/// Refuses what one GPU does not do.
fn check_plans(program: &Program<'_>) -> Result<(), CudaError> {
    let Program { net, plans } = *program;
    for plan in plans {
        quadrille_core::check::check(plan, std::slice::from_ref(net))
            .map_err(|violation| CudaError::Plan(violation.to_string()))?;
    }
    Ok(())
}

/// What computes each layer: the library, or its first operation's kernel.
fn choices(net: &Net, tasks: &HashMap<Task, TaskOps>) -> Vec<(String, &'static str)> {
    let of = |(index, layer): (usize, &quadrille_core::net::NetLayer)| {
        let is_it = |task: &Task| (task.layer, task.sub) == (LayerId(index), SubTask::Forward);
        // Of chunks the first: all have the same kernels.
        let forward = tasks.iter().filter(|(task, _)| is_it(task));
        let (_, task) = forward.min_by_key(|(task, _)| task.tile)?;
        let by_library = |op: &&Op| matches!(op, Op::Convolve(_) | Op::Product(_));
        let name = match task.ops.iter().find(by_library).or(task.ops.first())? {
            Op::Launch(launch) => launch.kernel,
            Op::Copy { .. } => "copy",
            Op::Product(_) => "cublas",
            Op::Convolve(_) => "cudnn",
        };
        Some((layer.name.clone(), name))
    };
    net.layers.iter().enumerate().filter_map(of).collect()
}

/// An operation that can be put into a stream.
#[derive(Debug)]
pub(crate) enum Ready {
    /// A kernel of ours.
    Launch(Prepared),
    /// A copy.
    Copy(Slice, Slice),
    /// A product by cuBLAS.
    Product(Box<Product>, [Located; 3]),
    /// A convolution by cuDNN.
    Convolve(Arc<Convolver>, [Located; 3], Span),
}

/// Where an array lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Located {
    /// In the arena.
    Arena(Slice),
    /// In the workspace of the lane that runs the operation.
    Workspace(Span),
}

impl Located {
    /// The array, for a lane with this workspace.
    pub fn slice(self, workspace: Slice) -> Slice {
        match self {
            Self::Arena(slice) => slice,
            Self::Workspace(span) => workspace.part(span.start, span.len),
        }
    }
}

/// A net in memory.
#[derive(Debug)]
pub(crate) struct BoundProgram {
    /// Where its arrays lie.
    pub map: NetMap,
    /// What each task does.
    pub tasks: HashMap<Task, Vec<Ready>>,
}

/// What a net's operations are bound with.
pub(crate) struct Loader<'a> {
    /// What kernels take.
    pub signatures: &'a Signatures,
    /// The modules, by source, where one is loaded.
    pub modules: &'a dyn Fn(usize) -> Result<Arc<Module>, String>,
    /// Where an array of the arena lies.
    pub resolve: &'a dyn Fn(Span) -> Slice,
    /// Makes what cuDNN does of a convolution.
    pub convolver: &'a dyn Fn(&Convolve) -> Result<Arc<Convolver>, String>,
}

impl Loader<'_> {
    fn function(&self, launch: &Launch) -> Result<Function, String> {
        self.signatures.check(launch)?;
        let signature = self.signatures.get(launch.kernel).ok_or("a kernel without a signature")?;
        (self.modules)(signature.source)?.function(launch.kernel)
    }

    fn ready(&self, op: Op) -> Result<Ready, String> {
        let resolve = self.resolve;
        let located = |span: Span| match span.workspace {
            true => Located::Workspace(span),
            false => Located::Arena(resolve(span)),
        };
        Ok(match op {
            Op::Launch(launch) => Ready::Launch(Prepared::new(self.function(&launch)?, &launch, resolve)?),
            Op::Copy { from, to } => Ready::Copy(resolve(from), resolve(to)),
            Op::Product(p) => {
                let arrays = [p.a.values, p.b.values, p.c].map(located);
                Ready::Product(Box::new(p), arrays)
            }
            Op::Convolve(c) => {
                let arrays = [c.first, c.second, c.result].map(located);
                Ready::Convolve((self.convolver)(&c)?, arrays, c.workspace)
            }
        })
    }

    /// The program in memory.
    ///
    /// # Errors
    /// If a kernel does not compile, or an operation does not fit its kernel. A bug of the program.
    pub fn bind(&self, program: MappedProgram) -> Result<BoundProgram, String> {
        let MappedProgram { map, tasks, .. } = program;
        let mut bound = HashMap::new();
        for (task, TaskOps { ops, .. }) in tasks {
            let ready: Result<Vec<Ready>, String> = ops.into_iter().map(|op| self.ready(op)).collect();
            bound.insert(task, ready?);
        }
        Ok(BoundProgram { map, tasks: bound })
    }
}
