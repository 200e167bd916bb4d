//! `quadrille test`: accuracy and loss of trained weights.

use quadrille_core::device::{Packed, Region, Scalars};
use quadrille_core::net::Phase;
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_cpu::{EngineOptions, Program};
use quadrille_io::data::Readers;

use crate::cli::TestArgs;
use crate::crews::{crews, threads_of};
use crate::failure::{Code, Failure};
use crate::feed::Draw;
use crate::holdings::Holdings;
use crate::job::{PhaseJob, Samples, load_net, no_data, say_bad_records};
use crate::memory;
use crate::parts;
use crate::pass::Pass;
use crate::progress::six_digits;
use crate::rewriting::Rewriting;
use crate::weights::{listed, read_weights, start_lines};

/// Tests.
pub fn run(args: &TestArgs) -> Result<(), Failure> {
    let (spec, file) = load_net(args.model.as_deref(), None)?;
    let samples = Samples::of(&args.data);
    let job = PhaseJob::open(&spec, &spec.state(Phase::Test), &file, samples, args.batch)?;
    let job = job.ok_or_else(|| no_data(&spec, Phase::Test))?;
    let whole = job.nets(&[1])?.swap_remove(0);
    let machine = crews(&args.machine, 0, 1, job.batch, || Ok(parts::copies(&whole, 0, 1)))?;
    let threads = threads_of(&machine.workers[0]);
    let rewriting = Rewriting::new(&args.machine, machine.numerics, 1).on(machine.gpu(0).is_some());
    let nets = job.device_nets(&threads, rewriting)?;
    let mut weights = vec![0.0; nets[0].params.len()];
    let placed = read_weights(&args.weights, &whole, &mut weights)?;
    let missing = placed.missing(&whole);
    if !missing.is_empty() {
        let message = format!("{}: no weights for {}", listed(&args.weights), missing.join(", "));
        return Err(Failure::new(Code::Data, message));
    }
    let options = PlanOptions::new(Stage::Forward);
    let plan = Plan::build(&nets, options).map_err(|e| Failure::new(Code::Bug, e.to_string()))?;
    let engine = EngineOptions {
        isa: machine.numerics.isa,
        precision: machine.numerics.precision,
        kernels: args.machine.kernels.clone(),
        rule: Rule::default(),
        elastic: false,
        spin: machine.exclusive,
    };
    let program = Program { nets: &nets, plans: &[&plan] };
    let (worker, placement) =
        memory::worker(&machine, &[program], &engine, job.batch, &Holdings::of([&job.feed]))?;
    say!("network     {} ({})", nets[0].name, nets[0].file);
    for note in &spec.notes {
        say!("note        {note}");
    }
    for line in start_lines(&args.weights, &whole, &placed) {
        say!("{line}");
    }
    say!("machine     {}; kernels for {}", machine.how, machine.kernels());
    for line in placement.iter().chain(worker.notes()) {
        say!("{line}");
    }
    let batches = args.iterations.unwrap_or(job.feed.whole(job.batch)).max(1);
    let again = (batches * job.batch as u64).saturating_sub(job.feed.samples(job.batch));
    let twice = if again > 0 { format!(", {again} of the images more than once") } else { String::new() };
    say!("data        {}: {batches} mini-batches of {}{twice}", job.feed.name(), job.batch);
    let mut pass = Pass::new(nets, worker.devices(0));
    pass.write_all(Region::Packed(Packed::Weights), &weights)?;
    evaluate(&mut pass, &plan, &job, batches, machine.places[0].readers())?;
    say_bad_records(&job.feed);
    Ok(())
}

fn evaluate(
    pass: &mut Pass,
    plan: &Plan,
    job: &PhaseJob,
    batches: u64,
    readers: Readers,
) -> Result<(), Failure> {
    let names: Vec<String> = pass.output_names().map(str::to_owned).collect();
    let mut sums = vec![0.0; names.len()];
    let (mut loss, mut times) = (0.0, StepTimes::default());
    let mut feed = job.feed.start(Draw::Test, job.batch, 0, readers)?;
    for _ in 0..batches {
        feed.load(pass)?;
        run_step(&pass.devices, plan, &Scalars::default(), &mut times)?;
        pass.add_outputs(&mut sums)?;
        loss += pass.loss()?;
    }
    say!("Loss: {}", six_digits(loss / batches as f32));
    for (name, sum) in names.iter().zip(&sums) {
        say!("{name} = {}", six_digits(sum / batches as f32));
    }
    Ok(())
}
