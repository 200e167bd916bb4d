//! Other sizes of samples, fixed and by chance, against numbers by hand from the formulas of Intel's data_transformer.

use quadrille_core::layer::{Fit, Interpolation, Padding, RandomResize, Resampling, Resize};

use super::super::chance::Chance;
use super::super::resize::border;
use super::super::sizes::{Changed, Cut, PartRule, between};
use super::super::transform::{Image, Pixels};
use super::*;

fn by(interpolation: Interpolation) -> Resampling {
    Resampling { interpolations: vec![interpolation], ..Resampling::default() }
}

fn chance(k: u64, training: bool) -> Chance {
    Chance::new(Stream::new(7, Purpose::Transform, 0), k, training)
}

/// What becomes of planes in draw `k`, pixel by pixel.
fn changed(
    transform: &Transform,
    shape: [usize; 3],
    planes: &[u8],
    k: u64,
) -> Result<([usize; 3], Vec<u8>), String> {
    let mut memory = Changed::default();
    let image = memory.apply(transform, Image { shape, pixels: Pixels::Planes(planes) }, &chance(k, true))?;
    let Pixels::Interleaved(pixels) = image.pixels else { panic!("pixels") };
    Ok((image.shape, pixels.to_vec()))
}

fn shorter_side(min: Option<usize>, max: Option<usize>, crop: usize) -> Transform {
    let resampling = by(Interpolation::Linear);
    Transform {
        crop,
        random: Some(Box::new(RandomResize::ShorterSide { min, max, resampling })),
        ..Transform::default()
    }
}

fn part(areas: [f32; 2], attempts: u32, crop: usize) -> Transform {
    let random = RandomResize::Part { areas, change: 1.0, attempts, resampling: by(Interpolation::Nearest) };
    Transform { crop, random: Some(Box::new(random)), ..Transform::default() }
}

#[test]
fn the_shorter_side_gets_every_length_and_the_other_follows() {
    let sizes = |transform: &Transform, [height, width]: [usize; 2]| {
        let of = |k| changed(transform, [1, height, width], &vec![9; height * width], k).unwrap().0;
        let mut all: Vec<[usize; 2]> = (0..700).map(of).map(|[_, height, width]| [height, width]).collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    // 1.5 times the shorter side, rounded down.
    let expected = [[24, 36], [25, 37], [26, 39], [27, 40], [28, 42], [29, 43], [30, 45]];
    let transform = shorter_side(Some(24), Some(30), 8);
    assert_eq!(sizes(&transform, [40, 60]), expected);
    assert_eq!(sizes(&transform, [60, 40]), expected.map(|[short, long]| [long, short]));
    assert_eq!(sizes(&shorter_side(Some(24), Some(24), 8), [50, 50]), [[24, 24]]);
    // What is not given is the shorter and the longer side of the image.
    let of_the_image = sizes(&shorter_side(None, None, 8), [20, 30]);
    assert_eq!((of_the_image.len(), of_the_image[0], of_the_image[10]), (11, [20, 30], [30, 45]));
    let message = changed(&shorter_side(None, Some(19), 8), [1, 20, 30], &[9; 600], 0).unwrap_err();
    assert!(message.contains("is 20 x 30") && message.contains("between 20 and 19"), "{message}");
}

#[test]
fn numbers_lie_between_their_bounds_in_thousandths() {
    assert_eq!([0, u32::MAX].map(|word| between(word, [0.08, 1.0])), [0.08, 1.0]);
    // 1 / 0.75 - 0.75 is 0.58333.., so 583 steps.
    assert_eq!([0, u32::MAX].map(|word| between(word, [0.75, 1.0 / 0.75])), [0.75, 1.333]);
    assert_eq!([0, u32::MAX].map(|word| between(word, [1.0, 1.0])), [1.0; 2]);
    // The steps 0 to 499 of 1001 are below a half.
    let half = ((500u64 << 32) / 1001) as u32;
    assert!(between(half, [0.0, 1.0]) < 0.5 && between(half + 1, [0.0, 1.0]) >= 0.5);
}

#[test]
fn parts_have_their_area_and_aspect_ratio_and_lie_anywhere() {
    let draws = |areas, change| {
        let rule = PartRule { areas, change };
        (0..4000).filter_map(move |k| rule.draw([40, 60], 0, &chance(k, true))).collect::<Vec<Cut>>()
    };
    // A quarter of 2400 pixels is a square of 24.49.
    let quarters = draws([0.25; 2], 1.0);
    assert_eq!(quarters.len(), 4000);
    assert!(quarters.iter().all(|cut| cut.size == [24, 24]));
    let ends = |of: fn(&Cut) -> usize| (quarters.iter().map(of).min(), quarters.iter().map(of).max());
    assert_eq!((ends(|cut| cut.top), ends(|cut| cut.left)), ((Some(0), Some(16)), (Some(0), Some(36))));
    // Factors between 0.5 and 2: at most 48 x 12, but 48 rows do not fit; either side can be the longer one.
    let varied = draws([0.25; 2], 0.5);
    assert!(varied.iter().all(|cut| cut.top + cut.size[0] <= 40 && cut.left + cut.size[1] <= 60));
    assert!(varied.iter().all(|cut| cut.size.iter().all(|side| (12..=48).contains(side))));
    assert!(varied.iter().any(|cut| cut.size == [39, 15]) && varied.iter().any(|cut| cut.size == [12, 48]));
    let high = varied.iter().filter(|cut| cut.size[0] > cut.size[1]).count();
    assert!(
        (600..3400).contains(&high) && (2500..4000).contains(&varied.len()),
        "{high} of {}",
        varied.len()
    );
    // 8 % are a square of 13.86, all is one of 48.99, which is too high.
    let all = draws([0.08, 1.0], 1.0);
    assert!(all.iter().all(|cut| (13..=40).contains(&cut.size[0]) && cut.size[0] == cut.size[1]));
    assert_eq!([13, 40].map(|side| all.iter().any(|cut| cut.size[0] == side)), [true; 2]);
    // Other attempts of a draw have other numbers.
    let rule = PartRule { areas: [0.25; 2], change: 1.0 };
    assert_ne!(rule.draw([40, 60], 0, &chance(0, true)), rule.draw([40, 60], 1, &chance(0, true)));
}

#[test]
fn a_part_becomes_as_large_as_the_crop_or_else_the_whole_image_is_used() {
    // Two channels: the row and the column.
    let planes: Vec<u8> =
        (0..2400u32).map(|i| (i / 60) as u8).chain((0..2400u32).map(|i| (i % 60) as u8)).collect();
    for k in 0..50 {
        // A square of 24 stays as it is.
        let (shape, pixels) = changed(&part([0.25; 2], 10, 24), [2, 40, 60], &planes, k).unwrap();
        assert_eq!(shape, [2, 24, 24]);
        let expected = |i: usize| [pixels[0] + (i / 24) as u8, pixels[1] + (i % 24) as u8];
        assert!(pixels.chunks(2).enumerate().all(|(i, pixel)| pixel == expected(i)), "{k}: {pixels:?}");
        // Every second row and column of it.
        let (shape, pixels) = changed(&part([0.25; 2], 10, 12), [2, 40, 60], &planes, k).unwrap();
        assert_eq!((shape, pixels[2] - pixels[0], pixels[3] - pixels[1]), ([2, 12, 12], 0, 2));
    }
    // No square of all its area fits into the image, and none is drawn in no attempts: the shorter side becomes 20.
    for transform in [part([1.0; 2], 3, 20), part([0.25; 2], 0, 20)] {
        let (shape, pixels) = changed(&transform, [2, 40, 60], &planes, 5).unwrap();
        assert_eq!(
            (shape, &pixels[..4], &pixels[30 * 2..][..2]),
            ([2, 20, 30], &[0, 0, 0, 2][..], &[2, 0][..])
        );
    }
}

/// A set of one image of one channel, and the mini-batch that tests see of it.
fn tested(transform: &Transform, [height, width]: [usize; 2], values: &[u8]) -> Result<Vec<f32>, IoError> {
    let set = Dataset::new("one", Path::new("one"), values.to_vec(), vec![0], [1, height, width])?;
    Prefetcher::start(source(Arc::new(set), transform)?, Order::Sequential, 1, 0, 1)?
        .next_batch()
        .map(|batch| batch.data)
}

fn resized(size: [usize; 2], resampling: Resampling) -> Transform {
    Transform { resize: Some(Box::new(Resize { size, resampling })), ..Transform::default() }
}

#[test]
fn samples_are_resized_and_then_cut_scaled_and_freed_of_their_mean() {
    let tens: Vec<u8> = (0..16).map(|i| 10 * i).collect();
    for interpolation in [Interpolation::Area, Interpolation::Linear] {
        let mut transform = resized([2, 2], by(interpolation));
        assert_eq!(tested(&transform, [4, 4], &tens).unwrap(), [25.0, 45.0, 105.0, 125.0]);
        (transform.mean_values, transform.scale) = (vec![5.0], 0.5);
        assert_eq!(tested(&transform, [4, 4], &tens).unwrap(), [10.0, 20.0, 50.0, 60.0]);
    }
    // Each pixel becomes four, out of which the middle is cut.
    let mut transform = resized([8, 8], by(Interpolation::Nearest));
    transform.crop = 2;
    assert_eq!(tested(&transform, [4, 4], &tens).unwrap(), [50.0, 60.0, 90.0, 100.0]);
    // By chance first, then to one size: 8 x 8 becomes 4 x 4, and of that the middle is taken.
    let eights: Vec<u8> = (0..64).map(|i| i * 2).collect();
    let mut transform = shorter_side(Some(8), Some(8), 2);
    transform.resize = Some(Box::new(Resize { size: [4, 4], resampling: by(Interpolation::Nearest) }));
    assert_eq!(tested(&transform, [8, 8], &eights).unwrap(), [36.0, 40.0, 68.0, 72.0]);
    // Twice as wide as high: covered, it keeps that.
    let resampling = Resampling { fit: Fit::Small, ..by(Interpolation::Area) };
    assert_eq!(tested(&resized([1, 1], resampling), [2, 4], &tens[..8]).unwrap(), [25.0, 45.0]);
    // Chance is the same to train and to test, but for the place of the crop.
    let random = shorter_side(Some(3), Some(5), 3);
    let drawn: Vec<usize> = (0..9).map(|k| changed(&random, [1, 4, 4], &tens, k).unwrap().0[1]).collect();
    let size = |k| {
        Changed::default()
            .apply(&random, Image { shape: [1, 4, 4], pixels: Pixels::Planes(&tens) }, &chance(k, false))
            .unwrap()
            .shape[1]
    };
    assert_eq!((0..9).map(size).collect::<Vec<_>>(), drawn);
    assert!(drawn.contains(&3) && drawn.contains(&5), "{drawn:?}");
}

#[test]
fn borders_are_filled() {
    let values: Vec<u8> = (1..=8).map(|i| 10 * i).collect();
    let padded = |padding: &Padding, size| {
        let resampling =
            Resampling { fit: Fit::LargeAndPad, padding: padding.clone(), ..by(Interpolation::Cubic) };
        let found = tested(&resized(size, resampling), [2, 4], &values).unwrap();
        found.into_iter().map(|value| value as u8).collect::<Vec<u8>>()
    };
    let (first, second) = (&values[..4], &values[4..]);
    for (padding, before, behind) in [
        (Padding::Constant(vec![7]), &[7; 4][..], &[7; 4][..]),
        (Padding::Constant(Vec::new()), &[0; 4], &[0; 4]),
        (Padding::Nearest, first, second),
        (Padding::Mirrored, second, first),
    ] {
        assert_eq!(padded(&padding, [4, 4]), [before, first, second, behind].concat(), "{padding:?}");
    }
    // Of three rows, one lies before.
    let nearest = [first, first, second, second, second].concat();
    assert_eq!(padded(&Padding::Nearest, [5, 4]), nearest);
    let mut out = Vec::new();
    // Around two pixels of two channels: there and back again.
    border(&Padding::Mirrored, &[1, 2, 3, 4], 2, ([1, 2], [1, 7]), &mut out);
    assert_eq!(out, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 1, 2]);
    border(&Padding::Mirrored, &[1, 2], 2, ([1, 1], [3, 1]), &mut out);
    assert_eq!(out, [1, 2, 1, 2, 1, 2]);
    border(&Padding::Constant(vec![8, 9]), &[1, 2], 2, ([1, 1], [2, 2]), &mut out);
    assert_eq!(out, [1, 2, 8, 9, 8, 9, 8, 9]);
}

#[test]
fn what_cannot_be_resized_or_cut_is_told() {
    let floats = Image { shape: [1, 1, 2], pixels: Pixels::Floats(vec![0.5, 1.5]) };
    let refused = Changed::default().apply(&part([0.5, 1.0], 10, 2), floats, &chance(0, true)).unwrap_err();
    assert!(refused.contains("no bytes, which cannot be resized"), "{refused}");
    // The shorter side of the image itself is too short for the crop.
    let error = tested(&shorter_side(None, Some(5), 8), [4, 4], &[1; 16]).unwrap_err();
    assert!(
        error.exit_code() == 65 && error.to_string().contains("too small to cut 8 x 8 out of it"),
        "{error}"
    );
    // A line has no second side left.
    let resampling = Resampling { fit: Fit::LargeAndPad, ..by(Interpolation::Linear) };
    let error = tested(&resized([4, 4], resampling), [1, 9], &[1; 9]).unwrap_err();
    assert!(error.exit_code() == 65 && error.to_string().contains("resizing would make 0 x 4"), "{error}");
    // Larger than any record may be.
    let resampling = Resampling { fit: Fit::Small, ..by(Interpolation::Linear) };
    let error = tested(&resized([60_000, 60_000], resampling), [1, 9], &[1; 9]).unwrap_err();
    assert!(error.exit_code() == 65 && error.to_string().contains("too large"), "{error}");
}

/// The means belong to what is cut: samples of sizes by chance that are no others have them or are bad.
#[test]
fn a_mean_of_each_value_is_that_of_the_resized_image() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mean.binaryproto");
    write_mean(&path, [1, 2, 2], &[1.0, 2.0, 3.0, 4.0]).unwrap();
    let values = |transform: Transform| -> Result<Vec<f32>, IoError> {
        let tens = (0..16).map(|i| 10 * i).collect();
        let set = Dataset::new("one", Path::new("one"), tens, vec![0], [1, 4, 4])?;
        let data = Data { transform, ..layer("made") };
        let source = DataSource::new(Arc::new(set), &data, Some(&path), Tolerance::Fail)?;
        let batch = Prefetcher::start(Arc::new(source), Order::Sequential, 1, 0, 1)?.next_batch()?;
        Ok(batch.data)
    };
    assert_eq!(values(resized([2, 2], by(Interpolation::Area))).unwrap(), [24.0, 43.0, 102.0, 121.0]);
    assert_eq!(values(shorter_side(Some(2), Some(2), 2)).unwrap(), [24.0, 43.0, 102.0, 121.0]);
    for transform in [resized([3, 3], Resampling::default()), shorter_side(Some(3), Some(3), 2)] {
        let message = values(transform).unwrap_err().to_string();
        assert!(message.contains("are 1 x 2 x 2, but the image is 1 x 3 x 3"), "{message}");
    }
}
