//! Compiles the schemas of Caffe's messages of machines and of plans, without `protoc`: structs for the binary formats, and descriptors for
//! the text format.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let files = ["proto/caffe.proto", "proto/machine.proto", "proto/plan.proto"];
    files.iter().for_each(|file| println!("cargo::rerun-if-changed={file}"));
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let descriptors = protox::compile(files, ["proto"])?;
    fs::write(out.join("messages.descriptors"), descriptors.encode_to_vec())?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
