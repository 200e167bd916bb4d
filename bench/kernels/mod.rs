//! Convolutions one by one: every implementation of every tier, checked and beside the measured peak.

mod layer;

use std::path::PathBuf;

use quadrille_core::layer::SubTask;
use quadrille_cpu::CrewSpec;
use quadrille_cpu::isa::{Isa, Numerics, Precision};
use quadrille_cpu::kernel::ceilings::multiply_adds;
use serde_json::{Value, json};

use crate::shapes::{ConvolutionShape, read};
use layer::{Case, Outcome, SUBS, Setting};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A file of shapes, one a line: name  n c h w  out kh kw  stride pad dilation group
    #[arg(default_value = "bench/shapes/convolutions.txt", value_name = "FILE")]
    shapes: PathBuf,
    /// Only shapes whose name begins so, such as alexnet/ or resnet50/res4
    #[arg(long, value_name = "NAME")]
    filter: Option<String>,
    /// Only this tier, such as avx2 [default: all of this CPU whose kernels are not those of a lower one]
    #[arg(long, value_name = "TIER")]
    isa: Option<Isa>,
    /// Only this precision of products: f32, bf16 [default: both]
    #[arg(long, value_name = "TYPE")]
    precision: Option<Precision>,
    /// Only these implementations [default: all]
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    kernels: Vec<String>,
    /// Threads [default: one for each core]
    #[arg(long, value_name = "T")]
    threads: Option<usize>,
    /// Images in a mini-batch, instead of those in the file
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Measured runs of each sub-task, of which the median counts
    #[arg(long, default_value_t = 5, value_name = "N")]
    repeat: usize,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
}

/// The implementation that all others are checked against, in the lowest tier ...
const REFERENCE: &str = "reference";
/// ... and the one that stands in for it where it would take too long.
const FAST_REFERENCE: &str = "im2col-gemm";
/// Operations of a sub-task up to which the reference is not too slow, at a few hundred million a second.
const REFERENCE_FLOPS: u64 = 1 << 27;

/// One implementation of one tier on one shape.
struct Line {
    numerics: Numerics,
    kernel: String,
    ms: [f64; 3],
    gflops: [f64; 3],
    share: [f64; 3],
    /// What it was compared with, or the first difference.
    check: Result<String, String>,
}

/// Runs all shapes.
pub fn run(args: &Args) -> Result<(), String> {
    let mut shapes = read(&args.shapes)?;
    shapes.retain(|shape| args.filter.as_ref().is_none_or(|part| shape.name.starts_with(part.as_str())));
    if shapes.is_empty() {
        return Err(format!("{}: no shape whose name begins as --filter says", args.shapes.display()));
    }
    if let Some(batch) = args.batch {
        shapes.iter_mut().for_each(|shape| shape.input[0] = batch.max(1));
    }
    let crew = crew(args.threads)?;
    let ways = ways(args)?;
    // Of the machine, for all tiers of a precision: what a lower tier leaves unused is a part of what it costs.
    let highest = Isa::detect();
    let mut precisions = Precision::ALL.to_vec();
    precisions.retain(|p| ways.iter().any(|numerics| numerics.precision == *p));
    let peaks: Vec<(Precision, f64)> = precisions
        .into_iter()
        .map(|precision| (precision, multiply_adds(Numerics { isa: highest, precision }, crew.cpus.len())))
        .collect();
    if !args.json {
        print_head(&peaks, crew.cpus.len());
    }
    let (mut values, mut wrong) = (Vec::new(), Vec::new());
    for (shape, count) in distinct(shapes) {
        let lines = measure(args, &shape, &crew, &ways, &peaks)?;
        wrong.extend(lines.iter().filter_map(|line| {
            let difference = line.check.as_ref().err()?;
            Some(format!("{} by {} on {}: {difference}", shape.name, line.kernel, line.numerics))
        }));
        if args.json {
            values.push(to_json(&shape, count, &lines));
        } else {
            print(&shape, count, &lines);
        }
    }
    if args.json {
        let peaks: Value =
            peaks.iter().map(|(precision, peak)| (precision.to_string(), json!(peak))).collect();
        println!("{}", json!({"threads": crew.cpus.len(), "peak_gflops": peaks, "shapes": values}));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("wrong results:\n  {}", wrong.join("\n  "))) }
}

/// The tiers and precisions to measure: each tier's own kernels.
fn ways(args: &Args) -> Result<Vec<Numerics>, String> {
    let tiers: Vec<Isa> = args.isa.map_or_else(|| Isa::available().collect(), |isa| vec![isa]);
    let asked = |precision: &Precision| args.precision.is_none_or(|asked| asked == *precision);
    let mut ways = Vec::new();
    for isa in tiers {
        for precision in Precision::ALL.into_iter().filter(asked) {
            let numerics = Numerics { isa, precision };
            let own = precision == Precision::Bf16 || args.isa.is_some() || isa.of_f32_kernels() == isa;
            match numerics.check() {
                Ok(()) if own => ways.push(numerics),
                Err(reason) if args.isa.is_some() && args.precision.is_some() => return Err(reason),
                _ => {}
            }
        }
    }
    if ways.is_empty() { Err(format!("{} has no such precision", Isa::detect())) } else { Ok(ways) }
}

/// Each shape once, with the number of its kind.
fn distinct(shapes: Vec<ConvolutionShape>) -> Vec<(ConvolutionShape, usize)> {
    let mut found: Vec<(ConvolutionShape, usize)> = Vec::new();
    for shape in shapes {
        match found.iter_mut().find(|(known, _)| known.is_like(&shape)) {
            Some((_, count)) => *count += 1,
            None => found.push((shape, 1)),
        }
    }
    found
}

/// One quadrant of the whole machine.
pub fn crew(threads: Option<usize>) -> Result<CrewSpec, String> {
    let machine = quadrille_numa::detect().map_err(|error| error.to_string())?;
    let cut = quadrille_numa::quadrants(&machine, Some(1), threads).map_err(|error| error.to_string())?;
    let quadrant = cut.quadrants.first().ok_or("a machine without a quadrant")?;
    let cpus = (0..quadrant.threads).map(|thread| quadrant.cpu_of_thread(thread)).collect();
    Ok(CrewSpec { name: "quadrant 0".to_owned(), cpus, caches: Vec::new() })
}

fn measure(
    args: &Args,
    shape: &ConvolutionShape,
    crew: &CrewSpec,
    ways: &[Numerics],
    peaks: &[(Precision, f64)],
) -> Result<Vec<Line>, String> {
    let case = Case::new(shape)?;
    let slow = SUBS.iter().any(|sub| case.flops(*sub) > REFERENCE_FLOPS);
    let against = if slow { FAST_REFERENCE } else { REFERENCE };
    let portable = Numerics::from(Isa::Portable);
    let lowest = Setting { numerics: portable, kernel: against, crew, repeat: None };
    let Some(expected) = case.run(&lowest)? else {
        return Err(format!("{}: {against} cannot do this convolution", shape.name));
    };
    let wanted = |kernel: &str| args.kernels.is_empty() || args.kernels.iter().any(|k| k == kernel);
    let line = |numerics: Numerics, kernel: &str, outcome: &Outcome| {
        let gflops = [0, 1, 2].map(|i| case.flops(SUBS[i]) as f64 * 1e-6 / outcome.ms[i].max(1e-6));
        let is_itself = numerics == portable && kernel == against;
        let peak = peaks.iter().find(|(p, _)| *p == numerics.precision).map_or(f64::NAN, |(_, peak)| *peak);
        let right = if is_itself { "baseline".to_owned() } else { format!("= {against}") };
        let check = compare(outcome, &expected, numerics.precision).map(|()| right);
        Line {
            numerics,
            kernel: kernel.to_owned(),
            ms: outcome.ms,
            gflops,
            share: gflops.map(|r| r / peak),
            check,
        }
    };
    let mut lines = Vec::new();
    for numerics in ways {
        let known = case.implementations(*numerics, crew)?;
        if let Some(stranger) = args.kernels.iter().find(|kernel| !known.contains(kernel)) {
            return Err(format!("--kernels {stranger}: the implementations are {}", known.join(", ")));
        }
        for kernel in known {
            // The reference is the same in all tiers, and has run if it is not too slow.
            let other = numerics.precision == Precision::Bf16 && !kernel.ends_with("-bf16");
            if !wanted(&kernel) || kernel == REFERENCE || other {
                continue;
            }
            let setting = Setting { numerics: *numerics, kernel: &kernel, crew, repeat: Some(args.repeat) };
            if let Some(outcome) = case.run(&setting)? {
                lines.push(line(*numerics, &kernel, &outcome));
            }
        }
    }
    if !slow && wanted(REFERENCE) {
        lines.push(line(portable, REFERENCE, &expected));
    }
    Ok(lines)
}

/// The first difference between what two implementations computed. What blobs hold in bf16 is rounded.
fn compare(found: &Outcome, expected: &Outcome, precision: Precision) -> Result<(), String> {
    for ((found, expected), sub) in found.results.iter().zip(&expected.results).zip(SUBS) {
        if found.len() != expected.len() {
            return Err(format!("{sub}: {} values instead of {}", found.len(), expected.len()));
        }
        let rounds = precision == Precision::Bf16 && sub != SubTask::GradWeight;
        let is_right = |at: &usize| {
            let (found, expected) = (found[*at], expected[*at]);
            found == expected || rounds && found == as_bf16(expected)
        };
        if let Some(at) = (0..found.len()).find(|at| !is_right(at)) {
            return Err(format!("{sub} at {at}: {} instead of {}", found[at], expected[at]));
        }
    }
    Ok(())
}

/// The nearest bf16, of two as near the even one.
fn as_bf16(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000)
}

fn print_head(peaks: &[(Precision, f64)], threads: usize) {
    for (precision, peak) in peaks {
        println!("peak        {peak:.0} GFLOP/s of multiply-adds in {precision} on {threads} thread(s)");
    }
    println!(
        "            results are compared on small integers, where all must agree in every bit, in bf16 rounded"
    );
    let [forward, activation, weight] = SUBS.map(|sub| sub.to_string());
    println!("\n{:33} {forward:>24} {activation:>24} {weight:>24}", "");
    let columns = format!("{:>9} {:>7} {:>6}", "ms", "GFLOP/s", "peak");
    println!("  {:12} {:18} {columns} {columns} {columns}", "tier", "kernel");
}

fn print(shape: &ConvolutionShape, count: usize, lines: &[Line]) {
    let [n, c, h, w] = shape.input;
    let pair = |[a, b]: [usize; 2]| format!("{a}x{b}");
    println!(
        "{}: {n}x{c}x{h}x{w} -> {}, kernel {}, stride {}, pad {}, dilation {}, {} group(s); {count} of its kind",
        shape.name,
        shape.out,
        pair(shape.kernel),
        pair(shape.stride),
        pair(shape.pad),
        pair(shape.dilation),
        shape.group
    );
    let numbers = |line: &Line, i: usize| {
        format!("{:9.3} {:7.1} {:4.0} %", line.ms[i], line.gflops[i], 100.0 * line.share[i])
    };
    for line in lines {
        let columns = [0, 1, 2].map(|i| numbers(line, i)).join(" ");
        let check = line.check.as_ref().map_or("WRONG", String::as_str);
        println!("  {:12} {:18} {columns} {check}", line.numerics.isa.to_string(), line.kernel);
    }
    let best = [0, 1, 2].map(|i| {
        best(lines, i).map_or_else(String::new, |line| format!("{} {}", line.numerics.isa, line.kernel))
    });
    println!("  {:31} {:>24} {:>24} {:>24}", "best", best[0], best[1], best[2]);
}

/// The fastest line in a sub-task whose results are right.
fn best(lines: &[Line], sub: usize) -> Option<&Line> {
    lines.iter().filter(|line| line.check.is_ok()).min_by(|a, b| a.ms[sub].total_cmp(&b.ms[sub]))
}

fn to_json(shape: &ConvolutionShape, count: usize, lines: &[Line]) -> Value {
    let subs = |line: &Line| -> Value {
        let one =
            |i: usize| json!({"ms": line.ms[i], "gflops": line.gflops[i], "share_of_peak": line.share[i]});
        SUBS.iter().enumerate().map(|(i, sub)| (sub.to_string(), one(i))).collect()
    };
    let results: Vec<Value> = lines
        .iter()
        .map(|line| {
            json!({
                "isa": line.numerics.isa.to_string(),
                "precision": line.numerics.precision.to_string(), "kernel": line.kernel, "sub_tasks": subs(line),
                "right": line.check.is_ok(), "check": line.check.as_ref().unwrap_or_else(|difference| difference),
            })
        })
        .collect();
    let fastest =
        |i: usize| best(lines, i).map(|l| json!({"isa": l.numerics.isa.to_string(), "kernel": l.kernel}));
    let best: Value = SUBS.iter().enumerate().map(|(i, sub)| (sub.to_string(), json!(fastest(i)))).collect();
    json!({
        "name": shape.name, "count": count, "input": shape.input, "out": shape.out, "kernel": shape.kernel,
        "stride": shape.stride, "pad": shape.pad, "dilation": shape.dilation, "group": shape.group,
        "results": results, "best": best,
    })
}
