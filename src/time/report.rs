//! What was measured, as a table for people and as JSON for programs.

use quadrille_core::layer::SubTask;
use quadrille_core::net::{LayerId, Net};
use quadrille_core::plan::Schedule;
use quadrille_cpu::kernel::ceilings::Ceilings;
use quadrille_cpu::{BlobBytes, Choice, CrewSpec};
use quadrille_io::data::DataSource;
use serde_json::{Value, json};

use super::measure::{Measured, Row};
use crate::crews::Crews;
use crate::worker::blob_memory;

/// Everything that a report tells.
pub struct Report<'a> {
    /// The net of the first device.
    pub net: &'a Net,
    /// Images of a mini-batch.
    pub batch: usize,
    /// The data set; `None` if data was made up.
    pub data: Option<&'a DataSource>,
    /// Devices.
    pub quadrants: usize,
    /// Threads of all devices.
    pub threads: usize,
    /// How the machine was cut.
    pub machine: &'a Crews,
    /// In which lanes tasks run, and which schedule that is.
    pub schedule: (Schedule, String),
    /// Where memory went, line by line.
    pub placement: &'a [String],
    /// How each layer is computed.
    pub choices: &'a [Choice],
    /// The times.
    pub measured: &'a Measured,
    /// The median of iterations that were launched as one CUDA graph each, in ms.
    pub as_graph: Option<f64>,
    /// What the devices can do.
    pub ceilings: Ceilings,
    /// How that is known.
    pub source: String,
    /// In MiB, if it is known.
    pub peak_memory: Option<f64>,
    /// Of values and gradients.
    pub blobs: BlobBytes,
}

/// A layer's name in the table, with those of the layers it is fused with, or how many they are.
fn shown(choice: &Choice) -> String {
    const WIDTH: usize = 27;
    let parts = choice.label.matches(" + ").count();
    match choice.label.chars().count() <= WIDTH {
        true => choice.label.clone(),
        false => format!("{} + {parts}", choice.layer),
    }
}

/// Time and work of one or several sub-tasks.
#[derive(Clone, Copy, Default)]
struct Work {
    ms: f64,
    flops: u64,
    bytes: u64,
}

impl Work {
    fn of<'a>(rows: impl Iterator<Item = &'a Row>) -> Self {
        rows.fold(Self::default(), |sum, row| Self {
            ms: sum.ms + row.ms,
            flops: sum.flops + row.flops,
            bytes: sum.bytes + row.bytes,
        })
    }

    /// An amount by the time, in 10^9 a second; 0 if no time was seen.
    fn rate(&self, amount: u64) -> f64 {
        if self.ms > 0.0 { amount as f64 * 1e-6 / self.ms } else { 0.0 }
    }

    fn gflops(&self) -> f64 {
        self.rate(self.flops)
    }

    fn gbs(&self) -> f64 {
        self.rate(self.bytes)
    }
}

/// Whether a sub-task belongs to forward, backward or the update; transfers between quadrants belong to none. An update in one
/// pass with ∇W belongs to backward, whose arithmetic is most of it.
fn belongs(sub: SubTask) -> Option<&'static str> {
    match sub {
        SubTask::Load | SubTask::Forward => Some("forward_ms"),
        SubTask::Update => Some("update_ms"),
        SubTask::Accumulate | SubTask::Broadcast => None,
        _ => Some("backward_ms"),
    }
}

impl Report<'_> {
    fn rows(&self, layer: usize) -> impl Iterator<Item = &Row> {
        self.measured.rows.iter().filter(move |row| row.layer == LayerId(layer))
    }

    fn whole(&self) -> Work {
        Work { ms: self.measured.iteration_ms, ..Work::of(self.measured.rows.iter()) }
    }

    /// Prints the table.
    pub fn print(&self) {
        let Ceilings { gflops, gbs } = self.ceilings;
        say!("network     {} ({}), mini-batch {}", self.net.name, self.net.file, self.batch);
        match self.data {
            Some(data) => {
                let [c, h, w] = data.sample();
                say!("data        {}: {} images {c}x{h}x{w}", data.name(), data.len());
            }
            None => say!("data        made up"),
        }
        self.machine.say_how();
        say!("            kernels for {}", self.machine.kernels());
        say!("schedule    {}; {}", self.schedule.0, self.schedule.1);
        for line in self.placement {
            say!("{line}");
        }
        say!(
            "ceilings    {gflops:.0} GFLOP/s of multiply-adds in {}, {gbs:.1} GB/s of a triad in memory; {}",
            self.machine.precision(),
            self.source
        );
        say!("");
        self.print_head("layer", "kernel", "sub-task");
        for (index, choice) in self.choices.iter().enumerate() {
            for row in self.rows(index) {
                let work = Work { ms: row.ms, flops: row.flops, bytes: row.bytes };
                self.print_row(&shown(choice), choice.implementation, &row.sub.to_string(), &work);
            }
        }
        self.print_totals();
        self.print_iteration();
    }

    fn print_head(&self, first: &str, second: &str, third: &str) {
        say!(
            "{first:27} {second:17} {third:15} {:>13} {:>6} {:>9} {:>7} {:>7} {:>7}",
            "time",
            "share",
            "GFLOP/s",
            "of peak",
            "GB/s",
            "of mem."
        );
    }

    fn print_row(&self, first: &str, second: &str, third: &str, work: &Work) {
        let share = 100.0 * work.ms / self.measured.iteration_ms.max(f64::MIN_POSITIVE);
        say!(
            "{:27} {:17} {third:15} {:10.3} ms {share:4.1} % {:9.1} {:5.1} % {:7.1} {:5.1} %",
            shortened(first, 27),
            shortened(second, 17),
            work.ms,
            work.gflops(),
            100.0 * work.gflops() / self.ceilings.gflops,
            work.gbs(),
            100.0 * work.gbs() / self.ceilings.gbs,
        );
    }

    /// Sums over all layers of each sub-task, and over all sub-tasks of each type of layer.
    fn print_totals(&self) {
        say!("");
        self.print_head("total of type", "", "sub-task");
        let mut types: Vec<&str> = Vec::new();
        for choice in self.choices {
            if !types.contains(&choice.type_name) {
                types.push(choice.type_name);
            }
        }
        for kind in types {
            let is_kind = |row: &&Row| self.choices[row.layer.0].type_name == kind;
            self.print_row(kind, "", "all", &Work::of(self.measured.rows.iter().filter(is_kind)));
        }
        for sub in SubTask::ALL {
            let mut rows = self.measured.rows.iter().filter(|row| row.sub == sub).peekable();
            if rows.peek().is_some() {
                self.print_row("all", "", &sub.to_string(), &Work::of(rows));
            }
        }
    }

    fn print_iteration(&self) {
        let (whole, measured) = (self.whole(), self.measured);
        say!(
            "\niteration   {:.3} ms (median of {}): {:.1} images/s, {:.1} GFLOP/s, {:.1} % of peak",
            whole.ms,
            measured.iterations,
            self.batch as f64 / whole.ms * 1e3,
            whole.gflops(),
            100.0 * whole.gflops() / self.ceilings.gflops
        );
        say!("            {:.1} % of it outside of kernels", 100.0 * measured.outside);
        if let Some(ms) = self.as_graph {
            say!("cuda graph  {ms:.3} ms an iteration, {:.2} times as fast", measured.iteration_ms / ms);
        }
        if let Some(wait) = measured.data_wait {
            say!("data wait   {:.1} % of an iteration: {:.3} ms (mean)", 100.0 * wait.share, wait.ms);
        }
        let blobs = blob_memory(std::iter::once(self.blobs));
        match self.peak_memory {
            Some(mib) => say!("memory      {mib:.0} MiB at most; {blobs}"),
            None => say!("memory      {blobs}"),
        }
        say!(
            "notes       a time is that of all threads at a layer over their number, of a GPU from its begin to its end;"
        );
        say!(
            "            each array that a task declares counts once, and one that lies in a cache may beat the memory"
        );
    }

    /// One object for programs.
    pub fn to_json(&self) -> Value {
        let layers: Vec<Value> =
            self.choices.iter().enumerate().map(|(i, c)| self.layer_json(i, c)).collect();
        let whole = self.whole();
        let caches: Vec<usize> = self.machine.workers.iter().flatten().map(CrewSpec::known_caches).collect();
        json!({
            "network": self.net.name,
            "file": self.net.file.to_string(),
            "batch": self.batch,
            "precision": self.machine.precision(),
            "isa": self.machine.isa(),
            "schedule": self.schedule.0.to_string(),
            "threads": self.threads,
            "quadrants": self.quadrants,
            "caches_of_quadrants": caches,
            "iterations": self.measured.iterations,
            "iteration_ms": whole.ms,
            "graph_iteration_ms": self.as_graph,
            "data": self.data.map(DataSource::name),
            "data_wait_ms": self.measured.data_wait.map(|wait| wait.ms),
            "data_wait_percent": self.measured.data_wait.map(|wait| 100.0 * wait.share),
            "flops": whole.flops,
            "gflops": whole.gflops(),
            "share_of_peak": whole.gflops() / self.ceilings.gflops,
            "peak_gflops": self.ceilings.gflops,
            "bandwidth_gbs": self.ceilings.gbs,
            "peak_memory_mib": self.peak_memory,
            "blob_bytes": self.blobs.taken,
            "blob_bytes_apart": self.blobs.apart,
            "outside_kernels_percent": 100.0 * self.measured.outside,
            "layers": layers,
        })
    }

    fn layer_json(&self, index: usize, choice: &Choice) -> Value {
        let subs: Vec<Value> = self
            .rows(index)
            .map(|row| {
                let mut value = self.work_json(&Work { ms: row.ms, flops: row.flops, bytes: row.bytes });
                value["sub_task"] = json!(row.sub.to_string());
                let grains = choice.grains.iter().find(|(sub, _)| *sub == row.sub);
                value["grains"] = json!(grains.map(|(_, stages)| stages));
                value
            })
            .collect();
        let mut value = self.work_json(&Work::of(self.rows(index)));
        value["layer"] = json!(choice.layer);
        value["label"] = json!(choice.label);
        value["type"] = json!(choice.type_name);
        value["kernel"] = json!(choice.implementation);
        value["layout"] = json!(choice.layout);
        for part in ["forward_ms", "backward_ms", "update_ms"] {
            value[part] = json!(Work::of(self.rows(index).filter(|row| belongs(row.sub) == Some(part))).ms);
        }
        value["sub_tasks"] = json!(subs);
        value
    }

    fn work_json(&self, work: &Work) -> Value {
        json!({
            "ms": work.ms,
            "flops": work.flops,
            "bytes": work.bytes,
            "gflops": work.gflops(),
            "gbs": work.gbs(),
            "share_of_peak": work.gflops() / self.ceilings.gflops,
            "share_of_bandwidth": work.gbs() / self.ceilings.gbs,
        })
    }
}

/// At most `most` characters of a name: its beginning and its end.
fn shortened(name: &str, most: usize) -> String {
    let length = name.chars().count();
    if length <= most {
        return name.to_owned();
    }
    let (head, tail) = (most / 2, most - most / 2 - 1);
    name.chars().take(head).chain(['~']).chain(name.chars().skip(length - tail)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_both_ends() {
        assert_eq!(shortened("inception_4a/output_split", 11), "incep~split");
        assert_eq!(shortened("conv1", 5), "conv1");
    }

    #[test]
    fn a_rate_is_an_amount_by_a_time() {
        let work = Work { ms: 2.0, flops: 4_000_000, bytes: 1_000_000 };
        assert_eq!((work.gflops(), work.gbs()), (2.0, 0.5));
        assert_eq!(Work::default().gflops(), 0.0);
    }
}
