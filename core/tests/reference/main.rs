//! Tests of the oracle: finite differences, examples worked by hand, Caffe's rules, whole nets.

mod arrange;
mod batch_norm;
mod case;
mod contrastive_loss;
mod dropout;
mod eltwise;
mod examples;
mod gradients;
mod loss_term;
mod losses;
mod lrn;
mod neurons;
mod normalize;
mod order;
mod precision;
mod recurrent;
mod rules;
mod structure;
mod whole_net;
