//! `quadrille extract`: one mini-batch through a network, with every value and gradient written to a file.
//!
//! Arrays are named as in differential tests against Caffe: `in/BLOB`, `param/LAYER/INDEX` and `seed/BLOB` go in,
//! `blob/BLOB`, `diff/BLOB`, `pdiff/LAYER/INDEX` and `param_after/LAYER/INDEX` come out.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{Input, Layer, Seed};
use quadrille_core::net::{LayerSpec, Net, NetSpec, NetState, ParamRule, Phase, StorageId};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::run::{StepTimes, run_step};
use quadrille_core::solver::Rule;
use quadrille_cpu::{EngineOptions, Program};
use quadrille_io::npz::{Archive, Array, Values, write_npz};

use crate::cli::ExtractArgs;
use crate::crews::crews;
use crate::engine::WorkerDevice;
use crate::failure::{Code, Failure};
use crate::given::Given;
use crate::holdings::Holdings;
use crate::job::load_net;
use crate::memory;
use crate::parts;
use crate::weights::{read_weights, start_lines};

/// Runs one mini-batch.
pub fn run(args: &ExtractArgs) -> Result<(), Failure> {
    let (spec, _) = load_net(args.model.as_deref(), None)?;
    let given = Given::read(&args.inputs)?;
    let asked = args.phase.map(Phase::from).or(spec.state.phase).or_else(|| given.phase());
    let phase = asked.unwrap_or(if args.backward { Phase::Train } else { Phase::Test });
    let mut state = spec.state(phase);
    state.level = args.level.unwrap_or(state.level);
    state.stages.extend(args.stage.iter().cloned());
    for note in &spec.notes {
        say!("note        {note}");
    }
    let mut spec = with_inputs(spec, &state, &given)?;
    let seeds = if args.backward { add_seeds(&mut spec, &given)? } else { Vec::new() };
    let refused = |name: &str| {
        given.refuse(format!("seed/{name}: {name:?} is a loss, whose gradient is its loss_weight"))
    };
    let losses = spec.layers.iter().filter(|layer| layer.belongs(&state) && layer.layer.is_loss());
    if let Some(name) = losses.flat_map(|loss| &loss.tops).find(|top| seeds.contains(top)) {
        return Err(refused(name));
    }
    let net = Net::assemble(&spec, &state, 1.0, args.backward || phase == Phase::Train)?;
    if let Some((loss, _)) = net.losses().find(|(blob, _)| seeds.contains(&net.blob(*blob).name)) {
        return Err(refused(&net.blob(loss).name));
    }
    let weights = weights(args, &net, &given)?;
    let look = Look::new(net, args)?;
    look.feed(&given, &seeds, &weights)?;
    let arrays = look.run(args.backward)?;
    write_npz(&args.out, &arrays)?;
    say!("network     {} ({}), phase {phase}", look.net.name, look.net.file);
    say!("written     {} arrays to {}", arrays.len(), args.out.display());
    Ok(())
}

/// The network with inputs of the given shapes in place of its data layers and inputs.
fn with_inputs(mut spec: NetSpec, state: &NetState, given: &Given) -> Result<NetSpec, Failure> {
    let belongs: Vec<bool> = spec.layers.iter().map(|layer| layer.belongs(state)).collect();
    for (layer, _) in spec.layers.iter_mut().zip(belongs).filter(|(_, belongs)| *belongs) {
        if !layer.layer.is_source() {
            continue;
        }
        let shape_of = |top: &String| given.shape(&format!("in/{top}")).map(<[usize]>::to_vec);
        let shapes = layer.tops.iter().map(shape_of).collect::<Result<Vec<_>, _>>()?;
        layer.layer = Layer::Input(Input { tops: shapes.len(), shapes });
    }
    Ok(spec)
}

/// How the input is called that holds the gradient of a blob.
fn seed_name(blob: &str) -> String {
    format!("(seed of {blob})")
}

/// Adds an input for each given gradient, and a layer that puts it where backward begins. Returns the blobs.
fn add_seeds(spec: &mut NetSpec, given: &Given) -> Result<Vec<String>, Failure> {
    let seeds: Vec<String> = given.names("seed/").map(str::to_owned).collect();
    for blob in &seeds {
        let (name, shape) = (seed_name(blob), given.shape(&format!("seed/{blob}"))?.to_vec());
        let input = Layer::Input(Input { tops: 1, shapes: vec![shape] });
        spec.layers.push(LayerSpec::new(&name, input, &[], &[&name]));
        let begin = format!("(backward from {blob})");
        spec.layers.push(LayerSpec::new(&begin, Layer::Seed(Seed), &[blob, &name], &[]));
    }
    Ok(seeds)
}

/// The parameters: from fillers, then from `--weights`, then from `param/`.
fn weights(args: &ExtractArgs, net: &Net, given: &Given) -> Result<Vec<f32>, Failure> {
    let mut packed = vec![0.0; net.params.len()];
    net.params.fill(args.seed, &mut packed);
    if !args.weights.is_empty() {
        let placed = read_weights(&args.weights, net, &mut packed)?;
        for line in start_lines(&args.weights, net, &placed) {
            say!("{line}");
        }
    }
    given.fill("param/", net, &mut packed)?;
    Ok(packed)
}

/// A network on one device, with memory of its own for every value.
struct Look {
    net: Net,
    plan: Plan,
    device: WorkerDevice,
}

impl Look {
    fn new(net: Net, args: &ExtractArgs) -> Result<Self, Failure> {
        let machine = crews(&args.machine(), 0, 1, net.batch(), || Ok(parts::copies(&net, 0, 1)))?;
        let stage = if net.backward { Stage::Iteration } else { Stage::Forward };
        let nets = std::slice::from_ref(&net);
        let plan = Plan::build(nets, PlanOptions::new(stage));
        let plan = plan.map_err(|error| Failure::new(Code::Bug, error.to_string()))?;
        let options = EngineOptions {
            isa: machine.numerics.isa,
            precision: machine.numerics.precision,
            kernels: args.kernels.clone(),
            rule: Rule::default(),
            elastic: false,
            spin: machine.exclusive,
        };
        let program = Program { nets, plans: &[&plan] };
        let (worker, _) = memory::worker(&machine, &[program], &options, net.batch(), &Holdings::default())?;
        let device = worker.devices(0).swap_remove(0);
        Ok(Self { net, plan, device })
    }

    /// Puts inputs, gradients and parameters in.
    fn feed(&self, given: &Given, seeds: &[String], weights: &[f32]) -> Result<(), Failure> {
        self.device.write(Region::Packed(Packed::Weights), weights)?;
        let sources = self.net.layers.iter().filter(|layer| matches!(layer.layer, Layer::Input(_)));
        for blob in sources.flat_map(|layer| &layer.tops).map(|top| self.net.blob(*top)) {
            let seed = seeds.iter().find(|seed| seed_name(seed) == blob.name);
            let key = seed.map_or_else(|| format!("in/{}", blob.name), |seed| format!("seed/{seed}"));
            let values = given.values(&key, blob.shape.count(), "the blob")?;
            self.device.write(Region::Stage(blob.data), &values)?;
        }
        Ok(())
    }

    /// A step at a rate of 0, which changes nothing but running sums, and what is there after it.
    fn run(&self, backward: bool) -> Result<Archive, Failure> {
        let scalars = Scalars { seed: 1, ..Scalars::default() };
        run_step(std::slice::from_ref(&self.device), &self.plan, &scalars, &mut StepTimes::default())?;
        let mut arrays = Archive::new();
        for blob in self.net.blobs.iter().filter(|blob| !blob.name.starts_with('(')) {
            let dims = blob.shape.dims();
            if !self.net.layer(blob.producer).layer.is_source() {
                // Of layers in place the last one counts.
                arrays.insert(format!("blob/{}", blob.name), self.storage(blob.data, dims)?);
            }
            let key = format!("diff/{}", blob.name);
            if let Some(grad) = blob.grad.filter(|_| backward && !arrays.contains_key(&key)) {
                // Of layers in place and of splits the blob below counts.
                arrays.insert(key, self.storage(grad, dims)?);
            }
        }
        self.params(backward, &mut arrays)?;
        Ok(arrays)
    }

    /// Gradients of parameters, and what running sums became.
    fn params(&self, backward: bool, arrays: &mut Archive) -> Result<(), Failure> {
        let len = self.net.params.len();
        let (mut gradients, mut after) = (vec![0.0; len], vec![0.0; len]);
        if self.net.backward {
            self.device.read(Region::Packed(Packed::Gradients), &mut gradients)?;
            self.device.read(Region::Packed(Packed::Weights), &mut after)?;
        }
        for view in self.net.params.views() {
            let array = |values: &[f32]| Array {
                shape: view.shape.dims().to_vec(),
                values: Values::F32(values.to_vec()),
            };
            let statistics = view.rule != ParamRule::Gradient;
            if backward {
                // Those of running sums carry what is added to them; they have no gradient.
                let own = if statistics { &vec![0.0; view.shape.count()] } else { &gradients[view.range()] };
                arrays.insert(format!("pdiff/{}", view.name), array(own));
            }
            if statistics && self.net.backward {
                arrays.insert(format!("param_after/{}", view.name), array(&after[view.range()]));
            }
        }
        Ok(())
    }

    fn storage(&self, id: StorageId, dims: &[usize]) -> Result<Array, Failure> {
        let mut values = vec![0.0; dims.iter().product()];
        self.device.read(Region::Storage(id), &mut values)?;
        Ok(Array { shape: dims.to_vec(), values: Values::F32(values) })
    }
}
