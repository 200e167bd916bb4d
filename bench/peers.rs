//! Whole training iterations (forward, loss, backward, update) beside PyTorch, the two in turn.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::record::{median, surroundings, write};

/// What to compare.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The peer's script; it prints one JSON object a network with the field "ms"
    #[arg(long, default_value = "../shared/peers/torch_train.py", value_name = "FILE")]
    script: PathBuf,
    /// A Python that has PyTorch
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    python: PathBuf,
    /// Networks, as both sides name them
    #[arg(long, default_value = "lenet", value_delimiter = ',', value_name = "NAMES")]
    nets: Vec<String>,
    /// Pairs of runs of each network
    #[arg(long, default_value_t = 5, value_name = "N")]
    pairs: usize,
    /// Threads on both sides
    #[arg(long, default_value_t = 2, value_name = "N")]
    threads: usize,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Runs the pairs, prints the ratios and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let mut networks = Vec::new();
    println!("{:16} {:>12} {:>12} {:>8}", "network", "peer ms", "ours ms", "ratio");
    for net in &args.nets {
        let mut pairs = Vec::new();
        for _ in 0..args.pairs.max(1) {
            // Both layouts of the peer, and the better one counts: its users would choose it.
            let peer = peer_ms(args, net, "nchw")?.min(peer_ms(args, net, "nhwc")?);
            let ours = our_ms(args, net)?;
            println!("{net:16} {peer:12.3} {ours:12.3} {:8.3}", peer / ours);
            pairs.push((peer, ours));
        }
        let ratios: Vec<f64> = pairs.iter().map(|(peer, ours)| peer / ours).collect();
        println!("{net:16} {:>12} {:>12} {:8.3}", "", "median", median(&ratios));
        networks.push(json!({
            "network": net,
            "peer_ms": pairs.iter().map(|p| p.0).collect::<Vec<_>>(),
            "ours_ms": pairs.iter().map(|p| p.1).collect::<Vec<_>>(),
            "ratio_peer_over_ours": ratios,
            "median_ratio": median(&ratios),
        }));
    }
    let record = json!({
        "experiment": "peers",
        "what": "milliseconds of one training iteration; ratio above 1: ours is faster",
        "peer": format!("PyTorch {}", peer_version(&args.python)),
        "threads": args.threads,
        "surroundings": around,
        "networks": networks,
    });
    args.record.as_deref().map_or(Ok(()), |path| write(path, &record))
}

fn output_of(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("cannot run {name}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{name} failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn peer_version(python: &Path) -> String {
    let mut command = Command::new(python);
    output_of(command.args(["-c", "import torch; print(torch.__version__)"]))
        .map_or("unknown".to_owned(), |version| version.trim().to_owned())
}

fn number(text: &str, field: &str) -> Result<f64, String> {
    let value: Option<Value> = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
    let number = value.as_ref().and_then(|v| v[field].as_f64());
    number.ok_or_else(|| format!("no number {field:?} in: {text}"))
}

fn peer_ms(args: &Args, net: &str, layout: &str) -> Result<f64, String> {
    let mut command = Command::new(&args.python);
    command.arg(&args.script).args([
        "--nets",
        net,
        "--threads",
        &args.threads.to_string(),
        "--layout",
        layout,
    ]);
    number(&output_of(&mut command)?, "ms")
}

/// Ours, with the program that lies beside this one.
fn our_ms(args: &Args, net: &str) -> Result<f64, String> {
    let here = std::env::current_exe().map_err(|error| error.to_string())?;
    let program = here.with_file_name("quadrille");
    let model = format!("models/{net}/train_val.prototxt");
    let mut command = Command::new(program);
    command.args(["time", "--json", "--iterations", "140", "--quadrants", "1"]);
    command.args(["--model", &model, "--threads", &args.threads.to_string()]);
    number(&output_of(&mut command)?, "iteration_ms")
}
