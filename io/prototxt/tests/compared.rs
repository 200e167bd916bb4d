//! What goes before the library's parser against that parser alone, on good files and on thousands of broken ones.

use prost_reflect::{DynamicMessage, Value};
use quadrille_core::net::Phase;
use quadrille_core::rng::{Purpose, Stream};

use super::super::*;
use super::{lenet, with_samples};
use crate::schema::descriptor;

/// What `text` means here and to the library alone.
fn both(text: &[u8], kind: &str) -> [Result<DynamicMessage, String>; 2] {
    let here = message::parse(text, "f", descriptor(kind), "m").map_err(|error| error.to_string());
    let alone = std::str::from_utf8(text).map_err(|error| error.to_string()).and_then(|text| {
        DynamicMessage::parse_text_format(descriptor(kind), text).map_err(|error| error.to_string())
    });
    if let Ok(parsed) = &here {
        let lists = parsed.message.fields().filter_map(|(field, value)| match value {
            Value::List(list) if list.iter().all(|v| v.as_message().is_some()) => Some((field, list)),
            _ => None,
        });
        for (field, list) in lists {
            let sites = parsed.parts.iter().filter(|(name, _)| name == field.name()).count();
            assert_eq!(sites, list.len(), "{} in\n{}", field.name(), String::from_utf8_lossy(text));
        }
    }
    [here.map(|parsed| parsed.message), alone]
}

const ODDITIES: &str = "name: \"a\\n\" 'b' input: [\"x\", \"y\"], input_dim: -0x1F; input_dim: 017 input_dim: []\n\
    state < phase: 1 level: -3 > force_backward: 1 layer { loss_weight: [1, -2.5e-1, .5f, 3.F, inf, -nan, 7f] }\n\
    layer: [{ name: 'c' }, < param { lr_mult: 1.5 name: \"\\x41\" } >] # caf\u{e9}";

#[test]
fn good_files_mean_the_same_with_and_without_the_first_pass() {
    let net = std::fs::read(lenet("train_val.prototxt")).unwrap();
    let solver = std::fs::read(lenet("solver.prototxt")).unwrap();
    for (text, kind) in [(&net[..], "NetParameter"), (&solver, "SolverParameter"), (b"", "NetParameter")] {
        let [here, alone] = both(text, kind);
        assert!(here.is_ok() && here == alone);
    }
    let [here, alone] = both(ODDITIES.as_bytes(), "NetParameter").map(|m| m.unwrap().to_text_format());
    assert_eq!(here, alone);
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

/// Where the first pass is stricter than the library, on purpose: numbers that hang together with what follows and
/// numbers that an enum does not have.
fn on_purpose(error: &str) -> bool {
    ["is not a number", "unknown value", "has no sign"].iter().any(|part| error.contains(part))
}

#[test]
fn broken_files_are_refused_or_mean_what_they_mean_to_the_library() {
    let stream = Stream::new(1, Purpose::Transform, 0);
    let lenet = std::fs::read(lenet("train_val.prototxt")).unwrap();
    let (mut accepted, mut refused, mut built) = (0, 0, 0);
    for round in 0..20_000 {
        let text = mutated(if round % 2 == 0 { ODDITIES.as_bytes() } else { &lenet[..] }, &stream, round);
        let [here, alone] = both(&text, "NetParameter").map(|m| m.map(|m| m.to_text_format()));
        let shown = String::from_utf8_lossy(&text).into_owned();
        match (here, alone) {
            (Err(_), Err(_)) => refused += 1,
            (Ok(here), Ok(alone)) => {
                assert_eq!(here, alone, "{shown}");
                accepted += 1;
            }
            // Comments in Latin-1, and lists of messages without a colon.
            (Ok(_), Err(_)) if std::str::from_utf8(&text).is_err() => {}
            (Ok(_), Err(error)) if error.contains("expected ':' or a message value, but found '['") => {}
            (Err(error), Ok(_)) if on_purpose(&error) => {}
            (here, alone) => panic!("here {here:?}, alone {alone:?} for\n{shown}"),
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
