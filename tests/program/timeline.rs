//! A timeline as it is read again, and what holds of every one.

use std::collections::{BTreeMap, HashSet};

use serde_json::Value;

/// The group of a row and its number there: a worker, and what it has.
pub type Row = (u64, u64);

/// Microseconds that an end may lie behind a start which it is before: a float of so many of them is not more precise.
const PRECISION: f64 = 1e-3;

/// Something that took time.
#[derive(Clone, Debug)]
pub struct Slice {
    pub row: Row,
    pub name: String,
    pub start: f64,
    pub end: f64,
}

impl Slice {
    fn holds(&self, other: &Self) -> bool {
        self.start <= other.start + PRECISION && other.end <= self.end + PRECISION
    }
}

/// What waited for what: the places of two slices, and how it is called.
#[derive(Clone, Debug)]
pub struct Arrow {
    pub name: String,
    pub from: usize,
    pub to: usize,
}

/// A timeline.
pub struct Timeline {
    pub rows: BTreeMap<Row, String>,
    pub slices: Vec<Slice>,
    pub arrows: Vec<Arrow>,
}

fn number(event: &Value, name: &str) -> f64 {
    event[name].as_f64().unwrap_or_else(|| panic!("{event} has no number {name}"))
}

fn row_of(event: &Value) -> Row {
    let number = |name: &str| event[name].as_u64().unwrap_or_else(|| panic!("{event} has no {name}"));
    (number("pid"), number("tid"))
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

impl Timeline {
    /// Reads a timeline of quadrants, and makes sure of all that holds of every one.
    pub fn read(content: &[u8]) -> Self {
        let events: Vec<Value> = serde_json::from_slice(content).expect("an array of events");
        let mut timeline = Self { rows: BTreeMap::new(), slices: Vec::new(), arrows: Vec::new() };
        for event in events.iter().filter(|event| event["name"] == "thread_name") {
            let name = text(&event["args"]["name"]);
            assert_eq!(timeline.rows.insert(row_of(event), name), None, "a row has one name: {event}");
        }
        for event in events.iter().filter(|event| event["ph"] == "X") {
            let (start, name) = (number(event, "ts"), text(&event["name"]));
            let end = start + number(event, "dur");
            // A task's kind stands behind its layer; everything else is a phase.
            let kind = name.rsplit_once('/').map_or("iteration", |(_, sub)| sub);
            assert_eq!(event["cat"], kind, "{event}");
            timeline.slices.push(Slice { row: row_of(event), name, start, end });
        }
        timeline.read_arrows(&events);
        timeline.check_rows();
        timeline.check_threads();
        timeline
    }

    /// An arrow leaves a slice at its end and comes to another lane's at its start.
    fn read_arrows(&mut self, events: &[Value]) {
        let of_kind = |kind: &str| events.iter().filter(|event| event["ph"] == kind).collect::<Vec<_>>();
        let (starts, ends) = (of_kind("s"), of_kind("f"));
        assert_eq!(starts.len(), ends.len());
        let mut ids = HashSet::new();
        let by_row = self.by_row();
        let at = |event: &Value| {
            let time = number(event, "ts");
            let row: &[usize] = by_row.get(&row_of(event)).map_or(&[], |row| row);
            let behind = row.partition_point(|slice| self.slices[*slice].start <= time + PRECISION / 10.0);
            let slice =
                row[behind.checked_sub(1).unwrap_or_else(|| panic!("no slice begins before {event}"))];
            assert!(time <= self.slices[slice].end, "{event} is in no slice");
            (slice, time)
        };
        let mut arrows = Vec::new();
        for (start, end) in starts.into_iter().zip(ends) {
            assert!(start["id"] == end["id"] && start["name"] == end["name"], "{start} {end}");
            assert!(ids.insert(start["id"].to_string()), "an arrow's number is its own: {start}");
            let ((from, left), (to, came)) = (at(start), at(end));
            assert!(self.slices[from].end - left < 2.0 * PRECISION, "{start} leaves in the middle");
            assert!((self.slices[to].start - came).abs() < PRECISION, "{end} comes in the middle");
            assert!(left <= came + PRECISION, "{start} goes back in time to {end}");
            let rows = [from, to].map(|slice| self.slices[slice].row);
            assert!(rows[0].0 == rows[1].0 && rows[0] != rows[1], "an arrow goes to another lane");
            arrows.push(Arrow { name: text(&start["name"]), from, to });
        }
        self.arrows = arrows;
    }

    /// The slices of each row, in the order of time.
    fn by_row(&self) -> BTreeMap<Row, Vec<usize>> {
        let mut rows: BTreeMap<Row, Vec<usize>> = BTreeMap::new();
        for (index, slice) in self.slices.iter().enumerate() {
            rows.entry(slice.row).or_default().push(index);
        }
        let start = |slice: &usize| self.slices[*slice].start;
        rows.values_mut().for_each(|row| row.sort_by(|a, b| start(a).total_cmp(&start(b))));
        rows
    }

    /// Rows have names of their own, and nothing in one begins before what came before it has ended.
    fn check_rows(&self) {
        let mut names = HashSet::new();
        for ((process, _), name) in &self.rows {
            assert!(names.insert((process, name)), "{name} of worker {process} twice");
        }
        for (row, slices) in self.by_row() {
            let name = self.rows.get(&row).unwrap_or_else(|| panic!("{row:?} has no name"));
            for pair in slices.windows(2).map(|pair| [pair[0], pair[1]].map(|slice| &self.slices[slice])) {
                let [one, two] = pair;
                assert!(one.end <= two.start + PRECISION, "{name} does two things at once: {one:?} {two:?}");
            }
        }
    }

    /// A task is run by threads: the first begins with it, all end before it does, and nobody is at a task that does not run.
    fn check_threads(&self) {
        let mut lanes: BTreeMap<(u64, &str, &str), Vec<&Slice>> = BTreeMap::new();
        for slice in &self.slices {
            if let Some((quadrant, _)) = self.rows[&slice.row].split_once(" lane ") {
                lanes.entry((slice.row.0, quadrant, &slice.name)).or_default().push(slice);
            }
        }
        let mut begun = HashSet::new();
        for slice in &self.slices {
            let Some((own, _)) = self.rows[&slice.row].split_once(" thread ") else { continue };
            let (quadrant, name) = slice.name.split_once(": ").unwrap_or((own, &slice.name));
            let tasks = lanes.get(&(slice.row.0, quadrant, name));
            let task = tasks.and_then(|tasks| tasks.iter().find(|task| task.holds(slice)));
            let task = task.unwrap_or_else(|| panic!("{own} is at a task that does not run: {slice:?}"));
            if slice.start - task.start < PRECISION {
                begun.insert(std::ptr::from_ref(*task));
            }
        }
        for task in lanes.values().flatten() {
            assert!(begun.contains(&std::ptr::from_ref(*task)), "no thread begins {task:?}");
        }
    }

    /// How often something ran in a worker's rows of one kind: ` lane `, or the name of a row.
    pub fn count(&self, worker: u64, rows: &str, name: &str) -> usize {
        let is_one = |slice: &&Slice| {
            slice.row.0 == worker && slice.name == name && self.rows[&slice.row].contains(rows)
        };
        self.slices.iter().filter(is_one).count()
    }

    /// Names of what waited for what in a worker, by arrows that are called so.
    pub fn waits(&self, worker: u64, called: &str) -> Vec<[String; 2]> {
        let of_worker = |arrow: &&Arrow| self.slices[arrow.from].row.0 == worker && arrow.name == called;
        let arrows = self.arrows.iter().filter(of_worker);
        let mut names: Vec<_> =
            arrows.map(|arrow| [arrow.from, arrow.to].map(|slice| self.slices[slice].name.clone())).collect();
        names.sort();
        names
    }
}
