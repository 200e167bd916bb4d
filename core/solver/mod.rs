//! Update rules, learning-rate policies and the EASGD equations.

pub mod easgd;
