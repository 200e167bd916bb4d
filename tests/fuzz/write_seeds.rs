//! Writes the seeds of a target into a folder, and the words of its texts, if it reads texts, into a dictionary.
//!
//! Usage: seeds TARGET FOLDER [DICTIONARY]

use std::path::PathBuf;
use std::{env, fs};

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (target, folder, dictionary) = match &arguments[..] {
        [target, folder] => (target, PathBuf::from(folder), None),
        [target, folder, dictionary] => (target, PathBuf::from(folder), Some(dictionary)),
        _ => panic!("usage: seeds TARGET FOLDER [DICTIONARY]"),
    };
    fs::create_dir_all(&folder)?;
    for (index, seed) in quadrille_fuzz::seeds::of(target).iter().enumerate() {
        fs::write(folder.join(format!("seed_{index:03}")), seed)?;
    }
    let words: String = quadrille_fuzz::seeds::words().iter().map(|word| format!("\"{word}\"\n")).collect();
    dictionary.map_or(Ok(()), |path| fs::write(path, words))
}
