//! The house rules as a test (after TigerBeetle's tidy).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MOST_LINES_OF_A_FILE: usize = 600;
const MOST_LINES_OF_A_FUNCTION: usize = 70;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The files of the repository, relative to its root; without git, what lies in its folders.
fn files() -> Vec<PathBuf> {
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    let mut files: Vec<PathBuf> = match listed {
        Ok(output) if output.status.success() => {
            let names = String::from_utf8(output.stdout).expect("names in UTF-8");
            names.split('\0').filter(|n| !n.is_empty()).map(PathBuf::from).collect()
        }
        _ => walk(root()).iter().map(|f| f.strip_prefix(root()).expect("below the root").into()).collect(),
    };
    files.retain(|file| root().join(file).is_file());
    files
}

fn walk(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path());
    let hidden = |p: &PathBuf| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with('.'));
    let built = |p: &PathBuf| p.ends_with("target") || p.ends_with("runs");
    let wanted = entries.filter(|p| !hidden(p) && !built(p));
    wanted.flat_map(|p| if p.is_dir() { walk(&p) } else { vec![p] }).collect()
}

/// Names and texts of the Rust sources.
fn sources() -> Vec<(String, String)> {
    let rust = files().into_iter().filter(|f| f.extension().is_some_and(|e| e == "rs"));
    let sources: Vec<_> = rust
        .map(|f| (f.display().to_string(), fs::read_to_string(root().join(&f)).expect("a source in UTF-8")))
        .collect();
    assert!(sources.len() > 50, "only {} sources found: this test looks at the wrong place", sources.len());
    sources
}

fn none(complaints: Vec<String>) {
    assert!(complaints.is_empty(), "\n{}", complaints.join("\n"));
}

#[test]
fn no_file_is_too_long() {
    let long = sources().into_iter().map(|(name, text)| (name, text.lines().count()));
    let long = long.filter(|(_, lines)| *lines > MOST_LINES_OF_A_FILE);
    none(
        long.map(|(name, lines)| format!("{name}: {lines} lines; at most {MOST_LINES_OF_A_FILE}")).collect(),
    );
}

/// Starts of functions with the lengths of their bodies, as clippy counts them. In formatted code a function ends with the first brace that stands
/// under its first line.
fn functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let is_start = |line: &str| {
        let words = line.split_whitespace().take_while(|w| *w != "fn");
        let qualified = |w: &str| {
            w.starts_with("pub") || ["crate)", "super)", "const", "unsafe", "extern", "\"C\""].contains(&w)
        };
        line.split_whitespace().any(|w| w == "fn") && words.into_iter().all(qualified)
    };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut found = Vec::new();
    for (start, first) in lines.iter().enumerate().filter(|(_, line)| is_start(line)) {
        let beside = |line: &&str| !line.trim().is_empty() && indent(line) == indent(first);
        let mut ends = (start..lines.len()).filter(|at| beside(&lines[*at]));
        // The signature ends with the brace that opens the body; without one it is a declaration.
        let Some(open) = ends.find(|at| lines[*at].ends_with(['{', ';', '}'])) else { continue };
        if lines[open].ends_with('{')
            && let Some(close) = ends.find(|at| lines[*at].trim_start().starts_with('}'))
        {
            found.push((start + 1, close - open - 1));
        }
    }
    found
}

#[test]
fn no_function_is_too_long() {
    let mut complaints = Vec::new();
    let mut seen = 0;
    for (name, text) in sources() {
        let all = functions(&text);
        seen += all.len();
        let long = all.into_iter().filter(|(_, lines)| *lines > MOST_LINES_OF_A_FUNCTION);
        complaints.extend(long.map(|(line, lines)| {
            format!("{name}:{line}: a function of {lines} lines; at most {MOST_LINES_OF_A_FUNCTION}")
        }));
    }
    assert!(seen > 500, "only {seen} functions found");
    none(complaints);
}

#[test]
fn the_length_of_a_function_is_counted() {
    let long = format!(
        "impl A {{\n    pub(crate) fn a(\n        b: u8,\n    ) {{\n{}    }}\n}}\n",
        "        x;\n".repeat(5)
    );
    assert_eq!(functions(&long), [(2, 5)]);
    let declared = "fn a() {}\ntrait T {\n    fn b();\n    fn c(\n        d: u8,\n    );\n}\n// a fn\n";
    assert_eq!(functions(declared), []);
}

#[test]
fn nothing_unfinished_dead_or_switched_off() {
    let banned = ["todo!(", "unimplemented!(", "dbg!(", "#[ignore", "allow(dead_code"];
    let mut complaints = Vec::new();
    // This file names what it looks for.
    for (name, text) in sources().into_iter().filter(|(name, _)| name != "tests/tidy.rs") {
        for (number, line) in text.lines().enumerate() {
            // Under loom most of a crate is not compiled, so that what is left looks dead.
            if line.contains("cfg_attr(loom") {
                continue;
            }
            let word = banned.iter().find(|word| line.contains(**word));
            complaints.extend(word.map(|word| format!("{name}:{}: {word}", number + 1)));
        }
    }
    none(complaints);
}

#[test]
fn no_module_for_leftovers() {
    let leftovers = ["util", "utils", "helper", "helpers", "misc", "stuff"];
    let named = |name: &str| {
        Path::new(name).components().any(|part| {
            let part = part.as_os_str().to_string_lossy();
            leftovers.contains(&part.trim_end_matches(".rs"))
        })
    };
    none(sources().into_iter().map(|(name, _)| name).filter(|name| named(name)).collect());
}

#[test]
fn no_code_in_comments() {
    let looks_like_code = |line: &str| {
        let Some(comment) = line.trim_start().strip_prefix("// ") else { return false };
        let ends = comment.ends_with(';') || comment.ends_with(" {") || comment.trim() == "}";
        let starts = ["let ", "if ", "for ", "use ", "fn ", "pub ", "return ", "} "];
        ends && (starts.iter().any(|s| comment.starts_with(s)) || comment.contains("();") || comment == "}")
    };
    assert!(looks_like_code("    // let a = b;") && !looks_like_code("// for all of them; that is, none"));
    let mut complaints = Vec::new();
    for (name, text) in sources() {
        let lines = text.lines().enumerate().filter(|(_, line)| looks_like_code(line));
        complaints.extend(lines.map(|(number, line)| format!("{name}:{}: {}", number + 1, line.trim())));
    }
    none(complaints);
}

/// What a heading is called in links, as GitHub does it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// The headings of a document, without what looks like one in an example.
fn headings(text: &str) -> Vec<String> {
    let mut in_example = false;
    let mut found = Vec::new();
    for line in text.lines() {
        in_example ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !in_example && heading.len() < line.len() && heading.starts_with(' ') {
            found.push(anchor(heading));
        }
    }
    found
}

#[test]
fn links_in_documents_lead_somewhere() {
    assert_eq!(headings("# A, b\n```\n# no\n```\n#no\n## `C`-d e\n"), ["a-b", "c-d-e"]);
    let documents = files().into_iter().filter(|file| file.extension().is_some_and(|e| e == "md"));
    let (mut complaints, mut links) = (Vec::new(), 0);
    for document in documents {
        let text = fs::read_to_string(root().join(&document)).expect("a document in UTF-8");
        let targets = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        for target in targets.filter(|target| !target.contains("://")) {
            links += 1;
            let (path, place) = target.split_once('#').unwrap_or((target, ""));
            let leads_to = match path {
                "" => root().join(&document),
                path => root().join(&document).with_file_name("").join(path),
            };
            let place_is_there = || {
                fs::read_to_string(&leads_to).is_ok_and(|text| headings(&text).contains(&place.to_owned()))
            };
            if !leads_to.exists() || !place.is_empty() && !place_is_there() {
                complaints.push(format!("{}: no {target}", document.display()));
            }
        }
    }
    assert!(links > 20, "only {links} links found: this test looks at the wrong place");
    none(complaints);
}

/// The workspace crates that `manifest` names in `[dependencies]`, also those for one target.
fn arrows(manifest: &str) -> Vec<String> {
    let mut section = "";
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']');
        } else if section.ends_with("dependencies")
            && !section.ends_with("dev-dependencies")
            && let Some(rest) = line.strip_prefix("quadrille-")
        {
            found.push(rest.split(['.', ' ', '=']).next().unwrap_or_default().to_owned());
        }
    }
    found.sort();
    found
}

#[test]
fn dependencies_point_where_the_design_says() {
    let allowed: BTreeMap<&str, &[&str]> = [
        ("core", &[][..]),
        ("numa", &[]),
        ("cpu", &["core", "numa"]),
        ("gpu", &["core"]),
        ("comm", &["core"]),
        ("io", &["core"]),
    ]
    .into();
    for (folder, allowed) in allowed {
        let manifest = fs::read_to_string(root().join(folder).join("Cargo.toml")).expect(folder);
        for crate_name in arrows(&manifest) {
            assert!(allowed.contains(&crate_name.as_str()), "{folder} must not depend on {crate_name}");
        }
    }
    // The root sees everything: if nothing is found there, the search is broken.
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("Cargo.toml");
    let manifest = manifest.split("[package]").nth(1).expect("the root is a package");
    assert_eq!(arrows(manifest), ["comm", "core", "cpu", "gpu", "io", "numa"]);
}
