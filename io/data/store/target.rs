//! What data sets are written into.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::super::cifar::CIFAR_SHAPE;
use super::super::datum::encode_datum;
use super::super::lmdb::LmdbWriter;
use super::super::tar::TarWriter;
use super::form::{Stored, StoredValues};
use super::labels::NO_FILE;
use super::{Refused, Step, Target};
use crate::whole::sync_folder;

/// A record on its way into a target.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item<'a> {
    /// Its place in the new order.
    pub number: usize,
    /// Its place in the data set.
    pub index: usize,
    /// The path of what was a file.
    pub path: Option<&'a str>,
    /// What is stored of it.
    pub stored: &'a Stored,
}

/// Takes records in order.
pub(super) trait Writer {
    fn add(&mut self, item: &Item<'_>) -> Result<(), Refused>;

    /// Brings everything to the disk.
    fn finish(self: Box<Self>) -> std::io::Result<()>;
}

impl Target {
    /// What writes `count` records to `path`, which is a new folder for what is one.
    pub(super) fn writer(self, path: &Path, count: usize) -> Result<Box<dyn Writer>, Step> {
        let create = |path: &Path| File::create_new(path).map_err(Step::Create);
        Ok(match self {
            Self::Lmdb => Box::new(Lmdb(LmdbWriter::new(create(&path.join("data.mdb"))?)?)),
            Self::Tar => Box::new(Tar(tar(create(path)?))),
            Self::Cifar => Box::new(Cifar(BufWriter::with_capacity(1 << 20, create(path)?))),
            Self::Shards(shards) => {
                let bounds =
                    (1..=shards).map(|shard| (count as u128 * shard as u128 / shards as u128) as usize);
                Box::new(Shards::new(path, bounds.collect()))
            }
            Self::ShardsOf(size) => {
                let bounds = (1..=count.div_ceil(size)).map(|shard| count.min(shard * size));
                Box::new(Shards::new(path, bounds.collect()))
            }
        })
    }
}

/// An LMDB whose keys are those of Caffe's convert_imageset: eight digits and, for files, their path.
struct Lmdb(LmdbWriter);

impl Writer for Lmdb {
    fn add(&mut self, item: &Item<'_>) -> Result<(), Refused> {
        let key = match item.path {
            Some(path) => format!("{:08}_{path}", item.number),
            None => format!("{:08}", item.number),
        };
        Ok(self.0.add(key.as_bytes(), &encode_datum(&item.stored.record()))?)
    }

    fn finish(self: Box<Self>) -> std::io::Result<()> {
        self.0.finish().map(|_| ())
    }
}

type TarFile = TarWriter<BufWriter<File>>;

fn tar(file: File) -> TarFile {
    TarWriter::new(BufWriter::with_capacity(1 << 20, file))
}

/// What a record is called in a tar, with its file; `None` if it is no image file of a path.
fn in_tar<'a>(item: &Item<'a>) -> Option<(String, &'a [u8])> {
    let (StoredValues::File { file, made }, Some(path)) = (&item.stored.values, item.path) else {
        return None;
    };
    let name = match made {
        // What was made anew is called what it is.
        Some(kind) if !path.to_ascii_lowercase().ends_with(kind.ending()) => {
            format!("{path}.{}", kind.ending())
        }
        _ => path.to_owned(),
    };
    Some((name, file))
}

/// What a record is called in a tar, if it can be in one.
pub(super) fn name_in_tar(item: &Item<'_>) -> Option<String> {
    in_tar(item).map(|(name, _)| name)
}

fn add_to_tar(tar: &mut TarFile, item: &Item<'_>) -> Result<(), Refused> {
    let (name, file) = in_tar(item).ok_or_else(|| Refused::Record(NO_FILE.to_owned()))?;
    Ok(tar.add(&name, file)?)
}

fn finish_tar(tar: TarFile) -> std::io::Result<()> {
    let mut file = tar.finish()?;
    file.flush()?;
    file.get_ref().sync_all()
}

/// One tar of image files under their paths.
struct Tar(TarFile);

impl Writer for Tar {
    fn add(&mut self, item: &Item<'_>) -> Result<(), Refused> {
        add_to_tar(&mut self.0, item)
    }

    fn finish(self: Box<Self>) -> std::io::Result<()> {
        finish_tar(self.0)
    }
}

/// Several tars, one behind the other.
struct Shards {
    folder: PathBuf,
    /// Behind the last record of each shard.
    bounds: Vec<usize>,
    /// How many are finished.
    finished: usize,
    open: Option<TarFile>,
}

impl Shards {
    fn new(folder: &Path, bounds: Vec<usize>) -> Self {
        Self { folder: folder.to_owned(), bounds, finished: 0, open: None }
    }

    /// Finishes all shards before the one of record `number`, also such as have none, and returns that one.
    fn shard_of(&mut self, number: usize) -> std::io::Result<&mut TarFile> {
        while self.bounds.get(self.finished).is_some_and(|bound| *bound <= number) {
            let tar = self.current()?;
            finish_tar(tar)?;
            self.finished += 1;
        }
        let tar = self.current()?;
        Ok(self.open.insert(tar))
    }

    /// The shard that is being written, or a new one.
    fn current(&mut self) -> std::io::Result<TarFile> {
        match self.open.take() {
            Some(tar) => Ok(tar),
            None => {
                let name = format!("shards-{:06}.tar", self.finished);
                Ok(tar(File::create_new(self.folder.join(name))?))
            }
        }
    }
}

impl Writer for Shards {
    fn add(&mut self, item: &Item<'_>) -> Result<(), Refused> {
        add_to_tar(self.shard_of(item.number)?, item)
    }

    fn finish(mut self: Box<Self>) -> std::io::Result<()> {
        while self.finished < self.bounds.len() {
            let tar = self.current()?;
            finish_tar(tar)?;
            self.finished += 1;
        }
        sync_folder(&self.folder)
    }
}

/// The binary format of CIFAR-10.
struct Cifar(BufWriter<File>);

impl Writer for Cifar {
    fn add(&mut self, item: &Item<'_>) -> Result<(), Refused> {
        let refuse = |message: String| Err(Refused::Record(message));
        let StoredValues::Bytes { shape, values, image } = &item.stored.values else {
            return refuse("has values that are no bytes, as CIFAR wants them".to_owned());
        };
        if *shape != CIFAR_SHAPE {
            let [c, h, w] = shape;
            return refuse(format!(
                "is {c} x {h} x {w}, but CIFAR wants 3 x 32 x 32; --resize 32,32 --color"
            ));
        }
        let Some(label) = u8::try_from(item.stored.label).ok().filter(|label| *label < 10) else {
            return refuse(format!("has the label {}; CIFAR-10 has 0 to 9", item.stored.label));
        };
        self.0.write_all(&[label])?;
        // Red comes first there, and last in an image.
        let mut planes: Vec<&[u8]> = values.chunks(values.len() / 3).collect();
        if *image {
            planes.reverse();
        }
        planes.iter().try_for_each(|plane| self.0.write_all(plane))?;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> std::io::Result<()> {
        self.0.flush()?;
        self.0.get_ref().sync_all()
    }
}
