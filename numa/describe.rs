//! The text of the `topo` command: what the machine is, what Quadrille makes of it, and why.
//!
//! A pure function of what was detected, so that the text can be tested for machines that are not here.

use std::fmt::Write;

use crate::cpu_list;
use crate::drawing;
use crate::environment;
use crate::quadrant::{Partition, Quadrant};
use crate::threads::Thread;
use crate::topology::{Machine, Node, Tier};

pub use crate::environment::Env;

/// Describes a machine, its cut and what of the environment counts, for someone who sees it for the first
/// time.
pub fn describe(machine: &Machine, partition: &Partition, env: Env) -> String {
    let mut text = String::new();
    machine_lines(&mut text, machine);
    text.push('\n');
    text.push_str(&drawing::draw(machine, partition));
    text.push_str("\nNUMA nodes: memory and the CPUs near it\n");
    text.push_str(&table(&node_rows(machine)));
    text.push_str("\nQuadrants: each trains on its own CPUs\n");
    text.push_str(&table(&quadrant_rows(partition)));
    push(&mut text, &format!("  {}.", partition.how));
    text.push_str("\nThreads: where each runs\n");
    text.push_str(&table(&thread_rows(partition)));
    if !machine.notes.is_empty() {
        text.push_str("\nNotes\n");
        for note in &machine.notes {
            push(&mut text, &format!("  - {note}"));
        }
    }
    text.push_str("\nEnvironment\n");
    for line in environment::read(machine, env) {
        push(&mut text, &format!("  {line}"));
    }
    text
}

fn push(text: &mut String, line: &str) {
    text.push_str(line);
    text.push('\n');
}

fn machine_lines(text: &mut String, machine: &Machine) {
    let cores = machine.cores.len();
    push(text, &format!("Machine     {}", machine.model));
    push(
        text,
        &format!(
            "CPUs        {} allowed, on {}: {}",
            machine.cpus.len(),
            counted(cores, "core"),
            cpu_list::format(&machine.cpus)
        ),
    );
    for socket in &machine.sockets {
        push(text, &format!("Socket {:<4} CPUs {}", socket.os_index, cpu_list::format(&socket.cpus)));
    }
    let caches: Vec<String> = machine
        .caches
        .iter()
        .map(|cache| {
            let kind = match cache.kind.as_str() {
                "Data" => "d",
                "Instruction" => "i",
                _ => "",
            };
            let shared = match cache.shared_by {
                1 => String::new(),
                count => format!(" for {count} CPUs"),
            };
            format!("L{}{kind} {}{shared}", cache.level, bytes(cache.bytes))
        })
        .collect();
    if !caches.is_empty() {
        push(text, &format!("Caches      {}", caches.join(", ")));
    }
}

fn node_rows(machine: &Machine) -> Vec<Vec<String>> {
    let mut rows = vec![row(["node", "memory", "bandwidth", "kind", "CPUs"])];
    for node in &machine.nodes {
        let cpus = match (node.cpus.is_empty(), node.near) {
            (false, _) => cpu_list::format(&node.cpus),
            (true, Some(near)) => format!("none, near node {near}"),
            (true, None) if node.total_cpus > 0 => format!("none of its {} allowed", node.total_cpus),
            (true, None) => "none".to_string(),
        };
        let memory = node.memory_bytes.map_or_else(|| "unknown".to_string(), bytes);
        let index = if machine.numa_known { node.os_index.to_string() } else { "?".to_string() };
        rows.push(vec![index, memory, bandwidth(node.bandwidth), kind(node), cpus]);
    }
    rows
}

fn kind(node: &Node) -> String {
    let used = match node {
        Node { memory_bytes: Some(0), .. } => return "no memory".to_string(),
        Node { allowed: false, .. } => return "not allowed".to_string(),
        Node { tier: Tier::Fast, .. } => "fast",
        Node { tier: Tier::Slow, .. } => "slow, not used",
        Node { tier: Tier::Gpu, .. } => return "GPU, not used".to_string(),
        Node { tier: Tier::Unknown, .. } => "not used",
        Node { tier: Tier::Dram, .. } => return node.subtype.clone().unwrap_or_else(|| "DRAM".to_string()),
    };
    node.subtype.as_ref().map_or_else(|| used.to_string(), |subtype| format!("{subtype}, {used}"))
}

fn quadrant_rows(partition: &Partition) -> Vec<Vec<String>> {
    let mut rows = vec![row(["quadrant", "memory node", "fast node", "threads", "CPUs"])];
    let or_none = |node: Option<usize>| node.map_or_else(|| "-".to_string(), |node| node.to_string());
    for quadrant in &partition.quadrants {
        let Quadrant { index, cpus, dram_node, fast_node, threads, pinned, .. } = quadrant;
        rows.push(vec![
            index.to_string(),
            or_none(*dram_node),
            or_none(*fast_node),
            if *pinned { threads.to_string() } else { format!("{threads} unpinned") },
            cpu_list::format(cpus),
        ]);
    }
    rows
}

/// The threads of each role, worker and quadrant in one row.
fn thread_rows(partition: &Partition) -> Vec<Vec<String>> {
    let mut rows = vec![row(["role", "worker", "quadrant", "threads", "CPUs"])];
    let alike = |a: &Thread, b: &Thread| (a.role, a.worker, a.quadrant) == (b.role, b.worker, b.quadrant);
    for threads in partition.threads.chunk_by(alike) {
        let Some(Thread { role, worker, quadrant, .. }) = threads.first() else { continue };
        let cpus: Vec<usize> = threads.iter().filter_map(|thread| thread.cpu).collect();
        let cpus = if cpus.is_empty() { "any".to_string() } else { cpu_list::format(&cpus) };
        let quadrant = quadrant.map_or_else(|| "-".to_string(), |quadrant| quadrant.to_string());
        rows.push(vec![role.to_string(), worker.to_string(), quadrant, threads.len().to_string(), cpus]);
    }
    rows
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_string).to_vec()
}

/// Columns padded to their widest cell; no blanks at the ends of lines.
fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a `String` cannot fail.
            let _ = write!(line, "  {cell:<width$}");
        }
        push(&mut text, line.trim_end());
    }
    text
}

/// A size as people say it: `48 KiB`, `16.0 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (name, unit) in UNITS {
        if count >= unit {
            return match count % unit {
                0 => format!("{} {name}", count / unit),
                _ => format!("{:.1} {name}", count as f64 / unit as f64),
            };
        }
    }
    format!("{count} bytes")
}

/// A bandwidth in GiB/s; a dash where it is unknown.
pub(crate) fn bandwidth(mebibytes: Option<u64>) -> String {
    mebibytes.map_or_else(|| "-".to_string(), |value| format!("{:.0} GiB/s", value as f64 / 1024.0))
}

fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
