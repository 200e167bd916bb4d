//! A strip: some rows of an image, copied with their padding, so that no tap of a kernel leaves it and neighbouring
//! output pixels see neighbouring input pixels whatever the stride. Rows and columns that no tap sees are left out.

/// How a strip lies: plane by plane, row by row; in a row the columns of phase 0 (columns 0, s, 2s, … of the padded
/// row for s phases), then those of phase 1, and so on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strip {
    /// Elements of a pixel: 1, or a block of channels.
    pub pixel: usize,
    /// Channels, or blocks of channels.
    pub planes: usize,
    /// Rows of a plane.
    pub rows: usize,
    /// Pixels of the source between neighbouring rows and columns of the strip.
    pub step: [usize; 2],
    /// Columns between those that neighbouring output pixels see.
    pub phases: usize,
    /// Pixels of a phase of a row.
    pub phase_len: usize,
    /// Column of the source at which the padded row begins; negative for padding.
    pub first_column: isize,
    /// Rows and columns of the source.
    pub source: [usize; 2],
}

impl Strip {
    /// Elements of a row.
    pub fn row_len(&self) -> usize {
        self.phases * self.phase_len * self.pixel
    }

    /// Elements of a plane.
    pub fn plane_len(&self) -> usize {
        self.rows * self.row_len()
    }

    /// Elements of a strip.
    pub fn len(&self) -> usize {
        self.planes * self.plane_len()
    }

    /// Place of a tap that sees the source `rows` rows below the strip's first and `columns` columns right of its
    /// first, both multiples of the steps.
    pub fn tap(&self, rows: usize, columns: usize) -> usize {
        let (rows, columns) = (rows / self.step[0], columns / self.step[1]);
        let place = columns % self.phases * self.phase_len + columns / self.phases;
        rows * self.row_len() + place * self.pixel
    }

    /// Copies the first `rows` rows, which begin at row `first` of the source. `image` holds the planes.
    pub fn fill(&self, image: &[f32], first: isize, rows: usize, strip: &mut [f32]) {
        let [height, width] = self.source;
        let planes =
            image.chunks_exact(height * width * self.pixel).zip(strip.chunks_exact_mut(self.plane_len()));
        for (plane, to) in planes {
            for (r, row) in to.chunks_exact_mut(self.row_len()).take(rows).enumerate() {
                match usize::try_from(first + (r * self.step[0]) as isize) {
                    Ok(source) if source < height => {
                        self.fill_row(&plane[source * width * self.pixel..][..width * self.pixel], row);
                    }
                    _ => row.fill(0.0),
                }
            }
        }
    }

    fn fill_row(&self, source: &[f32], row: &mut [f32]) {
        for (phase, to) in row.chunks_exact_mut(self.phase_len * self.pixel).enumerate() {
            let first = self.first_column + (phase * self.step[1]) as isize;
            let apart = self.phases * self.step[1];
            if apart == 1 {
                let left = (first.min(0).unsigned_abs() * self.pixel).min(to.len());
                let from = &source[(first.max(0) as usize * self.pixel).min(source.len())..];
                let (padding, rest) = to.split_at_mut(left);
                padding.fill(0.0);
                let count = from.len().min(rest.len());
                rest[..count].copy_from_slice(&from[..count]);
                rest[count..].fill(0.0);
                continue;
            }
            for (i, pixel) in to.chunks_exact_mut(self.pixel).enumerate() {
                let column = usize::try_from(first + (i * apart) as isize);
                let place = column.ok().and_then(|c| source.get(c * self.pixel..(c + 1) * self.pixel));
                match place {
                    Some(from) => pixel.copy_from_slice(from),
                    None => pixel.fill(0.0),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_find_their_pixels_in_phases_and_padding() {
        let (height, width) = (4, 5);
        let image: Vec<f32> = (0..2 * height * width).map(|v| 1.0 + v as f32).collect();
        for (stride, step) in [(1, [1, 1]), (2, [1, 1]), (3, [1, 1]), (1, [2, 3]), (2, [3, 2])] {
            for first_column in [-3isize, -1, 0, 2] {
                for first_row in [-2isize, 0, 1] {
                    let strip = Strip {
                        pixel: 1,
                        planes: 2,
                        rows: 6,
                        step,
                        phases: stride,
                        phase_len: 9usize.div_ceil(stride),
                        first_column,
                        source: [height, width],
                    };
                    let mut copy = vec![f32::NAN; strip.len()];
                    strip.fill(&image, first_row, 6, &mut copy);
                    for plane in 0..2 {
                        for (r, c) in (0..6).flat_map(|r| (0..9).map(move |c| (r, c))) {
                            let seen = [r * step[0], c * step[1]];
                            let (row, column) =
                                (first_row + seen[0] as isize, first_column + seen[1] as isize);
                            let inside =
                                (0..height as isize).contains(&row) && (0..width as isize).contains(&column);
                            let at =
                                plane * height * width + row.max(0) as usize * width + column.max(0) as usize;
                            let expected = if inside { image[at] } else { 0.0 };
                            let found = copy[plane * strip.plane_len() + strip.tap(seen[0], seen[1])];
                            assert_eq!(
                                found, expected,
                                "row {row} column {column} stride {stride} step {step:?}"
                            );
                        }
                    }
                }
            }
        }
    }
}
