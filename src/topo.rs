//! `quadrille topo`: how the program sees the machine.

mod verify;

use quadrille_cpu::isa::Isa;

use crate::cli::TopoArgs;
use crate::failure::{Code, Failure};

/// Prints the machine and its quadrants.
pub fn run(args: &TopoArgs) -> Result<(), Failure> {
    let machine =
        quadrille_numa::detect().map_err(|error| Failure::new(Code::Environment, error.to_string()))?;
    let partition = quadrille_numa::quadrants(&machine, args.quadrants, args.threads)
        .map_err(|error| Failure::new(Code::Usage, error.to_string()))?;
    let env = |name: &str| std::env::var(name).ok();
    say!("{}", quadrille_numa::describe(&machine, &partition, &env).trim_end());
    let tiers: Vec<String> = Isa::available().map(|t| t.to_string()).collect();
    say!("kernels     {} (tiers of this CPU: {})", Isa::detect(), tiers.join(", "));
    say!("gpu         {}", quadrille_gpu::describe());
    say!("mpi         {}", quadrille_comm::transport::mpi::describe());
    if args.verify {
        return verify::run(&partition);
    }
    Ok(())
}
