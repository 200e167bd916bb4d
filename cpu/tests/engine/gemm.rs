//! Matrix products of every tier on integers, against three loops: exact, for every extent at the edges of tiles and
//! blocks, for factors that lie transposed or with gaps, and with the same bits however C is cut.

use crate::common::{fractions, integers, tiers};
use quadrille_cpu::isa::Isa;
use quadrille_cpu::kernel::gemm::{Extents, Into, Matrix, Product, gemm, scratch};
use quadrille_cpu::machine::Machine;

/// A factor and how it lies: elements, distances of rows and columns.
struct Factor {
    values: Vec<f32>,
    row_stride: usize,
    column_stride: usize,
}

impl Factor {
    /// A factor of `rows` × `columns`, with `gap` elements of NaN between its rows (or columns, if transposed), and no
    /// element behind the last.
    fn new(seed: u64, [rows, columns]: [usize; 2], transposed: bool, gap: usize) -> Self {
        let (outer, inner) = if transposed { (columns, rows) } else { (rows, columns) };
        let stride = inner + gap;
        let mut values = vec![f32::NAN; (outer * stride).saturating_sub(gap)];
        let given = integers(seed, outer * inner, 8);
        for o in 0..outer {
            values[o * stride..o * stride + inner].copy_from_slice(&given[o * inner..(o + 1) * inner]);
        }
        let (row_stride, column_stride) = if transposed { (1, stride) } else { (stride, 1) };
        Self { values, row_stride, column_stride }
    }

    fn matrix(&self) -> Matrix<'_> {
        Matrix { values: &self.values, row_stride: self.row_stride, column_stride: self.column_stride }
    }

    fn at(&self, row: usize, column: usize) -> f64 {
        f64::from(self.values[row * self.row_stride + column * self.column_stride])
    }
}

/// One product, and everything that decides how it is computed.
#[derive(Clone, Copy, Debug)]
struct Case {
    extents: Extents,
    transposed: [bool; 2],
    gap: usize,
    into: Into,
}

impl Case {
    /// Computes it on `isa` and compares with naive sums; elements between the rows of C must stay.
    fn check(self, isa: Isa) {
        let Extents { rows, columns, depth } = self.extents;
        let a = Factor::new(1, [rows, depth], self.transposed[0], self.gap);
        let b = Factor::new(2, [depth, columns], self.transposed[1], self.gap);
        let c_stride = columns + self.gap;
        let before = integers(3, (rows * c_stride).saturating_sub(self.gap), 100);
        let mut c = before.clone();
        // As much scratch as was asked for and no more, full of NaN.
        let mut memory = vec![f32::NAN; scratch(isa, self.extents)];
        let product = Product { extents: self.extents, a: a.matrix(), b: b.matrix(), into: self.into };
        gemm(isa, &product, &mut c, c_stride, &mut memory);
        for (at, (found, before)) in c.iter().zip(&before).enumerate() {
            let (row, column) = (at / c_stride, at % c_stride);
            let sum: f64 = match column < columns {
                true => (0..depth).map(|k| a.at(row, k) * b.at(k, column)).sum(),
                false => 0.0,
            };
            let keeps = self.into == Into::Add || column >= columns;
            let expected = if keeps { f64::from(*before) + sum } else { sum };
            assert_eq!(f64::from(*found), expected, "C[{row}, {column}] of {self:?} on {isa}");
        }
    }
}

fn around(edges: &[usize]) -> Vec<usize> {
    let mut all: Vec<usize> = edges.iter().flat_map(|e| [e - 1, *e, e + 1]).collect();
    all.sort_unstable();
    all.dedup();
    all
}

const LAYOUTS: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

#[test]
fn extents_around_the_register_tile() {
    for isa in tiers("products around the tile") {
        let m = Machine::of(isa);
        for rows in around(&[1, m.tile_rows, 2 * m.tile_rows]) {
            for columns in around(&[1, m.tile_columns, 2 * m.tile_columns]) {
                for depth in [0, 1, 2, 7] {
                    for transposed in LAYOUTS {
                        for (gap, into) in [(0, Into::Replace), (3, Into::Add), (3, Into::Replace)] {
                            let extents = Extents { rows, columns, depth };
                            Case { extents, transposed, gap, into }.check(isa);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn extents_around_the_packed_blocks() {
    for isa in tiers("products around the blocks") {
        let m = Machine::of(isa);
        let small = [m.tile_rows + 1, m.tile_columns + 1, 5];
        for (axis, block) in [m.block_rows, m.block_columns, m.block_depth].into_iter().enumerate() {
            for extent in around(&[block, 2 * block]) {
                for transposed in LAYOUTS {
                    for into in [Into::Replace, Into::Add] {
                        let mut e = small;
                        e[axis] = extent;
                        let extents = Extents { rows: e[0], columns: e[1], depth: e[2] };
                        Case { extents, transposed, gap: 1, into }.check(isa);
                    }
                }
            }
        }
        let all = Extents { rows: m.block_rows + 1, columns: m.block_columns + 1, depth: m.block_depth + 1 };
        Case { extents: all, transposed: [true, false], gap: 2, into: Into::Add }.check(isa);
    }
}

/// Each element of C is one chain of sums in the order of depth: its bits are the same whichever part of C is computed
/// with it. (Not so on the portable tier's foreign kernels, whose cut never changes either: grains do not depend on
/// the number of threads.)
#[test]
fn bits_do_not_depend_on_the_cut() {
    let extents = Extents { rows: 37, columns: 150, depth: 300 };
    let Extents { rows, columns, depth } = extents;
    let (a, b) = (fractions(1, rows * depth), fractions(2, depth * columns));
    for isa in tiers("cuts of a product").into_iter().filter(|isa| *isa != Isa::Portable) {
        let part = |rows: std::ops::Range<usize>, columns: std::ops::Range<usize>| {
            let cut = Extents { rows: rows.len(), columns: columns.len(), depth };
            let a = Matrix::rows(&a[rows.start * depth..], depth);
            let b = Matrix::rows(&b[columns.start..], extents.columns);
            let mut c = vec![f32::NAN; cut.rows * cut.columns];
            let mut memory = vec![f32::NAN; scratch(isa, cut)];
            let product = Product { extents: cut, a, b, into: Into::Replace };
            gemm(isa, &product, &mut c, cut.columns, &mut memory);
            c
        };
        let whole = part(0..rows, 0..columns);
        for step in [1, 7, 16, 33, 149] {
            for start in (0..columns).step_by(step) {
                let end = (start + step).min(columns);
                let c = part(0..rows, start..end);
                for (row, found) in c.chunks(end - start).enumerate() {
                    let expected = &whole[row * columns + start..row * columns + end];
                    assert!(same_bits(found, expected), "row {row} of columns {start}..{end} on {isa}");
                }
            }
        }
        for step in [1, 5, 14, 36] {
            for start in (0..rows).step_by(step) {
                let end = (start + step).min(rows);
                let expected = &whole[start * columns..end * columns];
                assert!(same_bits(&part(start..end, 0..columns), expected), "rows {start}..{end} on {isa}");
            }
        }
    }
}

fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

/// The function is safe, so what does not fit must be refused and never read or written.
#[test]
fn slices_that_are_too_short_are_refused() {
    let refused = |isa: Isa, a: (usize, usize), b: (usize, usize), c: (usize, usize)| {
        let (values_a, values_b, mut values_c) = (vec![1.0; a.0], vec![1.0; b.0], vec![0.0; c.0]);
        let extents = Extents { rows: 3, columns: 4, depth: 5 };
        let mut memory = vec![0.0; scratch(isa, extents)];
        let (a, b) = (Matrix::rows(&values_a, a.1), Matrix::rows(&values_b, b.1));
        let product = Product { extents, a, b, into: Into::Replace };
        let run = || gemm(isa, &product, &mut values_c, c.1, &mut memory);
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err()
    };
    for isa in tiers("slices that are too short") {
        assert!(!refused(isa, (15, 5), (20, 4), (12, 4)), "{isa}");
        assert!(refused(isa, (14, 5), (20, 4), (12, 4)), "{isa}: A");
        assert!(refused(isa, (15, 5), (19, 4), (12, 4)), "{isa}: B");
        assert!(refused(isa, (15, 5), (20, 4), (11, 4)), "{isa}: C");
        assert!(refused(isa, (15, 5), (20, 4), (12, 3)), "{isa}: rows of C that overlap");
        assert!(
            refused(isa, (15, usize::MAX / 2 + 1), (20, 4), (12, 4)),
            "{isa}: a distance that wraps around"
        );
        assert!(
            refused(isa, (15, 5), (20, 4), (12, usize::MAX / 2 + 1)),
            "{isa}: a distance that wraps around"
        );
    }
}
