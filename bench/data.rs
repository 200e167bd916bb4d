//! The wait for data: how fast images of 256x256 are decoded, and how long a training waits for them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use quadrille_core::layer::{Data, DataKind, Transform};
use quadrille_core::net::Phase;
use quadrille_core::rng::{Purpose, Sampler, Stream};
use quadrille_io::data::{
    DataSource, Opening, Order, Prefetcher, Room, SearchPath, TarWriter, Tolerance, encode_jpeg, open,
};
use serde_json::{Value, json};

use crate::ours::{number, object, output_of};
use crate::record::{surroundings, write};

/// What to measure.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Networks that are trained on the images; their crop must fit into 256x256
    #[arg(long, default_value = "alexnet,resnet18", value_delimiter = ',', value_name = "NAMES")]
    nets: Vec<String>,
    /// Images that are made
    #[arg(long, default_value_t = 512, value_name = "N")]
    images: u32,
    /// Quality of the JPEG files, 1 to 100
    #[arg(long, default_value_t = 90, value_name = "Q")]
    quality: u8,
    /// Iterations of each network
    #[arg(long, default_value_t = 30, value_name = "N")]
    iterations: usize,
    /// Threads that train [default: one for each core]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Where to write the record
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
}

/// Rows and columns of an image.
const SIDE: u32 = 256;
/// What a network sees of it.
const CROP: usize = 224;
/// Images that are decoded before the clock counts.
const WARM_UP: u64 = 64;

/// Makes the images, measures, prints and writes the record.
pub fn run(args: &Args) -> Result<(), String> {
    let around = surroundings();
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let path = folder.path().join("images.tar");
    let bytes = make_images(&path, args)?;
    let each = bytes as f64 / f64::from(args.images);
    println!("images      {} JPEGs of {SIDE}x{SIDE}, {:.1} KiB each", args.images, each / 1024.0);
    let source = Arc::new(open_images(&path)?);
    // A mini-batch of one image is one thread's work.
    let [core, all] = [rate(&source, 1, 512)?, rate(&source, 64, 2048)?];
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    println!("decoded     {core:.0} images/s on one core, {all:.0} on {cores}: crop {CROP}, mirror, means");
    println!(
        "{:16} {:>6} {:>12} {:>12} {:>10} {:>9} {:>16}",
        "network", "batch", "made up ms", "images ms", "wait ms", "wait", "cores to decode"
    );
    let mut networks = Vec::new();
    for net in &args.nets {
        networks.push(train(args, net, &path, core)?);
    }
    let record = json!({
        "experiment": "data", "surroundings": around, "images": args.images, "bytes_each": each,
        "decoded_per_second_one_core": core, "decoded_per_second_all_cores": all, "networks": networks,
    });
    args.record.as_ref().map_or(Ok(()), |path| write(path, &record))
}

/// Writes a tar of images in ten classes. Returns the bytes of all images.
fn make_images(path: &Path, args: &Args) -> Result<usize, String> {
    let text = |error: std::io::Error| format!("{}: {error}", path.display());
    let file = std::fs::File::create(path).map_err(text)?;
    let mut tar = TarWriter::new(std::io::BufWriter::new(file));
    let mut bytes = 0;
    for number in 0..args.images {
        let file = encode_jpeg(&pixels(number), [3, SIDE as usize, SIDE as usize], args.quality)?;
        bytes += file.len();
        tar.add(&format!("{}/{number:06}.jpg", number % 10), &file).map_err(text)?;
    }
    tar.finish().and_then(|mut file| std::io::Write::flush(&mut file)).map_err(text)?;
    Ok(bytes)
}

/// A picture that compresses about as a photograph does: gradients, edges of discs, a fine texture and some noise.
fn pixels(number: u32) -> Vec<u8> {
    let stream = Stream::new(u64::from(number), Purpose::Dummy, 0);
    let discs: Vec<[f32; 6]> =
        (0..12).map(|disc| std::array::from_fn(|field| stream.uniform(disc * 6 + field as u64))).collect();
    let mut pixels = Vec::with_capacity((3 * SIDE * SIDE) as usize);
    for at in 0..SIDE * SIDE {
        let (x, y) = ((at % SIDE) as f32 / SIDE as f32, (at / SIDE) as f32 / SIDE as f32);
        let texture = 10.0 * (90.0 * x + 20.0 * y * y).sin() * (70.0 * y).cos();
        for channel in 0..3 {
            let mut value = 60.0 + 90.0 * x * y + 30.0 * (channel as f32 - 1.0) * (x - y);
            for [cx, cy, radius, colour @ ..] in &discs {
                let inside = (x - cx).powi(2) + (y - cy).powi(2) < (0.25 * radius).powi(2);
                value += if inside { 90.0 * (colour[channel] - 0.4) } else { 0.0 };
            }
            let noise = 24.0 * (stream.uniform(1000 + u64::from(3 * at) + channel as u64) - 0.5);
            pixels.push((value + texture + noise).clamp(0.0, 255.0) as u8);
        }
    }
    pixels
}

fn open_images(path: &Path) -> Result<DataSource, String> {
    let transform =
        Transform { crop: CROP, mirror: true, mean_values: vec![104.0, 117.0, 123.0], ..Default::default() };
    let layer = Data {
        source: path.display().to_string(),
        batch: 1,
        transform,
        sample: None,
        kind: DataKind::Records,
    };
    let search = SearchPath::here();
    let opening = Opening {
        data: None,
        search: &search,
        tolerance: Tolerance::Fail,
        staging: None,
        room: Room::default(),
    };
    open(&layer, Phase::Train, opening).map_err(|error| error.to_string())
}

/// Images a second that become part of mini-batches, if nothing else is done.
fn rate(source: &Arc<DataSource>, batch: usize, images: u64) -> Result<f64, String> {
    let text = |error: quadrille_io::IoError| error.to_string();
    let order =
        Order::Shuffled(Sampler::new(1, 0, source.len() as u64), Stream::new(1, Purpose::Transform, 0));
    let batches = Prefetcher::start(source.clone(), order, batch, 0, 2).map_err(text)?;
    let take = |count: u64| {
        (0..count).try_for_each(|_| batches.next_batch().map(|batch| batches.recycle(batch))).map_err(text)
    };
    take(WARM_UP.div_ceil(batch as u64))?;
    let (start, count) = (Instant::now(), images.div_ceil(batch as u64));
    take(count)?;
    Ok((count * batch as u64) as f64 / start.elapsed().as_secs_f64())
}

/// Times a network on made-up data and on the images, with the program that lies beside this one.
fn train(args: &Args, net: &str, path: &Path, decoded: f64) -> Result<Value, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("quadrille");
    let timed = |data: Option<&Path>| {
        let mut command = Command::new(&program);
        command.args(["time", "--json", "--quadrants", "1", "--model", net]);
        command.args(["--iterations", &args.iterations.to_string()]);
        args.threads.iter().for_each(|threads| {
            command.args(["--threads", &threads.to_string()]);
        });
        data.iter().for_each(|path| {
            command.arg("--data").arg(path);
        });
        object(&output_of(&mut command)?)
    };
    let (without, with) = (timed(None)?, timed(Some(path))?);
    let (alone, whole) = (number(&without, "iteration_ms")?, number(&with, "iteration_ms")?);
    let (wait, share) = (number(&with, "data_wait_ms")?, number(&with, "data_wait_percent")?);
    let batch = number(&with, "batch")?;
    let cores = batch / whole * 1e3 / decoded;
    println!("{net:16} {batch:6} {alone:12.2} {whole:12.2} {wait:10.3} {share:7.2} % {cores:16.2}");
    Ok(json!({
        "network": net, "batch": batch, "made_up_ms": alone, "iteration_ms": whole, "data_wait_ms": wait,
        "data_wait_percent": share, "cores_to_decode": cores,
    }))
}
