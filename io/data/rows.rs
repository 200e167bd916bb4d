//! Samples in arrays of HDF5 files (`HDF5Data`), one file in memory at a time.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quadrille_core::rng::Sampler;
use sha2::{Digest, Sha256};

use super::search::SearchPath;
use super::stage::{Staging, listed_copy, stage_listed};
use crate::error::IoError;
use crate::hash::short_hex;
use crate::{hdf5, whole};

/// Files with arrays of the same names and the same extents of a sample.
#[derive(Debug)]
pub struct RowFiles {
    name: String,
    /// The list, or the file.
    list: PathBuf,
    files: Vec<RowFile>,
    arrays: Vec<String>,
    samples: Vec<Vec<usize>>,
    hash: String,
}

#[derive(Debug)]
struct RowFile {
    path: PathBuf,
    rows: u64,
}

impl RowFiles {
    /// The arrays `arrays` of the files that the list `source` names, one a line, or of a file of HDF5; `data` is the list or
    /// holds it. Files are looked for from the
    /// current folder, as in Caffe, and from that of the list.
    ///
    /// # Errors
    /// [`IoError::Missing`] if a file is not there, [`IoError::Data`] if one is damaged, lacks an array or has arrays of other
    /// extents than the first.
    pub fn open(
        source: &str,
        data: Option<&Path>,
        search: &SearchPath,
        arrays: &[String],
    ) -> Result<Self, IoError> {
        let list = search.find(source, data)?;
        let paths = if hdf5::is_hdf5(&list) { vec![list.clone()] } else { listed(&list)? };
        let (mut files, mut samples) = (Vec::new(), None);
        let mut hasher = Sha256::new();
        for path in paths {
            let (rows, shapes) = hdf5::row_shapes(&path, arrays)?;
            let bytes = fs::metadata(&path).map_or(0, |found| found.len());
            hasher.update(format!("{rows} {shapes:?} {bytes}\n"));
            let first = samples.get_or_insert_with(|| shapes.clone());
            if *first != shapes {
                let text = format!("its samples are {shapes:?}, but those of the first file are {first:?}");
                return Err(IoError::data(&path, text));
            }
            if rows > 0 {
                files.push(RowFile { path, rows: rows as u64 });
            }
        }
        if files.is_empty() {
            return Err(IoError::data(&list, "names no file with samples"));
        }
        let hash = short_hex(&hasher.finalize());
        let name = list.display().to_string();
        Ok(Self { name, list, files, arrays: arrays.to_vec(), samples: samples.unwrap_or_default(), hash })
    }

    /// The same samples, read from copies of the files on storage of the node, beside one of the list.
    ///
    /// # Errors
    /// [`IoError::Missing`] if a file is not there any more, [`IoError::CannotCreate`] or [`IoError::WriteFailed`] if it
    /// cannot be copied.
    pub fn staged(mut self, staging: Staging<'_>) -> Result<Self, IoError> {
        let names: Vec<String> = self.files.iter().map(|file| file.path.display().to_string()).collect();
        let paths = self.files.iter().map(|file| file.path.clone());
        let folder =
            stage_listed(&self.list, paths.zip(names.iter().map(String::as_str)).collect(), staging)?;
        for (file, name) in self.files.iter_mut().zip(&names) {
            file.path = listed_copy(&folder, name);
        }
        Ok(self)
    }

    /// The list, or the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Identifies the content: 16 hexadecimal digits over extents and sizes of all files.
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Number of samples.
    pub fn rows(&self) -> u64 {
        self.files.iter().map(|file| file.rows).sum()
    }

    /// The extents of a sample of each array.
    pub fn samples(&self) -> &[Vec<usize>] {
        &self.samples
    }
}

/// The files that a list names.
fn listed(list: &Path) -> Result<Vec<PathBuf>, IoError> {
    let text = whole::read(list, "a list of files of HDF5, one a line")?;
    let text = String::from_utf8(text)
        .map_err(|_| IoError::data(list, "is no text; expected a list of files of HDF5, one a line"))?;
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let place = |line: &str| {
        let path = PathBuf::from(line);
        match list.parent() {
            Some(folder) if !path.exists() => folder.join(path),
            _ => path,
        }
    };
    Ok(lines.map(place).collect())
}

/// Reads samples in order; draw `k` is a pure function of the seed, so that a run resumes at any iteration.
#[derive(Debug)]
pub struct RowReader {
    files: Arc<RowFiles>,
    /// The seed of random orders; `None` for the order of the files.
    seed: Option<u64>,
    /// The order of the files in an epoch, with the first draw of each.
    epoch: Option<(u64, Vec<(usize, u64)>)>,
    /// The file in memory.
    loaded: Option<(usize, Vec<Vec<f32>>)>,
}

impl RowReader {
    /// Reads from the files, in a random order if there is a seed: files in a random order each epoch, and the samples of a
    /// file in a random order each time.
    pub fn new(files: Arc<RowFiles>, seed: Option<u64>) -> Self {
        Self { files, seed, epoch: None, loaded: None }
    }

    /// Puts the draws from number `first` on into `out`, one array a top, until these are full.
    ///
    /// # Errors
    /// [`IoError`] if a file cannot be read any more.
    pub fn fill(&mut self, first: u64, count: usize, out: &mut [Vec<f32>]) -> Result<(), IoError> {
        out.iter_mut().for_each(Vec::clear);
        for k in first..first.saturating_add(count as u64) {
            let (file, row) = self.place(k);
            self.load(file)?;
            let Some((_, values)) = &self.loaded else { continue };
            for ((out, values), sample) in out.iter_mut().zip(values).zip(&self.files.samples) {
                let each: usize = sample.iter().product();
                let start = row as usize * each;
                let part = values.get(start..start + each);
                out.extend_from_slice(part.ok_or_else(|| self.changed(file))?);
            }
        }
        Ok(())
    }

    /// The file and the row of draw `k`.
    fn place(&mut self, k: u64) -> (usize, u64) {
        let total = self.files.rows();
        let (epoch, draw) = (k / total, k % total);
        if self.epoch.as_ref().is_none_or(|(known, _)| *known != epoch) {
            self.epoch = Some((epoch, self.order(epoch)));
        }
        let order = self.epoch.as_ref().map_or(&[][..], |(_, order)| order);
        let at = order.partition_point(|(_, start)| *start <= draw).saturating_sub(1);
        let Some((file, start)) = order.get(at).copied() else { return (0, 0) };
        let (row, rows) = (draw - start, self.files.files[file].rows);
        match self.seed {
            // Stream 0 orders the files.
            Some(seed) => (file, Sampler::new(seed, file as u32 + 1, rows).index(epoch * rows + row)),
            None => (file, row),
        }
    }

    /// The files in the order of an epoch, with the first draw of each.
    fn order(&self, epoch: u64) -> Vec<(usize, u64)> {
        let files = &self.files.files;
        let count = files.len() as u64;
        let mut start = 0;
        let place = |i: u64| match self.seed {
            Some(seed) => Sampler::new(seed, 0, count).index(epoch * count + i) as usize,
            None => i as usize,
        };
        let order = (0..count).map(place).map(|file| {
            let first = start;
            start += files[file].rows;
            (file, first)
        });
        order.collect()
    }

    fn load(&mut self, file: usize) -> Result<(), IoError> {
        if self.loaded.as_ref().is_none_or(|(loaded, _)| *loaded != file) {
            // The one before goes first: two may be too much.
            self.loaded = None;
            let values = hdf5::read_rows(&self.files.files[file].path, &self.files.arrays)?;
            self.loaded = Some((file, values));
        }
        Ok(())
    }

    fn changed(&self, file: usize) -> IoError {
        IoError::data(&self.files.files[file].path, "has fewer samples than when it was opened")
    }
}

#[cfg(all(test, feature = "hdf5"))]
mod tests {
    use super::*;

    /// Two files with 7 samples each, the second of labels that are larger.
    fn files(folder: &Path, lines: &str) -> Result<Arc<RowFiles>, IoError> {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("hdf5/fixtures/rows.h5");
        for name in ["a.h5", "b.h5"] {
            fs::copy(&fixture, folder.join(name)).expect("a copy");
        }
        fs::write(folder.join("list.txt"), lines).expect("a list");
        let search = SearchPath { folders: vec![folder.to_owned()], ..SearchPath::default() };
        let names = ["data".to_owned(), "label".to_owned()];
        RowFiles::open("list.txt", None, &search, &names).map(Arc::new)
    }

    fn labels(reader: &mut RowReader, first: u64, count: usize) -> Vec<f32> {
        let mut out = vec![Vec::new(); 2];
        reader.fill(first, count, &mut out).expect("samples");
        let images: Vec<f32> = out[1].iter().map(|label| label / 10.0 * 6.0).collect();
        assert_eq!(out[0].iter().copied().step_by(6).collect::<Vec<_>>(), images, "sample and label");
        out.swap_remove(1)
    }

    #[test]
    fn rows_come_in_order_over_files_and_epochs() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), "a.h5\n\n b.h5 \n").unwrap();
        assert_eq!((files.rows(), files.samples()), (14, &[vec![2, 3], vec![]][..]));
        let mut reader = RowReader::new(files, None);
        let expected: Vec<f32> = (0..40).map(|k| (k % 7 * 10) as f32).collect();
        assert_eq!(labels(&mut reader, 0, 40), expected);
        assert_eq!(labels(&mut reader, 12, 5), expected[12..17]);
    }

    #[test]
    fn a_random_order_has_every_sample_once_an_epoch_and_depends_on_the_draw_alone() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path(), "a.h5\nb.h5\n").unwrap();
        let mut reader = RowReader::new(files.clone(), Some(3));
        let drawn = labels(&mut reader, 0, 42);
        for epoch in drawn.chunks(14) {
            let mut sorted = epoch.to_vec();
            sorted.sort_by(f32::total_cmp);
            assert_eq!(sorted, (0..14).map(|i| (i / 2 * 10) as f32).collect::<Vec<_>>());
        }
        assert!(drawn[..14] != drawn[14..28] && drawn[14..28] != drawn[28..]);
        for first in [0, 5, 13, 20, 37] {
            let mut fresh = RowReader::new(files.clone(), Some(3));
            assert_eq!(labels(&mut fresh, first, 5), drawn[first as usize..][..5]);
        }
        assert_ne!(labels(&mut RowReader::new(files, Some(4)), 0, 42), drawn);
    }

    #[test]
    fn copies_are_read_in_place_of_the_files() {
        let folder = tempfile::tempdir().unwrap();
        let list = format!("a.h5\n{}\na.h5\n", folder.path().join("b.h5").display());
        let plain = files(folder.path(), &list).unwrap();
        let opened = |source: &str| {
            let search = SearchPath { folders: vec![folder.path().to_owned()], ..SearchPath::default() };
            RowFiles::open(source, None, &search, &["data".to_owned(), "label".to_owned()]).unwrap()
        };
        let node = folder.path().join("node");
        let staged = |source: &str| opened(source).staged(Staging { to: &node, tell: &|_| () }).unwrap();
        let (copied, single) = (Arc::new(staged("list.txt")), Arc::new(staged("b.h5")));
        assert_eq!((copied.name(), copied.hash(), copied.rows()), (plain.name(), plain.hash(), 21));
        let expected = labels(&mut RowReader::new(plain, Some(3)), 0, 42);
        let copies = |start: &str| {
            let entries = fs::read_dir(&node).unwrap().map(|entry| entry.unwrap().path());
            let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(start);
            entries.filter(name).collect::<Vec<_>>()
        };
        let [copy] = &copies("list.txt-")[..] else { panic!("{:?}", copies("")) };
        assert!(copy.join("list/list.txt").is_file());
        let [copy] = &copies("b.h5-")[..] else { panic!("{:?}", copies("")) };
        assert!(!copy.join("list").exists(), "a file that no list names is there once");
        for name in ["a.h5", "b.h5", "list.txt"] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        assert_eq!(labels(&mut RowReader::new(copied, Some(3)), 0, 42), expected);
        assert_eq!(labels(&mut RowReader::new(single, None), 0, 2), [0.0, 10.0]);
    }

    #[test]
    fn lists_that_lead_nowhere_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(files(folder.path(), "a.h5\nnone.h5\n").unwrap_err().exit_code(), 66);
        let error = files(folder.path(), "\n").unwrap_err();
        assert!(error.to_string().contains("names no file with samples"), "{error}");
        let error = files(folder.path(), "list.txt\n").unwrap_err();
        assert_eq!(error.exit_code(), 65, "{error}");
    }
}
