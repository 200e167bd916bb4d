//! Maximum and average over windows.

use quadrille_core::layer::{Operand, PoolMethod, Pooling, SubTask};

use super::Binder;
use crate::op::{Op, arguments};

/// Channels that a thread treats where they come in as many; `TOGETHER` of the kernels.
const TOGETHER: usize = 4;

pub(super) fn ops(layer: &Pooling, at: &Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let (bottom, top) = (at.bottom(0), at.top(0));
    let (input, [oh, ow]) = ([bottom.dim(2), bottom.dim(3)], [top.dim(2), top.dim(3)]);
    let [kh, kw] = layer.kernel_over(input);
    let ([ph, pw], [sh, sw]) = (layer.pad, layer.stride);
    // In front of pixels each channel is an image of its own.
    let channels = if at.has_channels_last() { bottom.dim(1) } else { 1 };
    let pool = [channels, input[0], input[1], oh, ow, kh, kw, ph, pw, sh, sw];
    let together = if channels.is_multiple_of(TOGETHER) { TOGETHER } else { 1 };
    let max = layer.method == PoolMethod::Max;
    Ok(vec![match sub {
        SubTask::Forward => {
            let ([x, y], count) =
                ([at.get(Operand::Bottom(0))?, at.get(Operand::Top(0))?], top.count() / together);
            match max {
                true => Op::each("pool_max", count, arguments![x, y, at.get(Operand::Aux(0))?, pool, count]),
                false => Op::each("pool_average", count, arguments![x, y, pool, count]),
            }
        }
        _ => {
            let [dy, dx] = [at.get(Operand::TopGrad(0))?, at.get(Operand::BottomGrad(0))?];
            let count = bottom.count() / together;
            match max {
                true => {
                    let positions = at.get(Operand::Aux(0))?;
                    Op::each("pool_max_backward", count, arguments![dy, positions, dx, pool, count])
                }
                false => Op::each("pool_average_backward", count, arguments![dy, dx, pool, count]),
            }
        }
    }])
}
