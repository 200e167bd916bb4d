//! Tests of the oracle: finite differences, examples worked by hand, Caffe's rules, whole nets.

mod batch_norm;
mod case;
mod eltwise;
mod examples;
mod gradients;
mod normalize;
mod precision;
mod rules;
mod whole_net;
