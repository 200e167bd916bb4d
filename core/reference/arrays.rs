//! The arrays of one layer, each owned and apart from all others.

use std::collections::HashMap;

use crate::layer::Operand;

/// Owned arrays by operand.
#[derive(Clone, Debug, PartialEq)]
pub struct Arrays<T> {
    by_operand: HashMap<Operand, Vec<T>>,
}

impl<T> Default for Arrays<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Arrays<T> {
    /// No arrays.
    pub fn new() -> Self {
        Self { by_operand: HashMap::new() }
    }

    /// Puts an array in place of what was there.
    pub fn insert(&mut self, operand: Operand, values: Vec<T>) {
        self.by_operand.insert(operand, values);
    }

    /// The array, if there is one.
    pub fn find(&self, operand: Operand) -> Option<&[T]> {
        self.by_operand.get(&operand).map(Vec::as_slice)
    }

    /// The array.
    ///
    /// # Panics
    /// If there is none: a sub-task read something that it did not declare, or that the caller forgot.
    pub fn get(&self, operand: Operand) -> &[T] {
        self.find(operand).unwrap_or_else(|| panic!("{operand:?} is not among the arrays"))
    }

    /// The array, to be changed.
    ///
    /// # Panics
    /// If there is none.
    pub fn get_mut(&mut self, operand: Operand) -> &mut [T] {
        self.by_operand.get_mut(&operand).unwrap_or_else(|| panic!("{operand:?} is not among the arrays"))
    }

    /// Takes the array out, if there is one.
    pub fn take(&mut self, operand: Operand) -> Option<Vec<T>> {
        self.by_operand.remove(&operand)
    }
}
