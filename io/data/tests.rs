//! Data sets: good ones, and every way to break one.

use std::path::{Path, PathBuf};

use quadrille_core::net::Phase;

use super::*;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn bundled() -> SearchPath {
    SearchPath { folders: vec![repository().join("data")] }
}

#[test]
fn the_bundled_mnist_is_whole() {
    let train = open("mnist", None, Phase::Train, &bundled()).unwrap();
    assert_eq!((train.len(), train.shape, train.classes()), (60_000, [1, 28, 28], 10));
    assert_eq!(train.labels[..5], [5, 0, 4, 1, 9]);
    let test = open("mnist", None, Phase::Test, &bundled()).unwrap();
    assert_eq!((test.len(), test.labels[0]), (10_000, 7));
    assert_ne!(train.hash, test.hash);
    assert_eq!(train.name, "mnist");
}
