//! `quadrille topo`: how the program sees the machine, or the one that hwloc's variables describe.

mod places;
mod verify;

use quadrille_cpu::isa::Isa;
use quadrille_numa::{Cut, Wishes};

use crate::cli::TopoArgs;
use crate::failure::{Code, Failure};
use crate::parts::{self, Quadrants};

/// Prints the machine and its quadrants. Nothing is bound.
pub fn run(args: &TopoArgs) -> Result<(), Failure> {
    let machine =
        quadrille_numa::survey().map_err(|error| Failure::new(Code::Environment, error.to_string()))?;
    let choice = places::choose(args, &machine)?;
    let cut = match (args.quadrants, &choice) {
        (Some(Quadrants::L3), _) => Cut::Caches,
        (Some(Quadrants::Count(count)), _) => Cut::Into(count),
        (Some(Quadrants::Auto), Some(choice)) => Cut::Into(choice.parts * args.workers),
        _ => Cut::Nodes,
    };
    let wishes = Wishes {
        smt: args.smt,
        reserve: args.reserve,
        workers: args.workers,
        ..Wishes::at(cut, args.threads)
    };
    let partition = quadrille_numa::cut(&machine, &wishes)
        .map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    if args.json {
        say!("{:#}", quadrille_numa::to_json(&machine, &partition));
        return Ok(());
    }
    let env = |name: &str| std::env::var(name).ok();
    say!("{}", quadrille_numa::describe(&machine, &partition, &env).trim_end());
    say!("read by     {}", quadrille_numa::topology::reader());
    if machine.here {
        let tiers: Vec<String> = Isa::available().map(|t| t.to_string()).collect();
        say!("kernels     {} (tiers of this CPU: {})", Isa::detect(), tiers.join(", "));
        say!("gpu         {}", quadrille_gpu::describe());
        say!("mpi         {}", quadrille_comm::transport::mpi::describe());
    }
    if args.model.is_some() || args.batch.is_some() {
        for line in places::lines(args, &machine, &partition)? {
            say!("{line}");
        }
    }
    for line in choice.iter().flat_map(parts::lines) {
        say!("{line}");
    }
    if args.verify && !machine.here {
        let message = "--verify: the machine that hwloc's variables describe is not this one\n  hint: unset HWLOC_XMLFILE, \
                       HWLOC_FSROOT and HWLOC_SYNTHETIC";
        return Err(Failure::new(Code::Usage, message));
    }
    if args.verify {
        return verify::run(&partition);
    }
    Ok(())
}
