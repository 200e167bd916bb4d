//! ArgMax: the largest values and their places, in falling order of (value, place).

use super::{Arrays, Context, Real};
use crate::layer::{ArgMax, Compared, Operand, SubTask};

pub(super) fn compute<T: Real>(layer: &ArgMax, ctx: &Context, sub: SubTask, arrays: &mut Arrays<T>) {
    if sub != SubTask::Forward {
        return;
    }
    let compared = layer.compared(&ctx.bottoms[0]).expect("the axis exists: checked by infer");
    let Compared { outer, extent, inner } = compared;
    let x = arrays.get(Operand::Bottom(0));
    let mut top = vec![T::ZERO; ctx.tops[0].count()];
    for o in 0..outer {
        for i in 0..inner {
            let value = |place: usize| x[(o * extent + place) * inner + i];
            let mut found = next(None, extent, value);
            for k in 0..layer.top_k {
                let number = |place: Option<usize>| place.map_or(T::NAN, T::from_usize);
                let best = found.map_or(T::NAN, value);
                let row = o * layer.row(compared);
                match (layer.axis, layer.out_max_val) {
                    (None, true) => {
                        top[row + k] = number(found);
                        top[row + layer.top_k + k] = best;
                    }
                    (_, true) => top[row + k * inner + i] = best,
                    (_, false) => top[row + k * inner + i] = number(found),
                }
                found = found.and_then(|last| next(Some(last), extent, value));
            }
        }
    }
    arrays.insert(Operand::Top(0), top);
}

/// The place of the largest value after that at `last`; of equal values the larger place comes first. `None` if all that is
/// left is not a number.
fn next<T: Real>(last: Option<usize>, extent: usize, value: impl Fn(usize) -> T) -> Option<usize> {
    let before = |a: usize, b: usize| value(a) > value(b) || (value(a) == value(b) && a > b);
    let number = |place: &usize| value(*place) == value(*place);
    let left = (0..extent).filter(|place| number(place) && last.is_none_or(|last| before(last, *place)));
    left.reduce(|best, place| if before(place, best) { place } else { best })
}
