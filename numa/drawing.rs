//! The chip in characters: sockets, quadrants, cores and the memory near them.

use std::collections::BTreeMap;

use crate::cpu_list;
use crate::describe::{bandwidth, bytes};
use crate::quadrant::{Partition, Quadrant};
use crate::threads::Role;
use crate::topology::{Core, Machine, Node, Tier};

/// How wide a drawing may get; a terminal of 100 columns shows it.
const WIDTH: usize = 100;

/// Cores in a line of a box.
const CORES_IN_A_LINE: usize = 32;

/// The longest list of CPUs that is written out.
const LIST: usize = 34;

/// Draws the quadrants as boxes, those of a socket side by side.
pub(crate) fn draw(machine: &Machine, partition: &Partition) -> String {
    let mut sockets: BTreeMap<Option<usize>, Vec<Vec<String>>> = BTreeMap::new();
    let marks = marks(partition);
    for quadrant in &partition.quadrants {
        let socket = socket_of(machine, quadrant);
        sockets.entry(socket).or_default().push(contents(machine, quadrant, &marks));
    }
    let mut text = String::new();
    for (socket, contents) in &sockets {
        let name = socket.map_or_else(|| "Several sockets".to_string(), |socket| format!("Socket {socket}"));
        text.push_str(&name);
        text.push('\n');
        text.push_str(&boxes(contents));
    }
    text.push_str("  (of each core: # computes, m leads, c exchanges, i reads, . has no thread)\n");
    text
}

/// The socket of all its cores; `None` if it spans several.
fn socket_of(machine: &Machine, quadrant: &Quadrant) -> Option<usize> {
    let mut sockets = cores(machine, quadrant).map(|core| core.socket);
    let first = sockets.next()?;
    sockets.all(|socket| socket == first).then_some(first)
}

/// The cores that have any of its CPUs.
fn cores<'a>(machine: &'a Machine, quadrant: &'a Quadrant) -> impl Iterator<Item = &'a Core> {
    machine.cores.iter().filter(|core| core.cpus.iter().any(|cpu| quadrant.cpus.contains(cpu)))
}

/// What the threads of each CPU do. A crew that is not pinned is drawn where it would be.
fn marks(partition: &Partition) -> BTreeMap<usize, char> {
    let mut marks = BTreeMap::new();
    for quadrant in partition.quadrants.iter().filter(|quadrant| !quadrant.pinned) {
        marks.extend(quadrant.cpus.iter().map(|&cpu| (cpu, '#')));
    }
    for thread in &partition.threads {
        let mark = match thread.role {
            Role::Compute => '#',
            Role::Main => 'm',
            Role::Comm => 'c',
            Role::Io => 'i',
        };
        marks.extend(thread.cpu.map(|cpu| (cpu, mark)));
    }
    marks
}

/// The lines inside the box of a quadrant; the first is its title.
fn contents(machine: &Machine, quadrant: &Quadrant, marks: &BTreeMap<usize, char>) -> Vec<String> {
    let mark = |core: &Core| core.cpus.iter().find_map(|cpu| marks.get(cpu).copied()).unwrap_or('.');
    let drawn: Vec<char> = cores(machine, quadrant).map(mark).collect();
    let mut lines = vec![format!("quadrant {}", quadrant.index)];
    for (number, part) in drawn.chunks(CORES_IN_A_LINE).enumerate() {
        let noun = if drawn.len() == 1 { "core" } else { "cores" };
        let head = if number == 0 { format!("{} {noun}", drawn.len()) } else { String::new() };
        let head = format!("{head:>9}");
        lines.push(format!("{head}  {}", part.iter().collect::<String>()));
    }
    let list = cpu_list::format(&quadrant.cpus);
    let list = if list.len() > LIST { format!("{}...", &list[..LIST - 3]) } else { list };
    lines.push(format!("     CPUs  {list}"));
    for node in quadrant.dram_nodes.iter().chain(&quadrant.fast_nodes) {
        lines.extend(machine.node(*node).map(memory));
    }
    if quadrant.dram_nodes.is_empty() {
        lines.push("   memory  where the system likes".to_string());
    }
    lines
}

fn memory(node: &Node) -> String {
    let name = match (&node.subtype, node.tier) {
        (Some(subtype), _) => subtype.chars().take(9).collect(),
        (None, Tier::Fast) => "fast".to_string(),
        (None, _) => "DRAM".to_string(),
    };
    let size = node.memory_bytes.map_or_else(|| "unknown size".to_string(), bytes);
    let speed = node.bandwidth.map_or_else(String::new, |_| format!(", {}", bandwidth(node.bandwidth)));
    let cache = node.cache_bytes.map_or_else(String::new, |size| format!(", cache {}", bytes(size)));
    format!("{name:>9}  node {}: {size}{speed}{cache}", node.os_index)
}

/// Boxes with these contents, as many side by side as fit.
fn boxes(contents: &[Vec<String>]) -> String {
    let inner = contents.iter().flatten().map(|line| line.chars().count()).max().unwrap_or(0) + 2;
    let in_a_row = ((WIDTH - 2) / (inner + 3)).clamp(1, contents.len().max(1));
    let mut text = String::new();
    for row in contents.chunks(in_a_row) {
        let height = row.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..=height {
            let cells = row.iter().map(|lines| match (line, lines.get(line)) {
                (0, Some(title)) => format!("+-{:-<width$}+", format!(" {title} "), width = inner - 1),
                (line, _) if line == height => format!("+{}+", "-".repeat(inner)),
                (_, Some(content)) => format!("| {content:<width$}|", width = inner - 1),
                (_, None) => format!("|{}|", " ".repeat(inner)),
            });
            text.push_str("  ");
            text.push_str(&cells.collect::<Vec<_>>().join(" "));
            text.push('\n');
        }
    }
    text
}
