//! Compiles the schema of Caffe's messages, without `protoc`: structs for the binary formats, and descriptors for
//! the text format.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/caffe.proto");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let descriptors = protox::compile(["proto/caffe.proto"], ["proto"])?;
    fs::write(out.join("caffe.descriptors"), descriptors.encode_to_vec())?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
