//! The methods by name, and what sets each apart.

use std::fmt;
use std::str::FromStr;

/// A method of training with several workers. Names and equation numbers are those of "Scaling Deep Learning on GPU and
/// Knights Landing Clusters" (SC17).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Original EASGD ([`super::original_easgd`]).
    OriginalEasgd,
    /// Async SGD ([`super::async_sgd`]).
    AsyncSgd,
    /// Async MSGD: Async SGD with momentum at the master.
    AsyncMsgd,
    /// Hogwild SGD ([`super::hogwild`]).
    HogwildSgd,
    /// Async EASGD ([`super::async_easgd`]).
    AsyncEasgd,
    /// Async MEASGD: Async EASGD with momentum on each worker.
    AsyncMeasgd,
    /// Hogwild EASGD ([`super::hogwild`]).
    HogwildEasgd,
    /// Sync SGD: gradients summed by tree, equal weights everywhere ([`super::sync_sgd`]).
    SyncSgd,
    /// Sync EASGD1: the exchange by tree after the gradients are found, with the centre on the host ([`super::sync_easgd`]).
    SyncEasgd1,
    /// Sync EASGD2: the same with the centre beside worker 0.
    SyncEasgd2,
    /// Sync EASGD3, "Communication Efficient EASGD": the same beside forward and backward.
    SyncEasgd3,
}

/// Who holds the weights that all workers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Keeper {
    /// Worker 0, or every worker.
    Workers,
    /// A master: one more rank on the transport, behind the workers.
    Master,
    /// Memory that all workers change.
    SharedMemory,
}

/// No method has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no method '{name}'; the methods are {} (sync-easgd means sync-easgd3)", names())]
pub struct UnknownMethod {
    /// The name that was asked for.
    pub name: String,
}

fn names() -> String {
    Method::ALL.map(Method::name).join(", ")
}

impl Method {
    /// Every method, in the order of the paper's table: those that were there before, those with the centre, and those
    /// that wait for all.
    pub const ALL: [Method; 11] = [
        Method::OriginalEasgd,
        Method::AsyncSgd,
        Method::AsyncMsgd,
        Method::HogwildSgd,
        Method::AsyncEasgd,
        Method::AsyncMeasgd,
        Method::HogwildEasgd,
        Method::SyncSgd,
        Method::SyncEasgd1,
        Method::SyncEasgd2,
        Method::SyncEasgd3,
    ];

    /// The name on the command line and in records.
    pub fn name(self) -> &'static str {
        match self {
            Method::OriginalEasgd => "original-easgd",
            Method::AsyncSgd => "async-sgd",
            Method::AsyncMsgd => "async-msgd",
            Method::HogwildSgd => "hogwild-sgd",
            Method::AsyncEasgd => "async-easgd",
            Method::AsyncMeasgd => "async-measgd",
            Method::HogwildEasgd => "hogwild-easgd",
            Method::SyncSgd => "sync-sgd",
            Method::SyncEasgd1 => "sync-easgd1",
            Method::SyncEasgd2 => "sync-easgd2",
            Method::SyncEasgd3 => "sync-easgd3",
        }
    }

    /// What it does, in a line.
    pub fn summary(self) -> &'static str {
        match self {
            Method::OriginalEasgd => "a master serves workers in turn; one of them computes at a time",
            Method::AsyncSgd => "a master takes a step with each gradient, first come, first served",
            Method::AsyncMsgd => "the same with momentum, which is the master's",
            Method::HogwildSgd => "every worker takes its steps in shared memory, without a lock",
            Method::AsyncEasgd => "a centre pulls on the worker that comes, first come, first served",
            Method::AsyncMeasgd => "the same with momentum, each worker's own",
            Method::HogwildEasgd => "a centre in shared memory pulls on each worker, without a lock",
            Method::SyncSgd => "all take the step of the mean of all gradients",
            Method::SyncEasgd1 => {
                "a centre pulls on all at once; exchange after backward, centre on the host"
            }
            Method::SyncEasgd2 => "the same with the centre beside worker 0",
            Method::SyncEasgd3 => "the same, with the exchange while forward and backward run",
        }
    }

    /// Where the method comes from.
    pub fn reference(self) -> &'static str {
        match self {
            Method::OriginalEasgd => {
                "SC17, Original EASGD (Zhang et al., 2015), round robin: equations (1) or (5)(6) on the worker, (2) on the centre"
            }
            Method::AsyncSgd => "SC17, Async SGD (Dean et al., 2012): the step of SGD on the master",
            Method::AsyncMsgd => "SC17, Async MSGD: equations (3) and (4) on the master",
            Method::HogwildSgd => "SC17, Hogwild SGD (Recht et al., 2011): the step of SGD in shared memory",
            Method::AsyncEasgd => "SC17, Async EASGD: equation (1) on the worker, (2) on the centre",
            Method::AsyncMeasgd => "SC17, Async MEASGD: equations (5)(6) on the worker, (2) on the centre",
            Method::HogwildEasgd => {
                "SC17, Hogwild EASGD: equations (1) or (5)(6) on the worker, (2) on the centre in shared memory"
            }
            Method::SyncSgd => "SC17, Sync SGD: equations (3) and (4) on the mean of all gradients",
            Method::SyncEasgd1 => {
                "SC17, Sync EASGD1 (exchange after backward): equations (1) or (5)(6) on each worker, (2) on the centre"
            }
            Method::SyncEasgd2 => {
                "SC17, Sync EASGD2 (exchange after backward): equations (1) or (5)(6) on each worker, (2) on the centre"
            }
            Method::SyncEasgd3 => {
                "SC17, Sync EASGD3 (Communication Efficient EASGD): equations (1) or (5)(6) on each worker, (2) on the centre"
            }
        }
    }

    /// Whether a centre pulls on workers that have weights of their own.
    pub fn is_elastic(self) -> bool {
        !matches!(self, Method::SyncSgd) && !self.sends_gradients()
    }

    /// Whether gradients go to a centre that takes the step: workers have no step of their own.
    pub fn sends_gradients(self) -> bool {
        matches!(self, Method::AsyncSgd | Method::AsyncMsgd | Method::HogwildSgd)
    }

    /// Whether all workers exchange at once, so that the same seed gives the same bits and the pull on the centre is that of
    /// all together.
    pub fn is_synchronous(self) -> bool {
        matches!(self, Method::SyncSgd | Method::SyncEasgd1 | Method::SyncEasgd2 | Method::SyncEasgd3)
    }

    /// Whether the method is one without momentum by its definition.
    pub fn is_plain(self) -> bool {
        matches!(self, Method::AsyncSgd | Method::HogwildSgd | Method::AsyncEasgd)
    }

    /// Whether the exchange runs beside forward and backward.
    pub fn overlaps(self) -> bool {
        self.is_elastic() && !matches!(self, Method::SyncEasgd1 | Method::SyncEasgd2)
    }

    /// Who holds what all workers share.
    pub fn keeper(self) -> Keeper {
        match self {
            Method::OriginalEasgd
            | Method::AsyncSgd
            | Method::AsyncMsgd
            | Method::AsyncEasgd
            | Method::AsyncMeasgd => Keeper::Master,
            Method::HogwildSgd | Method::HogwildEasgd => Keeper::SharedMemory,
            Method::SyncSgd | Method::SyncEasgd1 | Method::SyncEasgd2 | Method::SyncEasgd3 => Keeper::Workers,
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Method {
    type Err = UnknownMethod;

    fn from_str(name: &str) -> Result<Self, UnknownMethod> {
        if name == "sync-easgd" {
            return Ok(Method::SyncEasgd3);
        }
        let method = Method::ALL.into_iter().find(|method| method.name() == name);
        method.ok_or_else(|| UnknownMethod { name: name.to_owned() })
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
        let text = "easgd".parse::<Method>().unwrap_err().to_string();
        assert!(text.contains("no method 'easgd'"), "{text}");
        for method in Method::ALL {
            assert!(text.contains(method.name()), "{text}");
        }
    }

    #[test]
    fn every_method_is_of_one_kind() {
        let which = |is: fn(Method) -> bool| Method::ALL.into_iter().filter(|m| is(*m)).collect::<Vec<_>>();
        use Method::*;
        assert_eq!(which(Method::sends_gradients), [AsyncSgd, AsyncMsgd, HogwildSgd]);
        assert_eq!(
            which(Method::is_elastic),
            [OriginalEasgd, AsyncEasgd, AsyncMeasgd, HogwildEasgd, SyncEasgd1, SyncEasgd2, SyncEasgd3]
        );
        assert_eq!(which(Method::is_synchronous), [SyncSgd, SyncEasgd1, SyncEasgd2, SyncEasgd3]);
        assert_eq!(which(|m| m.keeper() == Keeper::SharedMemory), [HogwildSgd, HogwildEasgd]);
        assert_eq!(which(|m| m.is_elastic() && !m.overlaps()), [SyncEasgd1, SyncEasgd2]);
    }
}
