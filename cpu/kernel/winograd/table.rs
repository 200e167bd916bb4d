//! Rows of registers, written one by one and read by columns: between the two halves of a transform.

use std::mem::MaybeUninit;

/// `R` rows of `C` registers. Nothing is cleared, which would take as long as a half of a transform.
pub(super) struct Table<V, const R: usize, const C: usize>([[MaybeUninit<V>; C]; R]);

impl<V: Copy, const R: usize, const C: usize> Table<V, R, C> {
    #[inline(always)]
    pub const fn new() -> Self {
        Self([const { [const { MaybeUninit::uninit() }; C] }; R])
    }

    #[inline(always)]
    pub fn write(&mut self, row: usize, values: [V; C]) {
        self.0[row] = values.map(MaybeUninit::new);
    }

    /// One column.
    ///
    /// # Safety
    /// All rows were written.
    #[inline(always)]
    pub unsafe fn column(&self, column: usize) -> [V; R] {
        let mut values = [const { MaybeUninit::uninit() }; R];
        for (value, row) in values.iter_mut().zip(&self.0) {
            *value = row[column];
        }
        // SAFETY: all rows were written, by contract.
        values.map(|value| unsafe { value.assume_init() })
    }
}

/// `N` registers that are loaded one by one.
pub(super) struct Line<V, const N: usize>([MaybeUninit<V>; N]);

impl<V: Copy, const N: usize> Line<V, N> {
    #[inline(always)]
    pub fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; N])
    }

    #[inline(always)]
    pub fn write(&mut self, at: usize, value: V) {
        self.0[at] = MaybeUninit::new(value);
    }

    /// All of them.
    ///
    /// # Safety
    /// Each was written.
    #[inline(always)]
    pub unsafe fn all(self) -> [V; N] {
        // SAFETY: each was written, by contract.
        self.0.map(|value| unsafe { value.assume_init() })
    }
}
