//! The convolutions of Table 5 of the paper, and the kernels that Caffe runs for each of their images on a GPU.

use quadrille_core::sim::{DeviceModel, Kernel};

use crate::shapes::ConvolutionShape;

/// The networks of Table 5, in its order.
pub const NETWORKS: [&str; 4] = ["CIFAR10", "Siamese", "CaffeNet", "GoogLeNet"];

/// Table 5: images, input channels, height and width, output channels, kernel, stride, padding.
const TABLE_5: [(&str, [usize; 7]); 18] = [
    ("CIFAR10/conv1", [100, 3, 32, 32, 5, 1, 2]),
    ("CIFAR10/conv2", [100, 32, 16, 32, 5, 1, 2]),
    ("CIFAR10/conv3", [100, 32, 8, 64, 5, 1, 2]),
    ("Siamese/conv1", [64, 1, 28, 20, 5, 1, 0]),
    ("Siamese/conv2", [64, 20, 12, 50, 5, 1, 0]),
    ("Siamese/conv1_p", [64, 1, 28, 20, 5, 1, 0]),
    ("Siamese/conv2_p", [64, 20, 12, 50, 5, 1, 0]),
    ("CaffeNet/conv1", [256, 3, 227, 96, 11, 4, 0]),
    ("CaffeNet/conv2", [256, 96, 27, 256, 5, 1, 2]),
    ("CaffeNet/conv3", [256, 256, 13, 384, 3, 1, 1]),
    ("CaffeNet/conv4", [256, 384, 13, 384, 3, 1, 1]),
    ("CaffeNet/conv5", [256, 384, 13, 256, 3, 1, 1]),
    ("GoogLeNet/conv_1", [32, 160, 7, 320, 3, 1, 1]),
    ("GoogLeNet/conv_2", [32, 832, 7, 32, 1, 1, 0]),
    ("GoogLeNet/conv_3", [32, 832, 7, 384, 1, 1, 0]),
    ("GoogLeNet/conv_4", [32, 192, 7, 384, 3, 1, 1]),
    ("GoogLeNet/conv_5", [32, 832, 7, 192, 1, 1, 0]),
    ("GoogLeNet/conv_6", [32, 832, 7, 48, 1, 1, 0]),
];

/// Table 5.
pub fn table_5() -> Vec<ConvolutionShape> {
    let shape = |(name, [n, c, side, out, kernel, stride, pad]): (&str, [usize; 7])| ConvolutionShape {
        name: name.to_owned(),
        input: [n, c, side, side],
        out,
        kernel: [kernel; 2],
        stride: [stride; 2],
        pad: [pad; 2],
        dilation: [1; 2],
        group: 1,
    };
    TABLE_5.into_iter().map(shape).collect()
}

/// Operations and bytes of one image's forward, if every array is touched once.
fn work(shape: &ConvolutionShape) -> (f64, f64) {
    let ([rows, columns, depth], [_, c, h, w]) = (product(shape), shape.input);
    let flops = 2 * rows * columns * depth;
    (flops as f64, (4 * (c * h * w + rows * depth + rows * columns)) as f64)
}

/// Forward of one image as a matrix product: output channels, pixels, depth.
fn product(shape: &ConvolutionShape) -> [usize; 3] {
    let [_, c, h, w] = shape.input;
    let [rows, columns] = shape.layer().output([h, w]).unwrap_or([0, 0]);
    [shape.out, rows * columns, c * shape.kernel[0] * shape.kernel[1]]
}

/// A matrix product of the library: outputs of a tile, threads and shared memory of a block.
struct Tile {
    outputs: [usize; 2],
    threads: u32,
    registers: u32,
    shared: u64,
}

/// Tiles of cuBLAS' sgemm on Maxwell and Pascal, by their names: `sgemm_128x128`, `_128x64`, `_32x32_sliced1x4`.
const TILES: [Tile; 3] = [
    Tile { outputs: [128, 128], threads: 256, registers: 120, shared: 16384 },
    Tile { outputs: [128, 64], threads: 128, registers: 120, shared: 12544 },
    Tile { outputs: [32, 32], threads: 128, registers: 80, shared: 9216 },
];

/// What Caffe runs for each image on a GPU: im2col unless the kernel is 1x1, the product, and the bias as a product of depth 1.
pub fn caffe_kernels(shape: &ConvolutionShape, model: &DeviceModel) -> Vec<(&'static str, Kernel)> {
    let ([out, pixels, depth], [_, c, h, w]) = (product(shape), shape.input);
    let streaming = |elements: usize, per_block: usize, registers: u32, bytes: usize| Kernel {
        grains: elements.div_ceil(per_block) as u64,
        threads: if per_block < 512 { 256 } else { 512 },
        registers,
        shared: 0,
        saturating: model.stream.saturating,
        width: u64::MAX,
        flops: 0.0,
        bytes: bytes as f64,
    };
    let mut kernels = Vec::new();
    if shape.kernel != [1, 1] {
        // A thread for each channel and pixel (Caffe's `im2col_gpu`), of 33 registers (section 3.1 of the paper).
        let bytes = 4 * (c * h * w + pixels * depth);
        kernels.push(("im2col", streaming(c * pixels, 512, 33, bytes)));
    }
    let tiled = |tile: &Tile| {
        let [a, b] = tile.outputs;
        let grains = pixels.div_ceil(a) * out.div_ceil(b);
        Kernel {
            grains: grains as u64,
            threads: tile.threads,
            registers: tile.registers,
            shared: tile.shared,
            saturating: model.compute.saturating,
            width: u64::MAX,
            // Tiles that stand over are computed, too.
            flops: (grains * 2 * a * b * depth) as f64,
            bytes: (4 * (out * depth + pixels * depth + out * pixels)) as f64,
        }
    };
    // The library takes the tile that is done first.
    let sgemm = TILES.iter().map(tiled).min_by(|a, b| model.alone(a).total_cmp(&model.alone(b)));
    kernels.extend(sgemm.map(|kernel| ("sgemm", kernel)));
    kernels.push(("gemmk", streaming(out * pixels, 256, 32, 8 * out * pixels)));
    kernels
}

/// What a quadrant runs for each image: one task.
pub fn crew_kernels(shape: &ConvolutionShape, model: &DeviceModel) -> Vec<(&'static str, Kernel)> {
    let (flops, bytes) = work(shape);
    vec![("convolution", model.kernel(flops, bytes))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_those_of_the_paper_s_example() {
        let model =
            DeviceModel::serial(quadrille_core::plan::Rates { flops: 1.0, bytes: 1.0, overhead: 0.0 });
        let conv1 = table_5().into_iter().find(|shape| shape.name == "CaffeNet/conv1").expect("it is there");
        let kernels = caffe_kernels(&conv1, &model);
        assert_eq!(kernels.iter().map(|(name, _)| *name).collect::<Vec<_>>(), ["im2col", "sgemm", "gemmk"]);
        // Section 3.1: a grid of [18,1,1] and 33 registers.
        assert_eq!((kernels[0].1.grains, kernels[0].1.registers), (18, 33));
        assert_eq!(product(&conv1), [96, 55 * 55, 363]);
        let pointwise =
            table_5().into_iter().find(|shape| shape.name == "GoogLeNet/conv_2").expect("it is there");
        assert_eq!(caffe_kernels(&pointwise, &model).len(), 2, "no im2col");
        assert!(table_5().iter().all(|shape| NETWORKS.contains(&shape.name.split('/').next().unwrap_or(""))));
    }
}
