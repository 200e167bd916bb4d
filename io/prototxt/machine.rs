//! From a machine file to core's [`Machine`].

use quadrille_core::machine::{Jitter, Link, Machine, Step};
use quadrille_core::plan::Rates;
use quadrille_core::plan::lanes::Limits;
use quadrille_core::sim::{DeviceModel, GrainRule};
use quadrille_core::site::{Fault, SpecError};

use super::fields::typed;
use super::message::Parsed;
use crate::schema::machine::{self as schema, Machine as Message};

/// The largest figure that is taken: more than any machine's, and small enough for sums of times.
const MOST: f64 = 1e9;

pub(super) fn convert(parsed: &Parsed) -> Result<Machine, SpecError> {
    let mut steps = parsed.parts.iter().filter(|(name, _)| name.starts_with("step"));
    let message: Message = typed(&parsed.message).map_err(|fault| fault.at(&parsed.site, "machine"))?;
    let mut read = Vec::new();
    for step in &message.step {
        let site = steps.next().map_or(&parsed.site, |(_, site)| site);
        read.push(self::step(step).map_err(|fault| fault.at(site, "step"))?);
    }
    machine(&message, read).map_err(|fault| fault.at(&parsed.site, "machine"))
}

fn machine(message: &Message, steps: Vec<Step>) -> Result<Machine, Fault> {
    let worker = message.worker.ok_or_else(|| missing("worker", "the message worker { ... }"))?;
    let master = link(message.master.as_ref(), "master")?;
    Ok(Machine {
        name: message.name.clone().ok_or_else(|| missing("name", "the machine's name"))?,
        source: message.source().to_owned(),
        rates: Rates {
            flops: positive(worker.gflops, "worker.gflops")?,
            bytes: positive(worker.gbytes_per_s, "worker.gbytes_per_s")?,
            overhead: 1e3 * not_negative(worker.task_us(), "worker.task_us")?,
        },
        worker_update: positive(worker.update_gbytes_per_s, "worker.update_gbytes_per_s")?,
        host_update: positive(message.host_update_gbytes_per_s, "host_update_gbytes_per_s")?,
        data: link(message.data.as_ref(), "data")?,
        workers: link(message.workers.as_ref(), "workers")?,
        host: link(message.host.as_ref(), "host")?,
        control: match message.control_us {
            Some(control) => 1e3 * not_negative(control, "control_us")?,
            None => master.latency,
        },
        master,
        shared: message.shared.as_ref().map_or(Ok(master), |shared| link(Some(shared), "shared"))?,
        overlap: share(message.overlap(), "overlap", 1.0)?,
        shared_overlap: share(
            message.shared_overlap.unwrap_or_else(|| message.overlap()),
            "shared_overlap",
            1.0,
        )?,
        jitter: message.jitter.as_ref().map(jitter).transpose()?,
        steps,
        device: message.device.as_ref().map(device).transpose()?,
    })
}

fn device(device: &schema::Device) -> Result<DeviceModel, Fault> {
    let units =
        device.units.ok_or_else(|| missing("device.units", "a number of cores or multiprocessors"))?;
    let time =
        |microseconds: f64, field: &str| Ok(1e3 * not_negative(microseconds, &format!("device.{field}"))?);
    let limits = Limits {
        units: count(units, "device.units")?,
        blocks: count(device.blocks(), "device.blocks")?,
        threads: count(device.threads(), "device.threads")?,
        registers: device.registers(),
        shared: device.shared_bytes(),
        kernels: count(device.lanes(), "device.lanes")?,
        launch: time(device.launch_us(), "launch_us")?,
    };
    let levels = device.priorities();
    Ok(DeviceModel {
        limits,
        flops: positive(device.unit_gflops, "device.unit_gflops")?,
        bytes: positive(device.unit_gbytes_per_s, "device.unit_gbytes_per_s")?,
        memory: positive(device.gbytes_per_s, "device.gbytes_per_s")?,
        levels: u8::try_from(levels).ok().filter(|levels| *levels > 0).ok_or_else(|| {
            Fault::new("device.priorities", format!("{levels}; expected a number from 1 to 255"))
        })?,
        wait: time(device.wait_us(), "wait_us")?,
        start: time(device.start_us(), "start_us")?,
        grain: time(device.grain_us(), "grain_us")?,
        crew: device.crew(),
        compute: grain(device.compute.as_ref(), "device.compute", &limits)?,
        stream: grain(device.stream.as_ref(), "device.stream", &limits)?,
    })
}

fn grain(grain: Option<&schema::Grain>, field: &str, limits: &Limits) -> Result<GrainRule, Fault> {
    let grain = grain.ok_or_else(|| missing(field, "the message { work: ... }"))?;
    let threads = count(grain.threads(), &format!("{field}.threads"))?;
    if threads > limits.threads {
        let message = format!("{threads}; expected at most the {} of a unit", limits.threads);
        return Err(Fault::new(&format!("{field}.threads"), message));
    }
    Ok(GrainRule {
        work: positive(grain.work, &format!("{field}.work"))?,
        most: if grain.most() == 0 { u64::MAX } else { grain.most().into() },
        threads,
        registers: grain.registers().min(MOST as u32 / threads),
        shared: grain.shared_bytes(),
        saturating: count(grain.saturating_threads(), &format!("{field}.saturating_threads"))?,
    })
}

/// A number of things of which there is one at least, and not more than a million.
fn count(count: u32, field: &str) -> Result<u32, Fault> {
    if (1..=1_000_000).contains(&count) {
        return Ok(count);
    }
    Err(Fault::new(field, format!("{count}; expected a number from 1 to 1000000")))
}

fn step(step: &schema::Step) -> Result<Step, Fault> {
    let network = step.network.clone().filter(|name| !name.is_empty());
    let batch = match step.batch {
        Some(0) => Err(Fault::new("batch", "0; expected the images in a worker's mini-batch, at least 1")),
        Some(batch) => Ok(batch as usize),
        None => Err(missing("batch", "the images in a worker's mini-batch")),
    };
    Ok(Step {
        network: network.ok_or_else(|| missing("network", "a network's name, as its file has it"))?,
        batch: batch?,
        forward_backward: 1e6 * positive(step.forward_backward_ms, "forward_backward_ms")?,
        other: 1e6 * not_negative(step.other_ms(), "other_ms")?,
    })
}

fn link(link: Option<&schema::Link>, field: &str) -> Result<Link, Fault> {
    let link = link.ok_or_else(|| missing(field, &format!("the message {field} {{ ... }}")))?;
    let latency = format!("{field}.latency_us");
    Ok(Link {
        latency: match link.latency_us {
            Some(given) => 1e3 * not_negative(given, &latency)?,
            None => return Err(missing(&latency, "a number of at least 0")),
        },
        bandwidth: positive(link.gbytes_per_s, &format!("{field}.gbytes_per_s"))?,
        serial: link.serial(),
    })
}

fn jitter(jitter: &schema::Jitter) -> Result<Jitter, Fault> {
    let share = jitter.share.ok_or_else(|| missing("jitter.share", "a share from 0 to 10"))?;
    Ok(Jitter { seed: jitter.seed(), share: self::share(share, "jitter.share", 10.0)? })
}

fn share(share: f64, field: &str, most: f64) -> Result<f64, Fault> {
    if (0.0..=most).contains(&share) {
        return Ok(share);
    }
    Err(Fault::new(field, format!("{share}; expected a share from 0 to {most}")))
}

fn missing(field: &str, expected: &str) -> Fault {
    Fault::new(field, format!("missing; expected {expected}"))
}

fn positive(value: Option<f64>, field: &str) -> Result<f64, Fault> {
    let value = value.ok_or_else(|| missing(field, "a number above 0"))?;
    if value > 0.0 && value <= MOST {
        return Ok(value);
    }
    Err(Fault::new(field, format!("{value}; expected a number above 0 and at most {MOST}")))
}

fn not_negative(value: f64, field: &str) -> Result<f64, Fault> {
    if (0.0..=MOST).contains(&value) {
        return Ok(value);
    }
    Err(Fault::new(field, format!("{value}; expected a number from 0 to {MOST}")))
}

#[cfg(test)]
mod tests {
    use super::super::parse_machine;

    const GOOD: &str = r#"name: "a node"
worker {
  gflops: 100
  gbytes_per_s: 20.5
  update_gbytes_per_s: 10
}
step { network: "LeNet" batch: 64 forward_backward_ms: 6.07 }
step {
  network: "VGG"
  batch: 32
  forward_backward_ms: 16475
  other_ms: 2
}
host_update_gbytes_per_s: 3.4
data { latency_us: 0 gbytes_per_s: 2.5 serial: true }
workers { latency_us: 0.7 gbytes_per_s: 5 }
host { latency_us: 0.7 gbytes_per_s: 5 }
master {
  latency_us: 1.2
  gbytes_per_s: 5
}
"#;

    #[test]
    fn a_machine_is_read_in_nanoseconds() {
        let machine = parse_machine(GOOD, "m").unwrap();
        assert_eq!((machine.name.as_str(), machine.rates.bytes, machine.host_update), ("a node", 20.5, 3.4));
        assert_eq!((machine.workers.latency, machine.workers.bandwidth), (700.0, 5.0));
        assert!(machine.data.serial && !machine.workers.serial && machine.jitter.is_none());
        assert_eq!((machine.steps.len(), machine.steps[0].forward_backward), (2, 6.07e6));
        assert_eq!((machine.steps[1].batch, machine.steps[1].other), (32, 2e6));
        assert_eq!(machine.control, 1200.0, "the latency of the way to the master");
        assert_eq!(machine.shared, machine.master);
        let apart = format!("{GOOD}shared {{ latency_us: 1 gbytes_per_s: 3 }}");
        assert_eq!(parse_machine(apart, "m").unwrap().shared.bandwidth, 3.0);
        let hidden = |text: &str| parse_machine(format!("{GOOD}{text}"), "m").unwrap().shared_overlap;
        assert_eq!((hidden("overlap: 0.5"), hidden("overlap: 0.5 shared_overlap: 0")), (0.5, 0.0));
        let told = parse_machine(format!("{GOOD}control_us: 0\njitter {{ share: 0.1 }}"), "m").unwrap();
        assert_eq!(
            (machine.overlap, parse_machine(format!("{GOOD}overlap: 0.25"), "m").unwrap().overlap),
            (1.0, 0.25)
        );
        assert_eq!((told.control, told.jitter.unwrap().share, told.jitter.unwrap().seed), (0.0, 0.1, 1));
    }

    const DEVICE: &str = r#"device {
  units: 56
  unit_gflops: 152
  unit_gbytes_per_s: 20
  gbytes_per_s: 549
  blocks: 32
  threads: 2048
  launch_us: 5
  compute { work: 9e6 threads: 128 registers: 120 shared_bytes: 12544 saturating_threads: 128 }
  stream { work: 4096 most: 100 threads: 512 }
}
"#;

    #[test]
    fn a_device_is_read_with_its_limits() {
        assert!(parse_machine(GOOD, "m").unwrap().device.is_none());
        let device = parse_machine(format!("{GOOD}{DEVICE}"), "m").unwrap().device.unwrap();
        let limits = device.limits;
        assert_eq!((limits.units, limits.blocks, limits.threads, limits.kernels), (56, 32, 2048, 8));
        assert_eq!((limits.launch, device.wait, device.flops, device.memory), (5000.0, 0.0, 152.0, 549.0));
        assert_eq!(
            (device.compute.most, device.stream.most, device.compute.saturating),
            (u64::MAX, 100, 128)
        );
        assert!(!device.crew && device.levels == 255);
        for (from, to, expected) in [
            ("units: 56\n", "\n", "m:22: machine: device.units: missing"),
            ("units: 56\n", "units: 0\n", "m:23: machine: device.units: 0; expected a number from 1"),
            ("unit_gflops: 152", "unit_gflops: 0", "device.unit_gflops: 0; expected a number above 0"),
            ("launch_us: 5", "launch_us: -5", "device.launch_us: -5; expected a number from 0"),
            ("launch_us: 5", "priorities: 256", "device.priorities: 256; expected a number from 1 to 255"),
            ("work: 4096", "work: 0", "device.stream.work: 0; expected a number above 0"),
            ("threads: 512", "threads: 4096", "device.stream.threads: 4096; expected at most the 2048"),
            ("  stream { work: 4096 most: 100 threads: 512 }\n", "", "device.stream: missing"),
        ] {
            let text = format!("{GOOD}{}", DEVICE.replacen(from, to, 1));
            let error = parse_machine(text, "m").unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_field() {
        let cases = [
            ("name: \"a node\"\n", "", "m:1: machine: name: missing"),
            ("  gflops: 100\n", "", "m:2: machine: worker.gflops: missing; expected a number above 0"),
            ("gflops: 100", "gflops: 0", "m:3: machine: worker.gflops: 0; expected a number above 0"),
            ("gflops: 100", "gflops: nan", "m:3: machine: worker.gflops: NaN; expected"),
            ("gflops: 100", "gflps: 100", "m:3: machine: worker.gflps: unknown field"),
            ("gflops: 100", "gflops: \"100\"", "m:3: machine: worker.gflops: "),
            ("batch: 32", "batch: 0", "m:10: step: batch: 0; expected the images"),
            ("other_ms: 2", "other_ms: -2", "m:12: step: other_ms: -2; expected a number from 0"),
            ("latency_us: 1.2\n", "\n", "m:18: machine: master.latency_us: missing"),
            ("gbytes_per_s: 2.5", "gbytes_per_s: -1", "m:15: machine: data.gbytes_per_s: -1; expected"),
            (
                "workers { latency_us: 0.7 gbytes_per_s: 5 }\n",
                "",
                "machine: workers: missing; expected the message",
            ),
        ];
        for (from, to, expected) in cases {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let error = parse_machine(text, "m").unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let jitter =
            parse_machine(format!("{GOOD}jitter {{\n  share: 11\n}}\n"), "m").unwrap_err().to_string();
        assert!(jitter.contains("m:23: machine: jitter.share: 11; expected a share"), "{jitter}");
        let overlap = parse_machine(format!("{GOOD}overlap: 1.5"), "m").unwrap_err().to_string();
        assert!(overlap.contains("m:22: machine: overlap: 1.5; expected a share from 0 to 1"), "{overlap}");
        assert!(parse_machine(format!("{GOOD}jitter {{ }}"), "m").is_err());
        assert!(parse_machine("net: \"x\"", "m").is_err());
    }
}
