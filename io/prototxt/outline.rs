//! The pass before the library's parser: bounds what that is given, and remembers where everything was said.
//!
//! The library follows braces to any depth and gives a message without lines. This pass follows the braces and the
//! names of fields along the schema; values it skips. It holds its open messages in a list and does not recurse.

use std::sync::Arc;

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use quadrille_core::site::{Fault, Site, SpecError, did_you_mean};

use super::forks;
use super::tokens::{Token, Tokens, shortened};

/// More values than any network has; bounds the memory that a file can take up.
const MAX_FIELDS: usize = 200_000;

/// More levels than the schema has; bounds the stack of the library's parser.
const MAX_DEPTH: usize = 8;

/// What has been read of a file.
pub(super) struct Outline<'a> {
    tokens: Tokens<'a>,
    /// Open messages; the first is the file.
    open: Vec<Open>,
    /// Values so far.
    values: usize,
    root: Lines,
    parts: Vec<(String, Lines)>,
    /// How errors name the file's message, and the open part of it.
    subject: String,
    part: Option<String>,
    /// Offsets of lists that follow the name of a message without a colon.
    pub(super) bare_lists: Vec<usize>,
}

/// A message whose end has not come yet.
struct Open {
    /// Its type; `None` where the schema has no message, which the library refuses.
    kind: Option<MessageDescriptor>,
    end: char,
    line: u32,
    /// The field read last.
    field: Option<FieldDescriptor>,
    place: Place,
}

/// Where in a message the next word stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Where a field may begin.
    Start,
    /// After the name of a field.
    Name,
    /// After the colon.
    Value,
    /// In a list of values.
    List,
    /// After a string: more of it may follow, or a field.
    Text,
}

#[derive(Default)]
struct Lines {
    line: u32,
    fields: Vec<(String, u32)>,
}

impl Lines {
    /// Remembers the first line of a path. The schema bounds the number of different paths.
    fn note(&mut self, path: String, line: u32) {
        if !self.fields.iter().any(|(known, _)| *known == path) {
            self.fields.push((path, line));
        }
    }

    fn into_site(self, file: &Arc<str>) -> Site {
        Site { file: file.clone(), line: self.line, fields: self.fields.into() }
    }
}

impl<'a> Outline<'a> {
    pub(super) fn new(bytes: &'a [u8], kind: MessageDescriptor, subject: &str) -> Self {
        let file = Open { kind: Some(kind), end: '\0', line: 1, field: None, place: Place::Start };
        Self {
            tokens: Tokens::new(bytes),
            open: vec![file],
            values: 0,
            root: Lines { line: 1, ..Lines::default() },
            parts: Vec::new(),
            subject: subject.to_owned(),
            part: None,
            bare_lists: Vec::new(),
        }
    }

    /// Reads up to the word that holds the byte `until`, or to the end of the file, and returns that word.
    pub(super) fn read(&mut self, until: usize) -> Result<Token<'a>, Fault> {
        loop {
            let token = self.tokens.next()?;
            if self.tokens.at > until {
                return Ok(token);
            }
            match (token, &self.open[..]) {
                (Token::Word(word), _) => self.word(word)?,
                (Token::Number(digits), _) => self.number(digits)?,
                (Token::Text(text), _) => self.text(text),
                (Token::Sign(sign), _) => self.sign(sign)?,
                (Token::End, [.., _, last]) => {
                    let text = format!("the file ends, but the '{{' of line {} is not closed", last.line);
                    return Err(
                        Fault::new("", text).hint("add the missing '}'; the indentation may show where")
                    );
                }
                (Token::End, _) => return Ok(token),
            }
        }
    }

    /// The text that was read, as the library takes it. It wants a colon before a list of messages, which the format's
    /// specification does not; it wants UTF-8 in comments too, and a call for each of them, so that many would overflow
    /// the stack. Lines stay, and so do offsets, but for the colons.
    pub(super) fn for_library(&self) -> String {
        let bare = &self.tokens.bare;
        let mut text = String::with_capacity(bare.len() + self.bare_lists.len());
        let mut from = 0;
        for (at, colon) in self.bare_lists.iter().map(|at| (*at, ":")).chain([(bare.len(), "")]) {
            // Without comments, all of it has been found to be UTF-8.
            text.push_str(&String::from_utf8_lossy(&bare[from..at]));
            text.push_str(colon);
            from = at;
        }
        text
    }

    /// The field to which `token`, the next word, belongs as a value or a part of one.
    pub(super) fn field(&self, token: Option<&Token<'_>>) -> Option<&FieldDescriptor> {
        let last = self.open.last()?;
        match last.place {
            Place::Start => None,
            Place::Text if !matches!(token, Some(Token::Text(_))) => None,
            _ => last.field.as_ref(),
        }
    }

    /// Places a fault at the word read last; `token` if that is whole.
    pub(super) fn fault(&self, mut fault: Fault, token: Option<&Token<'_>>, file: &str) -> SpecError {
        if fault.field.is_empty() {
            fault.field = self.path(self.field(token).map_or("", |field| field.name()));
        }
        let site = Site { file: file.into(), line: self.tokens.line, fields: Arc::new([]) };
        fault.at(&site, self.part.as_ref().unwrap_or(&self.subject))
    }

    /// The lines of the file's fields, and those of its parts with their names.
    pub(super) fn into_sites(self, file: &Arc<str>) -> (Site, Vec<(String, Site)>) {
        let parts = self.parts.into_iter().map(|(name, lines)| (name, lines.into_site(file))).collect();
        (self.root.into_site(file), parts)
    }

    /// The path of `name` in the message that is open, below the file or the part.
    fn path(&self, name: &str) -> String {
        let outer = &self.open[usize::from(self.part.is_some())..self.open.len() - 1];
        let mut path: Vec<&str> = outer.iter().filter_map(|o| o.field.as_ref()).map(|f| f.name()).collect();
        path.extend((!name.is_empty()).then_some(name));
        path.join(".")
    }

    /// The message that is open: there is always the file.
    fn last(&mut self) -> &mut Open {
        let last = self.open.len() - 1;
        &mut self.open[last]
    }

    /// A value has been read.
    fn done(&mut self, next: Place) {
        let last = self.last();
        if last.place != Place::List {
            last.place = next;
        }
    }

    fn count(&mut self) -> Result<(), Fault> {
        self.values += 1;
        if self.values > MAX_FIELDS {
            return Err(Fault::new("", format!("the file has more than {MAX_FIELDS} fields")));
        }
        Ok(())
    }

    fn word(&mut self, word: &str) -> Result<(), Fault> {
        let last = self.last();
        if !matches!(last.place, Place::Start | Place::Text) {
            self.done(Place::Start);
            return Ok(());
        }
        last.place = Place::Name;
        let Some(kind) = last.kind.clone() else { return Ok(()) };
        let Some(field) = kind.get_field_by_name(word) else {
            let fault = unknown_field(&self.path(&shortened(word)), &kind, word);
            // A field of the file inside of a part: that is not closed.
            let of_file = self.open.first().and_then(|file| file.kind.as_ref());
            let of_file = of_file.is_some_and(|file| file.get_field_by_name(word).is_some());
            return Err(match (of_file, &self.open[..]) {
                (true, [_, part, ..]) if word.starts_with("layer") => fault
                    .hint(format!("is a '}}' missing above? the '{{' of line {} is not closed", part.line)),
                _ => fault,
            });
        };
        last.field = Some(field);
        let (path, line) = (self.path(word), self.tokens.line);
        match (&self.part, self.parts.last_mut()) {
            (Some(_), Some((_, lines))) => lines.note(path, line),
            _ => self.root.note(path, line),
        }
        self.count()
    }

    /// The library takes any number for an enum, and what the enum lacks would turn into its default.
    fn number(&mut self, digits: &str) -> Result<(), Fault> {
        if let Some(Kind::Enum(names)) = self.field(None).map(FieldDescriptor::kind)
            && !names.values().any(|value| value.number().to_string() == digits)
        {
            let fault = Fault::new("", format!("unknown value '{}'", shortened(digits)));
            return Err(fault.hint(super::message::listed(&names)));
        }
        self.done(Place::Start);
        Ok(())
    }

    fn text(&mut self, text: &str) {
        // A string may go on after its end; its first piece is name enough.
        let first = self.last().place != Place::Text;
        let named =
            first && self.open.len() == 2 && self.field(None).is_some_and(|field| field.name() == "name");
        if let (true, Some(part), [file, ..]) = (named, &mut self.part, &self.open[..]) {
            let kind = file.field.as_ref().map_or("", |field| field.name());
            *part = format!("{kind} {:?}", shortened(text));
        }
        self.done(Place::Text);
    }

    fn sign(&mut self, sign: char) -> Result<(), Fault> {
        let at = self.tokens.at - 1;
        let last = self.last();
        match (sign, last.place) {
            ('{', _) => self.begin('}')?,
            ('<', _) => self.begin('>')?,
            ('}' | '>', _) => self.end(sign)?,
            (':', Place::Name) => last.place = Place::Value,
            ('[', Place::Start | Place::Text) => {
                return Err(Fault::new("", "'[' starts an extension, and Caffe's files have none"));
            }
            ('[', Place::Name) => {
                last.place = Place::List;
                if last.field.as_ref().is_some_and(|field| matches!(field.kind(), Kind::Message(_))) {
                    self.bare_lists.push(at);
                }
            }
            ('[', _) => last.place = Place::List,
            (']', Place::List) => last.place = Place::Start,
            (',', Place::List) => self.count()?,
            (',' | ';', Place::Text) => last.place = Place::Start,
            ('-', _) => {
                if let Some(Kind::Enum(names)) = self.field(None).map(FieldDescriptor::kind) {
                    let fault = Fault::new("", "a value of an enum has no sign");
                    return Err(fault.hint(super::message::listed(&names)));
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, end: char) -> Result<(), Fault> {
        if self.open.len() > MAX_DEPTH {
            return Err(Fault::new("", format!("messages inside of messages, more than {MAX_DEPTH} deep")));
        }
        let field = self.field(None).cloned();
        let kind = field.as_ref().and_then(|field| match field.kind() {
            Kind::Message(kind) => Some(kind),
            _ => None,
        });
        let line = self.tokens.line;
        if let (1, Some(field), Some(_)) = (self.open.len(), &field, &kind)
            && field.is_list()
        {
            self.part = Some(field.name().to_owned());
            self.parts.push((field.name().to_owned(), Lines { line, ..Lines::default() }));
        }
        self.done(Place::Start);
        self.open.push(Open { kind, end, line, field: None, place: Place::Start });
        Ok(())
    }

    fn end(&mut self, sign: char) -> Result<(), Fault> {
        if self.last().end != sign {
            return Err(Fault::new("", format!("'{sign}' closes nothing that was opened"))
                .hint("remove it, or look for a missing '{' above"));
        }
        self.open.pop();
        if self.open.len() == 1 {
            self.part = None;
        }
        Ok(())
    }
}

fn unknown_field(path: &str, message: &MessageDescriptor, name: &str) -> Fault {
    if forks::have(message.name(), name) {
        return Fault::new(path, "a field of forks of Caffe, which is not supported")
            .hint("it changes what is computed; expected a network that does without it");
    }
    let fault = Fault::new(path, format!("unknown field; {} has no such field", message.name()));
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
