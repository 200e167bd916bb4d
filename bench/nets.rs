//! Networks as they are trained, without data.

use std::path::Path;

use quadrille_core::layer::Layer;
use quadrille_core::net::{Net, NetState, Phase};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_io::prototxt::read_net;

/// The network of a file for training, with mini-batches of so many images, whose shape follows from what is cut out or from
/// the name of the file's folder.
///
/// # Errors
/// If it cannot be read or built.
pub fn training(path: &Path, batch: usize) -> Result<Net, String> {
    let mut spec = read_net(path).map_err(|error| error.to_string())?;
    let folder = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
    for layer in &mut spec.layers {
        if let Layer::Data(data) = &mut layer.layer {
            data.batch = batch;
            data.sample = Some(match data.transform.crop {
                0 if folder.contains("cifar") => [3, 32, 32],
                0 if folder == "siamese" => [2, 28, 28],
                0 => [1, 28, 28],
                crop => [3, crop, crop],
            });
        }
    }
    Net::build(&spec, &NetState::new(Phase::Train), 1.0).map_err(|error| error.to_string())
}

/// Forward and backward of it as a plan.
///
/// # Errors
/// If no plan can be made.
pub fn gradients(net: &Net) -> Result<Plan, String> {
    let options = PlanOptions::new(Stage::Gradients);
    Plan::build(std::slice::from_ref(net), options).map_err(|error| error.to_string())
}

/// Bytes of a mini-batch.
pub fn batch_bytes(net: &Net) -> usize {
    let tops = net.layers.iter().filter(|layer| layer.layer.is_source()).flat_map(|layer| &layer.tops);
    size_of::<f32>() * tops.map(|top| net.blob(*top).shape.count()).sum::<usize>()
}
