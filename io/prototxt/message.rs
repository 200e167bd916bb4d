//! From text to a message of the schema, remembering the line of every field.
//!
//! The text parser of prost-reflect does not tell where an error is and follows `[type.name]` to any depth; this
//! one recurses only along the schema, which is acyclic, and the tests hold it against the other.

use std::sync::Arc;

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage, Value};
use quadrille_core::site::{Fault, Site, SpecError, did_you_mean};

use super::tokens::{Token, Tokens, shortened};
use super::value;

/// More fields than any network has; bounds the memory that a file can take up.
const MAX_FIELDS: usize = 200_000;

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
    let mut message = DynamicMessage::new(kind);
    let mut parser = Parser {
        tokens: Tokens::new(text),
        peeked: None,
        line: 1,
        path: Vec::new(),
        fields: 0,
        root: Lines { line: 1, ..Lines::default() },
        parts: Vec::new(),
        in_part: false,
        subject: subject.to_owned(),
        file: file.into(),
    };
    match parser.message(&mut message, None) {
        Ok(()) => {}
        Err(mut fault) => {
            if fault.field.is_empty() {
                fault.field = parser.path.join(".");
            }
            let site = Site { file: parser.file, line: parser.line, fields: Arc::new([]) };
            return Err(fault.at(&site, &parser.subject));
        }
    }
    let Parser { root, parts, file, .. } = parser;
    let site = root.into_site(&file);
    let parts = parts.into_iter().map(|(name, lines)| (name, lines.into_site(&file))).collect();
    Ok(Parsed { message, site, parts })
}

#[derive(Default)]
struct Lines {
    line: u32,
    fields: Vec<(String, u32)>,
}

impl Lines {
    /// Remembers the first line of a path. The schema bounds the number of different paths.
    fn note(&mut self, path: &[String], line: u32) {
        let path = path.join(".");
        if !self.fields.iter().any(|(known, _)| *known == path) {
            self.fields.push((path, line));
        }
    }

    fn into_site(self, file: &Arc<str>) -> Site {
        Site { file: file.clone(), line: self.line, fields: self.fields.into() }
    }
}

struct Parser<'a> {
    tokens: Tokens<'a>,
    peeked: Option<(u32, Result<Token<'a>, Fault>)>,
    /// Line of the last word that was taken: where an error is.
    line: u32,
    /// Names of the fields that are being read, below the file or the part.
    path: Vec<String>,
    fields: usize,
    root: Lines,
    parts: Vec<(String, Lines)>,
    in_part: bool,
    subject: String,
    file: Arc<str>,
}

impl<'a> Parser<'a> {
    /// The next word; `None` if it is broken, which only matters to who takes it.
    fn peek(&mut self) -> Option<&Token<'a>> {
        self.peeked.get_or_insert_with(|| self.tokens.next()).1.as_ref().ok()
    }

    fn take(&mut self) -> Result<Token<'a>, Fault> {
        let (line, token) = self.peeked.take().unwrap_or_else(|| self.tokens.next());
        self.line = line;
        token
    }

    fn takes(&mut self, sign: char) -> Result<bool, Fault> {
        let found = self.peek() == Some(&Token::Sign(sign));
        if found {
            self.take()?;
        }
        Ok(found)
    }

    /// Fields up to `end` (the end of the file if `None`).
    fn message(&mut self, message: &mut DynamicMessage, end: Option<char>) -> Result<(), Fault> {
        let opened = self.line;
        loop {
            match self.take()? {
                Token::End if end.is_none() => return Ok(()),
                Token::End => {
                    return Err(Fault::new(
                        "",
                        format!("the file ends, but the '{{' of line {opened} is not closed"),
                    )
                    .hint("add the missing '}'; the indentation may show where"));
                }
                Token::Sign(sign) if Some(sign) == end => return Ok(()),
                Token::Sign('[') => {
                    return Err(Fault::new("", "'[' starts an extension, and Caffe's files have none"));
                }
                Token::Sign(sign @ ('}' | '>')) => {
                    return Err(Fault::new("", format!("'{sign}' closes nothing that was opened"))
                        .hint("remove it, or look for a missing '{' above"));
                }
                Token::Word(name) => self.field(message, name)?,
                other => {
                    return Err(Fault::new("", format!("expected a field name, found {}", other.describe())));
                }
            }
        }
    }

    fn field(&mut self, message: &mut DynamicMessage, name: &str) -> Result<(), Fault> {
        let line = self.line;
        self.path.push(shortened(name));
        let Some(field) = message.descriptor().get_field_by_name(name) else {
            return Err(unknown_field(&message.descriptor(), name));
        };
        let is_message = matches!(field.kind(), Kind::Message(_));
        let part = self.path.len() == 1 && !self.in_part && is_message && field.is_list();
        match (self.in_part, self.parts.last_mut()) {
            (true, Some((_, lines))) => lines.note(&self.path, line),
            _ => self.root.note(&self.path, line),
        }
        if !field.is_list() && message.has_field(&field) {
            return Err(Fault::new("", "is given twice, but can have only one value")
                .hint("remove one of them, or look for a missing '}' above"));
        }
        if !self.takes(':')? && !is_message {
            let found = self.take()?.describe();
            return Err(Fault::new("", format!("expected ':' and a value, found {found}")));
        }
        if field.is_list() && self.takes('[')? {
            if !self.takes(']')? {
                loop {
                    self.value(message, &field, part)?;
                    if self.takes(']')? {
                        break;
                    }
                    if !self.takes(',')? {
                        let found = self.take()?.describe();
                        return Err(Fault::new("", format!("expected ',' or ']', found {found}")));
                    }
                }
            }
        } else {
            self.value(message, &field, part)?;
        }
        if !self.takes(',')? {
            self.takes(';')?;
        }
        self.path.pop();
        Ok(())
    }

    /// One value of `field`, put into `message`.
    fn value(
        &mut self,
        message: &mut DynamicMessage,
        field: &FieldDescriptor,
        part: bool,
    ) -> Result<(), Fault> {
        self.fields += 1;
        if self.fields > MAX_FIELDS {
            return Err(Fault::new("", format!("the file has more than {MAX_FIELDS} fields")));
        }
        let value = match field.kind() {
            Kind::Message(kind) => self.inner(&kind, field, part)?,
            kind => self.scalar(&kind)?,
        };
        if field.is_list() {
            if let Value::List(list) = message.get_field_mut(field) {
                list.push(value);
            }
            return Ok(());
        }
        if let (true, "name", Value::String(name)) =
            (self.in_part && self.path.len() == 1, field.name(), &value)
        {
            self.subject = format!("{} {:?}", self.subject, shortened(name));
        }
        message.set_field(field, value);
        Ok(())
    }

    fn inner(
        &mut self,
        kind: &MessageDescriptor,
        field: &FieldDescriptor,
        part: bool,
    ) -> Result<Value, Fault> {
        let end = match self.take()? {
            Token::Sign('{') => '}',
            Token::Sign('<') => '>',
            other => {
                return Err(Fault::new("", format!("expected '{{', found {}", other.describe()))
                    .hint(format!("write {} {{ ... }}", field.name())));
            }
        };
        let mut inner = DynamicMessage::new(kind.clone());
        if !part {
            self.message(&mut inner, Some(end))?;
            return Ok(Value::Message(inner));
        }
        let path = std::mem::take(&mut self.path);
        let subject = std::mem::replace(&mut self.subject, field.name().to_owned());
        self.parts.push((field.name().to_owned(), Lines { line: self.line, ..Lines::default() }));
        self.in_part = true;
        self.message(&mut inner, Some(end))?;
        self.in_part = false;
        (self.path, self.subject) = (path, subject);
        Ok(Value::Message(inner))
    }

    fn scalar(&mut self, kind: &Kind) -> Result<Value, Fault> {
        let negative = self.takes('-')?;
        let token = self.take()?;
        let Token::Text(mut text) = token else { return value::scalar(kind, negative, &token) };
        while let Some(Token::Text(more)) = self.peek() {
            text.extend_from_slice(more);
            self.take()?;
        }
        value::scalar(kind, negative, &Token::Text(text))
    }
}

fn unknown_field(message: &MessageDescriptor, name: &str) -> Fault {
    let fault = Fault::new("", format!("unknown field; {} has no such field", message.name()));
    let names: Vec<String> = message.fields().map(|f| f.name().to_owned()).collect();
    if let Some(close) = did_you_mean(&shortened(name), names.iter().map(String::as_str)) {
        return fault.hint(format!("did you mean {close:?}?"));
    }
    let inside: Vec<String> = message
        .fields()
        .filter(|f| matches!(f.kind(), Kind::Message(inner) if inner.get_field_by_name(name).is_some()))
        .map(|f| format!("{} {{ ... }}", f.name()))
        .take(4)
        .collect();
    if inside.is_empty() { fault } else { fault.hint(format!("it belongs inside {}", inside.join(" or "))) }
}
