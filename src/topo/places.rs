//! `quadrille topo --model M --batch B`: what would go where.

use quadrille_core::plan::Schedule;
use quadrille_cpu::Program;
use quadrille_cpu::isa::Precision;
use quadrille_numa::parts::{self, Choice, Copies};
use quadrille_numa::{Machine, Partition, Strictness};

use crate::cli::{MachineArgs, TopoArgs};
use crate::crews::{assign, one_for_each_node};
use crate::device_choice::DeviceChoice;
use crate::failure::Failure;
use crate::holdings::Holdings;
use crate::parts::Quadrants;
use crate::{memory, time};

/// How many parts copies of a training leave room for, if a network or `--quadrants auto` asks for it.
pub fn choose(args: &TopoArgs, machine: &Machine) -> Result<Option<Choice>, Failure> {
    if args.quadrants != Some(Quadrants::Auto) && args.model.is_none() && args.batch.is_none() {
        return Ok(None);
    }
    let (spec, batch) = time::on_made_up_data(args.model.as_deref(), args.batch, None)?;
    let copies = Copies { workers: args.workers, ..time::copies(&spec, batch)? };
    Ok(Some(parts::choose(machine, one_for_each_node(machine, args.workers, batch), &copies)))
}

/// Where the memory of a training of one worker on all quadrants would go, line by line. Nothing is allocated.
pub fn lines(args: &TopoArgs, machine: &Machine, partition: &Partition) -> Result<Vec<String>, Failure> {
    let (spec, batch) = time::on_made_up_data(args.model.as_deref(), args.batch, None)?;
    let flags = MachineArgs {
        device: DeviceChoice::default(),
        tf32: false,
        cuda_graph: None,
        quadrants: args.quadrants,
        threads: args.threads,
        smt: args.smt,
        reserve: args.reserve,
        strictness: Strictness::default(),
        isa: None,
        precision: Precision::F32,
        fast_memory: args.fast_memory,
        kernels: Vec::new(),
        no_fusion: false,
        no_memory_sharing: false,
    };
    let crews = assign(machine, partition, 1, &flags);
    let iteration = time::iteration(&spec, batch, &crews, &flags, Schedule::default())?;
    let program = Program { nets: &iteration.nets, plans: &[&iteration.plan] };
    let (_, placement) =
        memory::planned(&crews, &[program], &iteration.options, batch, &Holdings::default())?;
    let (name, kernels) = (&iteration.nets[0].name, crews.numerics);
    let head =
        format!("training    {name}, mini-batches of {batch} images on all quadrants, kernels for {kernels}");
    Ok(std::iter::once(head).chain(placement.lines).collect())
}
