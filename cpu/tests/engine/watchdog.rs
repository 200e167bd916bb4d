//! A hang is a failure, not a test that never ends.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Far more than any of these tests needs on a slow and busy machine.
const LIMIT: Duration = Duration::from_secs(120);

/// Runs `body` and fails if it has not ended after [`LIMIT`].
pub fn must_end<T: Send + 'static>(what: &str, body: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = channel();
    let thread = std::thread::spawn(move || {
        let result = body();
        // Nobody listens any more only after the limit.
        done.send(()).ok();
        result
    });
    if wait.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
        panic!("{what} hangs");
    }
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
