//! Networks that stand in a solver file: `net_param`, `train_net_param`, `test_net_param`.
//!
//! Each is read as a file of its own, in which everything else is blank: so its errors have the lines of the solver file.

use std::ops::Range;

use quadrille_core::net::NetSpec;
use quadrille_core::site::{Fault, Site, SpecError};

use super::tokens::{Token, Tokens};
use super::{message, net};
use crate::schema::descriptor;

/// The fields that hold a network.
const FIELDS: [&str; 3] = ["net_param", "train_net_param", "test_net_param"];

/// More than any solver has; each is read with the whole file around it, so that many would take long.
const MOST: usize = 100;

/// A network in a solver file.
pub(super) struct Inline {
    /// The field that holds it.
    pub(super) field: String,
    pub(super) net: NetSpec,
}

/// The networks in the text of a solver file, which has been parsed before, in their order.
pub(super) fn networks(text: &[u8], file: &str) -> Result<Vec<Inline>, SpecError> {
    // The byte-order mark belongs to no word; blanks keep the offsets.
    let mut bytes = text.to_vec();
    if bytes.starts_with(b"\xEF\xBB\xBF") {
        bytes[..3].fill(b' ');
    }
    let parts = parts(&bytes).map_err(|fault| fault.at(&Default::default(), "solver"))?;
    if parts.len() > MOST {
        let site = Site { file: file.into(), ..Site::default() };
        let fault =
            Fault::new("test_net_param", format!("{} networks; at most {MOST} are possible", parts.len()));
        return Err(fault.hint("name files with test_net instead").at(&site, "solver"));
    }
    let read = |(field, range): (String, Range<usize>)| {
        let blank =
            |(at, byte): (usize, &u8)| if range.contains(&at) || *byte == b'\n' { *byte } else { b' ' };
        let alone: Vec<u8> = bytes.iter().enumerate().map(blank).collect();
        let parsed = message::parse(&alone, file, descriptor("NetParameter"), "network")?;
        Ok(Inline { field, net: net::convert(parsed)? })
    };
    parts.into_iter().map(read).collect()
}

/// What lies between the braces of each network.
fn parts(bytes: &[u8]) -> Result<Vec<(String, Range<usize>)>, Fault> {
    let mut tokens = Tokens::new(bytes);
    let mut parts = Vec::new();
    let (mut field, mut depth, mut start) = ("", 0usize, 0);
    loop {
        match tokens.next()? {
            Token::End => return Ok(parts),
            Token::Word(word) if depth == 0 => field = word,
            Token::Sign('{' | '<') => {
                depth += 1;
                if depth == 1 {
                    start = tokens.at;
                }
            }
            Token::Sign('}' | '>') => {
                depth = depth.saturating_sub(1);
                if depth == 0 && FIELDS.contains(&field) {
                    parts.push((field.to_owned(), start..tokens.at - 1));
                }
            }
            _ => {}
        }
    }
}
