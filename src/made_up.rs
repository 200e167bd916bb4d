//! Made-up samples, for networks whose data set is not at hand: their shape, their values and their labels.

use std::path::Path;

use quadrille_core::layer::{Data, DataKind};
use quadrille_core::net::{LayerId, Net, NetSpec, NetState, Phase};
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::shape::MAX_ELEMENTS;
use quadrille_core::site::Fault;
use quadrille_io::data::{Dataset, SearchPath};

use crate::bundled;
use crate::failure::{Code, Failure};

/// Channels, height and width of the images of data sets that everybody knows, by what a part of the source's path
/// begins with; the first that fits counts.
const KNOWN: [(&str, [usize; 3]); 3] =
    [("mnist_siamese", [2, 28, 28]), ("mnist", [1, 28, 28]), ("cifar", [3, 32, 32])];

/// Mini-batches of a made-up data set.
const BATCHES: usize = 4;

/// The shape of a source's samples: as `asked`, or else what the transform cuts out (of as many channels as it has
/// means, or 3), or else that of the data set if it is there, or else that of a well-known one, or else that to which all
/// samples are resized.
///
/// # Errors
/// A [`Fault`] of the source that names the flag.
pub fn sample_shape(
    data: &Data,
    phase: Phase,
    file: &Path,
    asked: Option<[usize; 3]>,
) -> Result<[usize; 3], Fault> {
    if let Some(shape) = asked {
        return Ok(shape);
    }
    if let DataKind::Memory(shape) = data.kind {
        return Ok(shape);
    }
    // A single mean serves any number of channels.
    let means = data.transform.mean_values.len();
    let of = |[height, width]: [usize; 2]| [if means > 1 { means } else { 3 }, height, width];
    let fixed = data.transform.fixed_size().map(of);
    if let Some(shape) = fixed.filter(|_| data.transform.crop > 0) {
        return Ok(shape);
    }
    let search = SearchPath::usual(file, bundled::repository().as_deref());
    if let Ok(shape) = quadrille_io::data::sample_shape(data, phase, &search) {
        return Ok(shape);
    }
    let source = data.source.to_lowercase();
    let known = KNOWN.iter().find(|(name, _)| source.split(['/', '\\']).any(|part| part.starts_with(name)));
    known.map(|(_, shape)| *shape).or(fixed).ok_or_else(|| {
        let message = format!("the shape of the samples of {:?} is not known", data.source);
        Fault::new(&data.kind.field("source"), message)
            .hint("give it with --data-shape, such as --data-shape 3,32,32 (channels, height, width)")
    })
}

/// The number of classes that every loss of the net can tell apart; `None` without such a loss.
pub fn classes(net: &Net) -> Option<usize> {
    let layers = (0..net.layers.len()).map(LayerId);
    let losses = layers.filter_map(|id| net.layer(id).layer.classes(&net.bottom_shapes(id)));
    losses.map(|(classes, _)| classes).min()
}

/// Labels below `classes` by chance; all 0 if nobody says how many classes there are.
pub fn labels(classes: Option<usize>, count: usize) -> Vec<u16> {
    let classes = classes.unwrap_or(1).clamp(1, 1 << 16) as u64;
    let stream = Stream::new(2, Purpose::Dummy, 0);
    (0..count as u64).map(|i| ((u64::from(stream.bits(i)) * classes) >> 32) as u16).collect()
}

/// A data set in memory for the source of a net in `state`, whose samples have a known shape: some mini-batches of noise.
///
/// # Errors
/// If the network cannot be built on it, or if it would be too large.
pub fn dataset(
    spec: &NetSpec,
    state: &NetState,
    shape: [usize; 3],
    batch: usize,
) -> Result<Dataset, Failure> {
    let net = Net::build(spec, state, 1.0)?;
    let (name, images) = ("made-up data", batch.saturating_mul(BATCHES));
    let pixels = shape.iter().fold(images, |n, extent| n.saturating_mul(*extent));
    let refuse = |code, reason: String| {
        Failure::new(code, format!("{name}: {reason}\n  hint: a smaller --batch needs less"))
    };
    if pixels > MAX_ELEMENTS {
        return Err(refuse(Code::Usage, format!("{images} images have more than {MAX_ELEMENTS} values")));
    }
    let mut values = Vec::new();
    let refused = |error| refuse(Code::Environment, format!("{pixels} bytes: {error}"));
    values.try_reserve_exact(pixels).map_err(refused)?;
    // Another stream for each phase, so that nothing is trained on what it is tested with.
    let stream = Stream::new(3, Purpose::Dummy, u32::from(state.phase == Phase::Test));
    let blocks = (0..pixels.div_ceil(16) as u64).map(|block| stream.block(block));
    values.extend(blocks.flat_map(|words| words.map(u32::to_le_bytes)).flatten().take(pixels));
    Ok(Dataset::new(name, Path::new(name), values, labels(classes(&net), images), shape)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quadrille_core::layer::{Resampling, Resize, Transform};

    fn source(name: &str, transform: Transform) -> Data {
        Data { source: name.to_owned(), batch: 1, transform, sample: None, kind: DataKind::Records }
    }

    fn shape(data: &Data, asked: Option<[usize; 3]>) -> Result<[usize; 3], Fault> {
        sample_shape(data, Phase::Train, Path::new("net.prototxt"), asked)
    }

    #[test]
    fn a_shape_follows_from_flag_crop_or_name() {
        let crop =
            |means: usize| Transform { crop: 227, mean_values: vec![1.0; means], ..Transform::default() };
        assert_eq!(shape(&source("x", crop(0)), None), Ok([3, 227, 227]));
        assert_eq!(shape(&source("x", crop(1)), None), Ok([3, 227, 227]));
        assert_eq!(shape(&source("x", crop(4)), None), Ok([4, 227, 227]));
        assert_eq!(shape(&source("x", crop(3)), Some([3, 256, 300])), Ok([3, 256, 300]));
        // What is resized in any case may have any size.
        let how = Resize { size: [30, 40], resampling: Resampling::default() };
        let resized = Transform { resize: Some(Box::new(how)), ..Transform::default() };
        assert_eq!(shape(&source("x", resized), None), Ok([3, 30, 40]));
        let plain = |name| shape(&source(name, Transform::default()), None);
        assert_eq!(plain("data/cifar10/train_lmdb"), Ok([3, 32, 32]));
        assert_eq!(plain("examples/siamese/mnist_siamese_train_leveldb"), Ok([2, 28, 28]));
        assert_eq!(plain("examples/mnist/mnist_train_lmdb"), Ok([1, 28, 28]));
        let fault = plain("data/unheard_of").unwrap_err();
        assert!(fault.hint.is_some_and(|hint| hint.contains("--data-shape")), "{}", fault.message);
    }

    #[test]
    fn labels_are_spread_over_the_classes() {
        let mut counts = [0; 10];
        labels(Some(10), 1000).iter().for_each(|label| counts[usize::from(*label)] += 1);
        // 100 each on average; six deviations are 57.
        assert!(counts.iter().all(|count| (43..157).contains(count)), "{counts:?}");
        assert!(labels(Some(1000), 5000).iter().any(|label| *label > 900));
        assert_eq!(labels(None, 3), [0, 0, 0]);
    }
}
