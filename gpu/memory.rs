//! Where everything lies on a GPU: all arrays of all nets in one arena.

use quadrille_core::device::{Packed, Region};
use quadrille_core::net::{AuxId, LayerId, Net, ParamId, StorageId};
use quadrille_core::plan::normed_params;

use crate::op::Span;

/// Arrays begin at multiples of so many elements, 256 bytes: what the driver's own allocations keep to.
const ALIGNMENT: usize = 64;

/// Places in an arena, one after the other.
#[derive(Debug, Default)]
pub(crate) struct Space {
    len: usize,
}

impl Space {
    /// Room for an array.
    pub fn reserve(&mut self, len: usize) -> Span {
        let start = self.len;
        self.len = (start + len).next_multiple_of(ALIGNMENT);
        Span::arena(start, len)
    }

    /// Elements so far.
    pub fn len(&self) -> usize {
        self.len
    }
}

/// The packed buffers, which all nets of a device share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedMap {
    /// Weights.
    pub weights: Span,
    /// Their gradients.
    pub gradients: Span,
    /// Histories: all first ones and then, for some rules, all second ones.
    pub histories: Span,
    /// The centre, for EASGD.
    pub centre: Option<Span>,
    /// Gradients of earlier mini-batches, where an iteration has several.
    pub sums: Option<Span>,
}

impl PackedMap {
    /// Places for buffers of `len` elements.
    pub fn new(space: &mut Space, len: usize, histories: usize, elastic: bool, gathers: bool) -> Self {
        Self {
            weights: space.reserve(len),
            gradients: space.reserve(len),
            histories: space.reserve(histories * len),
            centre: elastic.then(|| space.reserve(len)),
            sums: gathers.then(|| space.reserve(len)),
        }
    }

    fn of(&self, packed: Packed) -> Option<Span> {
        match packed {
            Packed::Weights => Some(self.weights),
            Packed::Gradients => Some(self.gradients),
            Packed::Histories => Some(self.histories),
            Packed::Centre => self.centre,
            Packed::Sums => self.sums,
        }
    }

    /// A parameter in one of the buffers.
    pub fn param(&self, net: &Net, packed: Packed, id: ParamId) -> Option<Span> {
        let view = net.params.view(id);
        self.of(packed).map(|span| span.part(view.offset, view.shape.count()))
    }
}

/// The arrays of one net.
#[derive(Debug)]
pub(crate) struct NetMap {
    packed: PackedMap,
    storages: Vec<Span>,
    /// Channels and pixels of those whose channels lie last.
    last: Vec<Option<[usize; 2]>>,
    /// Which storages share their memory with others.
    shared: Vec<bool>,
    stages: Vec<(StorageId, Span)>,
    aux: Vec<Span>,
    kept: Vec<AuxId>,
    /// The sums of squares of the layers that are a part of the norm.
    norms: Option<(Vec<LayerId>, Span)>,
    /// Elements of values and gradients, and what they would take if none shared memory.
    blobs: [usize; 2],
}

impl NetMap {
    /// Places for all arrays of `net`; `last` as [`crate::layout::channels_last`] has it.
    ///
    /// # Errors
    /// If the net shares memory otherwise than whole arrays do.
    pub fn new(
        net: &Net,
        packed: PackedMap,
        last: Vec<Option<[usize; 2]>>,
        space: &mut Space,
    ) -> Result<Self, String> {
        let start = space.len();
        let storages = match &net.memory {
            None => net.storages.iter().map(|len| space.reserve(*len)).collect(),
            Some(memory) => {
                let whole = space.reserve(memory.len);
                let places = memory.ranges.iter().zip(&net.storages).enumerate();
                let place = |(id, (range, len)): (usize, (&std::ops::Range<usize>, &usize))| {
                    let fits = range.len() >= *len && net.part(StorageId(id)).is_none();
                    fits.then(|| whole.part(range.start, *len)).ok_or_else(|| {
                        format!("array {id} of {len} elements was planned for kernels of another device")
                    })
                };
                places.map(place).collect::<Result<Vec<Span>, String>>()?
            }
        };
        let blobs = [space.len() - start, net.storages.iter().sum()];
        let overlaps = |id: usize| net.overlapping(StorageId(id)).count() > 1;
        let sources = net.layers.iter().filter(|layer| layer.layer.is_source());
        let tops = sources.flat_map(|layer| &layer.tops).map(|top| net.blob(*top).data);
        let layers = (0..if net.clips { net.layers.len() } else { 0 }).map(LayerId);
        let normed: Vec<LayerId> = layers.filter(|layer| !normed_params(net, *layer).is_empty()).collect();
        Ok(Self {
            packed,
            shared: (0..storages.len()).map(overlaps).collect(),
            stages: tops.map(|id| (id, space.reserve(net.storages[id.0]))).collect(),
            aux: net.aux.iter().map(|len| space.reserve(*len)).collect(),
            kept: (0..net.aux.len()).map(AuxId).filter(|id| net.keeps_state(*id)).collect(),
            norms: net.clips.then(|| (normed.clone(), space.reserve(normed.len()))),
            storages,
            last,
            blobs,
        })
    }

    /// The packed buffers.
    pub fn packed(&self) -> &PackedMap {
        &self.packed
    }

    /// A storage.
    pub fn storage(&self, id: StorageId) -> Span {
        self.storages[id.0]
    }

    /// Channels and pixels of a storage whose channels lie last.
    pub fn channels_last(&self, id: StorageId) -> Option<[usize; 2]> {
        self.last.get(id.0).copied().flatten()
    }

    /// Where the host stages the next values of a storage.
    pub fn stage(&self, id: StorageId) -> Option<Span> {
        self.stages.iter().find(|(storage, _)| *storage == id).map(|(_, span)| *span)
    }

    /// A layer's own state.
    pub fn aux(&self, id: AuxId) -> Span {
        self.aux[id.0]
    }

    /// The place of a layer's sum of squares, and that of all of them.
    pub fn norm(&self, layer: LayerId) -> Option<Span> {
        let (layers, all) = self.norms.as_ref()?;
        layers.iter().position(|id| *id == layer).map(|at| all.part(at, 1))
    }

    /// The sums of squares of all layers.
    pub fn norms(&self) -> Option<Span> {
        self.norms.as_ref().map(|(_, all)| *all)
    }

    /// Elements of values and gradients: in memory, and what they would take if none shared memory.
    pub fn blobs(&self) -> [usize; 2] {
        self.blobs
    }

    /// Where the beginning of a region lies; `None` if there is no such region, it is shorter, or its memory is used for other
    /// arrays, too, so that nobody knows what lies there.
    pub fn region(&self, region: Region, len: usize) -> Option<Span> {
        let span = match region {
            Region::Packed(packed) => self.packed.of(packed)?,
            Region::PackedFrom(packed, first) => {
                let whole = self
                    .packed
                    .of(packed)
                    .filter(|whole| packed != Packed::Histories && first <= whole.len)?;
                whole.part(first, whole.len - first)
            }
            // A part of an array whose channels lie last is some of its images.
            Region::Storage(id)
                if self.channels_last(id).is_some_and(|[c, p]| !len.is_multiple_of(c * p)) =>
            {
                return None;
            }
            Region::Storage(id) if self.shared.get(id.0) == Some(&false) => self.storages[id.0],
            Region::Storage(_) => return None,
            Region::Stage(id) => self.stage(id)?,
            Region::Kept(id) => self.kept.contains(&id).then(|| self.aux[id.0])?,
        };
        (len <= span.len).then(|| span.part(0, len))
    }

    /// All of a storage, which may share its memory.
    pub fn stored(&self, id: StorageId) -> Option<Span> {
        self.storages.get(id.0).copied()
    }
}
