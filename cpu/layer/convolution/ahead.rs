//! What a grain of ∇W reads next, asked for while tiles compute: a vector for each step of a kernel.
//!
//! Gradients and rows of the source are made into words, or copied into a strip, just before tiles need them. Those copies
//! are short and far apart, so that neither the processor's prefetchers nor its window hide the way to memory; the
//! tiles between them have loads to spare.

/// Rows of some planes, handed out piece by piece.
pub(super) struct Rows {
    /// The first element, of the first plane.
    pub first: *const f32,
    /// Elements between planes.
    pub plane: usize,
    /// Elements of the rows in a plane.
    pub len: usize,
    /// Planes that are still to come.
    pub planes: usize,
    /// Elements of the first of them that were handed out.
    pub done: usize,
}

impl Rows {
    /// No rows.
    pub fn none() -> Self {
        Self { first: std::ptr::null(), plane: 0, len: 0, planes: 0, done: 0 }
    }

    /// The next piece of so many elements, or of those that a plane has left; none if all were handed out.
    pub fn take(&mut self, count: usize) -> Option<*const f32> {
        if self.planes == 0 {
            return None;
        }
        let piece = self.first.wrapping_add(self.done);
        self.done += count;
        if self.done >= self.len {
            (self.first, self.done, self.planes) = (self.first.wrapping_add(self.plane), 0, self.planes - 1);
        }
        Some(piece)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_all_planes_is_handed_out_once() {
        let memory = [0.0f32; 300];
        let mut rows = Rows { first: memory[7..].as_ptr(), plane: 100, len: 60, planes: 3, done: 0 };
        let at = |piece: *const f32| (piece as usize - memory.as_ptr() as usize) / size_of::<f32>();
        let pieces: Vec<usize> = std::iter::from_fn(|| rows.take(32).map(at)).collect();
        assert_eq!(pieces, [7, 39, 107, 139, 207, 239]);
        assert_eq!(Rows::none().take(1), None);
    }
}
