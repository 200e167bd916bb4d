//! From text to a message of the schema, with the line of every field.
//!
//! The library parses; our own pass (`outline`) goes before it and says where its complaints belong.

use std::sync::Arc;

use miette::Diagnostic;
use prost_reflect::text_format::ParseError;
use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};
use quadrille_core::site::{Fault, Site, SpecError, did_you_mean};

use super::outline::Outline;
use super::tokens::{Token, cut, shortened};
use super::upgrade::type_of_v1;
use crate::schema::v1_layer_parameter::LayerType;

/// Longest message of the library that is shown whole, in characters; it quotes the file without a limit.
const MAX_SHOWN: usize = 200;

/// A message and where everything in it was said.
#[derive(Debug)]
pub(super) struct Parsed {
    pub(super) message: DynamicMessage,
    /// Lines of the fields of the file, but for what is inside of `parts`.
    pub(super) site: Site,
    /// The repeated messages at the top of the file (layers, above all) in order: field name and site.
    pub(super) parts: Vec<(String, Site)>,
}

/// Parses `text` as a message of `kind`. `subject` is how errors name the file's message.
pub(super) fn parse(
    text: &[u8],
    file: &str,
    kind: MessageDescriptor,
    subject: &str,
) -> Result<Parsed, SpecError> {
    let bytes = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    let mut outline = Outline::new(bytes, kind.clone(), subject);
    if let Err(fault) = outline.read(usize::MAX) {
        return Err(outline.fault(fault, None, file));
    }
    let text = outline.for_library();
    match DynamicMessage::parse_text_format(kind.clone(), &text) {
        Ok(message) => {
            let (site, parts) = outline.into_sites(&Arc::from(file));
            Ok(Parsed { message, site, parts })
        }
        Err(error) => {
            let offset = error.labels().and_then(|mut labels| labels.next()).map(|label| label.offset());
            // Without a label it is the end of the file.
            let offset = offset.map_or(usize::MAX, |offset| in_file(offset, &outline.bare_lists));
            let mut place = Outline::new(bytes, kind, subject);
            Err(match place.read(offset) {
                Ok(token) => {
                    place.fault(complaint(&error, place.field(Some(&token)), &token), Some(&token), file)
                }
                Err(fault) => place.fault(fault, None, file),
            })
        }
    }
}

/// The offset in the file of an offset in the text that the library was given.
fn in_file(offset: usize, bare_lists: &[usize]) -> usize {
    offset - bare_lists.iter().enumerate().filter(|(added, at)| *at + added < offset).count()
}

/// What the library says about `token`, in our words where they are plainer, with our hint.
fn complaint(error: &ParseError, field: Option<&FieldDescriptor>, token: &Token<'_>) -> Fault {
    let said = error.to_string();
    let name = field.map_or("the field", FieldDescriptor::name);
    if said.ends_with("is already set") {
        let text = format!("given twice; expected {name} once");
        return Fault::new("", text).hint("remove one of them");
    }
    let unknown_value = match (field.map(FieldDescriptor::kind), token) {
        (Some(Kind::Enum(_)), Token::Word(word)) => Some(format!("unknown value '{}'", shortened(word))),
        _ => None,
    };
    let fault = Fault::new("", unknown_value.unwrap_or_else(|| cut(&said, MAX_SHOWN)));
    match error.help().map(|help| help.to_string()).or_else(|| advice(field?, token)) {
        Some(hint) => fault.hint(hint),
        None if said.contains("expected ':'") => fault.hint(format!("write {name}: and then its value")),
        None => fault,
    }
}

/// What one would write instead of `token` as a value of `field`.
fn advice(field: &FieldDescriptor, token: &Token<'_>) -> Option<String> {
    match (field.kind(), token) {
        (Kind::Enum(names), Token::Word(word)) => {
            let all: Vec<String> = names.values().map(|v| v.name().to_owned()).collect();
            let close = did_you_mean(&shortened(word), all.iter().map(String::as_str));
            Some(match close {
                Some(close) => format!("did you mean {close}? {}", listed(&names)),
                None => listed(&names),
            })
        }
        (Kind::Enum(names), Token::Text(_)) => Some(format!("write it without quotes; {}", listed(&names))),
        (Kind::String, Token::Word(word)) => {
            // The names of types once were values of an enum.
            let of_type = field.name() == "type" && field.parent_message().name() == "LayerParameter";
            let today = LayerType::from_str_name(word).filter(|_| of_type);
            let today = today.and_then(|kind| type_of_v1(kind as i32)).map(str::to_owned);
            Some(format!("write \"{}\"", today.unwrap_or_else(|| shortened(word))))
        }
        (Kind::String, Token::Text(text)) if text.contains('\\') => {
            Some("write a backslash as \\\\, or use / in paths".to_owned())
        }
        (Kind::String, Token::Number(digits)) => Some(format!("write \"{}\"", shortened(digits))),
        (Kind::Float | Kind::Double | Kind::Int32 | Kind::Int64 | Kind::Uint32, Token::Text(text)) => {
            Some(format!("write {} without quotes", shortened(text)))
        }
        (Kind::Int32 | Kind::Int64 | Kind::Uint32, Token::Number(digits)) if digits.contains('.') => {
            Some("write a whole number".to_owned())
        }
        (_, Token::Number(digits))
            if digits.starts_with('0') && digits.bytes().all(|b| b.is_ascii_digit()) =>
        {
            Some("a number that starts with 0 is octal, or hexadecimal after 0x".to_owned())
        }
        (Kind::Message(_), Token::Word(_) | Token::Number(_) | Token::Text(_)) => {
            Some(format!("write {} {{ ... }}", field.name()))
        }
        _ => None,
    }
}

/// The values of an enum, as a hint.
pub(super) fn listed(names: &EnumDescriptor) -> String {
    let names: Vec<String> = names.values().map(|v| v.name().to_owned()).collect();
    format!("expected one of {}", names.join(", "))
}
