//! The words of protobuf's text format, with their lines.
//!
//! They are cut as the library cuts them, but not understood: what a number or an escape means is its business.
//! Works on bytes: comments may be in any encoding, since files in the wild have Latin-1 in them.

use quadrille_core::site::Fault;

/// One word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A field name, `true`, or the name of an enum value.
    Word(&'a str),
    /// A number without its sign, as written.
    Number(&'a str),
    /// A string without quotes, escapes as written.
    Text(&'a str),
    /// One of `{}<>[]:,;-./`.
    Sign(char),
    /// The end of the file.
    End,
}

/// Long words are cut so that a broken file does not fill the screen.
pub(super) fn shortened(word: &str) -> String {
    cut(word, 60)
}

/// The first characters of `text`, at most `most`, with a sign that there are more.
pub(super) fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 3).chain("...".chars()).collect()
}

/// Cuts a file into words.
pub(super) struct Tokens<'a> {
    bytes: &'a [u8],
    /// The same with blanks for the comments that have been read.
    pub(super) bare: Vec<u8>,
    /// Offset behind the last word.
    pub(super) at: usize,
    /// Line of the last word.
    pub(super) line: u32,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, bare: bytes.to_vec(), at: 0, line: 1 }
    }

    /// The next word.
    pub(super) fn next(&mut self) -> Result<Token<'a>, Fault> {
        self.skip_blanks();
        let Some(&first) = self.bytes.get(self.at) else { return Ok(Token::End) };
        match first {
            b'"' | b'\'' => self.text(first),
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => Ok(Token::Word(self.take_while(is_word))),
            b'0'..=b'9' => self.number(),
            b'.' if self.bytes.get(self.at + 1).is_some_and(u8::is_ascii_digit) => self.number(),
            b'{' | b'}' | b'<' | b'>' | b'[' | b']' | b':' | b',' | b';' | b'-' | b'.' | b'/' => {
                self.at += 1;
                Ok(Token::Sign(first.into()))
            }
            0x21..=0x7e => Err(Fault::new("", format!("'{}' has no meaning here", char::from(first)))),
            _ => Err(Fault::new("", format!("the byte 0x{first:02x} has no meaning outside of comments"))
                .hint("is this a text file? weights (.caffemodel) are read elsewhere")),
        }
    }

    fn skip_blanks(&mut self) {
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'\n' => self.line += 1,
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => {}
                b'#' => {
                    let rest = &self.bytes[self.at..];
                    let length = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                    self.bare[self.at..self.at + length].fill(b' ');
                    self.at += length;
                    continue;
                }
                _ => return,
            }
            self.at += 1;
        }
    }

    fn take_while(&mut self, more: impl Fn(u8) -> bool) -> &'a str {
        let rest = &self.bytes[self.at..];
        let length = rest.iter().position(|b| !more(*b)).unwrap_or(rest.len());
        self.at += length;
        // Only called with ASCII predicates.
        std::str::from_utf8(&rest[..length]).unwrap_or_default()
    }

    /// A number, which must not hang together with what follows: the library would take `1.name: "a"` for two
    /// fields, of which this pass would see one.
    fn number(&mut self) -> Result<Token<'a>, Fault> {
        let start = self.at;
        if self.bytes[start..].starts_with(b"0x") || self.bytes[start..].starts_with(b"0X") {
            self.at += 2;
            self.take_while(|b| b.is_ascii_hexdigit());
        } else {
            self.take_while(|b| b.is_ascii_digit());
            if self.bytes.get(self.at) == Some(&b'.') {
                self.at += 1;
                self.take_while(|b| b.is_ascii_digit());
            }
            self.exponent();
            if matches!(self.bytes.get(self.at), Some(b'f' | b'F')) {
                self.at += 1;
            }
        }
        let rest = self.take_while(|b| is_word(b) || b == b'.');
        let whole = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default();
        if rest.is_empty() {
            Ok(Token::Number(whole))
        } else {
            Err(Fault::new("", format!("'{}' is not a number", shortened(whole))))
        }
    }

    fn exponent(&mut self) {
        let digits = match self.bytes[self.at..] {
            [b'e' | b'E', b'+' | b'-', b'0'..=b'9', ..] => 2,
            [b'e' | b'E', b'0'..=b'9', ..] => 1,
            _ => return,
        };
        self.at += digits;
        self.take_while(|b| b.is_ascii_digit());
    }

    fn text(&mut self, quote: u8) -> Result<Token<'a>, Fault> {
        let unclosed = |what: &str| Err(Fault::new("", what).hint("add the missing quote"));
        let start = self.at + 1;
        self.at = start;
        loop {
            match self.bytes.get(self.at) {
                None => return unclosed("the string has no closing quote"),
                Some(b'\n') => return unclosed("the string does not end on its line"),
                // Whatever is escaped does not end the string; a line end still does.
                Some(b'\\') if self.bytes.get(self.at + 1).is_some_and(|b| *b != b'\n') => self.at += 2,
                Some(byte) if *byte == quote => break,
                Some(_) => self.at += 1,
            }
        }
        let text = std::str::from_utf8(&self.bytes[start..self.at])
            .map_err(|_| Fault::new("", "the string is not UTF-8").hint("save the file as UTF-8"))?;
        self.at += 1;
        Ok(Token::Text(text))
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}
