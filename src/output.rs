//! Lines for people on standard output.

use std::fmt;
use std::io::Write;

/// Prints a line as `println!` does, but goes on if nobody reads it any more: a training must not end because the
/// pager or `head` behind it has.
macro_rules! say {
    ($($line:tt)*) => { $crate::output::line(format_args!($($line)*)) };
}

/// See [`say!`].
pub fn line(line: fmt::Arguments<'_>) {
    // The error is the reader's wish.
    let _ = writeln!(std::io::stdout(), "{line}");
}
