//! Windows of images, cut out and brought to one size, as Caffe's window_data_layer does it.

use super::resize::resize;
use super::transform::Mean;
use super::windows::Corners;

/// How windows are cut out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Warp {
    /// Rows and columns of what comes out.
    pub crop: usize,
    /// Pixels of context on each side, counted in what comes out.
    pub pad: usize,
    /// Whether a window is made square first.
    pub square: bool,
}

/// What is cut out of an image, its new size, and where it lies in what comes out.
#[derive(Debug, PartialEq, Eq)]
struct Cut {
    corners: Corners,
    /// Rows and columns.
    size: [usize; 2],
    top: usize,
    left: usize,
}

impl Warp {
    /// Where a window lies, with its context, in an image of so many rows and columns. Arithmetic is Caffe's, in single
    /// precision.
    fn cut(&self, window: Corners, [rows, columns]: [i32; 2], mirrored: bool) -> Result<Cut, String> {
        let crop = self.crop as f32;
        let Corners { x: [x1, x2], y: [y1, y2] } = window;
        let mut cut = Cut { corners: window, size: [self.crop; 2], top: 0, left: 0 };
        if self.pad > 0 || self.square {
            // After the warp there are to be `pad` pixels of context on each side.
            let scale = crop / (self.crop as f32 - 2.0 * self.pad as f32);
            let mut half = [(y2 - y1 + 1) as f32 / 2.0, (x2 - x1 + 1) as f32 / 2.0];
            let centre = [y1 as f32 + half[0], x1 as f32 + half[1]];
            if self.square {
                half = [half[0].max(half[1]); 2];
            }
            let axis = |centre: f32, half: f32, extent: i32| {
                let [from, to] = [(centre - half * scale).round(), (centre + half * scale).round()];
                Axis::of(from as i64, to as i64, extent, self.crop)
            };
            let (y, x) = (axis(centre[0], half[0], rows)?, axis(centre[1], half[1], columns)?);
            cut.corners = Corners { x: [x.from, x.to], y: [y.from, y.to] };
            cut.top = y.before;
            // Context outside of the image is mirrored, too.
            cut.left = if mirrored { x.behind } else { x.before };
            let fit = |size: usize, before: usize| size.min(self.crop.saturating_sub(before));
            cut.size = [fit(y.size, cut.top), fit(x.size, cut.left)];
        }
        let Corners { x: [x1, x2], y: [y1, y2] } = cut.corners;
        let inside = x1 >= 0 && y1 >= 0 && x2 < columns && y2 < rows && x1 <= x2 && y1 <= y2;
        if !inside || cut.size.contains(&0) {
            return Err(format!("does not lie in the image, which is {rows} x {columns} (height x width)"));
        }
        Ok(cut)
    }

    /// Writes a window of an image (pixel by pixel, of `channels`, rows and columns) into `out`, channel by channel:
    /// `(value - mean) * scale`, and zeros where the context lies outside of the image.
    ///
    /// # Errors
    /// That the window does not lie in the image.
    pub fn put(
        &self,
        window: Corners,
        (pixels, [channels, rows, columns]): (&[u8], [usize; 3]),
        mirrored: bool,
        (mean, scale): (&Mean, f32),
        out: &mut [f32],
    ) -> Result<(), String> {
        let cut = self.cut(window, [rows as i32, columns as i32], mirrored)?;
        let Corners { x: [x1, x2], y: [y1, y2] } = cut.corners;
        let width = (x2 - x1 + 1) as usize * channels;
        let row = |y: i32| &pixels[(y as usize * columns + x1 as usize) * channels..][..width];
        let part: Vec<u8> = (y1..=y2).flat_map(row).copied().collect();
        let (from, mut warped) = ([(y2 - y1 + 1) as usize, (x2 - x1 + 1) as usize], Vec::new());
        resize(&part, channels, from, cut.size, &mut warped);
        out.fill(0.0);
        let [high, wide] = cut.size;
        for (y, row) in warped.chunks(wide * channels).enumerate().take(high) {
            for (x, pixel) in row.chunks(channels).enumerate() {
                let x = cut.left + if mirrored { wide - 1 - x } else { x };
                let y = cut.top + y;
                for (channel, value) in pixel.iter().enumerate() {
                    let mean = mean.in_the_middle(channel, y, x, self.crop);
                    out[(channel * self.crop + y) * self.crop + x] = (f32::from(*value) - mean) * scale;
                }
            }
        }
        Ok(())
    }
}

/// Where a window may begin or end at most, with its context.
const FAR: i64 = 1 << 48;

/// A window along one axis: what of it lies in the image, and how large that and what lies outside are after the warp.
struct Axis {
    from: i32,
    to: i32,
    size: usize,
    before: usize,
    behind: usize,
}

impl Axis {
    /// The range `from..=to` in an image of `extent`, brought to `crop`.
    fn of(from: i64, to: i64, extent: i32, crop: usize) -> Result<Self, String> {
        // Corners lie within 2^24 and the scale of the context is at most the crop, so that only a crop of millions of
        // pixels, of which there are no images, gets beyond.
        let (from, to, extent) = (from.clamp(-FAR, FAR), to.clamp(-FAR, FAR), i64::from(extent));
        let whole = to - from + 1;
        let (before, behind) = ((-from).max(0), (to - extent + 1).max(0));
        let (from, to) = (from + before, to - behind);
        if to < from {
            return Err("lies outside of the image with all of its context".to_owned());
        }
        let scale = crop as f32 / whole as f32;
        let scaled = |count: i64| (count as f32 * scale).round() as usize;
        // Both lie in the image now.
        let [first, last] = [from as i32, to as i32];
        Ok(Self {
            from: first,
            to: last,
            size: scaled(to - from + 1),
            before: scaled(before),
            behind: scaled(behind),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(x: [i32; 2], y: [i32; 2]) -> Corners {
        Corners { x, y }
    }

    #[test]
    fn without_context_a_window_is_cut_out_as_it_is() {
        let warp = Warp { crop: 8, pad: 0, square: false };
        let at = window([2, 5], [0, 9]);
        let expected = Cut { corners: at, size: [8, 8], top: 0, left: 0 };
        assert_eq!(warp.cut(at, [10, 10], true), Ok(expected));
        for outside in [window([-1, 3], [0, 3]), window([0, 10], [0, 3]), window([0, 3], [4, 10])] {
            assert!(warp.cut(outside, [10, 10], false).is_err(), "{outside:?}");
        }
    }

    /// Numbers by hand from the formulas of window_data_layer: a scale of 8 / (8 - 4) = 2 about the centre.
    #[test]
    fn context_outside_of_the_image_becomes_padding() {
        let warp = Warp { crop: 8, pad: 2, square: false };
        let inside = Cut { corners: window([0, 8], [1, 9]), size: [8, 8], top: 0, left: 0 };
        assert_eq!(warp.cut(window([2, 5], [3, 6]), [12, 12], false), Ok(inside));
        // Columns -2 to 6 and rows 4 to 12 of an image of 10 x 10: seven ninths and six ninths of 8.
        let at = window([0, 3], [6, 9]);
        let cut = Cut { corners: window([0, 6], [4, 9]), size: [5, 6], top: 0, left: 2 };
        assert_eq!(warp.cut(at, [10, 10], false), Ok(cut));
        let mirrored = Cut { corners: window([0, 6], [4, 9]), size: [5, 6], top: 0, left: 0 };
        assert_eq!(warp.cut(at, [10, 10], true), Ok(mirrored));
        assert!(warp.cut(window([30, 33], [0, 3]), [10, 10], false).is_err());
    }

    /// With a scale of 131 the ends of the context are beyond all numbers of 32 bits.
    #[test]
    fn context_may_reach_far_beyond_the_image() {
        let warp = Warp { crop: 131, pad: 65, square: false };
        let most = 1 << 24;
        for corners in [[-most, most], [most, most], [-most, -most], [0, most], [-most, 0]] {
            let error = warp.cut(window(corners, corners), [10, 10], false).unwrap_err();
            assert!(error.contains("image"), "{error}");
        }
        let axis = Axis::of(-3_000_000_000, 3_000_000_009, 10, 1 << 30).unwrap();
        assert_eq!((axis.from, axis.to, axis.size), (0, 9, 2));
        assert_eq!((axis.before, axis.behind), (1 << 29, 1 << 29));
    }

    #[test]
    fn a_square_grows_to_the_longer_side() {
        let warp = Warp { crop: 8, pad: 0, square: true };
        // Six rows and two columns: three on each side of both centres, and one more as Caffe rounds.
        let cut = warp.cut(window([4, 5], [2, 7]), [10, 10], false).unwrap();
        assert_eq!(cut.corners, window([2, 8], [2, 8]));
        assert_eq!(cut.size, [8, 8]);
    }
}
