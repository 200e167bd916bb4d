//! The layout pass: which implementation each layer gets and how each blob lies, decided together.
//!
//! In the order of forward, each layer gets the first implementation of its list that works in the layout in which its
//! bottoms lie, or an earlier one that is worth reordering them for. Its tops lie as it writes them. What remains are
//! the places where a layer reads another layout than its bottom's producer wrote; [`super::reorder`] copies there.
//! Memory in which blobs of several shapes lie, such as the bottom of a Flatten and its top, is plain: only there does
//! one order of the elements serve all of them.

use quadrille_core::layer::Operand;
use quadrille_core::net::{BlobId, LayerId, Net, NetLayer, StorageId};

use super::joined;
use super::select::{Candidate, Form, Kept, candidates};
use crate::isa::{Numerics, Precision};
use crate::layout::{Arrangement, Layout};
use crate::machine::Machine;

/// What was decided.
pub(super) struct Decisions {
    /// The implementation of each layer.
    pub chosen: Vec<&'static Candidate>,
    /// How each storage lies.
    pub storages: Vec<Arrangement>,
    blobs: Vec<Layout>,
    /// Whether blobs of several shapes lie in a storage.
    reshaped: Vec<bool>,
    block: usize,
    precision: Precision,
}

impl Decisions {
    fn first_bottom(&self, layer: &NetLayer) -> Layout {
        layer.bottoms.first().map_or(Layout::PLAIN, |b| self.blobs[b.0])
    }

    /// The precision in which an implementation of `layer` keeps blobs in blocks.
    pub fn precision_of(&self, layer: &NetLayer, candidate: &Candidate) -> Precision {
        match (candidate.kept, self.first_bottom(layer)) {
            (Kept::F32, _) => Precision::F32,
            (Kept::Bf16, _) => Precision::Bf16,
            (Kept::Either, Layout::PLAIN) => self.precision,
            (Kept::Either, first) => first.precision,
        }
    }

    /// How the blobs of `layer` lie for an implementation: bottoms, then tops. A blob without pixels, such as a row of
    /// scores, lies plain for every implementation.
    pub fn wanted(&self, net: &Net, layer: &NetLayer, candidate: &Candidate) -> (Vec<Layout>, Vec<Layout>) {
        let first = self.first_bottom(layer);
        let precision = self.precision_of(layer, candidate);
        let blocked = Layout { block: self.block, precision };
        let as_first = if first == Layout::PLAIN { first } else { blocked };
        let (bottoms, tops) = match candidate.form {
            Form::Plain => (Layout::PLAIN, Layout::PLAIN),
            Form::Blocked => (blocked, blocked),
            Form::Entry => (Layout::PLAIN, blocked),
            Form::Exit => (as_first, Layout::PLAIN),
            Form::Any => (as_first, as_first),
        };
        let each = |blobs: &[BlobId], layout| {
            let axes = |b: &BlobId| net.blob(*b).shape.axes();
            blobs.iter().map(|b| if axes(b) < 3 { Layout::PLAIN } else { layout }).collect()
        };
        (each(&layer.bottoms, bottoms), each(&layer.tops, tops))
    }

    /// How `operand` lies in memory, and how an implementation wants it; `None` if it is not a blob's.
    pub fn arrangements(
        &self,
        net: &Net,
        id: LayerId,
        candidate: &Candidate,
        operand: Operand,
    ) -> Option<(Arrangement, Arrangement)> {
        let layer = net.layer(id);
        let (bottoms, tops) = self.wanted(net, layer, candidate);
        let (blob, wanted) = match operand {
            Operand::Bottom(i) | Operand::BottomGrad(i) => (*layer.bottoms.get(i)?, *bottoms.get(i)?),
            Operand::Top(i) | Operand::TopGrad(i) => (*layer.tops.get(i)?, *tops.get(i)?),
            Operand::Param(_) | Operand::ParamGrad(_) | Operand::Aux(_) => return None,
        };
        let shape = &net.blob(blob).shape;
        let gap = self.storage(net, id, operand).map_or(0, |storage| self.storages[storage.0].gap);
        let lies = Arrangement { gap, ..Arrangement::new(shape, self.blobs[blob.0]) };
        let wanted = Arrangement::new(shape, wanted);
        Some((lies, if lies.is_like(&wanted) { Arrangement { gap, ..wanted } } else { wanted }))
    }

    /// The array of an operand; `None` if it does not exist in this net or is not a blob's.
    pub fn storage(&self, net: &Net, id: LayerId, operand: Operand) -> Option<StorageId> {
        let layer = net.layer(id);
        let blob = |id: &BlobId| net.blob(*id);
        match operand {
            Operand::Bottom(i) => layer.bottoms.get(i).map(|b| blob(b).data),
            Operand::Top(i) => layer.tops.get(i).map(|b| blob(b).data),
            Operand::BottomGrad(i) => layer.bottoms.get(i).and_then(|b| blob(b).grad),
            Operand::TopGrad(i) => layer.tops.get(i).and_then(|b| blob(b).grad),
            Operand::Param(_) | Operand::ParamGrad(_) | Operand::Aux(_) => None,
        }
    }

    /// How a blob lies.
    pub fn layout(&self, blob: BlobId) -> Layout {
        self.blobs[blob.0]
    }

    /// Takes over which storages of `net` lie inside others, as its memory was planned.
    ///
    /// # Errors
    /// If it was planned for other decisions than these.
    pub fn join(&mut self, net: &Net) -> Result<(), String> {
        let planned = net.memory.iter().flat_map(|memory| &memory.parts);
        if planned.clone().flatten().next().is_none() {
            return Ok(());
        }
        let parts = joined::parts(net, self);
        if !planned.eq(&parts) {
            return Err(
                "arrays lie inside others where these kernels would not find them; memory was planned for \
                        other kernels"
                    .into(),
            );
        }
        for (index, part) in parts.iter().enumerate() {
            if let Some(part) = part {
                self.storages[index].gap =
                    self.storages[part.whole.0].image_len() - self.storages[index].image_len();
            }
        }
        Ok(())
    }

    /// Whether an implementation finds every bottom as it wants it, and writes its tops as they lie already
    /// if it works in place.
    pub fn is_native(&self, net: &Net, id: LayerId, candidate: &Candidate) -> bool {
        let layer = net.layer(id);
        let (bottoms, tops) = self.wanted(net, layer, candidate);
        let like = |blob: BlobId, lies: Layout, wanted: Layout| {
            let shape = &net.blob(blob).shape;
            Arrangement::new(shape, lies).is_like(&Arrangement::new(shape, wanted))
        };
        let reads_as_it_lies = layer.bottoms.iter().zip(bottoms).all(|(b, w)| like(*b, self.blobs[b.0], w));
        reads_as_it_lies
            && layer
                .tops
                .iter()
                .zip(tops)
                .all(|(t, w)| self.shared_layout(net, layer, *t).is_none_or(|l| like(*t, l, w)))
    }

    /// The layout of a top that lies in a bottom's memory.
    fn shared_layout(&self, net: &Net, layer: &NetLayer, top: BlobId) -> Option<Layout> {
        let data = net.blob(top).data;
        layer.bottoms.iter().find(|b| net.blob(**b).data == data).map(|b| self.blobs[b.0])
    }

    /// How a top lies whose layer writes it in `layout`.
    fn layout_of_top(&self, net: &Net, layer: &NetLayer, top: BlobId, layout: Layout) -> Layout {
        if self.reshaped[net.blob(top).data.0] {
            return Layout::PLAIN;
        }
        self.shared_layout(net, layer, top).unwrap_or(layout)
    }

    fn choose(
        &self,
        net: &Net,
        id: LayerId,
        numerics: Numerics,
        wanted: Option<&str>,
    ) -> Result<&'static Candidate, String> {
        let layer = net.layer(id);
        let list = candidates(&layer.layer);
        let is_wanted = |c: &Candidate| match wanted {
            Some(name) => name == c.name,
            None => (c.pays)(net, id, numerics),
        };
        let mut fitting = list.iter().filter(|c| is_wanted(c) && (c.fits)(net, id, numerics));
        let first = fitting.clone().next();
        fitting.find(|c| c.eager || self.is_native(net, id, c)).or(first).ok_or_else(|| {
            let names: Vec<&str> = list.iter().map(|c| c.name).collect();
            format!(
                "layer {:?} ({}) cannot be computed by {:?}; its implementations are {}",
                layer.name,
                layer.layer.type_name(),
                wanted.unwrap_or("any"),
                names.join(", ")
            )
        })
    }
}

/// Whether blobs of several shapes lie in a storage, for each storage.
fn reshaped(net: &Net) -> Vec<bool> {
    let mut found: Vec<Option<Arrangement>> = vec![None; net.storages.len()];
    let mut reshaped = vec![false; net.storages.len()];
    for blob in &net.blobs {
        let arrangement = Arrangement::new(&blob.shape, Layout::PLAIN);
        let first = *found[blob.data.0].get_or_insert(arrangement);
        reshaped[blob.data.0] |= first != arrangement;
    }
    reshaped
}

/// Makes sure that no layer that is named, or of a type that is named, is computed as a part of another.
fn check_apart(net: &Net, name: &str) -> Result<(), String> {
    for layer in &net.layers {
        if let Some(part) = layer.absorbed.iter().find(|part| part.name == name || part.type_name == name) {
            let (part, of) = (&part.name, &layer.name);
            return Err(format!(
                "no implementation can be chosen for {name:?}: layer {part:?} is computed as a part of {of:?}; choose one \
                 for {of:?}, or compute every layer apart (--no-fusion)"
            ));
        }
    }
    Ok(())
}

/// Decides for every layer of `net`. `forced` holds (layer or type, implementation); the last one counts.
///
/// # Errors
/// If a forced implementation does not exist or cannot do the layer, or names no layer.
pub(super) fn decide(
    net: &Net,
    numerics: Numerics,
    forced: &[(String, String)],
) -> Result<Decisions, String> {
    for (name, _) in forced {
        check_apart(net, name)?;
        if !net.layers.iter().any(|l| l.name == *name || l.layer.type_name() == *name) {
            return Err(format!("no layer and no type of layer of this network is named {name:?}"));
        }
    }
    let block = Machine::of(numerics.isa).channel_block;
    let blobs = vec![Layout::PLAIN; net.blobs.len()];
    let reshaped = reshaped(net);
    let precision = numerics.precision;
    let (chosen, storages) = (Vec::new(), Vec::new());
    let mut decisions = Decisions { chosen, storages, blobs, reshaped, block, precision };
    for (index, layer) in net.layers.iter().enumerate() {
        let asked = forced.iter().rev().find(|(n, _)| *n == layer.name || n == layer.layer.type_name());
        let wanted = asked.map(|(_, implementation)| implementation.as_str());
        let candidate = decisions.choose(net, LayerId(index), numerics, wanted)?;
        let (_, tops) = decisions.wanted(net, layer, candidate);
        for (top, layout) in layer.tops.iter().zip(tops) {
            decisions.blobs[top.0] = decisions.layout_of_top(net, layer, *top, layout);
        }
        decisions.chosen.push(candidate);
    }
    decisions.storages = net.storages.iter().map(|count| Arrangement::row(*count)).collect();
    for (blob, layout) in net.blobs.iter().zip(&decisions.blobs) {
        let mut place = |id: StorageId| decisions.storages[id.0] = Arrangement::new(&blob.shape, *layout);
        place(blob.data);
        blob.grad.map(place);
    }
    Ok(decisions)
}
