//! Files of hwloc, looked over before the library gets them.
//!
//! The library takes a file of a later format for a machine without nodes, and describes this machine where it can make
//! nothing of a file at all. So a file is only handed over if it is whole and of a format that the library knows.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// How deep objects of a real machine lie: about 20.
const DEPTH_LIMIT: usize = 200;

/// Reads a file of at most `limit` bytes.
pub(super) fn text(path: &Path, limit: u64) -> Result<String, String> {
    let read = |error: std::io::Error| {
        match error.kind() {
        std::io::ErrorKind::NotFound => "no such file".to_owned(),
        std::io::ErrorKind::IsADirectory => {
            "it is a folder; expected a file as \"lstopo --of xml FILE\" writes it (HWLOC_FSROOT names folders)".to_owned()
        }
        _ => format!("cannot be read ({error})"),
    }
    };
    let mut bytes = Vec::new();
    // One byte more than allowed tells that there are more.
    File::open(path).and_then(|file| file.take(limit + 1).read_to_end(&mut bytes)).map_err(read)?;
    if bytes.is_empty() {
        return Err("the file is empty".into());
    }
    if bytes.len() as u64 > limit {
        return Err(format!("more than {} MiB; no machine takes that much to describe", limit >> 20));
    }
    String::from_utf8(bytes).map_err(|_| "it is not a text in UTF-8, as the files of hwloc are".into())
}

/// One tag of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tag<'a> {
    /// The name of its element.
    pub name: &'a str,
    /// What stands behind the name.
    attributes: &'a str,
    /// Where it begins.
    at: usize,
    kind: Kind,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Opens,
    Closes,
    Empty,
}

impl<'a> Tag<'a> {
    /// The value of an attribute, with entities as they stand.
    pub fn attribute(&self, name: &str) -> Option<&'a str> {
        let mut rest = self.attributes;
        while let Some((key, behind)) = rest.split_once('=') {
            let behind = behind.trim_start();
            let quote = behind.chars().next().filter(|c| matches!(c, '"' | '\''))?;
            let (value, next) = behind[1..].split_once(quote)?;
            if key.trim() == name {
                return Some(value);
            }
            rest = next;
        }
        None
    }
}

/// The tags of a text, in order; an error ends them.
pub(super) fn tags(text: &str) -> impl Iterator<Item = Result<Tag<'_>, String>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at > text.len() {
            return None;
        }
        let next = next_tag(text, at);
        at = match &next {
            Some(Ok((_, end))) => *end,
            _ => text.len() + 1,
        };
        next.map(|found| found.map(|(tag, _)| tag))
    })
}

/// The next tag from `from` on, and where it ends. Comments, the declaration and the DOCTYPE are no tags.
fn next_tag(text: &str, from: usize) -> Option<Result<(Tag<'_>, usize), String>> {
    let mut from = from;
    loop {
        let at = from + text[from..].find('<')?;
        let cut = || Some(Err(format!("cut off in line {}", line_of(text, at))));
        let rest = &text[at..];
        let skipped = if rest.starts_with("<!--") {
            "-->"
        } else if rest.starts_with("<?") {
            "?>"
        } else if rest.starts_with("<!") {
            ">"
        } else {
            let Some(end) = end_of_tag(rest) else { return cut() };
            return Some(Ok((tag(&rest[1..end], at), at + end + 1)));
        };
        let Some(end) = rest.find(skipped) else { return cut() };
        if skipped == ">" && rest[..end].contains('[') {
            // Definitions of entities can make a small file huge.
            return Some(Err(format!("line {}: a DOCTYPE with definitions of its own", line_of(text, at))));
        }
        from = at + end + skipped.len();
    }
}

/// Where the `>` of a tag is: not one within quotes.
fn end_of_tag(text: &str) -> Option<usize> {
    let mut quote = None;
    for (place, byte) in text.bytes().enumerate().skip(1) {
        match (quote, byte) {
            (None, b'>') => return Some(place),
            (None, b'<') => return None,
            (None, b'"' | b'\'') => quote = Some(byte),
            (Some(open), byte) if open == byte => quote = None,
            _ => {}
        }
    }
    None
}

fn tag(inner: &str, at: usize) -> Tag<'_> {
    let (inner, kind) = if let Some(name) = inner.strip_prefix('/') {
        (name, Kind::Closes)
    } else if let Some(inner) = inner.strip_suffix('/') {
        (inner, Kind::Empty)
    } else {
        (inner, Kind::Opens)
    };
    let (name, attributes) = inner.split_once(char::is_whitespace).unwrap_or((inner, ""));
    Tag { name, attributes, at, kind }
}

fn line_of(text: &str, at: usize) -> usize {
    1 + text.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count()
}

/// Whether the library should get this text: it is whole, and its format is 2 or older.
pub(super) fn check(text: &str) -> Result<(), String> {
    let mut open: Vec<Tag> = Vec::new();
    let (mut root, mut needs_sets) = (None, false);
    let mut needed = vec!["PU", "NUMANode"];
    for tag in tags(text) {
        let tag = tag?;
        let line = line_of(text, tag.at);
        if root.is_none() {
            needs_sets = check_root(&tag)?;
            root = Some(tag.name.to_owned());
        } else if open.is_empty() {
            return Err(format!("line {line}: <{}> behind the end of the topology", tag.name));
        } else if needs_sets && tag.name == "object" && tag.kind != Kind::Closes {
            check_object(&tag, open.len() == 1).map_err(|why| format!("line {line}: {why}"))?;
            needed.retain(|kind| tag.attribute("type") != Some(*kind));
        }
        match tag.kind {
            Kind::Empty => {}
            Kind::Opens if open.len() == DEPTH_LIMIT => {
                return Err(format!("line {line}: more than {DEPTH_LIMIT} elements within each other"));
            }
            Kind::Opens => open.push(tag),
            Kind::Closes => {
                let begun = open.pop().map(|begun| begun.name);
                if begun != Some(tag.name) {
                    let expected = begun.map_or_else(String::new, |name| format!("; expected </{name}>"));
                    return Err(format!("line {line}: </{}>{expected}", tag.name));
                }
            }
        }
    }
    match (root, open.last()) {
        (None, _) => Err("no XML: there is no <topology> in it".into()),
        (_, Some(tag)) => {
            Err(format!("cut off: <{}> of line {} has no end", tag.name, line_of(text, tag.at)))
        }
        _ if needs_sets && !needed.is_empty() => Err(format!("without any object of type {}", needed[0])),
        _ => Ok(()),
    }
}

/// Whether the objects of this format have all sets.
fn check_root(tag: &Tag) -> Result<bool, String> {
    if tag.name != "topology" || tag.kind != Kind::Opens {
        return Err(format!(
            "it begins with <{}>; expected <topology>, as \"lstopo --of xml\" writes it",
            tag.name
        ));
    }
    // Format 1 has no version.
    let Some(version) = tag.attribute("version") else { return Ok(false) };
    let major: Option<u32> = version.split('.').next().and_then(|major| major.parse().ok());
    match major {
        Some(1) => Ok(false),
        Some(2) => Ok(true),
        Some(3..) => Err(format!(
            "of format {version}, which is that of hwloc 3; expected format 2. \
             Write it with \"lstopo --of xml --export-xml-flags v2\" or by an hwloc 2"
        )),
        _ => Err(format!("of format {version:?}; expected version=\"2.0\"")),
    }
}

/// The library ends the process where an object of CPUs lacks one of its sets, or where no machine is around all.
fn check_object(tag: &Tag, outermost: bool) -> Result<(), String> {
    let kind = tag.attribute("type").unwrap_or_default();
    if outermost != (kind == "Machine") {
        return Err(format!(
            "an object of type {kind:?}; the outermost one, and no other, is of type Machine"
        ));
    }
    if ["Bridge", "PCIDev", "OSDev", "Misc"].contains(&kind) {
        return Ok(());
    }
    let kinds = ["Machine", "Package", "Die", "Core", "PU", "Group", "NUMANode", "MemCache"];
    let is_cache = kind.starts_with('L') && kind.ends_with("Cache");
    if !is_cache && !kinds.contains(&kind) {
        return Err(format!("an object of type {kind:?}, which hwloc 2 does not have"));
    }
    for set in ["cpuset", "complete_cpuset", "nodeset", "complete_nodeset"] {
        let value = tag.attribute(set).ok_or_else(|| format!("an object of type {kind} without {set}"))?;
        let of_set = |byte: u8| byte.is_ascii_hexdigit() || b"x,.f".contains(&byte);
        if value.is_empty() || !value.bytes().all(of_set) {
            return Err(format!("{set} is {value:?}; expected a set such as 0x0000000f"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = include_str!("../../tests/numa/fixtures/one-core.xml");

    #[test]
    fn a_whole_file_is_handed_over_and_no_part_of_it() {
        assert_eq!(check(WHOLE), Ok(()));
        let end = WHOLE.trim_end().len();
        for cut in 0..end {
            assert!(check(&WHOLE[..cut]).is_err(), "{:?}", &WHOLE[..cut]);
        }
        assert_eq!(
            check(&WHOLE[..WHOLE.find("<info").unwrap()]).unwrap_err(),
            "cut off: <object> of line 4 has no end"
        );
    }

    #[test]
    fn what_is_no_topology_of_format_2_is_refused() {
        let said = |text: &str| check(text).unwrap_err();
        assert!(said("{}").starts_with("no XML"));
        assert!(said("<html></html>").starts_with("it begins with <html>"));
        assert!(
            said("<topology version=\"3.0\"></topology>")
                .starts_with("of format 3.0, which is that of hwloc 3")
        );
        assert!(said("<topology version=\"x\"></topology>").starts_with("of format \"x\""));
        assert_eq!(check("<topology></topology>"), Ok(()));
        assert_eq!(said("<topology><a></b></topology>"), "line 1: </b>; expected </a>");
        assert_eq!(said("<topology></topology>\n<a/>"), "line 2: <a> behind the end of the topology");
        assert!(said("<!DOCTYPE a [<!ENTITY b \"c\">]><topology/>").contains("definitions of its own"));
        assert!(said(&"<topology>".repeat(300)).contains("more than 200 elements"));
        let without = |part: &str| said(&WHOLE.replacen(part, "", 1));
        assert_eq!(
            said(&WHOLE.replace("\"PU\"", "\"Cat\"")),
            "line 10: an object of type \"Cat\", which hwloc 2 does not have"
        );
        assert_eq!(
            without(" complete_cpuset=\"0x00000001\""),
            "line 4: an object of type Machine without complete_cpuset"
        );
        assert!(said(&WHOLE.replacen("0x00000001", "-1", 1)).contains("expected a set"));
        assert!(said(&WHOLE.replace("\"Machine\"", "\"Group\"")).contains("the outermost one"));
        let empty =
            WHOLE.lines().filter(|line| !line.contains("\"NUMANode\"")).collect::<Vec<_>>().join("\n");
        assert_eq!(said(&empty), "without any object of type NUMANode");
    }

    #[test]
    fn attributes_are_found_by_name() {
        let tag = tags(WHOLE).nth(1).unwrap().unwrap();
        assert_eq!((tag.attribute("type"), tag.attribute("gp_index")), (Some("Machine"), Some("1")));
        assert_eq!((tag.attribute("ype"), tag.attribute("index")), (None, None));
        let odd = tags("<a b = 'c > \"d\"' e=\"f=g\"/>").next().unwrap().unwrap();
        assert_eq!((odd.attribute("b"), odd.attribute("e")), (Some("c > \"d\""), Some("f=g")));
    }
}
