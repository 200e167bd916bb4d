//! A device's memory: every array that tasks touch, in a few arenas that are made once.
//!
//! Arrays are named by [`Span`]s. Reading and writing through a span is unsafe because the type system cannot see
//! why it is right; the reason is always the same and stands here:
//!
//! 1. *Between tasks*: the plan orders every two tasks that touch one array unless both only read it. The
//!    validator (`quadrille_core::check`) accepts no other plan, and devices are made from checked plans only.
//! 2. *Between the grains of a task*: each grain writes a part of the array that no other grain of the task reads
//!    or writes. Every kernel states its cut.
//! 3. *Between the tasks of a lane*: a lane runs one task at a time, so what tasks of one lane need only while they run
//!    (packed weights, partial sums) is one workspace, used again by each.
//! 4. *Against the host*: the host touches a region only between steps, or when no task of the running plan does.
//!
//! Devices on one node have some weights together ([`PackedMemory::with_weights_of`]). To rule 1 each device has its own: who
//! changes a part of them declares that for all devices, so its task comes behind all readers, wherever these think it lies.
//!
//! Storages that share memory (`Net::sharing_memory`) are one array to rule 1: plans order their tasks together. The host
//! cannot know which of them lies there after a step, so it gets none of them.
//!
//! Between the images of a storage that lies inside another, other parts of that one lie. They are other arrays to rule 1,
//! which other tasks may write meanwhile: whoever has such a span makes slices of parts of one image, and none of it all.

use std::iter;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

use quadrille_core::device::{Packed, Region};
use quadrille_core::net::{AuxId, Net, ParamId, StorageId};
use quadrille_core::task::LaneId;

use crate::arena::{Arena, Homes, OutOfMemory, Purpose};
use crate::layout::{Arrangement, Layout};

/// A word that is no number, neither as f32 nor in either half as bf16: what is left where nothing should be read.
pub const NAN_HALVES: f32 = f32::from_bits(0x7fc0_7fc0);

/// Arrays start at cache lines.
const ALIGN: usize = 64;
/// The same in elements.
const ALIGN_ELEMENTS: usize = ALIGN / size_of::<f32>();

/// Which arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArenaKind {
    Weights,
    Gradients,
    Histories,
    Centre,
    Sums,
    /// Blobs and layers' state of one net.
    Net,
    /// What the host has staged for one net.
    Stage,
    /// What the tasks of one lane use while they run; one task after the other.
    Lane(usize),
}

/// A named part of a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    arena: ArenaKind,
    offset: usize,
    len: usize,
}

impl Span {
    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// A part of the span.
    pub fn part(&self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "part {range:?} of {} elements", self.len);
        Self { offset: self.offset + range.start, len: range.end - range.start, ..*self }
    }
}

/// Lengths of the packed buffers of a device, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedLengths {
    /// Of the weights and of their gradients.
    pub parameters: usize,
    /// Histories of each.
    pub histories: usize,
    /// Whether there is a centre, for EASGD.
    pub elastic: bool,
    /// Whether there are sums, for iterations of several mini-batches.
    pub gathers: bool,
}

impl PackedLengths {
    /// Elements of one of the buffers; none of anything else.
    pub fn of(self, purpose: Purpose) -> usize {
        match purpose {
            Purpose::Weights | Purpose::Gradients => self.parameters,
            Purpose::Histories => self.histories * self.parameters,
            Purpose::Centre if self.elastic => self.parameters,
            Purpose::Sums if self.gathers => self.parameters,
            _ => 0,
        }
    }
}

/// The packed buffers of a device, shared by all nets that it runs.
#[derive(Debug)]
pub(crate) struct PackedMemory {
    weights: Arena,
    gradients: Arena,
    histories: Arena,
    centre: Arena,
    sums: Arena,
    len: usize,
    /// Of the weights, what lies on another device.
    together: Option<Together>,
}

/// Parts of the packed weights that devices have together.
#[derive(Debug)]
struct Together {
    /// Where they lie.
    with: Arc<PackedMemory>,
    /// In their order.
    parts: Vec<Range<usize>>,
}

impl PackedMemory {
    /// Buffers of these lengths.
    pub fn new(lengths: PackedLengths, homes: &Homes) -> Result<Self, OutOfMemory> {
        let arena = |purpose| Arena::new(lengths.of(purpose), homes.of(purpose));
        Ok(Self {
            weights: arena(Purpose::Weights)?,
            gradients: arena(Purpose::Gradients)?,
            histories: arena(Purpose::Histories)?,
            centre: arena(Purpose::Centre)?,
            sums: arena(Purpose::Sums)?,
            len: lengths.parameters,
            together: None,
        })
    }

    /// The same with `parts` of the weights, in their order, in the memory of another device on the same node. Only for parts
    /// that each task that changes them changes on all devices.
    pub fn with_weights_of(self, other: &Arc<Self>, parts: &[Range<usize>]) -> Self {
        Self { together: Some(Together { with: other.clone(), parts: parts.to_vec() }), ..self }
    }

    /// Whether a part of the weights lies on another device.
    ///
    /// # Panics
    /// If some of it does and some does not.
    fn has_elsewhere(&self, part: &Range<usize>) -> bool {
        let parts = self.together.iter().flat_map(|together| &together.parts);
        let mut found = parts.filter(|other| part.start < other.end && other.start < part.end);
        found.next().is_some_and(|other| {
            assert!(other.start <= part.start && part.end <= other.end, "weights {part:?} lie in two places");
            true
        })
    }

    /// The buffers with their purposes.
    pub fn arenas(&self) -> [(Purpose, &Arena); 5] {
        [
            (Purpose::Weights, &self.weights),
            (Purpose::Gradients, &self.gradients),
            (Purpose::Histories, &self.histories),
            (Purpose::Centre, &self.centre),
            (Purpose::Sums, &self.sums),
        ]
    }
}

/// Bytes of the values and gradients of a net.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlobBytes {
    /// In memory.
    pub taken: usize,
    /// What they would take if none shared memory with another.
    pub apart: usize,
}

/// A storage in the net's arena.
#[derive(Debug)]
struct Stored {
    range: Range<usize>,
    /// How it lies there; never with others between its images where the host may read it.
    arrangement: Arrangement,
    /// Whether others lie in the same memory.
    shares: bool,
}

/// Where everything of one net lies.
#[derive(Debug, Default)]
pub(crate) struct MemoryMap {
    storages: Vec<Stored>,
    blobs: BlobBytes,
    stages: Vec<(StorageId, Range<usize>)>,
    aux: Vec<Option<Range<usize>>>,
    /// States that layers keep from step to step.
    kept: Vec<AuxId>,
    len: usize,
    stages_len: usize,
    lanes: Vec<usize>,
}

impl MemoryMap {
    /// Places the storages of `net`, which lie as `arrangements` say, and a staging array for each top of its sources.
    ///
    /// # Errors
    /// If the net shares memory that was planned for shorter arrays.
    pub fn new(net: &Net, arrangements: &[Arrangement]) -> Result<Self, String> {
        let mut map = Self::default();
        if let Some(memory) = &net.memory {
            map.reserve(memory.len);
        }
        for (index, arrangement) in arrangements.iter().enumerate() {
            let len = arrangement.extent();
            // Where it begins in its range.
            let first = net.part(StorageId(index)).map_or(0, |part| part.elements.start);
            let range = match &net.memory {
                Some(memory) => memory.ranges[index].start + first..memory.ranges[index].start + first + len,
                None => map.reserve(len),
            };
            if let Some(planned) = net.memory.as_ref().map(|memory| memory.ranges[index].len())
                && planned < first + len
            {
                return Err(format!(
                    "array {index} takes {len} elements, but memory is shared as if it took {planned}; it was planned \
                     for other kernels"
                ));
            }
            let shares = net.overlapping(StorageId(index)).count() > 1;
            map.storages.push(Stored { range, arrangement: *arrangement, shares });
        }
        let bytes = |len: usize| len * size_of::<f32>();
        let apart = arrangements.iter().map(|a| bytes(a.len())).sum();
        map.blobs = BlobBytes { taken: bytes(map.len), apart };
        map.aux = vec![None; net.aux.len()];
        map.kept = (0..net.aux.len()).map(AuxId).filter(|id| net.keeps_state(*id)).collect();
        for source in net.layers.iter().filter(|l| l.layer.is_source()) {
            for top in &source.tops {
                let blob = net.blob(*top);
                let start = map.stages_len;
                map.stages_len = (start + blob.shape.count()).next_multiple_of(ALIGN_ELEMENTS);
                map.stages.push((blob.data, start..start + blob.shape.count()));
            }
        }
        Ok(map)
    }

    fn reserve(&mut self, len: usize) -> Range<usize> {
        let start = self.len;
        self.len = (start + len).next_multiple_of(ALIGN_ELEMENTS);
        start..start + len
    }

    /// Memory for the use of a lane's tasks while they run, from `offset` on. It is the same for all tasks of the
    /// lane, which run one after the other.
    pub fn workspace(&mut self, lane: LaneId, offset: usize, len: usize) -> Span {
        self.lanes.resize(self.lanes.len().max(lane.0 + 1), 0);
        let end = &mut self.lanes[lane.0];
        *end = (*end).max(offset + len);
        Span { arena: ArenaKind::Lane(lane.0), offset, len }
    }

    fn net(range: Range<usize>) -> Span {
        Span { arena: ArenaKind::Net, offset: range.start, len: range.len() }
    }

    /// So many words for whatever tasks leave to other tasks of the step.
    pub fn words(&mut self, len: usize) -> Span {
        Self::net(self.reserve(len))
    }

    /// A storage.
    pub fn storage(&self, id: StorageId) -> Span {
        Self::net(self.storages[id.0].range.clone())
    }

    /// The staging array of a storage, if a source writes it.
    pub fn stage(&self, id: StorageId) -> Option<Span> {
        let (_, range) = self.stages.iter().find(|(s, _)| *s == id)?;
        Some(Span { arena: ArenaKind::Stage, offset: range.start, len: range.len() })
    }

    /// Elements of the net's arenas: values, and staging.
    pub fn lengths(&self) -> [usize; 2] {
        [self.len, self.stages_len]
    }

    /// A layer's state of `len` elements, placed when it is first asked for: a layout may need more elements than
    /// the meaning, and a kernel may need no state at all.
    pub fn aux(&mut self, id: AuxId, len: usize) -> Span {
        let range = match self.aux[id.0].clone() {
            Some(range) => range,
            None => self.reserve(len),
        };
        self.aux[id.0] = Some(range.clone());
        Self::net(range)
    }

    /// A parameter in one of the packed buffers.
    pub fn param(net: &Net, packed: Packed, id: ParamId) -> Span {
        let range = net.params.view(id).range();
        Span { arena: arena_of(packed), offset: range.start, len: range.len() }
    }
}

fn arena_of(packed: Packed) -> ArenaKind {
    match packed {
        Packed::Weights => ArenaKind::Weights,
        Packed::Gradients => ArenaKind::Gradients,
        Packed::Histories => ArenaKind::Histories,
        Packed::Centre => ArenaKind::Centre,
        Packed::Sums => ArenaKind::Sums,
    }
}

/// The workspaces of a device's lanes, shared by all nets that it runs: a lane runs one task at a time, whatever the net.
#[derive(Debug)]
pub(crate) struct LaneMemory(Vec<Arena>);

impl LaneMemory {
    /// As many elements for each lane as the most that one of `maps` needs.
    pub fn lengths<'a>(maps: impl Iterator<Item = &'a MemoryMap>) -> Vec<usize> {
        maps.fold(Vec::new(), |mut most, map| {
            most.resize(most.len().max(map.lanes.len()), 0);
            most.iter_mut().zip(&map.lanes).for_each(|(most, len)| *most = *len.max(most));
            most
        })
    }

    /// Workspaces of these lengths.
    pub fn new(lengths: &[usize], homes: &Homes) -> Result<Self, OutOfMemory> {
        let arena = |len: &usize| Arena::new(*len, homes.of(Purpose::Workspaces));
        Ok(Self(lengths.iter().map(arena).collect::<Result<_, _>>()?))
    }

    /// The workspaces.
    pub fn arenas(&self) -> &[Arena] {
        &self.0
    }
}

/// The memory of one net on one device.
#[derive(Debug)]
pub(crate) struct Memory {
    packed: Arc<PackedMemory>,
    net: Arena,
    stage: Arena,
    lanes: Arc<LaneMemory>,
    map: MemoryMap,
}

impl Memory {
    /// Memory for the net of a program, beside what the device's nets share.
    pub fn new(
        packed: Arc<PackedMemory>,
        lanes: Arc<LaneMemory>,
        map: MemoryMap,
        program: usize,
        homes: &Homes,
    ) -> Result<Self, OutOfMemory> {
        let net = Arena::new(map.len, homes.of(Purpose::Values(program)))?;
        let stage = Arena::new(map.stages_len, homes.of(Purpose::Staging(program)))?;
        Ok(Self { net, stage, lanes, packed, map })
    }

    /// All arenas of program number `program`; what programs share is named by the first.
    pub fn arenas(&self, program: usize) -> impl Iterator<Item = (Purpose, &Arena)> {
        let own = [(Purpose::Values(program), &self.net), (Purpose::Staging(program), &self.stage)];
        let lanes = self.lanes.arenas().iter().map(|arena| (Purpose::Workspaces, arena));
        own.into_iter().chain(lanes.chain(self.packed.arenas()).filter(move |_| program == 0))
    }

    /// Bytes of values and gradients.
    pub fn blobs(&self) -> BlobBytes {
        self.map.blobs
    }

    /// Bytes of an element of a storage.
    ///
    /// # Panics
    /// If the net has no such storage.
    pub fn element_bytes(&self, id: StorageId) -> usize {
        size_of::<f32>() / self.map.storages[id.0].arrangement.layout.precision.in_word()
    }

    /// Whether a region lies in memory that the tasks of a step use for other arrays, too.
    pub fn is_shared(&self, region: Region) -> bool {
        matches!(region, Region::Storage(id) if self.map.storages.get(id.0).is_some_and(|s| s.shares))
    }

    /// Fills with `word` all that need not live from one step to the next: values, gradients, layers' state and the
    /// lanes' workspaces, but not what the host has staged nor state that a layer keeps.
    ///
    /// # Safety
    /// Nobody else reads or writes any of it meanwhile.
    pub unsafe fn fill_transient(&self, word: f32) {
        let mut free = vec![];
        let mut start = 0;
        let kept = self.map.kept.iter().filter_map(|id| self.map.aux[id.0].as_ref());
        let mut lasting: Vec<&Range<usize>> = kept.collect();
        lasting.sort_unstable_by_key(|range| range.start);
        for range in lasting {
            free.push(start..range.start);
            start = range.end;
        }
        free.push(start..self.net.len);
        let lanes = self.lanes.0.iter().enumerate();
        let lanes = lanes.map(|(lane, arena)| (ArenaKind::Lane(lane), 0..arena.len));
        for (arena, range) in free.into_iter().map(|range| (ArenaKind::Net, range)).chain(lanes) {
            let span = Span { arena, offset: range.start, len: range.len() };
            // SAFETY: by contract.
            unsafe { self.write(span) }.fill(word);
        }
    }

    /// Elements of the packed weights.
    pub fn packed_len(&self) -> usize {
        self.packed.len
    }

    /// The span of a region and how its array lies, if that is not plain; `None` if the device has no such region.
    pub fn region(&self, region: Region) -> Option<(Span, Option<Arrangement>)> {
        let (span, arrangement) = match region {
            Region::Packed(packed) => {
                let arena = arena_of(packed);
                let len = if packed == Packed::Histories { self.arena(arena).len } else { self.packed.len };
                (Span { arena, offset: 0, len }, None)
            }
            Region::PackedFrom(packed, first) => {
                let is_one_a_weight = packed != Packed::Histories && first <= self.packed.len;
                (is_one_a_weight.then(|| Self::packed(packed, first..self.packed.len))?, None)
            }
            Region::Storage(id) => {
                let Stored { range, arrangement, .. } = self.map.storages.get(id.0)?;
                let blocked = (arrangement.layout != Layout::PLAIN).then_some(*arrangement);
                (MemoryMap::net(range.clone()), blocked)
            }
            Region::Stage(id) => (self.map.stage(id)?, None),
            Region::Kept(id) => {
                let kept = self.map.kept.contains(&id).then_some(id)?;
                (MemoryMap::net(self.map.aux[kept.0].clone()?), None)
            }
        };
        // A device that has no centre, say, has an empty arena for it.
        (span.offset + span.len <= self.arena(span.arena).len).then_some((span, arrangement))
    }

    /// All of a storage, which may share its memory, as it lies there.
    pub fn stored(&self, id: StorageId) -> Option<(Span, Arrangement)> {
        let Stored { range, arrangement, .. } = self.map.storages.get(id.0)?;
        Some((MemoryMap::net(range.clone()), *arrangement))
    }

    /// A part of a packed buffer.
    pub fn packed(packed: Packed, range: Range<usize>) -> Span {
        Span { arena: arena_of(packed), offset: range.start, len: range.len() }
    }

    fn arena(&self, kind: ArenaKind) -> &Arena {
        match kind {
            ArenaKind::Weights => &self.packed.weights,
            ArenaKind::Gradients => &self.packed.gradients,
            ArenaKind::Histories => &self.packed.histories,
            ArenaKind::Centre => &self.packed.centre,
            ArenaKind::Sums => &self.packed.sums,
            ArenaKind::Net => &self.net,
            ArenaKind::Stage => &self.stage,
            ArenaKind::Lane(lane) => &self.lanes.0[lane],
        }
    }

    /// The arena that has a span.
    fn arena_with(&self, span: Span) -> &Arena {
        match (span.arena, &self.packed.together) {
            (ArenaKind::Weights, Some(together)) if !self.owns(span) => &together.with.weights,
            (kind, _) => self.arena(kind),
        }
    }

    /// Whether a span lies in the memory of the device itself, as all do but weights that devices have together.
    ///
    /// # Panics
    /// If parts of the span lie in different places: see [`Memory::pieces`].
    pub fn owns(&self, span: Span) -> bool {
        span.arena != ArenaKind::Weights || !self.packed.has_elsewhere(&(span.offset..span.offset + span.len))
    }

    /// A span in pieces that lie in one place each, with where they stand in it.
    pub fn pieces(&self, span: Span) -> impl Iterator<Item = (Range<usize>, Span)> {
        let together = self.packed.together.as_ref().filter(|_| span.arena == ArenaKind::Weights);
        let parts = together.map_or(&[][..], |together| &together.parts);
        let mut next = 0;
        iter::from_fn(move || {
            let start = next;
            let cuts = parts.iter().flat_map(|part| [part.start, part.end]);
            let cut = cuts.filter(|cut| *cut > span.offset + start).min();
            next = cut.map_or(span.len, |cut| (cut - span.offset).min(span.len));
            (start < next).then(|| (start..next, span.part(start..next)))
        })
    }

    /// The bytes of a span's memory.
    ///
    /// # Safety
    /// As for [`Memory::read`], for these bytes.
    pub unsafe fn read_bytes(&self, span: Span, bytes: Range<usize>) -> &[u8] {
        assert!(bytes.start <= bytes.end && bytes.end <= span.len * size_of::<f32>(), "bytes beyond a span");
        // SAFETY: in bounds as asserted; any four bytes are a float and the other way round; the rest by contract.
        unsafe { slice::from_raw_parts(self.start(span).cast::<u8>().add(bytes.start), bytes.len()) }
    }

    /// The bytes of a span's memory, to be changed.
    ///
    /// # Safety
    /// As for [`Memory::write`], for these bytes.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn write_bytes(&self, span: Span, bytes: Range<usize>) -> &mut [u8] {
        assert!(bytes.start <= bytes.end && bytes.end <= span.len * size_of::<f32>(), "bytes beyond a span");
        // SAFETY: as in `read_bytes`.
        unsafe { slice::from_raw_parts_mut(self.start(span).cast::<u8>().add(bytes.start), bytes.len()) }
    }

    /// The first element of a span, for kernels whose grains write parts that lie between each other's, so that no
    /// slice could hold one grain's alone. What holds for [`Memory::write`] holds for each element written through it.
    pub fn pointer(&self, span: Span) -> *mut f32 {
        self.start(span)
    }

    fn start(&self, span: Span) -> *mut f32 {
        let arena = self.arena_with(span);
        assert!(span.offset + span.len <= arena.len, "a span beyond its arena");
        // SAFETY: inside the arena's allocation, as just asserted.
        unsafe { arena.start().as_ptr().add(span.offset) }
    }

    /// The values of a span.
    ///
    /// # Safety
    /// Nobody writes the span while the slice lives (see the module's rules).
    pub unsafe fn read(&self, span: Span) -> &[f32] {
        // SAFETY: in bounds by `start`, initialised since arenas are zeroed, unshared with writers by contract.
        unsafe { slice::from_raw_parts(self.start(span), span.len) }
    }

    /// The values of a span, to be changed.
    ///
    /// # Safety
    /// Nobody else reads or writes the span while the slice lives (see the module's rules).
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn write(&self, span: Span) -> &mut [f32] {
        // SAFETY: in bounds by `start`, initialised since arenas are zeroed, unshared by contract.
        unsafe { slice::from_raw_parts_mut(self.start(span), span.len) }
    }
}
