//! Plan files: to core's [`SavedPlan`] and back.

use std::fmt::Write;
use std::path::Path;

use quadrille_core::layer::SubTask;
use quadrille_core::plan::{SavedPlan, SavedTask, Schedule, Stage};
use quadrille_core::site::{Fault, Site, SpecError, did_you_mean};
use quadrille_core::task::Tile;

use super::fields::typed;
use super::message::Parsed;
use crate::error::IoError;
use crate::schema::plan::{Plan as Message, Task};
use crate::whole;

/// The version of the format.
const VERSION: u32 = 1;

pub(super) fn convert(parsed: &Parsed) -> Result<SavedPlan, SpecError> {
    let mut sites = parsed.parts.iter().filter(|(name, _)| name == "task").map(|(_, site)| site);
    let message: Message = typed(&parsed.message).map_err(|fault| fault.at(&parsed.site, "plan"))?;
    let schedule = head(&message).map_err(|fault| fault.at(&parsed.site, "plan"))?;
    let mut tasks = Vec::with_capacity(message.task.len());
    for task in &message.task {
        let site = sites.next().unwrap_or(&parsed.site);
        tasks.push(self::task(task, site).map_err(|fault| fault.at(site, "task"))?);
    }
    let priority = |lane: &crate::schema::plan::Lane| {
        u8::try_from(lane.priority()).map_err(|_| {
            let text = format!("{}; expected a priority from 0 to 255", lane.priority());
            Fault::new("lane.priority", text).at(&parsed.site, "plan")
        })
    };
    Ok(SavedPlan {
        site: parsed.site.clone(),
        network: message.network().to_owned(),
        images: message.images.iter().map(|images| *images as usize).collect(),
        schedule,
        lanes: message.lane.iter().map(priority).collect::<Result<_, _>>()?,
        tasks,
    })
}

/// What stands above the tasks.
fn head(message: &Message) -> Result<Schedule, Fault> {
    match message.version {
        Some(VERSION) => {}
        Some(other) => {
            let text = format!("{other}; this program reads version {VERSION}");
            return Err(Fault::new("version", text).hint("make it anew: quadrille plan --out FILE"));
        }
        None => return Err(Fault::new("version", format!("missing; expected {VERSION}"))),
    }
    if message.network.is_none() {
        return Err(Fault::new("network", "missing; expected the network's name"));
    }
    let name = message.schedule.as_deref().unwrap_or_default();
    name.parse().map_err(|message: String| Fault::new("schedule", message))
}

fn task(task: &Task, site: &Site) -> Result<SavedTask, Fault> {
    let stages = || Stage::ALL.into_iter().map(Stage::name);
    let stage = Stage::ALL.into_iter().find(|stage| stage.name() == task.stage());
    let stage = stage.ok_or_else(|| named("stage", task.stage(), stages().collect()))?;
    let sub = SubTask::ALL.into_iter().find(|sub| sub.to_string() == task.sub());
    let subs = SubTask::ALL.map(|sub| sub.to_string());
    let sub = sub.ok_or_else(|| named("sub", task.sub(), subs.iter().map(String::as_str).collect()))?;
    if task.layer.is_none() {
        return Err(Fault::new("layer", "missing; expected the name of a layer"));
    }
    Ok(SavedTask {
        site: site.clone(),
        stage,
        layer: task.layer().to_owned(),
        sub,
        device: task.device() as usize,
        lane: task.lane() as usize,
        after: task.after.iter().map(|after| *after as usize).collect(),
        from: task.from.map(|from| (from as usize, usize::try_from(task.first()).unwrap_or(usize::MAX))),
        chunk: chunk(task)?,
    })
}

/// The images of a task that is not of all of its layer's.
fn chunk(task: &Task) -> Result<Option<Tile>, Fault> {
    match (task.image, task.images) {
        (None, None) => Ok(None),
        (first, Some(images @ 1..)) => {
            Ok(Some(Tile { first: first.unwrap_or(0) as usize, images: images as usize }))
        }
        _ => Err(Fault::new("images", "missing or 0; a chunk has at least 1, from the first, image, on")),
    }
}

fn named(field: &str, found: &str, known: Vec<&str>) -> Fault {
    let fault = Fault::new(field, format!("{found:?}; expected one of {}", known.join(", ")));
    match did_you_mean(found, known) {
        Some(close) => fault.hint(format!("did you mean {close:?}?")),
        None => fault,
    }
}

/// The text of a plan file.
pub fn format_plan(plan: &SavedPlan) -> String {
    let mut text =
        String::from("# Plans of a training, by quadrille plan --out; for quadrille train --plan.\n");
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").unwrap_or_default();
    line(format_args!("version: {VERSION}"));
    line(format_args!("network: {}", quoted(&plan.network)));
    line(format_args!("schedule: \"{}\"", plan.schedule));
    plan.images.iter().for_each(|images| line(format_args!("images: {images}")));
    plan.lanes.iter().for_each(|priority| line(format_args!("lane {{ priority: {priority} }}")));
    for task in &plan.tasks {
        let from = task.from.map_or(String::new(), |(from, first)| format!(" from: {from} first: {first}"));
        let after: String = task.after.iter().map(|after| format!(" after: {after}")).collect();
        let chunk = task
            .chunk
            .map_or(String::new(), |tile| format!(" image: {} images: {}", tile.first, tile.images));
        line(format_args!(
            "task {{ stage: \"{}\" layer: {} sub: \"{}\" device: {} lane: {}{chunk}{from}{after} }}",
            task.stage.name(),
            quoted(&task.layer),
            task.sub,
            task.device,
            task.lane
        ));
    }
    text
}

/// A string as the text format has it.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => write!(quoted, "\\{byte:03o}").unwrap_or_default(),
        }
    }
    quoted.push('"');
    quoted
}

/// Writes a plan file; what had the name before is replaced.
///
/// # Errors
/// [`IoError::CannotCreate`] or [`IoError::WriteFailed`].
pub fn write_plan(path: &Path, plan: &SavedPlan) -> Result<(), IoError> {
    whole::write(path, "a plan file", |to| std::io::Write::write_all(to, format_plan(plan).as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::super::parse_plan;
    use super::*;

    const GOOD: &str = r#"version: 1
network: "Net"
schedule: "critical"
images: 4
images: 3
lane { priority: 0 }
lane { priority: 1 }
task { stage: "iteration" layer: "a \"b\"" sub: "load" }
task { stage: "iteration" layer: "ip" sub: "accumulate" device: 0 lane: 1 from: 1 first: 16 after: 0 }
task { stage: "iteration" layer: "ip" sub: "forward" image: 2 images: 5 }
"#;

    #[test]
    fn what_is_written_is_read() {
        let read = parse_plan(GOOD, "p").unwrap();
        assert_eq!((read.images.as_slice(), read.lanes.as_slice()), (&[4, 3][..], &[0, 1][..]));
        assert_eq!(read.tasks[0].layer, "a \"b\"");
        assert_eq!((read.tasks[1].from, read.tasks[1].after.as_slice()), (Some((1, 16)), &[0][..]));
        let chunk = Tile { first: 2, images: 5 };
        assert_eq!((read.tasks[1].chunk, read.tasks[2].chunk), (None, Some(chunk)));
        let mut odd = read;
        odd.network = "π \\ \" \n net".into();
        let again = parse_plan(format_plan(&odd), "p").unwrap();
        assert_eq!(format_plan(&again), format_plan(&odd));
        assert_eq!((again.network, again.schedule), (odd.network, odd.schedule));
    }

    #[test]
    fn what_is_wrong_is_named_with_line_and_field() {
        let cases = [
            ("version: 1", "version: 2", "p:1: plan: version: 2; this program reads version 1"),
            ("version: 1\n", "", "plan: version: missing; expected 1"),
            ("\"critical\"", "\"crtical\"", "p:3: plan: schedule: no schedule \"crtical\""),
            ("priority: 1 ", "priority: 256 ", "plan: lane.priority: 256; expected a priority"),
            ("stage: \"iteration\" layer: \"ip\"", "stage: \"it\" layer: \"ip\"", "p:9: task: stage: \"it\""),
            ("\"accumulate\"", "\"acumulate\"", "p:9: task: sub: \"acumulate\"; expected one of"),
            ("layer: \"ip\" ", "", "p:9: task: layer: missing"),
            ("lane: 1 from", "lan: 1 from", "p:9: task: lan: unknown field"),
            ("images: 5 }", "}", "p:10: task: images: missing or 0"),
            ("images: 5 }", "images: 0 }", "p:10: task: images: missing or 0"),
            ("after: 0 }", "after: -1 }", "p:9: task: after: "),
        ];
        for (from, to, expected) in cases {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD, "{from}");
            let error = parse_plan(text, "p").unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
    }
}
