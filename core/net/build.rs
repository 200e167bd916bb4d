//! From a network file to a [`Net`]: choose the layers of the phase, wire them, infer every shape and place every
//! parameter.

use std::collections::{HashMap, HashSet};

use super::params::ParamLayout;
use super::sharing::Names;
use super::spec::{LayerSpec, NetSpec, NetState, Phase};
use super::{AuxId, Blob, BlobId, LayerId, Net, NetLayer, ParamId, StorageId};
use crate::layer::{Inferred, Layer, LossTerm, Operand, Split, SubTask};
use crate::shape::Shape;
use crate::site::{Fault, Site, SpecError, did_you_mean};

impl Net {
    /// Builds the net of `spec` for `state`. `share` is the part of the worker's mini-batch that this net computes; it
    /// scales every loss weight, so that gradients summed over devices are those of the whole.
    ///
    /// # Errors
    /// A [`SpecError`] naming file, line and field of whatever cannot be.
    pub fn build(spec: &NetSpec, state: &NetState, share: f32) -> Result<Self, SpecError> {
        let net = Self::assemble(spec, state, share, state.phase == Phase::Train)?;
        if state.phase == Phase::Train && net.losses().next().is_none() {
            let fault =
                Fault::new("layer", "the network has no loss in phase TRAIN, so there is nothing to train")
                    .hint("add a layer of type \"SoftmaxWithLoss\", or give a top a loss_weight");
            let site = net.layers.last().map_or_else(|| file_site(spec), |l| l.site.clone());
            return Err(fault.at(&site, "network"));
        }
        Ok(net)
    }

    /// As [`Net::build`], to look inside: backward may be asked for in either phase, and a net to train need not have a loss.
    ///
    /// # Errors
    /// As [`Net::build`].
    pub fn assemble(spec: &NetSpec, state: &NetState, share: f32, backward: bool) -> Result<Self, SpecError> {
        for layer in &spec.layers {
            check_rules(layer).map_err(|fault| fault.at(&layer.site, &subject(layer)))?;
        }
        let chosen = spec.layers.iter().filter(|l| l.belongs(state)).cloned();
        let chosen: Vec<LayerSpec> =
            chosen.map(|l| LayerSpec { layer: l.layer.in_phase(state.phase), ..l }).collect();
        if chosen.is_empty() {
            let fault = Fault::new("layer", format!("no layer belongs to phase {}", state.phase));
            return Err(fault.at(&file_site(spec), "network"));
        }
        let readers = count_readers(&chosen);
        let mut builder = Builder::new(spec, state, share, readers);
        for (index, layer) in chosen.iter().enumerate() {
            builder.add(index, layer).map_err(|fault| fault.at(&layer.site, &subject(layer)))?;
        }
        let Builder { mut net, stopped, unweighted, .. } = builder;
        check_filtered(&net)?;
        net.backward = backward;
        if backward {
            net.find_gradients(&stopped);
            net.check_dead_ends(&stopped)?;
            net.check_read_losses(&unweighted, &stopped)?;
            net.share_gradients();
        }
        Ok(net)
    }
}

/// Where a network file begins.
fn file_site(spec: &NetSpec) -> Site {
    Site { file: spec.file.clone(), ..Site::default() }
}

/// How errors name a layer.
fn subject(layer: &LayerSpec) -> String {
    format!("layer {:?}", layer.name)
}

/// A version of a blob in the file: the top `top` of the chosen layer `layer`.
type Version = (usize, usize);

/// How often each version is read.
fn count_readers(layers: &[LayerSpec]) -> HashMap<Version, usize> {
    let mut current: HashMap<&str, Version> = HashMap::new();
    let mut readers = HashMap::new();
    for (index, layer) in layers.iter().enumerate() {
        for bottom in &layer.bottoms {
            if let Some(version) = current.get(bottom.as_str()) {
                *readers.entry(*version).or_insert(0) += 1;
            }
        }
        for (top, name) in layer.tops.iter().enumerate() {
            current.insert(name, (index, top));
        }
    }
    readers
}

struct Builder {
    net: Net,
    readers: HashMap<Version, usize>,
    /// What the next reader of a name gets: one blob, or the tops of a split, last first.
    current: HashMap<String, Vec<BlobId>>,
    /// Bottoms that are to get no gradient. Each blob has one reader, so it need not be said whose bottom.
    stopped: HashSet<BlobId>,
    /// Losses that others read, and whose weights are not in the file.
    unweighted: Vec<LayerId>,
    /// Of the layers so far, with their lines and whether they have parameters.
    names: HashMap<String, (u32, bool)>,
    param_names: Names,
    /// Of each blob of the file, what its first layer would have to be for a reader above it or in another phase.
    makers: HashMap<String, String>,
}

/// Names that a hint lists at most.
const MOST_NAMES: usize = 10;

/// Where blobs are made that a layer looks for in vain.
fn makers(spec: &NetSpec, state: &NetState) -> HashMap<String, String> {
    let mut makers = HashMap::new();
    for layer in &spec.layers {
        let place = format!("layer {:?} (line {})", layer.name, layer.site.line);
        let hint = match layer.belongs(state) {
            true => format!("{place} makes it; move that layer above this one"),
            false => format!("{place} makes it, which does not belong to phase {}", state.phase),
        };
        for top in &layer.tops {
            makers.entry(top.clone()).or_insert_with(|| hint.clone());
        }
    }
    makers
}

impl Builder {
    fn new(spec: &NetSpec, state: &NetState, share: f32, readers: HashMap<Version, usize>) -> Self {
        let net = Net {
            name: spec.name.clone(),
            file: spec.file.clone(),
            phase: state.phase,
            layers: Vec::new(),
            blobs: Vec::new(),
            storages: Vec::new(),
            memory: None,
            aux: Vec::new(),
            params: ParamLayout::default(),
            force_backward: spec.force_backward,
            backward: false,
            share,
            parts: 1,
            clips: false,
        };
        Self {
            net,
            readers,
            current: HashMap::new(),
            stopped: HashSet::new(),
            unweighted: Vec::new(),
            names: HashMap::new(),
            param_names: Names::default(),
            makers: makers(spec, state),
        }
    }

    fn add(&mut self, index: usize, spec: &LayerSpec) -> Result<(), Fault> {
        let spec = &LayerSpec { layer: spec.layer.in_phase(self.net.phase), ..spec.clone() };
        check_arity(spec)?;
        check_each("propagate_down", spec.propagate_down.len(), spec.bottoms.len(), "bottom")?;
        let bottoms = self.take_bottoms(spec)?;
        let shapes: Vec<Shape> = bottoms.iter().map(|b| self.net.blob(*b).shape.clone()).collect();
        let spec = &LayerSpec { layer: spec.layer.on(&shapes)?, ..spec.clone() };
        let inferred = spec.layer.infer(&shapes)?;
        self.add_name(spec, !inferred.params.is_empty())?;
        let params = self.add_params(spec, &inferred)?;
        let aux = inferred
            .aux
            .iter()
            .map(|shape| {
                self.net.aux.push(shape.count());
                AuxId(self.net.aux.len() - 1)
            })
            .collect();
        let id = LayerId(self.net.layers.len());
        let tops = self.add_tops(id, spec, &bottoms, &inferred)?;
        let weights = self.loss_weights(spec, &bottoms, tops.len())?;
        // A layer that is no loss has no notion of a weight: a layer behind it has. Nor has a loss whose gradient may come from readers,
        // too.
        let is_read = self.readers.get(&(index, 0)).is_some_and(|readers| *readers > 0);
        let is_loss = spec.layer.is_loss() && !is_read;
        if spec.layer.is_loss() && is_read && spec.loss_weights.is_empty() {
            self.unweighted.push(id);
        }
        let terms = if is_loss { vec![0.0; weights.len()] } else { weights.clone() };
        let loss_weights = if is_loss { weights } else { vec![0.0; weights.len()] };
        for bottom in &bottoms {
            self.net.blobs[bottom.0].readers += 1;
        }
        let down = bottoms.iter().zip(&spec.propagate_down);
        self.stopped.extend(down.filter(|(_, down)| !**down).map(|(bottom, _)| *bottom));
        self.net.layers.push(NetLayer {
            name: spec.name.clone(),
            site: spec.site.clone(),
            layer: spec.layer.clone(),
            bottoms,
            tops: tops.clone(),
            params,
            shared: Vec::new(),
            aux,
            loss_weights,
            under_loss: false,
            steps_weight: false,
            steps_in_passing: false,
            adds_gradient: false,
            rectifies_gradient: false,
            absorbed: Vec::new(),
        });
        for (top, name) in spec.tops.iter().enumerate() {
            self.offer(name, tops[top], self.readers.get(&(index, top)).copied().unwrap_or(0), terms[top]);
        }
        Ok(())
    }

    /// Notes the name of a layer. Caffe lets layers have one name; where weights go by it, it would be a wrong one.
    fn add_name(&mut self, spec: &LayerSpec, has_params: bool) -> Result<(), Fault> {
        let Some((line, other_has)) = self.names.insert(spec.name.clone(), (spec.site.line, has_params))
        else {
            return Ok(());
        };
        if !has_params && !other_has {
            return Ok(());
        }
        let place = if line > 0 { format!(" (line {line})") } else { String::new() };
        Err(Fault::new("name", format!("another layer has this name{place}"))
            .hint("give each layer with weights a name of its own; they go by it"))
    }

    /// The blobs that the layer reads.
    fn take_bottoms(&mut self, spec: &LayerSpec) -> Result<Vec<BlobId>, Fault> {
        let mut bottoms = Vec::with_capacity(spec.bottoms.len());
        for name in &spec.bottoms {
            let Some(offered) = self.current.get_mut(name) else {
                let fault = Fault::new("bottom", format!("no layer above makes the blob {name:?}"));
                return Err(fault.hint(self.missing_blob(name)));
            };
            // A split offers one blob to each reader; a single blob stays for readers that cannot exist.
            let blob = if offered.len() > 1 { offered.pop() } else { offered.last().copied() };
            bottoms.extend(blob);
        }
        Ok(bottoms)
    }

    /// What to do about a bottom that is not there.
    fn missing_blob(&self, name: &str) -> String {
        let mut known: Vec<&str> = self.current.keys().map(String::as_str).collect();
        known.sort_unstable();
        if let Some(maker) = self.makers.get(name) {
            return maker.clone();
        }
        if let Some(close) = did_you_mean(name, known.iter().copied()) {
            return format!("did you mean {close:?}?");
        }
        match known.as_slice() {
            [] => "no layer above makes any; a network begins with its data or Input".to_owned(),
            all if all.len() <= MOST_NAMES => format!("there are {}", all.join(", ")),
            some => {
                format!("there are {} and {} more", some[..MOST_NAMES].join(", "), some.len() - MOST_NAMES)
            }
        }
    }

    fn add_params(&mut self, spec: &LayerSpec, inferred: &Inferred) -> Result<Vec<ParamId>, Fault> {
        if spec.params.len() > inferred.params.len() {
            let (given, own) = (spec.params.len(), inferred.params.len());
            return Err(Fault::new("param", format!("{given} given, but the layer has {own} parameters"))
                .hint("write param once for each parameter, in their order, or remove what is too much"));
        }
        let params = inferred.params.iter().enumerate();
        params.map(|(i, param)| self.param_names.place(&mut self.net, spec, i, param)).collect()
    }

    fn add_tops(
        &mut self,
        id: LayerId,
        spec: &LayerSpec,
        bottoms: &[BlobId],
        inferred: &Inferred,
    ) -> Result<Vec<BlobId>, Fault> {
        let mut tops = Vec::new();
        // A loss without a top makes one, as in Caffe.
        let automatic = [automatic_top(&spec.name)];
        let names = if spec.tops.is_empty() && spec.layer.is_loss() { &automatic[..] } else { &spec.tops };
        for (i, name) in names.iter().enumerate() {
            if names[..i].contains(name) {
                return Err(Fault::new(
                    "top",
                    format!("{name:?} is there twice; each top needs a name of its own"),
                ));
            }
            let reads = spec.bottoms.iter().position(|b| b == name);
            let storage = match reads {
                Some(bottom) => {
                    if bottom != i || !spec.layer.works_in_place() {
                        return Err(Fault::new(
                            "top",
                            format!(
                                "{name:?} is also a bottom, but {} cannot work in place",
                                spec.layer.type_name()
                            ),
                        )
                        .hint("give the top a name of its own"));
                    }
                    let kept = !spec.layer.is_view() && self.must_keep_values(bottoms[bottom], &spec.layer);
                    (!kept).then(|| self.net.blob(bottoms[bottom]).data)
                }
                None if self.current.contains_key(name) => {
                    return Err(Fault::new("top", format!("another layer already makes the blob {name:?}"))
                        .hint("give the top a name of its own; only a layer in place has its bottom's"));
                }
                None if spec.layer.is_view() => Some(self.net.blob(bottoms[0]).data),
                None => None,
            };
            tops.push(self.add_blob(name, &inferred.tops[i], id, storage));
        }
        Ok(tops)
    }

    /// Whether `layer`, though it could work in place, must not overwrite `blob`: because others read it, too, because
    /// its producer's backward asks for the values that it made, or because the layer's own backward asks for what
    /// it read. Caffe overwrites in the second case, too, and takes the gradient at other values; in the third it
    /// keeps a copy. Here the layer gets memory of its own, which changes nothing else. What holds for the blob holds
    /// for all that lie in its memory.
    fn must_keep_values(&self, blob: BlobId, layer: &Layer) -> bool {
        let reads = |layer: &Layer, operand: Operand| {
            let mut accesses = SubTask::BACKWARD.into_iter().filter_map(|sub| layer.accesses(sub));
            accesses.any(|accesses| accesses.reads.contains(&operand))
        };
        let reads_bottom = reads(layer, Operand::Bottom(0));
        let mut blob = blob;
        loop {
            let producer = self.net.layer(self.net.blob(blob).producer);
            let keep = match (&producer.layer, layer) {
                // The tops of a split are one memory.
                (Layer::Split(_), _) => true,
                // A ReLU asks its top only which values are above 0. A ReLU in place leaves that as it is, and so does
                // a dropout but for values it drops, whose gradient is 0 on either side.
                (Layer::Relu(_), Layer::Relu(_) | Layer::Dropout(_)) => false,
                (made_by, _) => {
                    let top = producer.tops.iter().position(|top| *top == blob).map(Operand::Top);
                    reads_bottom || top.is_some_and(|top| reads(made_by, top))
                }
            };
            let data = self.net.blob(blob).data;
            match producer.bottoms.iter().find(|bottom| self.net.blob(**bottom).data == data) {
                Some(below) if !keep => blob = *below,
                _ => return keep,
            }
        }
    }

    fn add_blob(
        &mut self,
        name: &str,
        shape: &Shape,
        producer: LayerId,
        storage: Option<StorageId>,
    ) -> BlobId {
        let data = storage.unwrap_or_else(|| self.net.add_storage(shape.count()));
        let (name, shape) = (name.to_owned(), shape.clone());
        self.net.blobs.push(Blob { name, shape, data, grad: None, producer, readers: 0 });
        BlobId(self.net.blobs.len() - 1)
    }

    fn loss_weights(&self, spec: &LayerSpec, bottoms: &[BlobId], tops: usize) -> Result<Vec<f32>, Fault> {
        check_each("loss_weight", spec.loss_weights.len(), tops, "top")?;
        let is_loss = spec.layer.is_loss();
        if is_loss && spec.loss_weights.iter().skip(1).any(|w| *w != 0.0) {
            return Err(Fault::new("loss_weight", "only the first top is a loss; expected 0 for the others"));
        }
        let default = |i: usize| if i == 0 && is_loss { 1.0 } else { 0.0 };
        // A sum over images is the sum of its parts; every other loss is a mean, and its parts have shares. So has what no image has
        // a part in, such as a term of a parameter alone, which each part of the mini-batch finds anew.
        let is_sum = match is_loss {
            true => spec.layer.sums_images(),
            false => self.net.made_of_sums(bottoms).unwrap_or(Layer::LossTerm(LossTerm).sums_images()),
        };
        let of_images = match bottoms {
            [] => !matches!(spec.layer, Layer::Parameter(_)),
            _ => bottoms.iter().any(|bottom| self.is_of_images(*bottom)),
        };
        let share = if is_sum && of_images { 1.0 } else { self.net.share };
        Ok((0..tops).map(|i| share * spec.loss_weights.get(i).copied().unwrap_or(default(i))).collect())
    }

    /// Whether a blob comes from a mini-batch, and not from parameters alone.
    fn is_of_images(&self, blob: BlobId) -> bool {
        let producer = self.net.layer(self.net.blob(blob).producer);
        match &producer.bottoms[..] {
            [] => !matches!(producer.layer, Layer::Parameter(_)),
            bottoms => bottoms.iter().any(|bottom| self.is_of_images(*bottom)),
        }
    }

    /// Makes `blob` known under `name`, through a split if several layers read it. A `weight` in the loss is one reader
    /// more, the first.
    fn offer(&mut self, name: &str, blob: BlobId, readers: usize, weight: f32) {
        let is_term = weight != 0.0;
        let producer = self.net.layer(self.net.blob(blob).producer).name.clone();
        let mut offered = vec![blob];
        if readers + usize::from(is_term) > 1 {
            let tops = readers + usize::from(is_term);
            let split = Layer::Split(Split { tops });
            offered = self.insert(&format!("{name}_{producer}_split"), split, blob, &vec![0.0; tops]);
        }
        if is_term {
            let term = offered.remove(0);
            let same =
                self.insert(&format!("{name}_{producer}_loss"), Layer::LossTerm(LossTerm), term, &[weight]);
            // Nobody may read it, but its name is taken.
            if offered.is_empty() {
                offered = same;
            }
        }
        offered.reverse();
        self.current.insert(name.to_owned(), offered);
    }

    /// Inserts a layer behind a blob that is not in the file, with a top in the blob's memory for each weight in the loss.
    fn insert(&mut self, layer_name: &str, layer: Layer, blob: BlobId, weights: &[f32]) -> Vec<BlobId> {
        let id = LayerId(self.net.layers.len());
        let Blob { name, shape, data, producer, .. } = self.net.blob(blob).clone();
        let tops: Vec<BlobId> =
            weights.iter().map(|_| self.add_blob(&name, &shape, id, Some(data))).collect();
        self.net.blobs[blob.0].readers += 1;
        self.net.layers.push(NetLayer {
            name: layer_name.to_owned(),
            site: self.net.layer(producer).site.clone(),
            layer,
            bottoms: vec![blob],
            tops: tops.clone(),
            params: Vec::new(),
            shared: Vec::new(),
            aux: Vec::new(),
            loss_weights: weights.to_vec(),
            under_loss: false,
            steps_weight: false,
            steps_in_passing: false,
            adds_gradient: false,
            rectifies_gradient: false,
            absorbed: Vec::new(),
        });
        tops
    }
}

/// How the top of a loss is called that has none in the file.
pub(super) fn automatic_top(layer: &str) -> String {
    format!("(loss of {layer})")
}

/// What Caffe asks of the conditions of a layer, whether the layer belongs to the net or not.
fn check_rules(spec: &LayerSpec) -> Result<(), Fault> {
    if spec.include.is_empty() || spec.exclude.is_empty() {
        return Ok(());
    }
    Err(Fault::new("exclude", "the layer has include rules, too; expected only one of the two kinds"))
}

/// Nobody may read what a Filter lets through: how many images that are only the data knows.
fn check_filtered(net: &Net) -> Result<(), SpecError> {
    let tops = net.layers.iter().filter(|l| matches!(l.layer, Layer::Filter(_)));
    let mut tops = tops.flat_map(|l| l.tops.iter().map(move |top| (l, net.blob(*top))));
    let Some((layer, top)) = tops.find(|(_, top)| top.readers > 0) else { return Ok(()) };
    let message = format!(
        "another layer reads {:?}, but how many images a Filter lets through is known only when it runs, and shapes are \
         fixed before",
        top.name
    );
    let fault = Fault::new("top", message)
        .hint("make it an output of the net, or weigh images instead of filtering them");
    Err(fault.at(&layer.site, &format!("layer {:?}", layer.name)))
}

/// Checks a field that is said for no bottom (or top) or for each.
fn check_each(field: &str, given: usize, each: usize, what: &str) -> Result<(), Fault> {
    if given == 0 || given == each {
        return Ok(());
    }
    Err(Fault::new(field, format!("{given} given; expected none, or one for each {what} ({each})")))
}

fn check_arity(spec: &LayerSpec) -> Result<(), Fault> {
    let arity = spec.layer.arity();
    let kind = spec.layer.type_name();
    for (field, given, range) in
        [("bottom", spec.bottoms.len(), arity.bottoms), ("top", spec.tops.len(), arity.tops)]
    {
        if !range.contains(&given) {
            let (low, high) = (*range.start(), *range.end());
            let expected = if low == high { format!("{low}") } else { format!("{low} to {high}") };
            let fault = Fault::new(field, format!("{given} given; a layer of type {kind} has {expected}"));
            return Err(fault.hint(match given < low {
                true => format!("write {field}: \"NAME\" once for each"),
                false => format!("remove what is too much; each {field} has a line of its own"),
            }));
        }
    }
    Ok(())
}
