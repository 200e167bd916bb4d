//! LMDB: what the LMDB library wrote, what is written here, and every way to break it.

use std::fs::{self, File};
use std::path::Path;

use super::super::records::{Content, Records};
use super::super::{Lmdb, LmdbWriter, datum};

/// 152 records that the LMDB library wrote in three transactions: `{i:08}_made/{i}.png` of 1 x 3 x 4 bytes
/// `7i + j`, without the seventh, and three `{i:08}_long` of 3 x 40 x 41 bytes `(i + j) % 251`; labels are `i % 10`.
const WRITTEN_BY_THE_LIBRARY: &[u8] = include_bytes!("fixtures/caffe.mdb");

fn opened(bytes: &[u8]) -> Result<Lmdb, String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.mdb");
    fs::write(&path, bytes).unwrap();
    // The file is gone as soon as this returns, and is read all the same.
    Lmdb::open(&path, "made").map_err(|error| {
        assert_eq!(error.exit_code(), 65, "{error}");
        error.to_string()
    })
}

fn values(set: &Lmdb, index: usize) -> (i32, [usize; 3], Vec<u8>) {
    let mut scratch = Vec::new();
    let record = set.read(index, &mut scratch).unwrap();
    let Content::Bytes { shape, values } = record.content else { panic!("not bytes") };
    (record.label, shape, values.to_vec())
}

#[test]
fn what_the_library_wrote_is_read() {
    let set = opened(WRITTEN_BY_THE_LIBRARY).unwrap();
    assert_eq!(set.len(), 152);
    for index in 0..149 {
        let i = if index < 7 { index } else { index + 1 };
        let expected: Vec<u8> = (0..12).map(|j| (7 * i + j) as u8).collect();
        assert_eq!(values(&set, index), ((i % 10) as i32, [1, 3, 4], expected));
        assert_eq!(set.record_name(index), format!("record \"{i:08}_made/{i}.png\""));
    }
    for i in 150..153 {
        let expected: Vec<u8> = (0..3 * 40 * 41).map(|j| ((i + j) % 251) as u8).collect();
        assert_eq!(values(&set, i - 1), ((i % 10) as i32, [3, 40, 41], expected));
    }
}

/// Writes records with these keys and values.
fn written(records: &[(String, Vec<u8>)]) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("data.mdb");
    let mut writer = LmdbWriter::new(File::create_new(&path).unwrap()).unwrap();
    records.iter().for_each(|(key, value)| writer.add(key.as_bytes(), value).unwrap());
    assert_eq!(writer.finish().unwrap(), records.len() as u64);
    fs::read(path).unwrap()
}

#[test]
fn what_is_written_is_read_with_any_number_of_levels() {
    let datum = |label: u8, bytes: usize| {
        let mut datum = vec![8, 1, 16, 1, 24];
        prost::encoding::encode_varint(bytes as u64, &mut datum);
        datum.push(34);
        prost::encoding::encode_varint(bytes as u64, &mut datum);
        datum.extend((0..bytes).map(|j| j as u8 ^ label));
        datum.extend([40, label]);
        datum
    };
    // Long keys make deep trees: seven to a branch page. Sizes go over the limit of a leaf page and of two pages.
    for (records, key) in [(1, 8), (2, 8), (3, 500), (15, 500), (57, 500), (400, 500), (3000, 12)] {
        let made: Vec<_> = (0..records)
            .map(|i| (format!("{i:0key$}"), datum((i % 100) as u8, [1, 700, 1900, 2040, 4080, 9000][i % 6])))
            .collect();
        let set = opened(&written(&made)).unwrap();
        assert_eq!(set.len(), records);
        for (i, (key, value)) in made.iter().enumerate() {
            assert_eq!(set.record_name(i), format!("record {key:?}"));
            let mut scratch = Vec::new();
            assert_eq!(set.read(i, &mut scratch).unwrap(), datum::parse(value).unwrap());
        }
    }
}

#[test]
fn keys_must_rise_and_fit() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = LmdbWriter::new(File::create_new(folder.path().join("data.mdb")).unwrap()).unwrap();
    writer.add(b"b", b"1").unwrap();
    for key in [&b"b"[..], b"a", b"", &[b'c'; 512]] {
        assert!(writer.add(key, b"1").is_err());
    }
    writer.add(&[b'c'; 511], b"2").unwrap();
    assert_eq!(writer.finish().unwrap(), 2);
    assert!(opened(&written(&[])).unwrap_err().contains("without records"));
}

/// Opens a damaged data base and reads all it has: whatever comes, no panic.
fn endures(bytes: &[u8]) -> bool {
    let Ok(set) = opened(bytes) else { return false };
    (0..set.len()).all(|index| set.read(index, &mut Vec::new()).is_ok() && !set.record_name(index).is_empty())
}

#[test]
fn every_cut_is_found() {
    let whole = WRITTEN_BY_THE_LIBRARY;
    assert!(endures(whole));
    // Pages of the last transaction lie anywhere, so the last ones may be of no use.
    for at in (0..whole.len() / 2).step_by(97) {
        assert!(!endures(&whole[..at]), "{at}");
    }
}

#[test]
fn flipped_bits_never_end_the_program() {
    let whole = WRITTEN_BY_THE_LIBRARY;
    let mut refused = 0;
    for at in (0..2 * 4096).step_by(5).chain((2 * 4096..whole.len()).step_by(41)) {
        let mut bad = whole.to_vec();
        bad[at] ^= 1 << (at % 8);
        refused += usize::from(!endures(&bad));
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn circles_and_strangers_are_refused() {
    let made: Vec<_> = (0..60).map(|i| (format!("{i:0500}"), vec![8, 1])).collect();
    let whole = written(&made);
    // The root's first child becomes the root itself: the number of the last page stands in the meta page.
    let root = u64::from_le_bytes(whole[16 + 24 + 48 + 40..][..8].try_into().unwrap()) as usize;
    let node = u16::from_le_bytes(whole[root * 4096 + 16..][..2].try_into().unwrap()) as usize;
    let mut circle = whole.clone();
    circle[root * 4096 + node..][..2].copy_from_slice(&(root as u16).to_le_bytes());
    assert!(opened(&circle).unwrap_err().contains("in a circle"));
    assert!(opened(b"something else").unwrap_err().contains("is cut off"));
    assert!(opened(&[7; 9000]).unwrap_err().contains("does not begin as an LMDB"));
    let mut swapped = whole.clone();
    swapped[16..20].reverse();
    swapped[4096 + 16..4096 + 20].reverse();
    assert!(opened(&swapped).unwrap_err().contains("the other byte order"));
}

#[test]
fn a_datum_says_what_is_wrong_with_it() {
    let good = [8, 1, 16, 2, 24, 2, 34, 4, 1, 2, 3, 4, 40, 3];
    let record = datum::parse(&good).unwrap();
    assert_eq!(
        (record.label, record.content),
        (3, Content::Bytes { shape: [1, 2, 2], values: &[1, 2, 3, 4] })
    );
    let refused = |bytes: &[u8]| datum::parse(bytes).unwrap_err();
    assert!(refused(&[]).contains("0 x 0 x 0"));
    assert!(refused(&[8, 1, 16, 2, 24, 3, 34, 4, 1, 2, 3, 4]).contains("4 bytes, but 1 x 2 x 3"));
    assert!(refused(&[34, 200, 1, 1]).contains("cut off"));
    assert!(refused(&[10, 1, 1]).contains("field 1 is stored as"));
    // Extents whose product overflows, and one that is negative.
    let huge = [8, 255, 255, 255, 255, 7, 16, 255, 255, 255, 255, 7, 24, 255, 255, 255, 255, 7, 34, 1, 1];
    assert!(refused(&huge).contains("is a Datum of"));
    assert!(
        refused(&[8, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 16, 1, 24, 1]).contains("is a Datum of")
    );
    for at in 1..good.len() - 2 {
        refused(&good[..at]);
    }
    // Numbers one by one and packed; an encoded image; a negative label; unknown fields.
    let number = 1.5f32.to_le_bytes();
    let single = [&[8, 1, 16, 1, 24, 1, 53][..], &number].concat();
    let packed = [&[8, 1, 16, 1, 24, 1, 50, 4][..], &number].concat();
    for bytes in [single, packed] {
        let values = vec![1.5];
        assert_eq!(datum::parse(&bytes).unwrap().content, Content::Floats { shape: [1, 1, 1], values });
    }
    let encoded = [34, 2, 9, 8, 56, 1, 40, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 120, 5];
    let record = datum::parse(&encoded).unwrap();
    assert_eq!((record.label, record.content), (-1, Content::Encoded { file: &[9, 8], native: true }));
}

#[test]
fn the_path_may_be_the_folder_or_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data.mdb");
    fs::write(&file, WRITTEN_BY_THE_LIBRARY).unwrap();
    for path in [folder.path(), &file] {
        assert_eq!(super::super::lmdb_file(path), Some(file.clone()));
    }
    assert_eq!(super::super::lmdb_file(Path::new("/nonexistent")), None);
    // Nothing is made beside it.
    Lmdb::open(&file, "made").unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
