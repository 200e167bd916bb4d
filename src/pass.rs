//! One phase of a network on the devices of a worker: what goes in, what comes out.

use quadrille_core::device::{Device, Region};
use quadrille_core::layer::Layer;
use quadrille_core::net::{AuxId, Blob, BlobId, Net, StorageId};
use quadrille_core::plan::tiles;
use quadrille_core::task::Tile;
use quadrille_io::weights::Tensors;

use crate::engine::WorkerDevice;
use crate::failure::{Code, Failure};
use crate::progress::Output;

/// A network cut over the devices of a worker, image by image.
pub struct Pass {
    /// One net for each device.
    pub nets: Vec<Net>,
    /// The devices.
    pub devices: Vec<WorkerDevice>,
    tiles: Vec<Tile>,
    batch: usize,
    /// Where data, labels and other inputs go; the same storages on every device.
    tops: Vec<StorageId>,
    /// Blobs that nobody reads and that are shown: losses and accuracies.
    outputs: Vec<BlobId>,
    /// Room for the largest blob that is a part of the loss.
    values: Vec<f32>,
}

impl Pass {
    /// Puts nets and devices together.
    pub fn new(nets: Vec<Net>, devices: Vec<WorkerDevice>) -> Self {
        let tiles = tiles(&nets);
        let net = &nets[0];
        let sources = net.layers.iter().filter(|l| l.layer.is_source());
        let tops = sources.flat_map(|l| &l.tops).map(|top| net.blob(*top).data).collect();
        let mut outputs: Vec<BlobId> = net.outputs().filter(|blob| is_shown(net, *blob)).collect();
        // In the order of Caffe, whose logs are read by number.
        outputs.sort_by_key(|blob| &net.blob(*blob).name);
        let losses = nets.iter().flat_map(|net| net.losses().map(|(b, _)| net.blob(b).shape.count()));
        let values = vec![0.0; losses.max().unwrap_or(0)];
        let batch = tiles.iter().map(|t| t.images).sum();
        Self { batch, tiles, tops, outputs, values, nets, devices }
    }

    /// Images of the mini-batch, over all devices.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Bytes of what goes in with a mini-batch.
    pub fn batch_bytes(&self) -> usize {
        let each = |net: &Net| self.tops.iter().map(|top| net.storages[top.0]).sum::<usize>();
        size_of::<f32>() * self.nets.iter().map(each).sum::<usize>()
    }

    /// Hands each device its part of what goes in, such as images and labels; its next step loads them.
    pub fn load<'a>(&self, arrays: impl IntoIterator<Item = &'a [f32]>) -> Result<(), Failure> {
        for (array, storage) in arrays.into_iter().zip(&self.tops) {
            if let [device] = self.devices.as_slice() {
                device.write(Region::Stage(*storage), array)?;
                continue;
            }
            let each = array.len() / self.batch;
            for (tile, device) in self.tiles.iter().zip(&self.devices) {
                let part = &array[tile.first * each..(tile.first + tile.images) * each];
                device.write(Region::Stage(*storage), part)?;
            }
        }
        Ok(())
    }

    /// The loss of the mini-batch after a step.
    pub fn loss(&mut self) -> Result<f32, Failure> {
        let mut sum = 0.0;
        for (net, device) in self.nets.iter().zip(&self.devices) {
            // The devices' weights hold their share of the mini-batch.
            for (blob, weight) in net.losses() {
                let blob = net.blob(blob);
                let values = &mut self.values[..blob.shape.count()];
                device.read(Region::Storage(blob.data), values)?;
                sum += weight * values.iter().sum::<f32>();
            }
        }
        Ok(sum)
    }

    /// Whether all losses of the mini-batch are finite, once forward has found them.
    pub fn losses_are_finite(&self) -> Result<bool, Failure> {
        for (net, device) in self.nets.iter().zip(&self.devices) {
            for (blob, _) in net.losses() {
                let blob = net.blob(blob);
                if !device.is_finite(Region::Storage(blob.data), blob.shape.count())? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Names of the outputs that are shown, once for each value.
    pub fn output_names(&self) -> impl Iterator<Item = &str> {
        let blobs = self.outputs.iter().map(|output| self.nets[0].blob(*output));
        blobs.flat_map(|blob| std::iter::repeat_n(blob.name.as_str(), blob.shape.count()))
    }

    /// The values of these outputs, all 0, with what each counts in the loss.
    pub fn outputs(&self) -> Vec<Output> {
        let (net, share) = (&self.nets[0], self.tiles[0].images as f32 / self.batch as f32);
        let weight = |output| net.losses().find(|(blob, _)| *blob == output).map_or(0.0, |(_, w)| w / share);
        let output = |blob: &BlobId| {
            let Blob { name, shape, .. } = net.blob(*blob);
            let one = Output { name: name.clone(), loss_weight: weight(*blob), value: 0.0 };
            vec![one; shape.count()]
        };
        self.outputs.iter().flat_map(output).collect()
    }

    /// Adds the outputs of the mini-batch, averaged over images, to `sums`.
    ///
    /// # Panics
    /// If there are not as many sums as [`Pass::outputs`].
    pub fn add_outputs(&self, sums: &mut [f32]) -> Result<(), Failure> {
        let mut rest = sums;
        for output in &self.outputs {
            let count = self.nets[0].blob(*output).shape.count();
            let (sums, others) = rest.split_at_mut(count);
            let mut values = vec![0.0; count];
            for ((net, device), tile) in self.nets.iter().zip(&self.devices).zip(&self.tiles) {
                let is_sum = net.sums_images(*output);
                let share = if is_sum { 1.0 } else { tile.images as f32 / self.batch as f32 };
                device.read(Region::Storage(net.blob(*output).data), &mut values)?;
                sums.iter_mut().zip(&values).for_each(|(sum, value)| *sum += value * share);
            }
            rest = others;
        }
        Ok(())
    }

    /// Sets a region of every device.
    pub fn write_all(&self, region: Region, values: &[f32]) -> Result<(), Failure> {
        self.devices.iter().try_for_each(|device| Ok(device.write(region, values)?))
    }

    /// Reads a region of the first device.
    pub fn read(&self, region: Region, out: &mut [f32]) -> Result<(), Failure> {
        Ok(self.devices[0].read(region, out)?)
    }

    /// The states that layers keep from step to step, by quadrant, layer and number.
    pub fn kept(&self) -> Result<Tensors, Failure> {
        let read = |(name, index, id, len): (String, usize, AuxId, usize)| {
            let mut values = vec![0.0; len];
            self.devices[index].read(Region::Kept(id), &mut values)?;
            Ok((name, (vec![len], values)))
        };
        self.kept_regions().map(read).collect()
    }

    /// Puts back what [`Pass::kept`] gave; `false` if it is not of the same layers.
    pub fn put_kept(&self, kept: &Tensors) -> Result<bool, Failure> {
        for (name, index, id, len) in self.kept_regions() {
            match kept.get(&name) {
                Some((_, values)) if values.len() == len => {
                    self.devices[index].write(Region::Kept(id), values)?;
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    fn kept_regions(&self) -> impl Iterator<Item = (String, usize, AuxId, usize)> {
        self.nets.iter().enumerate().flat_map(|(index, net)| {
            let states = net.layers.iter().flat_map(move |layer| {
                let named = layer.aux.iter().enumerate();
                named.map(move |(i, id)| (format!("quadrant{index}/{}/{i}", layer.name), *id))
            });
            let kept = states.filter(|(_, id)| net.keeps_state(*id));
            kept.map(move |(name, id)| (name, index, id, net.aux[id.0]))
        })
    }

    /// Makes sure that all devices hold the same bits in a region of `len` elements.
    pub fn check_replicas(&self, region: Region, len: usize) -> Result<(), Failure> {
        let (mut first, mut other) = (vec![0.0; len], vec![0.0; len]);
        self.devices[0].read(region, &mut first)?;
        for (index, device) in self.devices.iter().enumerate().skip(1) {
            device.read(region, &mut other)?;
            if first.iter().zip(&other).any(|(a, b)| a.to_bits() != b.to_bits()) {
                return Err(Failure::new(
                    Code::Bug,
                    format!(
                        "device {index} holds other bits in {region:?} than device 0: please report this"
                    ),
                ));
            }
        }
        Ok(())
    }
}

/// Whether an output is shown, value by value: those of one, and the accuracies of each class. (Caffe shows all others, too, such as all
/// scores of all images that nobody reads.)
fn is_shown(net: &Net, output: BlobId) -> bool {
    let Blob { shape, producer, .. } = net.blob(output);
    shape.count() == 1 || matches!(net.layer(*producer).layer, Layer::Accuracy(_))
}
