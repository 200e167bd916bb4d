use std::fs;
use std::io::Write;
use std::path::PathBuf;

use tempfile::TempDir;

use super::*;

fn small() -> Archive {
    let single = vec![1.5, -0.0, f32::INFINITY, f32::MIN_POSITIVE / 2.0, f32::from_bits(0x7fc1_2345), 7.0];
    let arrays = [
        ("weights/conv1/0", vec![2, 3], Values::F32(single)),
        ("loss", vec![], Values::F64(vec![0.1])),
        ("label", vec![3], Values::I32(vec![1, -2, i32::MAX])),
        ("bytes", vec![2, 1, 2], Values::U8(vec![0, 1, 127, 255])),
        ("none", vec![0, 7], Values::F32(Vec::new())),
        ("zeros", vec![30_000], Values::F32(vec![0.0; 30_000])),
    ];
    arrays.map(|(name, shape, values)| (name.to_owned(), Array { shape, values })).into()
}

fn place(name: &str) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    (folder, path)
}

/// A file of version 1 with this header and these bytes.
fn npy(header: &str, values: &[u8]) -> Vec<u8> {
    let length = (header.len() as u16).to_le_bytes();
    [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes(), values].concat()
}

fn decode_npy(bytes: &[u8]) -> Result<Array, String> {
    npy::decode(&mut &bytes[..], bytes.len() as u64)
}

fn refused(bytes: &[u8], expected: &str) {
    let error = decode_npy(bytes).unwrap_err();
    assert!(error.contains(expected), "{error:?} does not say {expected:?}");
}

fn bits(archive: &Archive) -> Vec<(&String, &[usize], Vec<u64>)> {
    let each = archive.iter().map(|(name, array)| {
        let bits = match &array.values {
            Values::F32(v) => v.iter().map(|x| u64::from(x.to_bits())).collect(),
            Values::F64(v) => v.iter().map(|x| x.to_bits()).collect(),
            Values::I32(v) => v.iter().map(|x| *x as u64).collect(),
            Values::U8(v) => v.iter().map(|x| u64::from(*x)).collect(),
        };
        (name, array.shape.as_slice(), bits)
    });
    each.collect()
}

#[test]
fn what_was_written_is_read_bit_by_bit() {
    let (_folder, path) = place("a.npz");
    write_npz(&path, &small()).unwrap();
    let read = read_npz(&path).unwrap();
    assert_eq!(bits(&read), bits(&small()));
    let first = fs::read(&path).unwrap();
    assert!(first.len() < 3000, "{} bytes: zeros are not compressed", first.len());
    write_npz(&path, &small()).unwrap();
    assert_eq!(fs::read(&path).unwrap(), first);
    for (name, array) in small() {
        write_npy(&path, &array).unwrap();
        let one = Archive::from([(name.clone(), read_npy(&path).unwrap())]);
        assert_eq!(bits(&one), bits(&Archive::from([(name, array)])));
    }
}

#[test]
fn the_bytes_are_those_of_numpy() {
    // numpy.save of numpy.array([[1, -2]], '<f4'), .array([1.5]), .array(7, '<i4')
    let text = "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 2), }";
    let values = [1f32.to_le_bytes(), (-2f32).to_le_bytes()].concat();
    let saved = npy(&format!("{text:<117}\n"), &values);
    let array = Array { shape: vec![1, 2], values: Values::F32(vec![1.0, -2.0]) };
    assert_eq!(decode_npy(&saved), Ok(array.clone()));
    let (_folder, path) = place("a.npy");
    write_npy(&path, &array).unwrap();
    assert_eq!(fs::read(&path).unwrap(), saved);
    for (shape, text) in [(vec![], "()"), (vec![1], "(1,)"), (vec![1, 1, 1], "(1, 1, 1)")] {
        write_npy(&path, &Array { shape, values: Values::F64(vec![1.5]) }).unwrap();
        let written = fs::read(&path).unwrap();
        let expected = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {text}, }}");
        let header = String::from_utf8(written[10..128].to_vec()).unwrap();
        assert_eq!((header.trim_end(), written.len()), (&*expected, 136));
    }
}

#[test]
fn other_versions_orders_of_keys_and_blanks_are_understood() {
    let header = r#"{"shape":(2L,),"fortran_order":False,"descr":"<i4"}"#;
    let values = [3i32.to_le_bytes(), (-4i32).to_le_bytes()].concat();
    let expected = Ok(Array { shape: vec![2], values: Values::I32(vec![3, -4]) });
    assert_eq!(decode_npy(&npy(header, &values)), expected);
    for version in [2, 3] {
        let length = (header.len() as u32).to_le_bytes();
        let start = [b"\x93NUMPY", &[version, 0][..], &length, header.as_bytes(), &values].concat();
        assert_eq!(decode_npy(&start), expected);
    }
}

#[test]
fn other_kinds_of_arrays_are_refused_with_what_to_do() {
    let kind =
        |descr: &str| npy(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (0,)}}"), &[]);
    for descr in ["'>f4'", "'<u4'", "'|b1'", "'<f2'", "'<c8'", "'|O'"] {
        refused(&kind(descr), "expected \"<f4\", \"<f8\", \"<i4\", \"<i8\" or \"|u1\" (array.astype('<f4'))");
    }
    refused(&kind("[('a', '<f4')]"), "array of records");
    let fortran = "{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }";
    refused(&npy(fortran, &[0; 4]), "expected C order (numpy.ascontiguousarray(array))");
}

#[test]
fn long_integers_are_read_if_they_fit() {
    let of =
        |value: i64| npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1,), }", &value.to_le_bytes());
    for value in [0, -5, i64::from(i32::MAX), i64::from(i32::MIN)] {
        let array = Array { shape: vec![1], values: Values::I32(vec![value as i32]) };
        assert_eq!(decode_npy(&of(value)), Ok(array));
    }
    refused(&of(1 << 31), "has integers beyond 32 bits");
}

#[test]
fn arrays_of_many_pieces_are_read_whole() {
    for count in [8191, 8192, 8193, 40_000] {
        let doubles = Values::F64((0..count).map(|i| f64::from(i) / 3.0).collect());
        let singles = Values::F32((0..count).map(|i| i as f32 / 3.0).collect());
        let bytes = Values::U8((0..count).map(|i| i as u8).collect());
        for values in [doubles, singles, bytes] {
            let array = Array { shape: vec![count as usize], values };
            let mut file = Vec::new();
            npy::encode(&array, &mut file).unwrap();
            assert!(decode_npy(&file) == Ok(array), "{count}");
            let error = decode_npy(&file[..file.len() - 1]).unwrap_err();
            assert!(error.contains("bytes of values for extents"), "{error}");
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused() {
    let of = |shape: &str| format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
    refused(&npy(&of("(3,)"), &[0; 16]), "16 bytes of values for extents [3] of type \"<f8\"");
    refused(&npy(&of("(1,)"), &[0; 16]), "16 bytes of values for extents [1]");
    // Products that overflow, and those that only memory refuses.
    for shape in ["(4294967296, 4294967296)", "(18446744073709551615,)", "(1099511627776,)"] {
        refused(&npy(&of(shape), &[0; 8]), "8 bytes of values for extents");
    }
    refused(&npy(&of("(18446744073709551616,)"), &[]), "its header says");
    refused(&npy(&of(&format!("({})", "1,".repeat(33))), &[0; 8]), "33 axes; at most 32");
    // The length of the file may be a lie, too.
    let whole = npy(&of("(1000000000,)"), &[0; 8]);
    let lied = (whole.len() - 8) as u64 + 8_000_000_000;
    let error = npy::decode(&mut whole.as_slice(), lied).unwrap_err();
    assert!(error.contains("cut off after 8 of 8000000000 bytes"), "{error}");
    let error = npy::decode(&mut [&whole[..], &[0]].concat().as_slice(), whole.len() as u64).unwrap_err();
    assert!(error.contains("8 bytes of values"), "{error}");
}

#[test]
fn headers_that_are_damaged_are_refused() {
    refused(b"\x93NUMPX\x01\0", "is no array of NumPy");
    refused(b"\x93NUMPY\x04\0\0\0", "version 4");
    refused(b"\x93NUMPY\x02\0\xff\xff\xff\xff", "a header of 4294967295 bytes");
    refused(b"\x93NUMPY\x01\0\x04\0\xff\xfe\xfd\xfc", "not text");
    let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }";
    assert!(decode_npy(&npy(good, &[0; 4])).is_ok());
    for (from, to) in [
        ("'descr'", "'describe'"),
        ("'shape': (1,)", ""),
        ("(1,)", "(1"),
        ("(1,)", "(-1,)"),
        ("(1,)", "1"),
        ("False", "0"),
        (", }", ""),
        (", }", "} }"),
        ("'<f4'", "<f4"),
        ("{", ""),
    ] {
        refused(&npy(&good.replacen(from, to, 1), &[0; 4]), "its header says");
    }
    let bytes = npy(good, &[0; 4]);
    for at in 0..bytes.len() {
        assert!(decode_npy(&bytes[..at]).is_err(), "cut to {at} bytes");
    }
}

#[test]
fn no_cut_and_no_flipped_bit_makes_it_panic_and_none_changes_a_value() {
    let (_folder, path) = place("a.npz");
    let mut arrays = small();
    arrays.remove("zeros");
    write_npz(&path, &arrays).unwrap();
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        assert!(decode_npz(&good[..at]).is_err(), "cut to {at} bytes");
        for bit in 0..8 {
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            // Names, dates and such can change; values are under a checksum.
            if let Ok(read) = decode_npz(&bad) {
                let values = |archive: &Archive| {
                    let mut values: Vec<_> = bits(archive).into_iter().map(|(_, _, bits)| bits).collect();
                    values.sort();
                    values
                };
                assert_eq!(values(&read), values(&arrays), "byte {at}, bit {bit}");
            }
        }
    }
}

#[test]
fn an_archive_that_promises_more_than_it_holds_is_refused() {
    let (_folder, path) = place("a.npz");
    let array = Array { shape: vec![1], values: Values::F32(vec![1.0]) };
    write_npz(&path, &Archive::from([("x".to_owned(), array)])).unwrap();
    let good = fs::read(&path).unwrap();
    let central = good.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    let mut lies = good.clone();
    lies[central + 24..central + 28].copy_from_slice(&0xffff_fff0u32.to_le_bytes());
    let error = decode_npz(&lies).unwrap_err();
    assert!(error.contains("\"x.npy\": 4294967280 bytes, more than the file can hold"), "{error}");
    assert!(decode_npz(b"").unwrap_err().contains("no whole archive"));
    assert_eq!(read_npz(&path.with_extension("none")).unwrap_err().exit_code(), 66);
    fs::write(&path, b"PK\x05\x06").unwrap();
    assert_eq!(read_npz(&path).unwrap_err().exit_code(), 65);
}

#[test]
fn what_is_no_array_is_named() {
    let (_folder, path) = place("a.npz");
    let mut archive = ZipWriter::new(fs::File::create(&path).unwrap());
    archive.start_file("readme.txt", SimpleFileOptions::default()).unwrap();
    archive.write_all(b"an archive of something else").unwrap();
    archive.finish().unwrap();
    let error = read_npz(&path).unwrap_err().to_string();
    assert!(error.contains("a.npz: array \"readme.txt\": is no array of NumPy (.npy)"), "{error}");
}

#[test]
fn extents_that_do_not_fit_the_values_are_not_written() {
    let (_folder, path) = place("a.npz");
    for shape in [vec![3], vec![usize::MAX, 2], vec![1; 33]] {
        let array = Array { shape, values: Values::F32(vec![1.0]) };
        assert_eq!(write_npy(&path, &array).unwrap_err().exit_code(), 65);
        assert_eq!(write_npz(&path, &Archive::from([("a".into(), array)])).unwrap_err().exit_code(), 65);
    }
    assert!(!path.exists());
}
