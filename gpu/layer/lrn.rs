//! Local response normalisation.

use quadrille_core::layer::{Lrn, Operand, SubTask};

use super::Binder;
use crate::op::{Op, THREADS, arguments};

/// Channels that a thread goes through in windows of five channels; `PIECE` of the kernels.
const PIECE: usize = 32;

/// Values whose gradients a block finds in such windows where channels lie last; `INNER` of the kernels.
const INNER: usize = THREADS - 4;

pub(super) fn ops(layer: &Lrn, at: &mut Binder<'_>, sub: SubTask) -> Result<Vec<Op>, String> {
    let bottom = at.bottom(0);
    let (count, extents) = (bottom.count(), [1, 2, 3].map(|axis| bottom.dim(axis)));
    let reach = layer.reach();
    let (last, is_five) = (at.has_channels_last(), reach == [2, 0, 0]);
    let ([channels, height, width], [reach_c, reach_h, reach_w]) = (extents, reach);
    let norm = [channels, height, width, reach_c, reach_h, reach_w, usize::from(last)];
    let (base, share, beta) = (layer.base(), layer.alpha / layer.divisor(), layer.beta);
    let (images, x) = (bottom.images(), at.get(Operand::Bottom(0))?);
    let threads = images * height * width * channels.div_ceil(PIECE);
    if sub == SubTask::Forward {
        let y = at.get(Operand::Top(0))?;
        return Ok(vec![match (is_five, last) {
            (true, true) => {
                Op::each("lrn_five_last", count, arguments![x, y, base, share, beta, channels, count])
            }
            (true, false) => Op::each("lrn_five", threads, arguments![x, y, base, share, beta, norm, images]),
            (false, _) => Op::each("lrn_forward", count, arguments![x, y, base, share, beta, norm, count]),
        }]);
    }
    let [dy, dx] = [at.get(Operand::TopGrad(0))?, at.get(Operand::BottomGrad(0))?];
    let factor = 2.0 * share * beta;
    if is_five && last {
        let arguments = arguments![dy, x, dx, base, share, beta, factor, channels, count];
        return Ok(vec![Op::blocks("lrn_five_last_backward", [count.div_ceil(INNER), 1, 1], arguments)]);
    }
    if is_five {
        let arguments = arguments![dy, x, dx, base, share, beta, factor, norm, images];
        return Ok(vec![Op::each("lrn_five_backward", threads, arguments)]);
    }
    let [own, back] = [at.workspace(count), at.workspace(count)];
    Ok(vec![
        Op::each("lrn_back", count, arguments![dy, x, own, back, base, share, beta, norm, count]),
        Op::each("lrn_backward", count, arguments![x, own, back, dx, factor, norm, count]),
    ])
}
