//! The solver's rule on a whole packed buffer, for a master that holds the weights: what a device does layer by layer.

use std::collections::HashSet;
use std::ops::Range;

use super::{Rule, Step, add_to_running_sum, update};
use crate::net::{LayerId, Net, ParamId, ParamLayout, ParamRule};
use crate::plan::trained_params;

/// One parameter in the packed buffers, with its factors.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedPiece {
    /// Its elements.
    pub range: Range<usize>,
    /// How the update changes it.
    pub rule: ParamRule,
    /// Factor of the learning rate.
    pub lr_mult: f32,
    /// The weight decay times the parameter's factor.
    pub decay: f32,
}

/// The solver's rule with the factors of all parameters of a net.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedRule {
    rule: Rule,
    /// Mini-batches whose gradients were added up.
    parts: usize,
    /// What the update changes, in the order of the packed buffer; frozen parameters are left out, and so is what no layer of
    /// the net finds a gradient of.
    pieces: Vec<PackedPiece>,
    /// What counts in the norm that is clipped.
    normed: Vec<Range<usize>>,
    len: usize,
}

impl PackedRule {
    /// `rule` for the parameters of `layout`, all of which have gradients or terms of running sums, behind `parts` mini-batches
    /// whose gradients are added up.
    pub fn new(layout: &ParamLayout, rule: Rule, parts: usize) -> Self {
        Self::of(layout, rule, parts, |_| true)
    }

    /// `rule` for what a device's own updates change of `net`: not the running sums that a BatchNorm with `use_global_stats`
    /// keeps, which would fade.
    pub fn of_net(net: &Net, rule: Rule, parts: usize) -> Self {
        let trained: HashSet<ParamId> =
            (0..net.layers.len()).flat_map(|layer| trained_params(net, LayerId(layer))).collect();
        Self::of(&net.params, rule, parts, |id| trained.contains(&id))
    }

    fn of(layout: &ParamLayout, rule: Rule, parts: usize, is_trained: impl Fn(ParamId) -> bool) -> Self {
        let views = (0..).map(ParamId).zip(layout.views());
        let changed = views
            .filter(|(id, v)| is_trained(*id) && (v.rule != ParamRule::Gradient || v.lr_mult != 0.0))
            .map(|(_, view)| view);
        let pieces = changed.map(|view| PackedPiece {
            range: view.range(),
            rule: view.rule.after(parts),
            lr_mult: view.lr_mult,
            decay: rule.weight_decay * view.decay_mult,
        });
        // A frozen parameter counts only where its gradient was asked for; where it was not, the gradient is 0.
        let normed = layout.views().iter().filter(|v| v.rule == ParamRule::Gradient);
        let (pieces, normed) = (pieces.collect(), normed.map(|view| view.range()).collect());
        Self { rule, parts: parts.max(1), pieces, normed, len: layout.len() }
    }

    /// The solver's rule.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Elements of the packed weights.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to update.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements of the packed histories: see [`super::RuleKind::histories`].
    pub fn history_len(&self) -> usize {
        self.rule.kind.histories() * self.len
    }

    /// What the update changes, in the order of the packed buffer.
    pub fn pieces(&self) -> &[PackedPiece] {
        &self.pieces
    }

    /// What gradients are multiplied by: the mean over mini-batches, after their sum was clipped.
    pub fn scale(&self, gradient: &[f32]) -> f32 {
        let mean = 1.0 / self.parts as f32;
        let Some(most) = self.rule.clip else { return mean };
        let values = self.normed.iter().flat_map(|range| &gradient[range.clone()]);
        let norm = values.map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>().sqrt() as f32;
        // Written as Caffe does, so that a norm that is no number clips nothing and shows itself in the weights.
        if norm > most { most / norm * mean } else { mean }
    }

    /// The rule's step on one piece, for `scale` see [`PackedRule::scale`].
    pub fn step(&self, piece: &PackedPiece, iteration: u64, rate: f32, scale: f32) -> Step<'static> {
        let rate = rate * piece.lr_mult;
        Step { rule: self.rule, iteration, rate, decay: piece.decay, scale, elastic: None }
    }

    /// Equations (3) and (4), or what the rule has in their place: changes packed weights and histories by a packed
    /// gradient. `iteration` counts updates from 0.
    ///
    /// # Panics
    /// If a buffer has another length.
    pub fn apply(
        &self,
        iteration: u64,
        rate: f32,
        weights: &mut [f32],
        gradient: &[f32],
        histories: &mut [f32],
    ) {
        let lens = [weights.len(), gradient.len(), histories.len()];
        assert_eq!(lens, [self.len, self.len, self.history_len()], "packed buffers of one net");
        let scale = self.scale(gradient);
        let (first, second) = histories.split_at_mut(self.len);
        for piece in &self.pieces {
            let range = piece.range.clone();
            let (weight, gradient) = (&mut weights[range.clone()], &gradient[range.clone()]);
            if let ParamRule::RunningSum { fraction } = piece.rule {
                add_to_running_sum(fraction, weight, gradient.iter().copied());
                continue;
            }
            let second = second.get_mut(range.clone()).unwrap_or_default();
            update(&self.step(piece, iteration, rate, scale), weight, gradient, &mut first[range], second);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Filler;
    use crate::net::ParamView;
    use crate::shape::Shape;
    use crate::solver::{Decay, RuleKind};

    fn view(count: usize, rule: ParamRule, lr_mult: f32, decay_mult: f32) -> ParamView {
        let (name, shape) = (String::new(), Shape::new([count]));
        ParamView { name, shape, offset: 0, rule, lr_mult, decay_mult, filler: Filler::default() }
    }

    /// A weight of twice the rate, a frozen one, a running sum, and one without decay.
    fn layout() -> ParamLayout {
        let gradient = ParamRule::Gradient;
        let sum = ParamRule::RunningSum { fraction: 0.5 };
        [
            view(2, gradient, 2.0, 1.0),
            view(1, gradient, 0.0, 1.0),
            view(1, sum, 0.0, 0.0),
            view(1, gradient, 1.0, 0.0),
        ]
        .into_iter()
        .collect()
    }

    #[test]
    fn every_parameter_has_its_own_factors() {
        let layout = layout();
        let rule = PackedRule::new(&layout, Rule::sgd(0.5, 0.25), 1);
        let at: Vec<usize> = layout.views().iter().map(|view| view.offset).collect();
        let (mut w, mut g, mut h) =
            (vec![0.0; layout.len()], vec![0.0; layout.len()], vec![0.0; layout.len()]);
        for (index, at) in at.iter().enumerate() {
            (w[*at], g[*at], h[*at]) = (8.0, 2.0 + index as f32, 4.0);
        }
        rule.apply(0, 0.5, &mut w, &g, &mut h);
        // h = 0.5·4 + 0.5·2·(2 + 0.25·8) = 6; frozen; 0.5·8 + 4 = 8, no history; h = 2 + 0.5·5 = 4.5.
        let seen: Vec<_> = at.iter().map(|at| (w[*at], h[*at])).collect();
        assert_eq!(seen, [(2.0, 6.0), (8.0, 4.0), (8.0, 4.0), (3.5, 4.5)]);
        assert_eq!(w.iter().filter(|w| **w != 0.0).count(), 4, "padding stays 0");
    }

    #[test]
    fn the_norm_of_all_gradients_is_clipped_before_the_mean() {
        let layout: ParamLayout =
            [view(1, ParamRule::Gradient, 1.0, 1.0), view(1, ParamRule::Gradient, 1.0, 1.0)]
                .into_iter()
                .chain([view(1, ParamRule::RunningSum { fraction: 0.5 }, 0.0, 0.0)])
                .collect();
        let rule = PackedRule::new(&layout, Rule { clip: Some(2.5), ..Rule::default() }, 2);
        let at: Vec<usize> = layout.views().iter().map(|view| view.offset).collect();
        let (mut w, mut g, mut h) =
            (vec![0.0; layout.len()], vec![0.0; layout.len()], vec![0.0; layout.len()]);
        (g[at[0]], g[at[1]], g[at[2]], w[at[2]]) = (3.0, 4.0, 100.0, 16.0);
        assert_eq!(rule.scale(&g), 0.25);
        rule.apply(0, 1.0, &mut w, &g, &mut h);
        // The running sum is no gradient: not clipped, no mean, and it fades twice.
        assert_eq!([w[at[0]], w[at[1]], w[at[2]]], [-0.75, -1.0, 104.0]);
        g[at[0]] = f32::NAN;
        assert_eq!(rule.scale(&g), 0.5, "a norm that is no number clips nothing");
    }

    #[test]
    fn second_histories_lie_behind_all_first_ones() {
        let layout: ParamLayout = (0..2).map(|_| view(1, ParamRule::Gradient, 1.0, 1.0)).collect();
        let kind = RuleKind::Adam { momentum: 0.5, momentum2: 0.75, delta: 1.0 };
        let rule =
            PackedRule::new(&layout, Rule { kind, weight_decay: 0.0, decay: Decay::L2, clip: None }, 1);
        let (len, last) = (layout.len(), layout.views()[1].offset);
        assert_eq!(rule.history_len(), 2 * len);
        let (mut w, mut g, mut h) = (vec![10.0; len], vec![0.0; len], vec![0.0; 2 * len]);
        g[last] = 6.0;
        rule.apply(0, 2.0, &mut w, &g, &mut h);
        assert_eq!((w[last], h[last], h[len + last], w[0]), (8.5, 3.0, 9.0, 10.0));
    }
}
