//! What kind of data set lies at a path, and opening it.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quadrille_core::layer::{Data, DataKind, ImageList};
use quadrille_core::net::Phase;

use super::arrays::ArraySamples;
use super::bad::Tolerance;
use super::cifar::{CifarLabels, cifar_files, looks_like_cifar, read_cifar};
use super::classes::part_of;
use super::files::ImageFiles;
use super::idx::{looks_like_idx, read_idx};
use super::lmdb::{Lmdb, lmdb_file};
use super::records::Records;
use super::room::Room;
use super::search::SearchPath;
use super::source::DataSource;
use super::stage::{Staging, stage};
use super::tar::TarImages;
use super::windows::WindowFile;
use crate::error::IoError;

/// Ends the path of CIFAR-100 whose coarse labels are to be read.
const COARSE: &str = ":coarse";

/// Where and how data sets are opened.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'a> {
    /// The folder or file of the flag `--data`: the data set, or a folder that holds it.
    pub data: Option<&'a Path>,
    /// Where a relative source is looked for.
    pub search: &'a SearchPath,
    /// What happens with bad records.
    pub tolerance: Tolerance,
    /// Where the data set is copied before it is read.
    pub staging: Option<Staging<'a>>,
    /// How much of it may be held in memory.
    pub room: Room,
}

/// How records are opened once it is known where they lie.
#[derive(Clone, Copy)]
struct Manner<'a> {
    phase: Phase,
    /// What a layer says of a list of images.
    list: Option<&'a ImageList>,
    /// Where the images of a list are copied before they are read.
    staging: Option<Staging<'a>>,
    room: Room,
}

impl Manner<'_> {
    fn of(phase: Phase) -> Self {
        Self { phase, list: None, staging: None, room: Room::default() }
    }
}

/// Finds and opens the data set of a data layer, whatever its kind.
///
/// # Errors
/// [`IoError::Missing`] listing the places where it was looked for, [`IoError::Data`] if it is damaged, of a kind that
/// cannot be read, or does not fit what the layer asks for.
pub fn open(data: &Data, phase: Phase, opening: Opening<'_>) -> Result<DataSource, IoError> {
    if let (DataKind::Memory(_), None) = (&data.kind, opening.data) {
        let message = "names no data set: a layer of type MemoryData is given its samples";
        return Err(IoError::missing(Path::new("memory_data_param"), message).hint(
            "give them with --data FILE.npz (arrays data and label), or make them up with --dummy-data",
        ));
    }
    let mut place = find(&data.source, opening.data, opening.search)?;
    let is_list = place.is_list() || matches!(data.kind, DataKind::Windows(_));
    // What a list names is copied once it was read.
    let of_list = opening.staging.filter(|_| is_list);
    if let (Some(staging), false) = (opening.staging, is_list) {
        place.paths = place.parts(phase)?;
        place.paths = stage(&place.paths, staging)?;
    }
    let mean = data.transform.mean_file.as_deref().map(|file| opening.search.find_mean(file)).transpose()?;
    if let (DataKind::Windows(rules), [path]) = (&data.kind, place.paths.as_slice()) {
        let mut file = WindowFile::open(path, rules, &name_of(path))?;
        if let Some(staging) = of_list {
            file = file.staged(path, staging)?;
        }
        return DataSource::of_windows(file, (data, rules), mean.as_deref(), opening.tolerance);
    }
    let manner = Manner { phase, list: data.kind.list(), staging: of_list, room: opening.room };
    let records = open_at(&place, manner)?;
    DataSource::new(records, data, mean.as_deref(), opening.tolerance)
}

/// The shape of the samples that [`open`] would give: channels, height and width. No more is read than must be.
///
/// # Errors
/// As [`open`], but for what stands behind a header or the first record.
pub fn sample_shape(data: &Data, phase: Phase, search: &SearchPath) -> Result<[usize; 3], IoError> {
    let place = find(&data.source, None, search)?;
    if let Place { paths, .. } = &place
        && let [folder] = paths.as_slice()
        && looks_like_idx(folder)
    {
        return super::idx::sample_shape(folder, phase);
    }
    let records = open_at(&place, Manner { list: data.kind.list(), ..Manner::of(phase) })?;
    Ok(DataSource::new(
        records,
        &Data { transform: Default::default(), ..data.clone() },
        None,
        Tolerance::Fail,
    )?
    .sample())
}

/// Opens the records of a data set by its path, a pattern of shards, or a path of CIFAR-100 with `:coarse` behind it.
///
/// # Errors
/// As [`open`].
pub fn open_records(path: &Path, phase: Phase) -> Result<Arc<dyn Records>, IoError> {
    open_at(&find(&path.display().to_string(), None, &SearchPath::here())?, Manner::of(phase))
}

/// Where a data set lies.
struct Place {
    /// One path, or those of all shards.
    paths: Vec<PathBuf>,
    coarse: bool,
}

impl Place {
    /// Whether it is a file that can only be a list of images.
    fn is_list(&self) -> bool {
        matches!(self.paths.as_slice(), [path] if !path.is_dir() && !stands_alone(path))
    }

    /// What a copy for `phase` needs: a folder's part for it, if it has parts.
    fn parts(&self, phase: Phase) -> Result<Vec<PathBuf>, IoError> {
        let part = |path: &PathBuf| {
            if !path.is_dir() {
                return Ok(path.clone());
            }
            let all = names(path, |_| true)?;
            let part = part_of(all.iter().filter_map(|path| path.file_name()?.to_str()), phase);
            let part = part.map_err(|message| IoError::data(path, message))?;
            Ok(part.map_or_else(|| path.clone(), |part| path.join(part)))
        };
        self.paths.iter().map(part).collect()
    }
}

fn find(source: &str, data: Option<&Path>, search: &SearchPath) -> Result<Place, IoError> {
    let given = data.map(|path| path.display().to_string());
    let coarse = source.ends_with(COARSE) || given.as_ref().is_some_and(|path| path.ends_with(COARSE));
    let strip = |text: &str| text.strip_suffix(COARSE).unwrap_or(text).to_owned();
    let (source, given) = (strip(source), given.as_deref().map(strip));
    let pattern = given.clone().unwrap_or_else(|| source.clone());
    if let Some((folder, pattern)) = shards(&pattern) {
        let folder = match data {
            Some(_) => folder,
            None => search.find(&folder.display().to_string(), None)?,
        };
        let paths: Vec<PathBuf> = names(&folder, |name| matches(&pattern, name))?;
        return match paths.is_empty() {
            true => Err(IoError::missing(&folder.join(pattern), "no file has such a name")),
            false => Ok(Place { paths, coarse }),
        };
    }
    // A folder that is given in the place of the source's holds what the source's pattern names, unless it is data itself.
    if let (Some(folder), Some((_, pattern))) = (data.filter(|data| data.is_dir()), shards(&source)) {
        let paths = names(folder, |name| matches(&pattern, name))?;
        if !paths.is_empty() {
            return Ok(Place { paths, coarse });
        }
        if !names(folder, |name| name.ends_with(".tar"))?.is_empty() {
            return Err(IoError::missing(&folder.join(pattern), "no file has such a name"));
        }
    }
    let path = search.find(&source, given.as_deref().map(Path::new))?;
    Ok(Place { paths: vec![path], coarse })
}

/// Folder and pattern of a path whose last part has a `*`.
fn shards(path: &str) -> Option<(PathBuf, String)> {
    let path = Path::new(path);
    let pattern = path.file_name()?.to_str().filter(|name| name.contains('*'))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    Some((folder.unwrap_or(Path::new(".")).to_owned(), pattern.to_owned()))
}

/// Whether `name` is what `pattern` says, in which `*` stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(name) = name.strip_prefix(start) else { return false };
    name.char_indices().map(|(at, _)| at).chain([name.len()]).any(|at| matches(rest, &name[at..]))
}

/// The sorted paths in a folder whose names are wanted; hidden ones never are.
fn names(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<PathBuf>, IoError> {
    let unreadable = |error| IoError::unreadable(folder, "a folder of data", &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let name = entry.map_err(unreadable)?.file_name();
        if name.to_str().is_some_and(|name| !name.starts_with('.') && wanted(name)) {
            found.push(folder.join(name));
        }
    }
    found.sort();
    Ok(found)
}

fn open_at(place: &Place, manner: Manner<'_>) -> Result<Arc<dyn Records>, IoError> {
    let [path] = place.paths.as_slice() else {
        let first = place.paths.first().map_or_else(String::new, |path| name_of(path));
        return Ok(Arc::new(TarImages::open(&place.paths, manner.phase, &first)?));
    };
    if path.is_dir() {
        open_folder(path, manner, place.coarse)
    } else {
        open_file(path, manner, place.coarse)
    }
}

/// The last part of a path.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

fn open_folder(folder: &Path, manner: Manner<'_>, coarse: bool) -> Result<Arc<dyn Records>, IoError> {
    let (name, Manner { phase, room, .. }) = (name_of(folder), manner);
    if let Some(file) = lmdb_file(folder) {
        return Ok(Arc::new(Lmdb::open(&file, &name)?));
    }
    if folder.join("CURRENT").is_file() {
        return Err(IoError::data(folder, "is a LevelDB, which cannot be read").hint(
            "make an LMDB of the images: quadrille convert data SRC DST, or Caffe's convert_imageset --backend lmdb",
        ));
    }
    if looks_like_idx(folder) {
        return Ok(Arc::new(read_idx(folder, phase, room)?));
    }
    if let Some((files, labels)) = cifar_files(folder, phase, coarse) {
        return Ok(Arc::new(read_cifar(&files, labels, &name, room)?));
    }
    let tars = names(folder, |name| name.ends_with(".tar"))?;
    if !tars.is_empty() {
        return Ok(Arc::new(TarImages::open(&tars, phase, &name)?));
    }
    let arrays = names(folder, |name| name.ends_with(".npz"))?;
    if !arrays.is_empty() {
        return open_arrays(&arrays, folder, manner);
    }
    let folders: Vec<PathBuf> = names(folder, |_| true)?.into_iter().filter(|path| path.is_dir()).collect();
    let part = part_of(folders.iter().filter_map(|path| path.file_name()?.to_str()), phase);
    if let Some(part) = part.map_err(|message| IoError::data(folder, message))? {
        let folder = folder.join(part);
        // The parts of one data set are of one kind and have no parts of their own.
        return open_folder(&folder, manner, coarse);
    }
    if folders.is_empty() {
        let missing = match (phase, looks_like_cifar(folder)) {
            (Phase::Train, true) => "has no data_batch_1.bin or train.bin, as CIFAR has to train",
            (Phase::Test, true) => "has no test_batch.bin or test.bin, as CIFAR has to test",
            _ => KINDS,
        };
        return Err(IoError::data(folder, missing));
    }
    Ok(Arc::new(ImageFiles::in_folders(folder, &name)?))
}

/// Archives of arrays, one for each part of a data set or one in all.
fn open_arrays(paths: &[PathBuf], folder: &Path, manner: Manner<'_>) -> Result<Arc<dyn Records>, IoError> {
    let parts = part_of(paths.iter().filter_map(|path| path.file_stem()?.to_str()), manner.phase);
    let part = parts.map_err(|message| IoError::data(folder, message))?;
    match (part, paths) {
        (Some(part), _) => open_file(&folder.join(format!("{part}.npz")), manner, false),
        (None, [path]) => open_file(path, manner, false),
        (None, _) => Err(IoError::data(
            folder,
            "has several .npz files; name one, or call them train.npz and test.npz",
        )),
    }
}

const KINDS: &str = "holds no data set; expected an LMDB (data.mdb), IDX files (train-images-idx3-ubyte), CIFAR in binary \
                     (data_batch_1.bin), tar files of images, arrays (.npz), or folders of images, one for each class";

fn open_file(path: &Path, manner: Manner<'_>, coarse: bool) -> Result<Arc<dyn Records>, IoError> {
    let (name, Manner { phase, list, staging, room }) = (name_of(path), manner);
    let lower = name.to_ascii_lowercase();
    let ends = |endings: &[&str]| endings.iter().any(|ending| lower.ends_with(ending));
    if lmdb_file(path).is_some() {
        return Ok(Arc::new(Lmdb::open(path, &name)?));
    }
    if ends(&[".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip"]) {
        return Err(IoError::data(path, "is packed, so that no image can be read without all before it")
            .hint("unpack it to a folder or to a plain .tar"));
    }
    if ends(&[".tar"]) || is_tar(path) {
        return Ok(Arc::new(TarImages::open(&[path.to_owned()], phase, &name)?));
    }
    if ends(&[".h5", ".hdf5"]) {
        return Err(IoError::data(path, "is HDF5, which only layers of type HDF5Data read"));
    }
    if ends(&[".npz"]) {
        return Ok(Arc::new(ArraySamples::open(path, &name, room)?));
    }
    if ends(&[".bin"]) {
        let bytes = fs::metadata(path).map_or(0, |found| found.len());
        let labels = match (bytes.is_multiple_of(3074), coarse) {
            (false, _) => CifarLabels::Ten,
            (true, false) => CifarLabels::Fine,
            (true, true) => CifarLabels::Coarse,
        };
        return Ok(Arc::new(read_cifar(&[path.to_owned()], labels, &name, room)?));
    }
    let images = ImageFiles::in_list(path, list, &name)?;
    Ok(Arc::new(match staging {
        Some(staging) => images.staged(path, staging)?,
        None => images,
    }))
}

/// Whether all of a data set is in a file.
fn stands_alone(path: &Path) -> bool {
    let name = name_of(path).to_ascii_lowercase();
    [".tar", ".npz", ".bin"].iter().any(|ending| name.ends_with(ending))
        || lmdb_file(path).is_some()
        || is_tar(path)
}

/// Whether a file has the mark of a tar file.
fn is_tar(path: &Path) -> bool {
    let mut start = [0; 262];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && &start[257..] == b"ustar"
}
