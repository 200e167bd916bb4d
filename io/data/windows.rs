//! Caffe's files of windows: images, and in each of them boxes with a class and how much they overlap with an object.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use quadrille_core::layer::WindowRules;

use super::files::{read_file, root_beside};
use super::records::{Content, IndexHash, Record, Records};
use super::stage::{Staging, listed_copy, stage_listed};
use crate::error::IoError;

const EXPECTED: &str = "a file of windows (# index, path, channels, height, width, number of windows, and for each class, \
                        overlap, x1, y1, x2, y2)";

/// A box in an image, its last row and column included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Corners {
    pub x: [i32; 2],
    pub y: [i32; 2],
}

#[derive(Debug)]
struct Window {
    image: u32,
    label: i32,
    corners: Corners,
}

/// The windows of a file: first all that show the background, then all that show objects, each in the order of the file.
#[derive(Debug)]
pub(super) struct WindowFile {
    name: String,
    root: String,
    images: Vec<Box<str>>,
    windows: Vec<Window>,
    backgrounds: usize,
    hash: String,
    /// The folder of the copies that are read in place of the images.
    copies: Option<PathBuf>,
}

/// The words of a text, with their lines.
struct Words<'a> {
    words: Box<dyn Iterator<Item = (usize, &'a str)> + 'a>,
    line: usize,
}

impl<'a> Words<'a> {
    fn of(text: &'a str) -> Self {
        let lines = text.lines().enumerate();
        let words = lines.flat_map(|(line, text)| text.split_whitespace().map(move |word| (line + 1, word)));
        Self { words: Box::new(words), line: 0 }
    }

    fn next(&mut self) -> Option<&'a str> {
        let (line, word) = self.words.next()?;
        self.line = line;
        Some(word)
    }

    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        let line = self.line;
        self.next().ok_or_else(|| format!("line {line}: the file ends where {what} should follow"))
    }

    fn number<N: FromStr>(&mut self, what: &str) -> Result<N, String> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("line {}: {word:?}; expected {what}", self.line))
    }
}

impl WindowFile {
    /// Reads a file of windows. Relative paths begin as those of a list of images do.
    ///
    /// # Errors
    /// [`IoError::Missing`] if it cannot be read, [`IoError::Data`] naming the line that is wrong, or if there are no windows
    /// of objects or of the background.
    pub fn open(path: &Path, rules: &WindowRules, name: &str) -> Result<Self, IoError> {
        let text = String::from_utf8(crate::whole::read(path, EXPECTED)?).ok();
        let text = text.ok_or_else(|| IoError::data(path, format!("is not text; expected {EXPECTED}")))?;
        let mut file = Self {
            name: name.to_owned(),
            root: String::new(),
            images: Vec::new(),
            windows: Vec::new(),
            backgrounds: 0,
            hash: String::new(),
            copies: None,
        };
        file.parse(&text, rules)
            .map_err(|message| IoError::data(path, message).hint(format!("expected {EXPECTED}")))?;
        let objects = file.windows.len() - file.backgrounds;
        if objects == 0 || file.backgrounds == 0 {
            return Err(IoError::data(
                path,
                format!(
                    "has {objects} windows of objects (overlap at least {}) and {} of the background (less than {}); both \
                     are needed",
                    rules.foreground, file.backgrounds, rules.background
                ),
            ));
        }
        file.root = root_beside(path, &rules.root_folder, file.images.iter().map(AsRef::as_ref));
        let mut hash = IndexHash::default();
        for Window { image, label, corners: Corners { x, y } } in &file.windows {
            let place = format!("{}:{x:?}{y:?}", file.images[*image as usize]);
            hash.add(place.as_bytes(), Some(*label), 0);
        }
        file.hash = hash.finish();
        Ok(file)
    }

    fn parse(&mut self, text: &str, rules: &WindowRules) -> Result<(), String> {
        let mut words = Words::of(text);
        let (mut background, mut objects) = (Vec::new(), Vec::new());
        while let Some(word) = words.next() {
            let image = self.images.len() as u32;
            let mark = if word == "#" { words.number::<u32>("the number of an image")? } else { u32::MAX };
            if mark != image {
                return Err(format!("line {}: expected \"# {image}\", the next image", words.line));
            }
            self.images.push(words.word("the path of an image")?.into());
            let channels: usize = words.number("a number of channels")?;
            if channels != 3 {
                return Err(format!("line {}: {channels} channels; images are read with 3", words.line));
            }
            // Image files say themselves how large they are.
            let _: [usize; 2] = [words.number("a height")?, words.number("a width")?];
            for _ in 0..words.number::<usize>("a number of windows")? {
                let label: i32 = words.number("the class of a window")?;
                let overlap: f32 = words.number("the overlap of a window")?;
                let mut corner = || words.number::<i32>("a corner of a window");
                let [x1, y1, x2, y2] = [corner()?, corner()?, corner()?, corner()?];
                let most = 1 << 24;
                if x2 < x1 || y2 < y1 || [x1, y1, x2, y2].iter().any(|at| at.abs() > most) {
                    return Err(format!("line {}: corners {x1} {y1} {x2} {y2} of no window", words.line));
                }
                let corners = Corners { x: [x1, x2], y: [y1, y2] };
                if overlap >= rules.foreground {
                    if label <= 0 {
                        let line = words.line;
                        return Err(format!("line {line}: class {label} of an object; expected at least 1"));
                    }
                    objects.push(Window { image, label, corners });
                } else if overlap < rules.background {
                    background.push(Window { image, label: 0, corners });
                }
            }
        }
        self.backgrounds = background.len();
        self.windows = background;
        self.windows.append(&mut objects);
        Ok(())
    }

    /// The same windows, of copies on storage of the node of all images that have one; `list` is the file of windows.
    ///
    /// # Errors
    /// [`IoError::Missing`] if something cannot be read, [`IoError::CannotCreate`] or [`IoError::WriteFailed`] if it cannot
    /// be copied.
    pub fn staged(self, list: &Path, staging: Staging<'_>) -> Result<Self, IoError> {
        let used: BTreeSet<u32> = self.windows.iter().map(|window| window.image).collect();
        let named = used.iter().map(|image| (self.path(*image), &*self.images[*image as usize])).collect();
        let copies = Some(stage_listed(list, named, staging)?);
        Ok(Self { copies, ..self })
    }

    /// Where an image lies, whether it is copied or not.
    fn path(&self, image: u32) -> PathBuf {
        PathBuf::from(format!("{}{}", self.root, self.images[image as usize]))
    }

    /// The box of a window.
    pub fn corners(&self, index: usize) -> Corners {
        self.windows[index].corners
    }

    /// The window at a position of a mini-batch of `batch`, by 32 random bits: background first, then as many objects as
    /// make up the fraction, rounded down.
    pub fn draw(&self, bits: u32, position: u64, batch: usize, fraction: f32) -> usize {
        let objects = (batch as f32 * fraction) as u64;
        let choose = |count: usize| bits as usize % count;
        if position < (batch as u64).saturating_sub(objects) {
            choose(self.backgrounds)
        } else {
            self.backgrounds + choose(self.windows.len() - self.backgrounds)
        }
    }
}

impl Records for WindowFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.windows.len()
    }

    fn hash(&self) -> &str {
        &self.hash
    }

    fn label(&self, index: usize) -> Option<i32> {
        Some(self.windows[index].label)
    }

    fn record_name(&self, index: usize) -> String {
        let Window { image, corners: Corners { x: [x1, x2], y: [y1, y2] }, .. } = self.windows[index];
        let path = self.path(image);
        format!("window {x1} {y1} {x2} {y2} of image {path:?}")
    }

    fn read<'a>(&'a self, index: usize, scratch: &'a mut Vec<u8>) -> Result<Record<'a>, String> {
        let Window { image, label, .. } = self.windows[index];
        let copy = self.copies.as_ref().map(|folder| listed_copy(folder, &self.images[image as usize]));
        read_file(&copy.unwrap_or_else(|| self.path(image)), scratch)?;
        Ok(Record { label, content: Content::Encoded { file: scratch, native: false } })
    }
}
