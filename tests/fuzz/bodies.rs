//! What each target does with its bytes. Whatever they are: no panic, no hang, no memory out of proportion.
//!
//! Readers that take bytes are given them; those that read by offset, or several files, get a file in memory.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quadrille_core::layer::{Colour, Data, DataKind, ImageList, Layer, SubTask, Transform, WindowRules};
use quadrille_core::net::{LayerId, Net, NetSpec, Phase};
use quadrille_core::solver::NetSource;
use quadrille_io::data::{
    CifarLabels, DataSource, ImageFiles, Lmdb, Opening, Order, Prefetcher, Records, Room, RowFiles,
    RowReader, SearchPath, TarImages, Tolerance, decode_datum, decode_image, decode_mean, open, read_cifar,
    read_images, read_labels,
};
use quadrille_io::prototxt::{parse_net, parse_solver};
use quadrille_io::snapshot::{Manifest, seal};
use quadrille_io::{IoError, NetWeights, SolverState, npz, weights};

/// A target: its name, and what it does with bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 15] = [
    ("prototxt", prototxt),
    ("caffemodel", caffemodel),
    ("solverstate", solverstate),
    ("idx", idx),
    ("cifar", cifar),
    ("datum", datum),
    ("lmdb", lmdb),
    ("tar", tar),
    ("npz", npz),
    ("safetensors", safetensors),
    ("snapshot", snapshot),
    ("image", image),
    ("hdf5", hdf5),
    ("list", list),
    ("windows", windows),
];

/// Stands before the paths in lists.
const NOWHERE: &str = "/nowhere/";

/// Records of a data set that are looked at.
const RECORDS: usize = 64;

/// Networks and solvers, with all that `quadrille check` infers.
pub fn prototxt(bytes: &[u8]) {
    if let Ok(net) = parse_net(bytes, "net.prototxt") {
        infer(&net);
    }
    if let Ok(solver) = parse_solver(bytes, "solver.prototxt") {
        let sources =
            std::iter::once(&solver.train_net).chain(solver.test_nets.iter().map(|test| &test.source));
        for source in sources {
            if let NetSource::Inline(net) = source {
                infer(net);
            }
        }
    }
}

/// Shapes, memory and work in both phases, where data that nobody has are of 3 x 32 x 32 values.
fn infer(spec: &NetSpec) {
    const SAMPLE: [usize; 3] = [3, 32, 32];
    for phase in [Phase::Train, Phase::Test] {
        let mut spec = spec.clone();
        for layer in &mut spec.layers {
            match &mut layer.layer {
                Layer::Data(data) => {
                    data.batch = data.batch.max(1);
                    let side = |whole| if data.transform.crop > 0 { data.transform.crop } else { whole };
                    data.sample = Some([SAMPLE[0], side(SAMPLE[1]), side(SAMPLE[2])]);
                }
                Layer::Input(input) if input.shapes.is_empty() => {
                    input.shapes.push([&[1][..], &SAMPLE].concat());
                }
                _ => {}
            }
        }
        let Ok(net) = Net::assemble(&spec, &spec.state(phase), 1.0, phase == Phase::Train) else { continue };
        for id in (0..net.layers.len()).map(LayerId) {
            for sub in SubTask::ALL {
                net.flops(id, sub);
            }
        }
        let storages = net.storages.clone().into();
        net.sharing_memory(&storages).blob_memory();
    }
}

/// Weights of Caffe and its files of means. What was read can be written.
pub fn caffemodel(bytes: &[u8]) {
    let _ = NetWeights::decode(bytes);
    let _ = decode_mean(bytes);
}

/// The state of Caffe's solvers.
pub fn solverstate(bytes: &[u8]) {
    if let Ok(state) = SolverState::decode(bytes) {
        state.plateau();
    }
}

/// Images and labels of MNIST, gzipped or not.
pub fn idx(bytes: &[u8]) {
    in_file(bytes, "", |path| {
        if let Ok(images) = read_images(path) {
            assert_eq!(images.shape().iter().product::<usize>(), images.len());
        }
        let _ = read_labels(path);
    });
}

/// CIFAR-10 and CIFAR-100.
pub fn cifar(bytes: &[u8]) {
    in_file(bytes, ".bin", |path| {
        for labels in [CifarLabels::Ten, CifarLabels::Fine, CifarLabels::Coarse] {
            if let Ok(set) = read_cifar(&[path.to_owned()], labels, "cifar", Room::default()) {
                look_at(&set);
            }
        }
    });
}

/// Caffe's Datum, with the image in it.
pub fn datum(bytes: &[u8]) {
    if let Ok(record) = decode_datum(bytes) {
        decode_encoded(&record.content);
    }
}

/// LMDB.
pub fn lmdb(bytes: &[u8]) {
    in_file(bytes, ".mdb", |path| {
        if let Ok(set) = Lmdb::open(path, "lmdb") {
            look_at(&set);
        }
    });
}

/// Tar files of images.
pub fn tar(bytes: &[u8]) {
    in_file(bytes, ".tar", |path| {
        for phase in [Phase::Train, Phase::Test] {
            if let Ok(set) = TarImages::open(&[path.to_owned()], phase, "tar") {
                look_at(&set);
            }
        }
    });
}

/// Arrays of NumPy, one or several.
pub fn npz(bytes: &[u8]) {
    let fits = |array: &npz::Array| assert_eq!(array.shape.iter().product::<usize>(), array.values.len());
    if let Ok(array) = npz::decode_npy(bytes) {
        fits(&array);
    }
    if let Ok(arrays) = npz::decode_npz(bytes) {
        arrays.values().for_each(fits);
    }
}

/// Weights in safetensors.
pub fn safetensors(bytes: &[u8]) {
    if let Ok(tensors) = weights::decode_safetensors(bytes) {
        for (shape, values) in tensors.values() {
            assert_eq!(shape.iter().product::<usize>(), values.len());
        }
    }
}

/// The manifest of a snapshot: as it is, and with a digest that is right, as whoever means harm would have it. What is
/// read of it stays inside of the folder, and is read once more from what is written of it.
pub fn snapshot(bytes: &[u8]) {
    let path = Path::new("manifest.json");
    drop(Manifest::of_bytes(path, bytes));
    if let Ok(manifest) = Manifest::of_bytes(path, &seal(bytes.to_vec())) {
        assert!(manifest.files.iter().all(|file| Path::new(&file.name).components().count() == 1));
        let again = manifest.to_bytes().expect("a manifest that was read can be written");
        let again = Manifest::of_bytes(path, &again).expect("a manifest that was written can be read");
        // The settings are for people, and their numbers may lose a last digit.
        let rest = |manifest: Manifest| Manifest { settings: Default::default(), ..manifest };
        assert_eq!(rest(again), rest(manifest));
    }
}

/// Image files: JPEG and PNG.
pub fn image(bytes: &[u8]) {
    let mut pixels = Vec::new();
    if let Ok(shape) = decode_image(bytes, None, &mut pixels) {
        assert_eq!(shape.iter().product::<usize>(), pixels.len());
    }
}

/// HDF5: weights, the state of a solver, and samples with the arrays of the seeds.
pub fn hdf5(bytes: &[u8]) {
    in_file(bytes, ".h5", |path| {
        let fits = |(shape, values): &(Vec<usize>, Vec<f32>)| {
            assert_eq!(shape.iter().product::<usize>(), values.len());
        };
        if let Ok(net) = NetWeights::read(path) {
            net.layers.iter().flat_map(|layer| layer.blobs.iter().flatten()).for_each(fits);
        }
        if let Ok(state) = SolverState::read(path) {
            state.history.iter().for_each(fits);
        }
        let names = ["data", "label"].map(str::to_owned);
        let source = path.display().to_string();
        let Ok(files) = RowFiles::open(&source, None, &SearchPath::default(), &names) else { return };
        let (files, mut out) = (Arc::new(files), vec![Vec::new(); names.len()]);
        let count = RECORDS.min(files.rows() as usize);
        if RowReader::new(files.clone(), None).fill(0, count, &mut out).is_ok() {
            for (values, sample) in out.iter().zip(files.samples()) {
                assert_eq!(values.len(), count * sample.iter().product::<usize>());
            }
        }
    });
}

/// Lists of images. The images are not read: who knows where the names lead.
pub fn list(bytes: &[u8]) {
    in_file(bytes, ".txt", |path| {
        let options = ImageList { root_folder: NOWHERE.into(), resize: None, colour: Colour::Colour };
        if let Ok(set) = ImageFiles::in_list(path, Some(&options), "list") {
            assert!(!set.is_empty());
            for index in 0..set.len() {
                assert!(set.label(index).is_some() && set.path(index).is_some());
                set.record_name(index);
            }
        }
    });
}

/// Files of windows. Images are read of the repository only, and so not if a name may lead out of their folder.
pub fn windows(bytes: &[u8]) {
    in_file(bytes, ".txt", |path| {
        let Ok(set) = open_windows(path) else { return };
        assert!(set.len() >= 2 && set.shape() == [3, 131, 131]);
        if bytes.windows(2).any(|pair| pair == b"..") {
            return;
        }
        let first = Prefetcher::start(Arc::new(set), Order::Sequential, 2, 0, 1);
        if let Err(error) = first.and_then(|batches| batches.next_batch()) {
            // The thread that reads tells of its panics so.
            assert!(!error.to_string().contains("the thread"), "{error}");
        }
    });
}

/// Opens a file of windows.
///
/// # Errors
/// As [`open`].
pub fn open_windows(path: &Path) -> Result<DataSource, IoError> {
    let images = crate::seeds::root().join("io/data/tests/fixtures");
    let rules = WindowRules {
        root_folder: format!("{}/", images.display()),
        foreground: 0.5,
        background: 0.3,
        fraction: 0.5,
        pad: 65,
        square: true,
    };
    let data = Data {
        source: path.display().to_string(),
        kind: DataKind::Windows(rules),
        batch: 4,
        transform: Transform { crop: 131, ..Transform::default() },
        sample: None,
    };
    let search = SearchPath::default();
    open(
        &data,
        Phase::Train,
        Opening {
            data: None,
            search: &search,
            tolerance: Tolerance::Skip,
            staging: None,
            room: Room::default(),
        },
    )
}

/// Reads the first records of a data set, and decodes the images among them.
fn look_at(set: &dyn Records) {
    assert!(!set.is_empty());
    let mut scratch = Vec::new();
    for index in (0..set.len()).take(RECORDS) {
        set.record_name(index);
        if let Ok(record) = set.read(index, &mut scratch) {
            decode_encoded(&record.content);
        }
    }
}

fn decode_encoded(content: &quadrille_io::data::Content<'_>) {
    if let quadrille_io::data::Content::Encoded { file, .. } = content {
        image(file);
    }
}

/// Gives `bytes` to `read` as a file whose name ends with `ending`, which lies in memory where the system has such a place.
fn in_file(bytes: &[u8], ending: &str, read: impl FnOnce(&Path)) {
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { PathBuf::from(memory) } else { std::env::temp_dir() };
    let file = tempfile::Builder::new().suffix(ending).tempfile_in(folder);
    let mut file = file.expect("a file in a folder that anybody may write to");
    file.write_all(bytes).expect("room for a small file");
    read(file.path());
}
