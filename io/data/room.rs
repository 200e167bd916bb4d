//! How much memory a data set may take that is held in memory as a whole.

use std::path::Path;

use crate::error::IoError;

/// Bytes that there are to have; by default nobody knows, and whatever is asked for may be tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room(Option<u64>);

impl Room {
    /// So many bytes, if anybody knows.
    pub fn of(bytes: Option<u64>) -> Self {
        Self(bytes)
    }

    /// Makes sure that `bytes` may be taken for what a file holds, before they are.
    ///
    /// # Errors
    /// [`IoError::NoRoom`], naming the file.
    pub(crate) fn check(self, path: &Path, needed: u64) -> Result<(), IoError> {
        match self.0 {
            Some(room) if needed > room => Err(IoError::NoRoom { path: path.to_owned(), needed, room }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_larger_than_its_room_is_refused_with_both_sizes() {
        assert!(Room::default().check(Path::new("set"), u64::MAX).is_ok());
        let room = Room::of(Some(3 << 29));
        assert!(room.check(Path::new("set"), 3 << 29).is_ok());
        let error = room.check(Path::new("set"), 5 << 30).unwrap_err();
        assert_eq!(error.exit_code(), 71);
        assert!(
            error
                .to_string()
                .starts_with("set: takes 5.00 GiB in memory, of which 1.50 GiB are free\n  hint: ")
        );
    }
}
