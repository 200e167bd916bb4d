//! Where something was said in a file, so that every complaint can name file, line and field.

use std::fmt;
use std::sync::Arc;

/// The place of one message (a layer, a solver) in a text file, with the lines of its fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Site {
    /// The file as the user named it.
    pub file: Arc<str>,
    /// Line on which the message starts, from 1; 0 if the message was made by a program.
    pub line: u32,
    /// Lines of the fields below the message, by dotted path without indices, such as
    /// `convolution_param.kernel_size`. A repeated field keeps its first line.
    pub fields: Arc<[(String, u32)]>,
}

impl Site {
    /// A site for something that no file describes.
    pub fn made(by: &str) -> Self {
        Self { file: by.into(), line: 0, fields: Arc::new([]) }
    }

    /// The line of `field`, or of the longest part of its path that was written, or of the message itself.
    pub fn line_of(&self, field: &str) -> u32 {
        let mut path = field;
        loop {
            if let Some((_, line)) = self.fields.iter().find(|(name, _)| name == path) {
                return *line;
            }
            match path.rfind('.') {
                Some(dot) => path = &path[..dot],
                None => return self.line,
            }
        }
    }
}

/// What is wrong with one field of a layer or solver: said by the code that knows the meaning, before anyone
/// has looked up the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Dotted path of the field below its message; empty for the message as a whole.
    pub field: String,
    /// What is wrong and what was expected.
    pub message: String,
    /// What the user could do, if that is known.
    pub hint: Option<String>,
}

impl Fault {
    /// A fault of `field`.
    pub fn new(field: &str, message: impl Into<String>) -> Self {
        Self { field: field.to_owned(), message: message.into(), hint: None }
    }

    /// The same with a suggestion.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Places the fault in a file. `subject` is how the message names itself, such as `layer "conv1"`.
    pub fn at(self, site: &Site, subject: &str) -> SpecError {
        SpecError {
            file: site.file.clone(),
            line: site.line_of(&self.field),
            subject: subject.to_owned(),
            field: self.field,
            message: self.message,
            hint: self.hint,
        }
    }
}

/// A network or solver that cannot be what it says: exit code 64.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError {
    /// The file.
    pub file: Arc<str>,
    /// The line, from 1; 0 if there is none.
    pub line: u32,
    /// The message that is at fault, such as `layer "conv1"`; may be empty.
    pub subject: String,
    /// The field; may be empty.
    pub field: String,
    /// What is wrong and what was expected.
    pub message: String,
    /// What the user could do.
    pub hint: Option<String>,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": ")?;
        if !self.subject.is_empty() {
            write!(f, "{}: ", self.subject)?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        write!(f, "{}", self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, "\n  hint: {hint}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SpecError {}

/// The candidate closest to `word` by edit distance, if it is close enough to be a slip of the keyboard.
pub fn did_you_mean<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = word.chars().count().div_ceil(3);
    candidates
        .into_iter()
        .map(|c| (edit_distance(&word.to_lowercase(), &c.to_lowercase()), c))
        .filter(|(d, _)| *d <= limit)
        .min_by_key(|(d, _)| *d)
        .map(|(_, c)| c)
}

/// Levenshtein distance by rows.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_falls_back_to_its_parent_and_then_to_its_message() {
        let site = Site {
            file: "net.prototxt".into(),
            line: 7,
            fields: [("convolution_param".to_owned(), 9), ("convolution_param.pad".to_owned(), 11)].into(),
        };
        assert_eq!(site.line_of("convolution_param.pad"), 11);
        assert_eq!(site.line_of("convolution_param.stride"), 9);
        assert_eq!(site.line_of("type"), 7);
    }

    #[test]
    fn slips_of_the_keyboard_are_recognised_and_other_words_are_not() {
        let known = ["Convolution", "Pooling", "ReLU"];
        assert_eq!(did_you_mean("Convolutoin", known), Some("Convolution"));
        assert_eq!(did_you_mean("Relu", known), Some("ReLU"));
        assert_eq!(did_you_mean("Transformer", known), None);
    }
}
