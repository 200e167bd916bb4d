//! `--quadrants`: a number of parts, one for each third-level cache, or as many as the chip has fast memory for.

use std::str::FromStr;

use quadrille_core::net::Net;
use quadrille_numa::parts::{Choice, Copies};

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quadrants {
    /// So many for each worker.
    Count(usize),
    /// As many as copies of the training fit the fast memory (`auto`).
    Auto,
    /// One for each third-level cache (`l3`).
    L3,
}

impl Quadrants {
    /// The number, if one was given.
    pub fn count(self) -> Option<usize> {
        match self {
            Self::Count(count) => Some(count),
            Self::Auto | Self::L3 => None,
        }
    }
}

impl FromStr for Quadrants {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "auto" => Ok(Self::Auto),
            _ if text == "l3" => Ok(Self::L3),
            Ok(count) if count > 0 => Ok(Self::Count(count)),
            _ => Err("expected a whole number, at least 1, auto or l3".to_owned()),
        }
    }
}

/// What a training of a net copies into each part, from the net of a whole mini-batch.
pub fn copies(net: &Net, histories: usize, workers: usize) -> Copies {
    let bytes = |elements: usize| (elements * size_of::<f32>()) as u64;
    let shared = net.clone().sharing_memory(&net.storages.clone().into()).blob_memory().taken;
    Copies {
        fixed: bytes(net.params.len()) * (2 + histories as u64),
        shared: bytes(shared),
        batch: net.batch(),
        workers,
    }
}

/// What was looked at and chosen, for people.
pub fn lines(choice: &Choice) -> Vec<String> {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let looked_at = choice.candidates.iter().map(|candidate| {
        let memory = match candidate.room {
            Some(room) if candidate.fits() => format!("fits the {} of fast memory of each", mib(room)),
            Some(room) => format!("exceeds the {} of fast memory of each", mib(room)),
            None => "no fast memory near each".to_owned(),
        };
        format!("{:2} part(s) of each worker: a copy of {}, {memory}", candidate.parts, mib(candidate.bytes))
    });
    let chosen = format!("--quadrants auto takes {}: {}", choice.parts, choice.why);
    let label = |(index, line): (usize, String)| match index {
        0 => format!("parts       {line}"),
        _ => format!("            {line}"),
    };
    looked_at.chain([chosen]).enumerate().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_or_a_word() {
        assert_eq!("4".parse(), Ok(Quadrants::Count(4)));
        assert_eq!("auto".parse(), Ok(Quadrants::Auto));
        assert_eq!("l3".parse(), Ok(Quadrants::L3));
        for bad in ["0", "-1", "", "four", "AUTO", "4.0", "L3", "l2"] {
            assert!(bad.parse::<Quadrants>().is_err(), "{bad}");
        }
    }
}
