//! The words of protobuf's text format, with their lines.
//!
//! Works on bytes: comments may be in any encoding, since files in the wild have Latin-1 in them; strings are
//! checked for UTF-8 where they are used.

use quadrille_core::site::Fault;

/// One word.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token<'a> {
    /// A field name, `true`, or the name of an enum value.
    Word(&'a str),
    /// A number without its sign, as written.
    Number(&'a str),
    /// A string without quotes, escapes resolved.
    Text(Vec<u8>),
    /// One of `{}<>[]:,;-`.
    Sign(char),
    /// The end of the file.
    End,
}

impl Token<'_> {
    /// The word as a message quotes it.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Word(word) | Self::Number(word) => format!("'{}'", shortened(word)),
            Self::Text(text) => format!("the string \"{}\"", shortened(&String::from_utf8_lossy(text))),
            Self::Sign(sign) => format!("'{sign}'"),
            Self::End => "the end of the file".to_owned(),
        }
    }
}

/// Long words are cut so that a broken file does not fill the screen.
pub(super) fn shortened(word: &str) -> String {
    if word.chars().count() <= 60 {
        return word.to_owned();
    }
    word.chars().take(57).chain("...".chars()).collect()
}

/// Cuts a file into words.
pub(super) struct Tokens<'a> {
    bytes: &'a [u8],
    at: usize,
    line: u32,
}

impl<'a> Tokens<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        Self { bytes, at: 0, line: 1 }
    }

    /// The next word and its line; a fault is said to be on the line of the word.
    pub(super) fn next(&mut self) -> (u32, Result<Token<'a>, Fault>) {
        self.skip_blanks();
        let line = self.line;
        let Some(&first) = self.bytes.get(self.at) else { return (line, Ok(Token::End)) };
        let token = match first {
            b'"' | b'\'' => self.text(first),
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => Ok(Token::Word(self.word())),
            b'0'..=b'9' => Ok(Token::Number(self.number())),
            b'.' if self.bytes.get(self.at + 1).is_some_and(u8::is_ascii_digit) => {
                Ok(Token::Number(self.number()))
            }
            b'{' | b'}' | b'<' | b'>' | b'[' | b']' | b':' | b',' | b';' | b'-' => {
                self.at += 1;
                Ok(Token::Sign(first.into()))
            }
            b'\\' | 0x21..=0x7e => {
                Err(Fault::new("", format!("'{}' has no meaning here", char::from(first))))
            }
            _ => Err(Fault::new("", format!("the byte 0x{first:02x} has no meaning outside of comments"))
                .hint("is this a text file? weights (.caffemodel) are read elsewhere")),
        };
        (line, token)
    }

    fn skip_blanks(&mut self) {
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'\n' => self.line += 1,
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => {}
                b'#' => {
                    let rest = &self.bytes[self.at..];
                    self.at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
                    continue;
                }
                _ => return,
            }
            self.at += 1;
        }
    }

    fn take_while(&mut self, more: impl Fn(usize, u8) -> bool) -> &'a str {
        let start = self.at;
        while self.bytes.get(self.at).is_some_and(|b| more(self.at - start, *b)) {
            self.at += 1;
        }
        // Only called with ASCII predicates.
        std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default()
    }

    fn word(&mut self) -> &'a str {
        self.take_while(|_, b| b.is_ascii_alphanumeric() || b == b'_')
    }

    /// Everything that hangs together from a digit on; whether it is a number is seen where its type is known.
    fn number(&mut self) -> &'a str {
        let text = &self.bytes[self.at..];
        let hexadecimal = text.starts_with(b"0x") || text.starts_with(b"0X");
        self.take_while(|i, b| {
            let exponent = i > 0 && !hexadecimal && matches!(text[i - 1], b'e' | b'E');
            b.is_ascii_alphanumeric() || b == b'_' || b == b'.' || (exponent && (b == b'-' || b == b'+'))
        })
    }

    fn text(&mut self, quote: u8) -> Result<Token<'a>, Fault> {
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let Some(&byte) = self.bytes.get(self.at) else {
                return Err(Fault::new("", "the string has no closing quote").hint("add the missing quote"));
            };
            self.at += 1;
            match byte {
                b'\n' => {
                    return Err(
                        Fault::new("", "the string does not end on its line").hint("add the missing quote")
                    );
                }
                0 => return Err(Fault::new("", "a string cannot hold the byte 0; write \\0")),
                b'\\' => self.escape(&mut text)?,
                _ if byte == quote => return Ok(Token::Text(text)),
                _ => text.push(byte),
            }
        }
    }

    /// The rest of an escape sequence, after the backslash.
    fn escape(&mut self, text: &mut Vec<u8>) -> Result<(), Fault> {
        let letter = self.bytes.get(self.at).copied().unwrap_or(b' ');
        self.at += 1;
        let plain = match letter {
            b'a' => 0x07,
            b'b' => 0x08,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 0x0b,
            b'?' | b'\\' | b'\'' | b'"' => letter,
            b'0'..=b'7' => {
                self.at -= 1;
                return self.coded(8, 1, 3).and_then(|code| push_byte(code, text));
            }
            b'x' | b'X' => return self.coded(16, 1, 2).and_then(|code| push_byte(code, text)),
            b'u' | b'U' => {
                let digits = if letter == b'u' { 4 } else { 8 };
                let character = char::from_u32(self.coded(16, digits, digits)?)
                    .ok_or_else(|| Fault::new("", "the escape names no character"))?;
                text.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => {
                return Err(Fault::new("", "unknown escape sequence in a string")
                    .hint("write a backslash as \\\\, or use / in paths"));
            }
        };
        text.push(plain);
        Ok(())
    }

    /// A number of `least` to `most` digits.
    fn coded(&mut self, radix: u32, least: usize, most: usize) -> Result<u32, Fault> {
        let digits = self.take_while(|i, b| i < most && char::from(b).is_digit(radix));
        if digits.len() < least {
            return Err(Fault::new("", "an escape sequence in a string has too few digits"));
        }
        u32::from_str_radix(digits, radix).map_err(|_| Fault::new("", "an escape sequence is out of range"))
    }
}

fn push_byte(code: u32, text: &mut Vec<u8>) -> Result<(), Fault> {
    let byte =
        u8::try_from(code).map_err(|_| Fault::new("", "an escape sequence is larger than one byte"))?;
    text.push(byte);
    Ok(())
}
