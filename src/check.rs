//! `quadrille check`: reads networks and solvers, infers every shape and shows what there is, without data.

use std::collections::HashSet;
use std::path::Path;

use quadrille_core::layer::{Layer, SubTask};
use quadrille_core::net::{LayerId, LayerSpec, Net, NetSpec, NetState, Phase};
use quadrille_core::solver::{NetSource, SolverSpec, StateChange};
use quadrille_io::data::{RowFiles, SearchPath};
use quadrille_io::prototxt::{FileKind, kind_of, read_net, read_solver};

use crate::bundled;
use crate::cli::CheckArgs;
use crate::failure::{Code, Failure};
use crate::job::{Named, load_net};
use crate::made_up;

/// The longest list of parameters or blobs that a line shows.
const WIDTH: usize = 34;

/// Checks every file; the first that cannot be decides the exit code, but all are looked at.
pub fn run(args: &CheckArgs) -> Result<(), Failure> {
    let mut failures: Vec<Failure> = Vec::new();
    for (index, file) in args.files.iter().enumerate() {
        if index > 0 {
            say!("");
        }
        failures.extend(check(file, args).err());
    }
    let Some(first) = failures.first() else { return Ok(()) };
    let messages: Vec<&str> = failures.iter().map(|failure| failure.message.as_str()).collect();
    Err(first.clone().saying(messages.join("\nquadrille: ")))
}

fn check(file: &Path, args: &CheckArgs) -> Result<(), Failure> {
    let path = bundled::model_file(file).map_err(|message| Failure::new(Code::Missing, message))?;
    match kind_of(&path)? {
        FileKind::Net => {
            let spec = read_net(&path)?;
            check_net(&spec, &path, usual_states(&spec, args), args)
        }
        FileKind::Solver => {
            let solver = read_solver(&path)?;
            show_solver(&path, &solver);
            networks(&path, &solver, args)
        }
    }
}

/// Checks every network that a solver names, in each state that the solver gives it.
fn networks(path: &Path, solver: &SolverSpec, args: &CheckArgs) -> Result<(), Failure> {
    let tests = solver.test_nets.iter().map(|test| (&test.source, Phase::Test, &test.state));
    let mut wanted: Vec<(&NetSource, Vec<(Phase, &StateChange)>)> = Vec::new();
    for (source, phase, change) in
        std::iter::once((&solver.train_net, Phase::Train, &solver.train_state)).chain(tests)
    {
        let same = |known: &NetSource| match (known, source) {
            (NetSource::File { path, .. }, NetSource::File { path: other, .. }) => path == other,
            _ => known == source,
        };
        match wanted.iter_mut().find(|(known, _)| same(known)) {
            Some((_, changes)) => changes.push((phase, change)),
            None => wanted.push((source, vec![(phase, change)])),
        }
    }
    for (source, changes) in wanted {
        match load_net(None, Some(Named { solver: path, site: &solver.site, source })) {
            Ok((spec, file)) => {
                let states = changes.into_iter().map(|(phase, change)| change.of(spec.state(phase)));
                let asked =
                    |state: &NetState| args.phase.is_none_or(|phase| Phase::from(phase) == state.phase);
                check_net(&spec, &file, states.filter(asked).collect(), args)?;
            }
            Err(failure) if failure.code == Code::Missing as u8 => {
                say!("            its network {:?} is not here, so it was not checked", source.name());
            }
            Err(failure) => return Err(failure),
        }
    }
    Ok(())
}

fn show_solver(path: &Path, solver: &SolverSpec) {
    say!("solver      {}", path.display());
    let rule = &solver.rule;
    let iterations = match solver.max_iter {
        0 => "no max_iter, so iterations as --max-iter says,".to_owned(),
        count => format!("{count} iterations"),
    };
    say!(
        "            {iterations} of {}, base_lr {}, weight_decay {}, {} mini-batch(es) each",
        rule.kind.name(),
        solver.base_lr,
        rule.weight_decay,
        solver.iter_size
    );
    for test in &solver.test_nets {
        say!("            tested on {} mini-batches of {:?}", test.batches, test.source.name());
    }
    if let Some(field) = &solver.undone {
        say!("note        {field}: no training does this yet, so train refuses it");
    }
    if !solver.ignored.is_empty() {
        say!("ignored     solver fields without effect here: {}", solver.ignored.join(", "));
    }
}

/// The states in which a network file is checked that no solver names.
fn usual_states(spec: &NetSpec, args: &CheckArgs) -> Vec<NetState> {
    match args.phase {
        Some(phase) => vec![spec.state(phase.into())],
        None => {
            let phases = [Phase::Train, Phase::Test].into_iter().filter(|phase| differs(spec, *phase));
            phases.map(|phase| spec.state(phase)).collect()
        }
    }
}

fn check_net(spec: &NetSpec, path: &Path, states: Vec<NetState>, args: &CheckArgs) -> Result<(), Failure> {
    say!("network     {} ({}): {} layers in the file", spec.name, path.display(), spec.layers.len());
    for note in &spec.notes {
        say!("note        {note}");
    }
    // A file that is made for one state lacks something in others; it must fit one of them.
    let lacks: Vec<Option<Lack>> = states.iter().map(|state| lack(spec, state)).collect();
    let fits = lacks.iter().any(Option::is_none);
    for (state, lack) in states.iter().zip(lacks) {
        match lack {
            Some(Lack { layer, blob, maker }) if fits => say!(
                "phase {}: not for this file: layer {layer:?} reads {blob:?}, which only layer {maker:?} makes, and \
                 that is of another phase or stage",
                state.phase
            ),
            _ => check_state(spec, path, state, args)?,
        }
    }
    Ok(())
}

fn check_state(spec: &NetSpec, path: &Path, state: &NetState, args: &CheckArgs) -> Result<(), Failure> {
    let (mut spec, phase) = (spec.clone(), state.phase);
    if let Some(layer) = complete(&mut spec, state, path, args) {
        say!(
            "phase {phase}: the file does not say how large the samples of layer {layer:?} are, so no shapes"
        );
        say!(
            "            give them with --data-shape, such as --data-shape 3,32,32 (channels, height, width)"
        );
        list(&spec, state);
        return Ok(());
    }
    let net = Net::assemble(&spec, state, 1.0, phase == Phase::Train)?;
    let stages: String = state.stages.iter().map(|stage| format!(" {stage:?}")).collect();
    let deploy = phase == Phase::Train && net.losses().next().is_none();
    say!("phase {phase}{stages}{}", if deploy { ": no loss, so nothing to train" } else { "" });
    show(&net);
    Ok(())
}

/// What a state has no layer for, though the file has one.
struct Lack<'a> {
    layer: &'a str,
    blob: &'a str,
    /// A layer that does not belong to the state.
    maker: &'a str,
}

/// The first bottom in a state that only layers of other states make.
fn lack<'a>(spec: &'a NetSpec, state: &NetState) -> Option<Lack<'a>> {
    let mut made: HashSet<&str> = HashSet::new();
    for layer in spec.layers.iter().filter(|layer| layer.belongs(state)) {
        for blob in layer.bottoms.iter().filter(|blob| !made.contains(blob.as_str())) {
            let makes = |other: &&LayerSpec| other.tops.contains(blob);
            let makers: Vec<&LayerSpec> = spec.layers.iter().filter(makes).collect();
            if let (Some(maker), false) = (makers.first(), makers.iter().any(|maker| maker.belongs(state))) {
                return Some(Lack { layer: &layer.name, blob, maker: &maker.name });
            }
        }
        made.extend(layer.tops.iter().map(String::as_str));
    }
    None
}

/// Whether a phase has something to show of its own: that of training always, that of testing if its layers are others.
fn differs(spec: &NetSpec, phase: Phase) -> bool {
    let layers = |phase| {
        let state = spec.state(phase);
        spec.layers.iter().filter(move |layer| layer.belongs(&state)).map(|layer| &layer.site.line)
    };
    match phase {
        Phase::Train => layers(Phase::Train).next().is_some(),
        Phase::Test => !layers(Phase::Test).eq(layers(Phase::Train)),
    }
}

/// Gives sources the batch and the shape of samples that the file leaves open. Returns a source whose shape nobody knows.
fn complete(spec: &mut NetSpec, state: &NetState, file: &Path, args: &CheckArgs) -> Option<String> {
    for layer in spec.layers.iter_mut().filter(|layer| layer.belongs(state)) {
        match &mut layer.layer {
            Layer::Data(data) => {
                data.batch = args.batch.unwrap_or(data.batch.max(1));
                data.sample = made_up::sample_shape(data, state.phase, file, args.shape).ok();
                if data.sample.is_none() {
                    return Some(layer.name.clone());
                }
            }
            Layer::Hdf5Data(hdf5) => {
                hdf5.batch = args.batch.unwrap_or(hdf5.batch.max(1));
                let search = SearchPath::usual(file, bundled::repository().as_deref());
                let opened = RowFiles::open(&hdf5.source, None, &search, &layer.tops);
                match (opened, args.shape) {
                    (Ok(files), _) => hdf5.samples = files.samples().to_vec(),
                    // Images first, and then one value a sample: labels.
                    (Err(_), Some(shape)) => {
                        hdf5.samples = vec![Vec::new(); hdf5.tops];
                        if let Some(first) = hdf5.samples.first_mut() {
                            *first = shape.to_vec();
                        }
                    }
                    (Err(_), None) => return Some(layer.name.clone()),
                }
            }
            Layer::Input(input) => {
                if let (true, Some(sample)) = (input.shapes.is_empty(), args.shape) {
                    input.shapes.push([&[1][..], &sample].concat());
                }
                let batched = input.shapes.iter_mut().filter(|shape| !shape.is_empty());
                batched.for_each(|shape| shape[0] = args.batch.unwrap_or(shape[0]));
                if input.shapes.is_empty() {
                    return Some(layer.name.clone());
                }
            }
            _ => {}
        }
    }
    None
}

/// The layers of a state without shapes.
fn list(spec: &NetSpec, state: &NetState) {
    for layer in spec.layers.iter().filter(|layer| layer.belongs(state)) {
        let wires = format!("{} -> {}", layer.bottoms.join(" "), layer.tops.join(" "));
        say!("  {:24} {:18} {wires}", layer.name, layer.layer.type_name());
    }
}

/// The layers of a net, and what they take.
fn show(net: &Net) {
    say!("  {:24} {:18} {:>WIDTH$} {:>12} {:>10}", "layer", "type", "tops", "parameters", "MFLOP");
    for (index, layer) in net.layers.iter().enumerate() {
        let tops: Vec<String> = layer.tops.iter().map(|top| net.blob(*top).shape.to_string()).collect();
        let values: usize = layer.params.iter().map(|id| net.params.view(*id).shape.count()).sum();
        let values = if values > 0 { values.to_string() } else { String::new() };
        say!(
            "  {:24} {:18} {:>WIDTH$} {values:>12} {:>10.2}",
            layer.name,
            layer.layer.type_name(),
            shortened(&tops),
            flops(net, LayerId(index)) as f64 * 1e-6
        );
    }
    let total: u64 = (0..net.layers.len()).map(|index| flops(net, LayerId(index))).sum();
    let mib = |elements: usize| (elements * size_of::<f32>()) as f64 / f64::from(1 << 20);
    let shared = net.clone().sharing_memory(&net.storages.clone().into()).blob_memory();
    let outputs: Vec<&str> = net.outputs().map(|blob| net.blob(blob).name.as_str()).collect();
    say!("  parameters  {} ({:.1} MiB)", net.params.values(), mib(net.params.len()));
    say!(
        "  memory      {:.1} MiB for values and gradients, {:.1} MiB if none shared any",
        mib(shared.taken),
        mib(shared.apart)
    );
    say!("  work        {:.3} GFLOP for a mini-batch of {}", total as f64 * 1e-9, net.batch());
    say!("  outputs     {}", outputs.join(" "));
}

/// Operations of a layer in all that the net does.
fn flops(net: &Net, id: LayerId) -> u64 {
    SubTask::ALL.into_iter().map(|sub| net.flops(id, sub)).sum()
}

/// As many shapes as fit, and how many there are if not all do.
fn shortened(tops: &[String]) -> String {
    let text = tops.join(", ");
    match tops {
        [first, ..] if text.len() > WIDTH => format!("{first} and {} more", tops.len() - 1),
        _ => text,
    }
}
