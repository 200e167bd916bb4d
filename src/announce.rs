//! The first lines of a training.

use quadrille_comm::protocol::Method;
use quadrille_core::net::ParamLayout;

use crate::averaging;
use crate::bundled;
use crate::cli::TrainArgs;
use crate::output::{LogStyle, style};
use crate::prepare::Prepared;
use crate::resume::Home;
use crate::settings::Settings;

/// Says what the run decided, and why.
pub fn announce<'a>(
    args: &TrainArgs,
    p: &'a Prepared<'_>,
    home: &Home,
    kernels: impl Iterator<Item = &'a String>,
) {
    let solver = args
        .solver
        .as_deref()
        .map_or(format!("{} (bundled)", bundled::SOLVER_NAME), |s| s.display().to_string());
    say!("solver      {solver}");
    say!("network     {} ({}): {} parameters", p.net.name, p.net.file, p.net.params.values());
    say!("data        {}", p.train.feed.describe(p.train.batch));
    let settings = &p.settings;
    let why = if settings.workers == 1 {
        "one worker, nobody to exchange with".to_owned()
    } else {
        settings.method.reference().to_owned()
    };
    say!("method      {}: {why}", settings.method_name());
    if args.workers.is_none() && settings.workers > 1 {
        say!("            the bundled demonstration uses {} workers; --workers 1 for one", settings.workers);
    }
    if settings.is_elastic() {
        say!(
            "            rho {} (pull eta*rho = {} at the start)",
            settings.rho,
            settings.rho * settings.solver.base_lr
        );
    }
    announce_messages(settings, &p.net.params);
    if settings.period > 1 {
        say!("            an exchange in every {}th iteration", settings.period);
    }
    if let Some(momentum) = settings.momentum_aside {
        say!("            without momentum: the solver's {momentum} is set aside");
    }
    for line in p.world_lines {
        say!("{line}");
    }
    announce_clock(settings);
    p.machine.say_how();
    say!(
        "            {} worker(s) x {}; kernels for {}; seed {}",
        settings.workers,
        p.machine.of_each(),
        p.machine.kernels(),
        settings.seed
    );
    announce_devices(p);
    for line in p.machine.notes.iter().map(|n| format!("note        {n}")).chain(p.lines.iter().cloned()) {
        say!("{line}");
    }
    for line in p.start.lines.iter().chain(kernels) {
        say!("{line}");
    }
    if !settings.solver.ignored.is_empty() {
        say!("ignored     solver fields without effect here: {}", settings.solver.ignored.join(", "));
    }
    for line in home.lines.iter().chain(&schedule(p, args.keep_snapshots)) {
        say!("{line}");
    }
    if style() == LogStyle::Caffe {
        // Parsers take the time of this line for the start.
        say!("Solving {}", p.net.name);
        say!("Learning Rate Policy: {}", settings.solver.policy.name());
    }
}

/// Says what the workers' messages carry, and how sums are found.
fn announce_messages(settings: &Settings, layout: &ParamLayout) {
    if settings.sums() {
        let how = if settings.unpacked { ", a message for each array" } else { "" };
        let mib = (layout.len() * size_of::<f32>()) as f64 / f64::from(1 << 20);
        let parts = in_parts(settings, layout);
        say!("            sums of {mib:.2} MiB by {}{how}{parts}", settings.algorithm(layout));
    } else if settings.unpacked {
        say!("            weights and centre travel in a message for each array");
    }
}

/// In how many parts gradients leave while backward runs, if they do.
fn in_parts(settings: &Settings, layout: &ParamLayout) -> String {
    if settings.method != Method::SyncSgd {
        return String::new();
    }
    let parts = averaging::parts(layout, settings.workers, settings.unpacked).len();
    let when = match () {
        () if settings.on_nonfinite.is_close() => "behind backward, once all of them are looked at",
        () => "beside backward, as it finds them",
    };
    format!(", in {parts} part(s) {when}")
}

/// Says which workers have which devices, if some have a GPU.
fn announce_devices(p: &Prepared<'_>) {
    let Some(devices) = p.machine.who_is_where(0) else { return };
    let turns = "; on each node the workers of its processes take the devices in turn";
    say!("devices     {devices}{}", if p.world_lines.is_empty() { "" } else { turns });
}

/// Says so if the clock is a virtual one.
fn announce_clock(settings: &Settings) {
    let Some(machine) = &settings.machine else { return };
    say!("clock       sim: computing, copies and messages take what they take on \"{}\"", machine.name);
    if !machine.source.is_empty() {
        say!("            {}", machine.source);
    }
}

/// How often there are snapshots, and what they take: whoever keeps all of them needs room for all of them.
fn schedule(p: &Prepared<'_>, keep: Option<usize>) -> Option<String> {
    let solver = &p.settings.solver;
    let arrays = 1 + solver.rule.kind.histories();
    let arrays = if p.settings.is_elastic() { 1 + p.settings.workers * arrays } else { arrays };
    let mib = (arrays * p.net.params.values() * size_of::<f32>()) as f64 / f64::from(1 << 20);
    let kept = keep.map_or("all are kept (--keep-snapshots N keeps the newest)".to_owned(), |keep| {
        format!("the newest {keep} are kept")
    });
    let every = solver.snapshot;
    (every > 0).then(|| format!("snapshots   every {every} iteration(s), of {mib:.1} MiB; {kept}"))
}
