//! Our parser against that of prost-reflect, on good files and on thousands of broken ones.

use prost_reflect::DynamicMessage;
use quadrille_core::net::Phase;
use quadrille_core::rng::{Purpose, Stream};

use super::super::*;
use super::{lenet, with_samples};
use crate::schema::descriptor;

/// What both parsers make of `text`; `None` where it is refused.
fn both(text: &[u8], kind: &str) -> [Option<DynamicMessage>; 2] {
    let ours = message::parse(text, "f", descriptor(kind), "m").ok().map(|parsed| parsed.message);
    let theirs = std::str::from_utf8(text)
        .ok()
        .and_then(|text| DynamicMessage::parse_text_format(descriptor(kind), text).ok());
    [ours, theirs]
}

const ODDITIES: &str = "name: \"a\\n\" 'b' input: [\"x\", \"y\"], input_dim: -0x1F; input_dim: 017 input_dim: []\n\
    state < phase: 1 level: -3 > force_backward: 1 layer { loss_weight: [1, -2.5e-1, .5f, 3.F, inf, -nan, 7f] }";

#[test]
fn good_files_mean_the_same_to_both() {
    let net = std::fs::read(lenet("train_val.prototxt")).unwrap();
    let solver = std::fs::read(lenet("solver.prototxt")).unwrap();
    for (text, kind) in [(&net[..], "NetParameter"), (&solver, "SolverParameter"), (b"", "NetParameter")] {
        let [ours, theirs] = both(text, kind);
        assert!(ours.is_some() && ours == theirs);
    }
    let [ours, theirs] = both(ODDITIES.as_bytes(), "NetParameter").map(|m| m.unwrap().to_text_format());
    assert_eq!(ours, theirs);
}

/// Takes out, doubles or replaces a few bytes.
fn mutated(text: &[u8], stream: &Stream, round: u64) -> Vec<u8> {
    const SPICE: &[u8] = b"{}<>[]:,;-\"'\\#.0123456789abcdefxXnN_ \n\t\x00\xff";
    let mut text = text.to_vec();
    for step in 0..1 + round % 3 {
        let [kind, at, what, _] = stream.block(round * 4 + step);
        let at = at as usize % text.len().max(1);
        let spice = SPICE[what as usize % SPICE.len()];
        match kind % 4 {
            0 if !text.is_empty() => text[at] = spice,
            1 if !text.is_empty() => drop(text.remove(at)),
            2 => text.truncate(at),
            _ => text.insert(at, spice),
        }
    }
    text
}

#[test]
fn broken_files_are_refused_by_both_or_mean_the_same_to_both() {
    let stream = Stream::new(1, Purpose::Transform, 0);
    let lenet = std::fs::read(lenet("train_val.prototxt")).unwrap();
    let (mut accepted, mut refused, mut built) = (0, 0, 0);
    for round in 0..20_000 {
        let text = mutated(if round % 2 == 0 { ODDITIES.as_bytes() } else { &lenet[..] }, &stream, round);
        let [ours, theirs] = both(&text, "NetParameter").map(|m| m.map(|m| m.to_text_format()));
        let shown = String::from_utf8_lossy(&text).into_owned();
        match (ours, theirs) {
            (None, None) => refused += 1,
            (Some(ours), Some(theirs)) => {
                assert_eq!(ours, theirs, "{shown}");
                accepted += 1;
            }
            // Comments in Latin-1 and numbers of no enum value are where the two differ on purpose.
            (Some(_), None) if std::str::from_utf8(&text).is_err() => {}
            (None, Some(theirs)) if theirs.contains("phase:") => {}
            (ours, theirs) => panic!("ours {ours:?}, theirs {theirs:?} for\n{shown}"),
        }
        // Whatever it is, converting it must not panic.
        let _ = parse_solver(&text, "f");
        if let Ok(spec) = parse_net(&text, "f") {
            built += usize::from(with_samples(spec, Phase::Train).is_ok());
        }
    }
    assert!(
        accepted > 1000 && refused > 1000 && built > 100,
        "{accepted} accepted, {refused} refused, {built} built"
    );
}
