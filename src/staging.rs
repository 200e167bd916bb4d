//! What users see of the copies that `--stage-to` makes.

use indicatif::{ProgressBar, ProgressStyle};
use quadrille_io::data::StageEvent;

/// Tells what happens to a copy, on standard error: standard output may be for a program.
pub struct Listener {
    bar: ProgressBar,
}

impl Default for Listener {
    fn default() -> Self {
        let style = ProgressStyle::with_template(
            "staging {bar:30} {bytes}/{total_bytes}  {bytes_per_sec}  {eta} left",
        );
        Self { bar: ProgressBar::new(0).with_style(style.unwrap_or(ProgressStyle::default_bar())) }
    }
}

impl Listener {
    /// Shows an event: a bar on a terminal while data is copied, and a line for all else.
    pub fn hear(&self, event: StageEvent) {
        let line = |text: String| self.bar.suspend(|| eprintln!("staging     {text}"));
        match event {
            StageEvent::Copied(done, total) => {
                self.bar.set_length(total);
                self.bar.set_position(done);
            }
            StageEvent::Waiting(process) => {
                let process = process.map_or_else(String::new, |number| format!(" {number}"));
                line(format!("process{process} is copying the same data; waiting for it"));
            }
            StageEvent::Damaged(folder) => {
                line(format!("{} does not hold what was copied; copying again", folder.display()));
            }
            StageEvent::Done(folder, bytes, reused) => {
                self.bar.finish_and_clear();
                let how = if reused { "found there and checked" } else { "copied and checked" };
                line(format!("{}: {:.1} MiB, {how}", folder.display(), bytes as f64 / f64::from(1 << 20)));
            }
        }
    }
}
