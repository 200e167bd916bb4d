//! Products with repeated factors, sums with a repeated bias, and sums over channels.

use quadrille_core::layer::{Bias, Factors, Operand, Scale, SubTask};
use quadrille_core::shape::Shape;

use super::Binder;
use crate::op::{Argument, Op, Span, THREADS, arguments};

/// An array as outer × channels × inner: `struct View` of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// Images, mostly; pixels of all of them where channels lie last.
    pub outer: usize,
    /// Channels, or factors.
    pub channels: usize,
    /// Pixels, mostly; 1 where channels lie last.
    pub inner: usize,
}

/// Values of a row, or rows of channels that lie last, that a warp takes at a time; `PIECE` and `RUN` of the kernels.
const PIECE: usize = 1024;
const RUN: usize = 16;
const WARP: usize = 32;
const WARPS: usize = THREADS / WARP;

impl View {
    /// A blob, whose channels lie last or not.
    pub fn of_blob(shape: &Shape, channels_last: bool) -> Self {
        let (images, channels) = (shape.images(), shape.dim(1));
        let pixels = shape.count() / (images * channels);
        match channels_last {
            true => Self { outer: images * pixels, channels, inner: 1 },
            false => Self { outer: images, channels, inner: pixels },
        }
    }

    /// The same array with the channels last, if it is that of a blob whose channels lie so.
    fn turned(self, channels_last: bool) -> Self {
        match channels_last {
            true => Self { outer: self.outer * self.inner, inner: 1, ..self },
            false => self,
        }
    }

    /// The kernels' struct.
    pub fn fields(self) -> [usize; 3] {
        [self.outer, self.channels, self.inner]
    }

    /// Values of a channel.
    pub fn each(self) -> usize {
        self.outer * self.inner
    }

    fn of(factors: &Factors) -> Self {
        Self { outer: factors.outer, channels: factors.shape.count(), inner: factors.inner }
    }

    /// Pieces of work for a warp that goes over all channels.
    fn pieces(self) -> usize {
        match self.inner {
            1 => self.outer.div_ceil(RUN) * self.channels.div_ceil(WARP),
            inner => self.outer * self.channels * inner.div_ceil(PIECE),
        }
    }

    /// A kernel that walks over all values.
    pub fn walk(self, kernel: &'static str, arguments: Vec<Argument>) -> Op {
        Op::blocks(kernel, [self.pieces().div_ceil(WARPS), 1, 1], arguments)
    }

    /// The grid of a kernel that gathers from each channel: blocks for channels, and how many of them share one: enough to fill
    /// a GPU, but none without some work.
    fn shares(self) -> [usize; 3] {
        const BLOCKS: usize = 1056;
        const MOST: usize = 256;
        const VALUES: usize = 512;
        let (across, units, each) = match self.inner {
            1 => (self.channels.div_ceil(WARP), self.outer, RUN),
            inner => (self.channels, self.outer * inner.div_ceil(PIECE), VALUES.div_ceil(inner.min(PIECE))),
        };
        let most = units.div_ceil(WARPS * each).min(MOST);
        [across, (BLOCKS / across).clamp(1, most), 1]
    }

    /// A kernel that gathers `words` from each channel, with its arguments in front of and behind the parts that it writes, and
    /// where these are and how many a channel has.
    pub fn gather(
        self,
        at: &mut Binder<'_>,
        words: usize,
        launch: impl FnOnce(Span) -> (&'static str, Vec<Argument>),
    ) -> (Op, Span, usize) {
        let grid = self.shares();
        let parts = at.workspace(words * self.channels * grid[1]);
        let (kernel, arguments) = launch(parts);
        (Op::blocks(kernel, grid, arguments), parts, grid[1])
    }
}

/// What a sum over channels is of.
#[derive(Clone, Copy)]
pub(super) enum Summed {
    /// The values.
    Values(Span),
    /// Products with another array's.
    Products(Span, Span),
}

/// `out[channel] = Σ … / divisor`.
pub(super) fn channel_sums(at: &mut Binder<'_>, of: Summed, out: Span, view: View, divisor: f32) -> Vec<Op> {
    let (x, z) = match of {
        Summed::Values(x) => (x, None),
        Summed::Products(x, z) => (x, Some(z)),
    };
    let (sums, parts, each) =
        view.gather(at, 2, |parts| ("channel_sums", arguments![x, z, parts, out, divisor, view.fields()]));
    let rest = || Op::blocks("add_parts", [view.channels, 1, 1], arguments![parts, out, each, divisor]);
    std::iter::once(sums).chain((each > 1).then(rest)).collect()
}

/// `y = x s + b`, with a ReLU behind it or not.
pub(super) fn scaled(x: Span, s: Option<Span>, b: Option<Span>, y: Span, relu: bool, view: View) -> Op {
    view.walk("scale", arguments![x, s, b, y, relu, view.fields()])
}

pub(super) fn ops(layer: &Scale, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let factors = layer.factors(&at.bottoms()).map_err(|fault| fault.message)?;
    let view = View::of(&factors).turned(at.has_channels_last());
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
    let factors = layer.factors(&at.bottoms()).map_err(|fault| fault.message)?;
    let view = View::of(&factors).turned(at.has_channels_last());
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
