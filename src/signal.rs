//! Ctrl-C and the signals of batch systems: the handler sets a flag, and the run ends at an iteration that all
//! workers agree on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::failure::{Code, Failure};

/// When to stop, agreed between the workers of a process.
#[derive(Debug)]
pub struct StopAgreement {
    asked: Arc<AtomicBool>,
    at: AtomicU64,
}

impl StopAgreement {
    /// Listens to SIGINT, SIGTERM and SIGUSR1. A second SIGINT or SIGTERM ends the program at once.
    pub fn listen() -> Result<Arc<Self>, Failure> {
        use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGUSR1] {
            let failed =
                |e: std::io::Error| Failure::new(Code::Environment, format!("no signal handler: {e}"));
            if signal != SIGUSR1 {
                // Looks at the flag before the next line's handler sets it: only the second signal ends.
                let conditional =
                    signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, asked.clone());
                conditional.map_err(failed)?;
            }
            signal_hook::flag::register(signal, asked.clone()).map_err(failed)?;
        }
        Ok(Arc::new(Self { asked, at: AtomicU64::new(u64::MAX) }))
    }

    /// Whether a signal has come: what need not be finished may be left.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Relaxed)
    }

    /// Whether worker `rank` stops before `iteration`.
    ///
    /// Worker 0 decides: if asked, it lets the iteration that it is about to start be the last. No other worker
    /// can have passed that point: to end iteration t it needs worker 0's part in the exchange of t, which worker 0
    /// sends after this decision, so whoever looks before t + 1 sees it.
    pub fn stops_before(&self, iteration: u64, rank: usize) -> bool {
        if rank == 0 && self.is_asked() {
            self.at.fetch_min(iteration + 1, Ordering::SeqCst);
        }
        iteration >= self.at.load(Ordering::SeqCst)
    }
}
