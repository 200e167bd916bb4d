//! What comes with the program, so that it runs from any folder.

use std::path::{Path, PathBuf};

/// The bundled solver.
pub const SOLVER: &str = include_str!("../models/lenet/quick_solver.prototxt");
/// The bundled network.
pub const NET: &str = include_str!("../models/lenet/train_val.prototxt");
/// How they are named in messages.
pub const SOLVER_NAME: &str = "models/lenet/quick_solver.prototxt";
/// How they are named in messages.
pub const NET_NAME: &str = "models/lenet/train_val.prototxt";

/// The folder of the sources, as known when the program was compiled: one of the places where data is looked for.
pub fn repository() -> Option<PathBuf> {
    Some(Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()).filter(|p| p.is_dir())
}
