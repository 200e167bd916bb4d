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
mod method;
pub mod original_easgd;
pub mod parameter_server;
pub mod sync_easgd;
pub mod sync_sgd;

pub use member::ElasticMember;
pub use method::{Keeper, Method, UnknownMethod};
