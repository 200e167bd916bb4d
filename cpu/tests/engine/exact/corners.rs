//! Shapes beyond which the engine takes another way: more than fit a block, a strip, a row of a kernel or a part of a cache.

use quadrille_core::layer::{Convolution, Dropout, Layer, PoolMethod, Pooling};
use quadrille_cpu::isa::Isa;
use quadrille_cpu::machine::Machine;

use crate::common::{convolution, inner_product};
use crate::exact::bench::{exact, exact_by};
use crate::exact::case::Case;
use crate::exact::layers::{pooling, same, strided};

fn case(layer: Convolution, bottom: [usize; 4]) -> Case {
    Case::new(Layer::Convolution(layer), &[&bottom])
}

/// More tiles of one image than a block of any filter, of which the last is cut, in rows and columns that tiles do not divide; and a
/// top whose tiles are fewer than those of the bottom.
#[test]
fn images_of_several_blocks_of_winograd_tiles() {
    let cases = [
        case(same(32, 3), [1, 32, 37, 35]),
        case(same(16, 5), [1, 16, 37, 35]),
        case(convolution(16, [5, 5]), [1, 16, 37, 35]),
        case(same(16, 3), [2, 16, 59, 61]),
    ];
    exact("blocks of Winograd tiles", &cases);
}

/// So many targets, and so few tiles, that targets are shared out, and sources transformed in a stage of their own: in one part and in
/// several, of groups, and of tiles of whole images.
#[test]
fn targets_of_winograd_that_grains_share() {
    let rectified = Convolution { relu: true, ..same(160, 3) };
    let groups = Convolution { group: 2, ..same(320, 3) };
    let zeros = "a ReLU lets only sums above 0 pass";
    let cases = [
        case(same(160, 3), [1, 160, 7, 7]),
        case(rectified, [1, 160, 7, 7]).zeros(zeros),
        case(same(144, 5), [1, 24, 6, 7]),
        case(groups, [9, 64, 7, 7]),
        case(same(288, 3), [2, 128, 7, 7]),
        case(convolution(192, [3, 3]), [3, 160, 6, 6]),
    ];
    exact("shared targets of Winograd", &cases);
}

/// A top of 48 MiB, which is stored past the caches, of a width that tiles do not divide.
#[test]
fn tops_that_are_stored_past_the_caches() {
    let case = Case::of_images(Layer::Convolution(same(8, 3)), &[1, 2, 1_025, 1_535]);
    let bytes = size_of::<f32>() * case.net.top_shapes(case.id)[0].count();
    assert!(Isa::ALL.iter().all(|isa| bytes >= Machine::of(*isa).past_bytes), "{bytes} stay in the caches");
    exact_by("entry-winograd", "a large top", &case);
}

/// Inputs beyond what the images have of the second-level cache: sums go on from part to part.
#[test]
fn inner_products_of_inputs_in_parts() {
    let case = |transpose, images, inputs, outputs| {
        let layer = quadrille_core::layer::InnerProduct { transpose, ..inner_product(outputs) };
        Case::new(Layer::InnerProduct(layer), &[&[images, inputs]])
    };
    exact("inputs in parts", &[case(false, 64, 4200, 20), case(true, 33, 5000, 18)]);
}

/// Pointwise kernels whose image is larger than a strip, alone, by groups, and with so many images that ∇W copies what it reads.
#[test]
fn pointwise_convolutions_of_large_images() {
    let groups = Convolution { group: 2, ..convolution(64, [1, 1]) };
    let cases = [
        case(convolution(64, [1, 1]), [1, 256, 33, 32]),
        case(convolution(96, [1, 1]), [8, 64, 21, 20]),
        case(groups.clone(), [8, 128, 14, 14]),
        case(groups, [1, 256, 33, 32]),
    ];
    exact("pointwise convolutions of large images", &cases);
}

/// Pointwise kernels with so many channels that all tiles of a grain go through a chunk of them before the next, forward and back: of
/// images that are one row and that are not, with tiles of one vector, by groups, and with a ReLU behind.
#[test]
fn pointwise_convolutions_of_many_channels() {
    let rectified = Convolution { relu: true, ..convolution(40, [1, 1]) };
    let groups = Convolution { group: 2, ..convolution(672, [1, 1]) };
    let zeros = "a ReLU lets only sums above 0 pass";
    let cases = [
        case(convolution(344, [1, 1]), [3, 680, 5, 5]),
        case(rectified, [1, 328, 3, 5]).zeros(zeros),
        case(groups, [1, 704, 3, 3]),
        case(convolution(24, [1, 1]), [1, 336, 23, 21]),
    ];
    exact("pointwise convolutions of many channels", &cases);
}

/// So many targets that grains of ∇W on AMX share planes of the source: of parts of the images that are not equal, of groups, of
/// kernels with few taps and with many.
#[test]
fn gradients_over_shared_planes() {
    let groups = Convolution { group: 2, ..same(512, 3) };
    let cases = [
        case(same(272, 3), [5, 20, 8, 9]),
        case(groups, [2, 32, 5, 5]),
        case(convolution(256, [1, 1]), [3, 40, 9, 7]),
        case(same(256, 5), [2, 16, 7, 6]),
    ];
    exact("shared planes", &cases);
}

/// So few targets, of images with so many pixels, that grains of ∇W on AMX share the rows of an image.
#[test]
fn gradients_over_planes_of_bands() {
    exact("planes of bands", &[case(convolution(36, [2, 2]), [1, 64, 66, 65])]);
}

/// Rows of more outputs than ∇W has in one run.
#[test]
fn convolutions_of_long_rows() {
    let first = |layer: Convolution| Case::of_images(Layer::Convolution(layer), &[2, 3, 5, 601]);
    let seven = Convolution { stride: [2, 2], pad: [3, 3], ..convolution(16, [7, 7]) };
    let cases = [
        first(same(16, 3)),
        first(seven),
        case(same(16, 3), [1, 16, 4, 301]),
        case(strided(same(16, 3)), [1, 16, 5, 531]),
    ];
    exact("long rows", &cases);
}

/// Several chunks of sources for each of several passes, of rows that are shared out.
#[test]
fn strided_convolutions_of_many_channels_and_rows() {
    let cases = [case(strided(same(96, 3)), [1, 96, 28, 28]), case(strided(same(80, 5)), [1, 80, 19, 18])];
    exact("strided convolutions of many channels", &cases);
}

/// Masks of planes of several strips.
#[test]
fn dropout_of_large_planes() {
    let layer = Layer::Dropout(Dropout { ratio: 0.5, active: true });
    let cases = Case::everywhere(layer, &[3, 20, 13, 13]);
    let why = "half of all values are dropped";
    exact("dropout of large planes", &cases.into_iter().map(|case| case.zeros(why)).collect::<Vec<_>>());
}

/// As many taps as a byte can name, and more.
#[test]
fn maxima_of_many_taps() {
    let max = |kernel, stride| pooling(PoolMethod::Max, kernel, stride, [0, 0]);
    let layers = [
        (max([12, 12], [3, 2]), [18, 15]),
        (max([15, 17], [2, 1]), [19, 21]),
        (max([16, 16], [1, 3]), [18, 20]),
    ];
    let case = |(layer, [height, width]): (Pooling, [usize; 2])| {
        let case = Case::new(Layer::Pooling(layer), &[&[2, 20, height, width]]);
        case.zeros("all but the maxima have no gradient")
    };
    exact("maxima of many taps", &layers.map(case));
}
