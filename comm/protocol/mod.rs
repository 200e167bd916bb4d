//! The methods of the SGD and EASGD families: who exchanges what with whom.
//!
//! The update rules themselves are in `quadrille_core::solver`; a protocol moves packed buffers and decides when.
//!
//! # Who holds the centre
//!
//! | methods | the centre is held by | served |
//! |---|---|---|
//! | Sync SGD | nobody: equal weights everywhere ([`sync_sgd`]) | all at once |
//! | Sync EASGD | worker 0 ([`sync_easgd`]) | all at once |
//! | Original EASGD | a master, rank P beside workers 0 to P − 1 ([`original_easgd`]) | round robin |
//! | Async SGD, MSGD, EASGD, MEASGD | a master, rank P ([`parameter_server`], [`async_sgd`], [`async_easgd`]) | first come, first served |
//! | Hogwild SGD, EASGD | memory that all workers share ([`hogwild`]) | several at once |
//!
//! A master is a service thread beside worker 0, with a rank of its own on the transport. It serves one worker at a time:
//! its loop is the lock that the Hogwild methods do without.

pub mod async_easgd;
pub mod async_sgd;
pub mod hogwild;
mod letter;
mod line;
mod member;
pub mod original_easgd;
pub mod parameter_server;
pub mod sync_easgd;
pub mod sync_sgd;

use std::fmt;
use std::str::FromStr;

pub use member::ElasticMember;

/// A method that this program can run. Names and equation numbers are those of "Scaling Deep Learning on GPU and
/// Knights Landing Clusters" (SC17).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Sync SGD: gradients summed by tree, equal weights everywhere ([`sync_sgd`]).
    SyncSgd,
    /// Sync EASGD3, "Communication Efficient EASGD" ([`sync_easgd`]).
    SyncEasgd3,
}

/// The methods of the paper's table that are not built yet.
const NOT_BUILT: [&str; 9] = [
    "original-easgd",
    "async-sgd",
    "async-msgd",
    "hogwild-sgd",
    "async-easgd",
    "async-measgd",
    "hogwild-easgd",
    "sync-easgd1",
    "sync-easgd2",
];

/// Why a name is not a method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MethodError {
    /// A method of the paper that this version does not have.
    #[error("method '{name}' is not built yet; this version has {}", names())]
    NotBuilt {
        /// The name that was asked for.
        name: String,
    },
    /// No method has this name.
    #[error(
        "there is no method '{name}'; this version has {}; not built yet: {}", names(), NOT_BUILT.join(", ")
    )]
    Unknown {
        /// The name that was asked for.
        name: String,
    },
}

fn names() -> String {
    let names: Vec<&str> = Method::ALL.iter().map(|method| method.name()).collect();
    format!("{} (sync-easgd means sync-easgd3)", names.join(", "))
}

impl Method {
    /// Every method of this version.
    pub const ALL: [Method; 2] = [Method::SyncSgd, Method::SyncEasgd3];

    /// The name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Method::SyncSgd => "sync-sgd",
            Method::SyncEasgd3 => "sync-easgd3",
        }
    }

    /// Where the method comes from.
    pub fn reference(self) -> &'static str {
        match self {
            Method::SyncSgd => "SC17, Sync SGD: equations (3) and (4) on the mean of all gradients",
            Method::SyncEasgd3 => {
                "SC17, Sync EASGD3 (Communication Efficient EASGD): equations (1) or (5)(6) on each worker, (2) on the centre"
            }
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = MethodError;

    fn from_str(name: &str) -> Result<Self, MethodError> {
        match name {
            "sync-sgd" => Ok(Method::SyncSgd),
            "sync-easgd" | "sync-easgd3" => Ok(Method::SyncEasgd3),
            _ if NOT_BUILT.contains(&name) => Err(MethodError::NotBuilt { name: name.to_owned() }),
            _ => Err(MethodError::Unknown { name: name.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for method in Method::ALL {
            assert_eq!(method.to_string().parse(), Ok(method));
        }
        assert_eq!("sync-easgd".parse(), Ok(Method::SyncEasgd3));
    }

    #[test]
    fn other_names_are_refused_with_what_there_is() {
        let text = "async-easgd".parse::<Method>().unwrap_err().to_string();
        assert!(
            text.contains("'async-easgd' is not built yet") && text.contains("sync-sgd, sync-easgd3"),
            "{text}"
        );
        let text = "easgd".parse::<Method>().unwrap_err().to_string();
        assert!(text.contains("no method 'easgd'") && text.contains("hogwild-easgd"), "{text}");
        for name in NOT_BUILT {
            assert_eq!(name.parse::<Method>(), Err(MethodError::NotBuilt { name: name.to_owned() }));
        }
    }
}
