//! Files of `fixtures/` were written by the library of the HDF Group (through h5py) in the form of Caffe's files.

use std::fs;
use std::path::{Path, PathBuf};

use super::{read_rows, read_state, read_weights, row_shapes, write_state, write_weights};
use crate::caffemodel::{LayerWeights, NetWeights};
use crate::solverstate::SolverState;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("hdf5/fixtures").join(name)
}

fn layer(name: &str, blobs: Vec<(Vec<usize>, Vec<f32>)>) -> LayerWeights {
    LayerWeights { name: name.to_owned(), kind: String::new(), blobs: blobs.into_iter().map(Some).collect() }
}

/// What `weights.caffemodel.h5` holds.
fn weights() -> NetWeights {
    let eighths = (0..12).map(|i| i as f32 / 8.0).collect();
    let layers = vec![
        layer("conv1", vec![(vec![2, 1, 2, 3], eighths), (vec![2], vec![0.5, -0.5])]),
        layer("inc/3x3", vec![(vec![1, 3], vec![1.0, 2.0, 3.0])]),
        layer("lstm", (0..12).map(|i| (vec![1], vec![i as f32])).collect()),
    ];
    NetWeights { name: String::new(), layers }
}

/// What `state.solverstate.h5` holds.
fn state() -> SolverState {
    SolverState {
        iteration: 4,
        learned_net: "nets/x_iter_4.caffemodel.h5".to_owned(),
        current_step: 1,
        plateau: None,
        history: (0..11).map(|i| (vec![i + 1, 2], vec![i as f32; 2 * (i + 1)])).collect(),
    }
}

#[test]
fn files_of_caffe_are_read_in_the_order_of_numbers() {
    assert_eq!(read_weights(&fixture("weights.caffemodel.h5")).unwrap(), weights());
    assert_eq!(NetWeights::read(&fixture("weights.caffemodel.h5")).unwrap(), weights());
    assert_eq!(read_state(&fixture("state.solverstate.h5")).unwrap(), state());
    assert_eq!(SolverState::read(&fixture("state.solverstate.h5")).unwrap(), state());
}

#[test]
fn what_was_written_is_read_and_is_of_hdf5_1_8() {
    let folder = tempfile::tempdir().unwrap();
    let (net, solver) = (folder.path().join("w.caffemodel.h5"), folder.path().join("s.solverstate.h5"));
    write_weights(&net, &weights()).unwrap();
    write_state(&solver, &state()).unwrap();
    assert_eq!(read_weights(&net).unwrap(), weights());
    assert_eq!(read_state(&solver).unwrap(), state());
    for path in [net, solver] {
        // The version of the superblock follows on the mark of 8 bytes; 3 came with HDF5 1.10.
        assert!(fs::read(path).unwrap()[8] <= 2);
    }
}

#[test]
fn names_that_hdf5_cannot_hold_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.h5");
    let one = || vec![(vec![1], vec![1.0])];
    for names in [&["a//b"][..], &[""], &["a", "a"], &["."]] {
        let layers = names.iter().map(|name| layer(name, one())).collect();
        assert!(write_weights(&path, &NetWeights { name: String::new(), layers }).is_err(), "{names:?}");
        assert!(!path.exists());
    }
}

#[test]
fn other_files_say_what_they_lack() {
    let says = |error: crate::IoError, text: &str| {
        assert_eq!(error.exit_code(), 65);
        assert!(error.to_string().contains(text), "{error}");
    };
    says(read_weights(&fixture("state.solverstate.h5")).unwrap_err(), "has no group \"data\"");
    says(read_state(&fixture("weights.caffemodel.h5")).unwrap_err(), "has no \"iter\"");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    fs::write(&path, b"no HDF5").unwrap();
    says(read_weights(&path).unwrap_err(), "is the file whole?");
    assert_eq!(read_state(&folder.path().join("none.h5")).unwrap_err().exit_code(), 66);
}

/// Whatever is done to a file, reading it is an answer or an error, and nothing is taken for good that is cut off.
#[test]
fn damaged_files_end_in_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.h5");
    let good = fs::read(fixture("state.solverstate.h5")).unwrap();
    // A new file each time: some file systems bring a file to the disk that is written over.
    let write = |bytes: &[u8]| {
        let _ = fs::remove_file(&path);
        fs::write(&path, bytes).unwrap();
    };
    for cut in (0..good.len()).step_by(97) {
        write(&good[..cut]);
        assert!(read_state(&path).is_err(), "cut to {cut} of {} bytes", good.len());
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        write(&bad);
        // Many bits are values or belong to nothing.
        let _ = read_state(&path);
    }
}

#[test]
fn packed_arrays_of_other_types_are_read_as_numbers() {
    let names = ["data".to_owned(), "label".to_owned()];
    let (rows, samples) = row_shapes(&fixture("rows.h5"), &names).unwrap();
    assert_eq!((rows, samples), (7, vec![vec![2, 3], vec![]]));
    let values = read_rows(&fixture("rows.h5"), &names).unwrap();
    assert_eq!(values[0], (0..42).map(|i| i as f32).collect::<Vec<_>>());
    assert_eq!(values[1], [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
    let error = row_shapes(&fixture("rows.h5"), &["labels".to_owned()]).unwrap_err();
    assert!(error.to_string().contains("did you mean \"label\"?"), "{error}");
}
