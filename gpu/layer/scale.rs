//! Products with repeated factors, sums with a repeated bias, and sums over channels.

use quadrille_core::layer::{Bias, Factors, Operand, Scale, SubTask};

use super::Binder;
use crate::op::{Op, Span, arguments};

/// An array as outer × channels × inner: `struct View` of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Images, mostly.
    pub outer: usize,
    /// Channels, or factors.
    pub channels: usize,
    /// Pixels, mostly.
    pub inner: usize,
}

impl View {
    /// The kernels' struct.
    pub fn fields(self) -> [usize; 3] {
        [self.outer, self.channels, self.inner]
    }

    /// Values of a channel.
    pub fn each(self) -> usize {
        self.outer * self.inner
    }

    /// All values.
    pub fn count(self) -> usize {
        self.each() * self.channels
    }

    fn of(factors: &Factors) -> Self {
        Self { outer: factors.outer, channels: factors.shape.count(), inner: factors.inner }
    }
}

/// Blocks that share the sum over a channel: enough that a block has some work, and no more than it takes to add up.
fn parts(view: View) -> usize {
    const VALUES: usize = 4096;
    const MOST: usize = 64;
    (view.each() / VALUES).clamp(1, MOST)
}

/// What a sum over channels is of.
#[derive(Clone, Copy)]
pub(super) enum Summed {
    /// The values.
    Values(Span),
    /// Products with another array's.
    Products(Span, Span),
    /// Squared distances from the channels' means.
    Squares(Span, Span),
}

/// `out[channel] = Σ … / divisor`.
pub(super) fn channel_sums(at: &mut Binder<'_>, of: Summed, out: Span, view: View, divisor: f32) -> Vec<Op> {
    let each = parts(view);
    let partial = at.workspace(view.channels * each);
    let grid = [view.channels, each, 1];
    let sums = match of {
        Summed::Values(x) => {
            let none = None::<Span>;
            Op::blocks("channel_sums", grid, arguments![x, none, partial, view.fields()])
        }
        Summed::Products(x, z) => Op::blocks("channel_sums", grid, arguments![x, z, partial, view.fields()]),
        Summed::Squares(x, mean) => {
            Op::blocks("channel_squares", grid, arguments![x, mean, partial, view.fields()])
        }
    };
    let channels = view.channels;
    vec![sums, Op::each("add_parts", channels, arguments![partial, out, each, divisor, channels])]
}

/// `y = x s + b`, with a ReLU behind it or not.
pub(super) fn scaled(x: Span, s: Option<Span>, b: Option<Span>, y: Span, relu: bool, view: View) -> Op {
    Op::each("scale", view.count(), arguments![x, s, b, y, relu, view.fields()])
}

pub(super) fn ops(layer: &Scale, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let factors = layer.factors(&at.bottoms()).map_err(|fault| fault.message)?;
    let view = View::of(&factors);
    let two = layer.bottoms == 2;
    let s = if two { Operand::Bottom(1) } else { Operand::Param(0) };
    match sub {
        SubTask::Forward => {
            let b = layer.bias.then(|| at.get(Operand::Param(layer.bias_param()))).transpose()?;
            let [x, s, y] = [at.get(Operand::Bottom(0))?, at.get(s)?, at.get(Operand::Top(0))?];
            Ok(vec![scaled(x, Some(s), b, y, false, view)])
        }
        SubTask::GradActivation => {
            let [dy, s] = [at.get(Operand::TopGrad(0))?, at.get(s)?];
            let mut ops = Vec::new();
            // First, since dX may lie where dY does.
            if let Some(ds) = at.find(Operand::BottomGrad(1)).filter(|_| two) {
                let x = at.get(Operand::Bottom(0))?;
                ops.extend(channel_sums(at, Summed::Products(dy, x), ds, view, 1.0));
            }
            if let Some(dx) = at.find(Operand::BottomGrad(0)) {
                ops.push(scaled(dy, Some(s), None, dx, false, view));
            }
            Ok(ops)
        }
        SubTask::GradWeight => {
            let [dy, x] = [at.get(Operand::TopGrad(0))?, at.get(Operand::Bottom(0))?];
            let ds = at.get(Operand::ParamGrad(0))?;
            Ok(channel_sums(at, Summed::Products(dy, x), ds, view, 1.0))
        }
        _ => {
            let [dy, db] = [at.get(Operand::TopGrad(0))?, at.get(Operand::ParamGrad(layer.bias_param()))?];
            Ok(channel_sums(at, Summed::Values(dy), db, view, 1.0))
        }
    }
}

pub(super) fn bias_ops(layer: &Bias, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let view = View::of(&layer.factors(&at.bottoms()).map_err(|fault| fault.message)?);
    let two = layer.bottoms == 2;
    match sub {
        SubTask::Forward => {
            let b = at.get(if two { Operand::Bottom(1) } else { Operand::Param(0) })?;
            let [x, y] = [at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?];
            Ok(vec![scaled(x, None, Some(b), y, false, view)])
        }
        SubTask::GradActivation => {
            let dy = at.get(Operand::TopGrad(0))?;
            let db = at.find(Operand::BottomGrad(1)).filter(|_| two);
            let mut ops = db.map_or(Vec::new(), |db| channel_sums(at, Summed::Values(dy), db, view, 1.0));
            ops.extend(at.find(Operand::BottomGrad(0)).into_iter().flat_map(|dx| Op::copy(dy, dx)));
            Ok(ops)
        }
        _ => {
            let [dy, db] = [at.get(Operand::TopGrad(0))?, at.get(Operand::ParamGrad(0))?];
            Ok(channel_sums(at, Summed::Values(dy), db, view, 1.0))
        }
    }
}
