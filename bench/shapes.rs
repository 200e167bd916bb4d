//! Shapes of convolutions as lines of text, and the list of those in `models`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use quadrille_core::layer::{Convolution, Filler, Layer};

use crate::nets::training;

/// One convolution on a mini-batch. As text: name, images, channels, height, width, output channels, kernel height and
/// width, stride, padding, dilation, groups; of two extents that differ both are written, as `0x3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConvolutionShape {
    /// Network and layer.
    pub name: String,
    /// Images, channels, height, width.
    pub input: [usize; 4],
    /// Output channels.
    pub out: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Step of the window along height and width.
    pub stride: [usize; 2],
    /// Rows and columns of zeros on each side.
    pub pad: [usize; 2],
    /// Distance of the kernel's taps.
    pub dilation: [usize; 2],
    /// Groups of channels.
    pub group: usize,
}

impl ConvolutionShape {
    /// Whether both are the same work.
    pub fn is_like(&self, other: &Self) -> bool {
        Self { name: String::new(), ..self.clone() } == Self { name: String::new(), ..other.clone() }
    }

    /// The layer, without bias.
    pub fn layer(&self) -> Convolution {
        Convolution {
            num_output: self.out,
            kernel: self.kernel,
            pad: self.pad,
            stride: self.stride,
            dilation: self.dilation,
            group: self.group,
            bias: false,
            relu: false,
            weight_filler: Filler::Constant(0.0),
            bias_filler: Filler::Constant(0.0),
        }
    }
}

/// Two extents, or one if they are equal.
fn pair([a, b]: [usize; 2]) -> String {
    if a == b { a.to_string() } else { format!("{a}x{b}") }
}

fn parse_pair(text: &str) -> Option<[usize; 2]> {
    match text.split_once('x') {
        Some((a, b)) => Some([a.parse().ok()?, b.parse().ok()?]),
        None => text.parse().ok().map(|both| [both; 2]),
    }
}

impl fmt::Display for ConvolutionShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ([n, c, h, w], [kh, kw]) = (self.input, self.kernel);
        write!(f, "{:38} {n:3} {c:4} {h:3} {w:3}  {:4} {kh:2} {kw:2}", self.name, self.out)?;
        let [stride, pad, dilation] = [self.stride, self.pad, self.dilation].map(pair);
        write!(f, "  {stride} {pad:>3} {dilation} {}", self.group)
    }
}

impl FromStr for ConvolutionShape {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        const EXPECTED: &str = "expected: name  n c h w  out kh kw  stride pad dilation group, such as conv1 64 3 227 227 96 11 11 4 0 1 1";
        let words: Vec<&str> = line.split_whitespace().collect();
        let shape = || -> Option<Self> {
            let [name, n, c, h, w, out, kh, kw, stride, pad, dilation, group] = words[..] else {
                return None;
            };
            let number = |text: &str| text.parse::<usize>().ok().filter(|number| *number > 0);
            let positive = |text: &str| parse_pair(text).filter(|pair| pair.iter().all(|number| *number > 0));
            Some(Self {
                name: name.to_owned(),
                input: [number(n)?, number(c)?, number(h)?, number(w)?],
                out: number(out)?,
                kernel: [number(kh)?, number(kw)?],
                stride: positive(stride)?,
                pad: parse_pair(pad)?,
                dilation: positive(dilation)?,
                group: number(group)?,
            })
        };
        shape().ok_or_else(|| format!("{line:?}; {EXPECTED}"))
    }
}

/// Reads a file of shapes: one a line, comments after `#`.
///
/// # Errors
/// The first line that is none.
pub fn read(path: &Path) -> Result<Vec<ConvolutionShape>, String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let lines =
        text.lines().enumerate().map(|(number, line)| (number + 1, line.split('#').next().unwrap_or("")));
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(number, line)| line.parse().map_err(|error| format!("{}:{number}: {error}", path.display())))
        .collect()
}

/// What to write.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder of networks
    #[arg(long, default_value = "models", value_name = "DIR")]
    models: PathBuf,
    /// Where the list goes
    #[arg(long, default_value = "bench/shapes/convolutions.txt", value_name = "FILE")]
    out: PathBuf,
}

/// The convolutions of a network, with the mini-batch in which it is compared.
fn of_network(models: &Path, name: &str, batch: usize) -> Result<Vec<ConvolutionShape>, String> {
    let net = training(&models.join(name).join("train_val.prototxt"), batch)?;
    let convolutions = net.layers.iter().filter_map(|layer| {
        let Layer::Convolution(convolution) = &layer.layer else { return None };
        let input: [usize; 4] = net.blob(layer.bottoms[0]).shape.dims().try_into().ok()?;
        Some(ConvolutionShape {
            name: format!("{name}/{}", layer.name),
            input,
            out: convolution.num_output,
            kernel: convolution.kernel,
            stride: convolution.stride,
            pad: convolution.pad,
            dilation: convolution.dilation,
            group: convolution.group,
        })
    });
    Ok(convolutions.collect())
}

/// The file of all networks' convolutions.
fn list(models: &Path) -> Result<String, String> {
    let path = models.join("compared_batches.txt");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let mut out = String::from(
        "# Every convolution of the networks in models/, in the mini-batches with which they are compared.\n\
         # Made by `quadrille-bench shapes`.\n\
         # name                                   n    c   h   w   out kh kw  stride pad dilation group\n",
    );
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, batch) = line.split_once(' ').ok_or_else(|| format!("{}: {line:?}", path.display()))?;
        let batch = batch.parse().map_err(|error| format!("{}: {line:?}: {error}", path.display()))?;
        for shape in of_network(models, name, batch)? {
            out += &format!("{shape}\n");
        }
    }
    Ok(out)
}

/// Writes the list.
pub fn run(args: &Args) -> Result<(), String> {
    let text = list(&args.models)?;
    std::fs::write(&args.out, text).map_err(|error| format!("{}: {error}", args.out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    #[test]
    fn a_shape_is_read_as_it_is_written() {
        let line = "a/b  16 3 227 200  96 1 7  4x2 0x3 1 2";
        let shape: ConvolutionShape = line.parse().unwrap();
        assert_eq!((shape.input, shape.out, shape.kernel), ([16, 3, 227, 200], 96, [1, 7]));
        assert_eq!((shape.stride, shape.pad, shape.dilation, shape.group), ([4, 2], [0, 3], [1, 1], 2));
        assert_eq!(shape.to_string().parse(), Ok(shape.clone()));
        let other: ConvolutionShape = line.replace("a/b", "c").parse().unwrap();
        assert!(shape != other && shape.is_like(&other));
        for bad in [
            "",
            "a 1 2 3",
            "a 16 3 227 200 96 1 7 4 3 1 0",
            "a 0 3 2 2 9 1 1 1 0 1 1",
            "a 1 3 2 2 9 1 1 0x1 0 1 1",
        ] {
            assert!(bad.parse::<ConvolutionShape>().is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_list_is_that_of_the_networks() {
        let file = root().join("bench/shapes/convolutions.txt");
        let shapes = read(&file).unwrap_or_else(|error| panic!("{error}"));
        assert!(shapes.len() > 500, "{} shapes", shapes.len());
        match list(&root().join("models")) {
            Ok(text) => {
                let written = std::fs::read_to_string(&file).unwrap();
                assert!(text == written, "run `quadrille-bench shapes` after a change of a network");
            }
            Err(reason) => panic!("{reason}"),
        }
    }
}
