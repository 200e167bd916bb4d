//! Image files, against what OpenCV 5.0 makes of the same files (`fixtures`).

use super::super::decode::{decode, grey_of};
use super::super::resize::{interpolate, resize};
use quadrille_core::layer::{Colour, Interpolation};

/// The photograph-like image of 27 x 33 pixels as OpenCV writes it, and what it reads.
const PNG: &[u8] = include_bytes!("fixtures/scene.png");
const JPEG: &[u8] = include_bytes!("fixtures/scene.jpg");
const GREY: &[u8] = include_bytes!("fixtures/grey.jpg");

fn decoded(file: &[u8], colour: Option<Colour>) -> Result<([usize; 3], Vec<u8>), String> {
    // What lay there before does not matter.
    let mut pixels = vec![77; 10];
    let shape = decode(file, colour, &mut pixels)?;
    assert_eq!(shape.iter().product::<usize>(), pixels.len());
    Ok((shape, pixels))
}

/// The largest difference of two images, and how many values differ.
fn difference(a: &[u8], b: &[u8]) -> (u8, usize) {
    assert_eq!(a.len(), b.len());
    let differ = a.iter().zip(b).map(|(a, b)| a.abs_diff(*b));
    differ.fold((0, 0), |(most, count), d| (most.max(d), count + usize::from(d > 0)))
}

#[test]
fn a_png_is_what_opencv_reads() {
    let (shape, pixels) = decoded(PNG, None).unwrap();
    assert_eq!(shape, [3, 27, 33]);
    assert_eq!(pixels, include_bytes!("fixtures/scene.png.bgr"));
    assert_eq!(decoded(PNG, Some(Colour::Colour)).unwrap().1, pixels);
    let (shape, grey) = decoded(PNG, Some(Colour::Grey)).unwrap();
    assert_eq!(shape, [1, 27, 33]);
    // libpng rounds its weights otherwise than OpenCV's own conversion.
    assert!(difference(&grey, include_bytes!("fixtures/scene.png.y")).0 <= 1);
}

#[test]
fn a_jpeg_is_what_opencv_reads_but_for_rounding() {
    let (shape, pixels) = decoded(JPEG, None).unwrap();
    assert_eq!(shape, [3, 27, 33]);
    // Two inverse cosine transforms in whole numbers, each within one of the other in brightness and colour.
    let colour = difference(&pixels, include_bytes!("fixtures/scene.jpg.bgr"));
    let (shape, grey) = decoded(JPEG, Some(Colour::Grey)).unwrap();
    assert_eq!(shape, [1, 27, 33]);
    let brightness = difference(&grey, include_bytes!("fixtures/scene.jpg.y"));
    assert!(brightness.0 <= 1 && colour.0 <= 4, "{brightness:?} {colour:?}");
    assert_ne!(pixels, include_bytes!("fixtures/scene.png.bgr"));
}

#[test]
fn a_grey_jpeg_has_one_channel_unless_three_are_asked_for() {
    let (shape, grey) = decoded(GREY, None).unwrap();
    assert_eq!(shape, [1, 27, 33]);
    assert!(difference(&grey, include_bytes!("fixtures/grey.jpg.y")).0 <= 1);
    let (shape, colour) = decoded(GREY, Some(Colour::Colour)).unwrap();
    assert_eq!(shape, [3, 27, 33]);
    assert!(colour.chunks(3).zip(&grey).all(|(pixel, grey)| pixel == [*grey; 3]));
}

#[test]
fn every_kind_of_png_becomes_bytes() {
    let make = |kind, depth, palette: Option<&[u8]>, data: &[u8]| {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 2, 1);
        encoder.set_color(kind);
        encoder.set_depth(depth);
        if let Some(palette) = palette {
            encoder.set_palette(palette.to_vec());
        }
        encoder.write_header().unwrap().write_image_data(data).unwrap();
        decoded(&file, None).unwrap()
    };
    use png::{BitDepth::*, ColorType::*};
    assert_eq!(make(Grayscale, Eight, None, &[7, 9]), ([1, 1, 2], vec![7, 9]));
    assert_eq!(make(GrayscaleAlpha, Eight, None, &[7, 0, 9, 1]), ([1, 1, 2], vec![7, 9]));
    assert_eq!(make(Rgba, Eight, None, &[1, 2, 3, 0, 4, 5, 6, 9]), ([3, 1, 2], vec![3, 2, 1, 6, 5, 4]));
    assert_eq!(make(Grayscale, Sixteen, None, &[7, 200, 9, 0]), ([1, 1, 2], vec![7, 9]));
    assert_eq!(make(Grayscale, One, None, &[0b0100_0000]), ([1, 1, 2], vec![0, 255]));
    let palette: &[u8] = &[1, 2, 3, 4, 5, 6];
    assert_eq!(make(Indexed, Eight, Some(palette), &[1, 0]), ([3, 1, 2], vec![6, 5, 4, 3, 2, 1]));
    assert_eq!([grey_of(255, 255, 255), grey_of(0, 0, 0), grey_of(255, 0, 0)], [255, 0, 76]);
}

#[test]
fn a_resized_image_is_opencvs_to_the_last_bit() {
    let pixels = include_bytes!("fixtures/scene.png.bgr");
    let mut out = Vec::new();
    let cases: [([usize; 2], &[u8]); 4] = [
        ([20, 24], include_bytes!("fixtures/scene_20x24.bgr")),
        ([50, 70], include_bytes!("fixtures/scene_50x70.bgr")),
        ([13, 16], include_bytes!("fixtures/scene_13x16.bgr")),
        ([27, 11], include_bytes!("fixtures/scene_27x11.bgr")),
    ];
    for (size, expected) in cases {
        resize(pixels, 3, [27, 33], size, &mut out);
        assert_eq!(difference(&out, expected), (0, 0), "{size:?}");
    }
    resize(pixels, 3, [27, 33], [27, 33], &mut out);
    assert_eq!(out, pixels);
    resize(&[9, 9, 9, 9], 1, [2, 2], [5, 1], &mut out);
    assert_eq!(out, [9; 5]);
}

/// The fixtures are of OpenCV 4.9 without its paths for vectors and without IPP; 3.4 makes the same ones.
#[test]
fn every_interpolation_is_opencvs_to_the_last_bit() {
    let pixels = include_bytes!("fixtures/scene.png.bgr");
    let mut out = Vec::new();
    let cases: [(Interpolation, [usize; 2], &[u8]); 9] = [
        (Interpolation::Area, [13, 16], include_bytes!("fixtures/scene_13x16_area.bgr")),
        (Interpolation::Area, [9, 11], include_bytes!("fixtures/scene_9x11_area.bgr")),
        (Interpolation::Area, [40, 50], include_bytes!("fixtures/scene_40x50_area.bgr")),
        (Interpolation::Area, [40, 20], include_bytes!("fixtures/scene_40x20_area.bgr")),
        (Interpolation::Nearest, [20, 40], include_bytes!("fixtures/scene_20x40_nearest.bgr")),
        (Interpolation::Cubic, [20, 24], include_bytes!("fixtures/scene_20x24_cubic.bgr")),
        (Interpolation::Cubic, [40, 50], include_bytes!("fixtures/scene_40x50_cubic.bgr")),
        (Interpolation::Lanczos4, [20, 24], include_bytes!("fixtures/scene_20x24_lanczos4.bgr")),
        (Interpolation::Lanczos4, [40, 50], include_bytes!("fixtures/scene_40x50_lanczos4.bgr")),
    ];
    for (by, size, expected) in cases {
        interpolate(by, pixels, 3, ([27, 33], size), &mut out);
        assert_eq!(difference(&out, expected), (0, 0), "{by:?} {size:?}");
        // What is all of one colour stays so, and what has one row or column is no special case.
        interpolate(by, &[9; 6], 1, ([1, 6], size), &mut out);
        assert_eq!(out, vec![9; size[0] * size[1]], "{by:?} {size:?}");
        interpolate(by, pixels, 3, ([27, 33], [27, 33]), &mut out);
        assert_eq!(out, pixels, "{by:?}");
        // Each of any number of channels is what it would be alone.
        let blue: Vec<u8> = pixels.iter().step_by(3).copied().collect();
        let two: Vec<u8> = blue.iter().flat_map(|value| [*value, 255 - value]).collect();
        for (channels, image) in [(1, &blue), (2, &two)] {
            interpolate(by, image, channels, ([27, 33], size), &mut out);
            assert!(out.iter().step_by(channels).eq(expected.iter().step_by(3)), "{by:?} {size:?}");
        }
    }
}

#[test]
fn every_cut_and_flip_of_an_image_is_an_error_or_an_image() {
    for file in [PNG, JPEG, GREY] {
        let (shape, _) = decoded(file, None).unwrap();
        let mut refused = 0;
        for at in 0..file.len() {
            // The last two bytes of a JPEG only say that it ends.
            assert!(
                decoded(&file[..at], None).is_err() || at + 2 >= file.len() && file != PNG,
                "cut at {at}"
            );
            let mut bad = file.to_vec();
            bad[at] ^= 1 << (at % 8);
            match decoded(&bad, None) {
                // A JPEG has no checksums: what is damaged can be an image of any size.
                Ok((found, _)) => assert!(file != PNG || found == shape, "flip at {at}"),
                Err(message) => refused += usize::from(!message.is_empty()),
            }
        }
        assert!(refused > 50, "{refused}");
    }
    for (file, part) in
        [(&b""[..], "is empty"), (b"GIF89a", "starts with 47 49 46 38"), (b"\xff\xd8", "JPEG")]
    {
        let message = decoded(file, None).unwrap_err();
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn a_header_that_promises_too_much_costs_nothing() {
    // A PNG header of 2^31 - 1 squared pixels with the right checksum, and nothing behind it.
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec();
    file.extend([0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 8, 2, 0, 0, 0]);
    let mut sum = flate2::Crc::new();
    sum.update(&file[12..]);
    file.extend(sum.sum().to_be_bytes());
    assert!(decoded(&file, None).is_err());
    // A JPEG whose frame says 65535 x 65535.
    let at = JPEG.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    let mut file = JPEG.to_vec();
    file[at + 5..at + 9].fill(0xff);
    let message = decoded(&file, None).unwrap_err();
    assert!(message.contains("too large"), "{message}");
    // One that is not too large, but for so small a file.
    file[at + 5..at + 9].copy_from_slice(&[0x20, 0, 0x20, 0]);
    let message = decoded(&file, None).unwrap_err();
    assert!(message.contains("1066 bytes cannot hold 8192 x 8192 pixels"), "{message}");
}
