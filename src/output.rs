//! Lines for people: on standard output, or, for those who read Caffe's logs, on standard error as Caffe writes them.

use std::fmt;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::ValueEnum;

/// How lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum LogStyle {
    /// Lines for people, and a bar on a terminal.
    #[default]
    Plain,
    /// What parsers of Caffe's logs read: each line begins as those of its logging library do, on standard error.
    Caffe,
}

/// Whether lines are Caffe's. Like standard output itself, one for the whole program.
static CAFFE: AtomicBool = AtomicBool::new(false);

/// Whether no lines are printed, since another process prints them.
static SILENT: AtomicBool = AtomicBool::new(false);

/// Prints no lines from now on.
pub fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Sets how all lines look from now on.
pub fn set_style(style: LogStyle) {
    CAFFE.store(style == LogStyle::Caffe, Ordering::Relaxed);
}

/// How lines look.
pub fn style() -> LogStyle {
    if CAFFE.load(Ordering::Relaxed) { LogStyle::Caffe } else { LogStyle::Plain }
}

/// Prints a line as `println!` does, but goes on if nobody reads it any more: a training must not end because the
/// pager or `head` behind it has.
macro_rules! say {
    ($($line:tt)*) => { $crate::output::line(file!(), line!(), format_args!($($line)*)) };
}

/// See [`say!`]; `file` and `number` are where in the source it stands.
pub fn line(file: &str, number: u32, line: fmt::Arguments<'_>) {
    if SILENT.load(Ordering::Relaxed) {
        return;
    }
    // Errors are the readers' wish.
    let _ = match style() {
        LogStyle::Plain => writeln!(std::io::stdout(), "{line}"),
        LogStyle::Caffe => writeln!(std::io::stderr(), "{}{line}", prefix(file, number)),
    };
}

/// Prints a line that must not be passed over, also where another process prints the others: on standard error there.
pub fn note(text: &str) {
    if SILENT.load(Ordering::Relaxed) {
        let _ = std::io::stderr().write_all(format!("{text}\n").as_bytes());
    } else {
        say!("{text}");
    }
}

/// What begins a line of Caffe's logs: severity, month and day, local time, thread, and place in the source.
fn prefix(file: &str, number: u32) -> String {
    let now = jiff::Zoned::now().strftime("%m%d %H:%M:%S%.6f").to_string();
    let file = Path::new(file).file_name().and_then(|name| name.to_str()).unwrap_or(file);
    format!("I{now} {:>5} {file}:{number}] ", std::process::id())
}
