//! What `report` takes.

use std::path::PathBuf;

use clap::Args;

/// What `report` takes.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Run folders
    #[arg(value_name = "RUN", required = true)]
    pub runs: Vec<PathBuf>,
    /// The page to write; what is there is replaced
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
}
