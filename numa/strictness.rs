//! What becomes of placement that the system refuses.

use std::str::FromStr;

/// What becomes of a refusal (`--numa`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Strictness {
    /// The run goes on without what was refused, and says so in its first lines (`best`).
    #[default]
    Lenient,
    /// The run ends (`strict`).
    Strict,
}

impl FromStr for Strictness {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "best" => Ok(Self::Lenient),
            "strict" => Ok(Self::Strict),
            _ => Err("expected best (go on without what the system refuses) or strict (end)".to_owned()),
        }
    }
}
