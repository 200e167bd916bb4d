//! `--device`: what computes for each worker.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use quadrille_gpu::Cuda;

use crate::failure::Failure;

/// What computes for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The CPU's quadrants.
    Cpu,
    /// A GPU by number.
    Cuda(usize),
    /// Every GPU, one after the other.
    AllCuda,
}

/// What computes, as the flag `--device` says: the workers of a node take these in turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceChoice(Vec<Kind>);

impl Default for DeviceChoice {
    fn default() -> Self {
        Self(vec![Kind::Cpu])
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?}; expected cpu, GPUs by number such as cuda:0 or cuda:0,cuda:1, cuda:all, or several of these"
            )
        };
        let mut kinds = Vec::new();
        for word in text.split(',') {
            // A number alone is that of a GPU, as Caffe's -gpu has it.
            let number = word.strip_prefix("cuda:").or(kinds.last().is_none_or(is_gpu).then_some(word));
            kinds.push(match word {
                "cpu" => Kind::Cpu,
                "cuda" => Kind::Cuda(0),
                "cuda:all" | "all" => Kind::AllCuda,
                _ => Kind::Cuda(number.and_then(|number| number.parse().ok()).ok_or_else(wrong)?),
            });
        }
        Ok(Self(kinds))
    }
}

/// Whether a number behind it is that of another GPU.
fn is_gpu(kind: &Kind) -> bool {
    matches!(kind, Kind::Cuda(_))
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |kind: &Kind| match kind {
            Kind::Cpu => "cpu".to_owned(),
            Kind::Cuda(number) => format!("cuda:{number}"),
            Kind::AllCuda => "cuda:all".to_owned(),
        };
        f.write_str(&self.0.iter().map(word).collect::<Vec<_>>().join(","))
    }
}

impl DeviceChoice {
    /// Whether no GPU is asked for.
    pub fn is_cpu(&self) -> bool {
        self.0.iter().all(|kind| *kind == Kind::Cpu)
    }

    /// Whether nothing but GPUs is asked for.
    pub fn is_cuda(&self) -> bool {
        self.0.iter().all(|kind| *kind != Kind::Cpu)
    }

    /// Whether workers differ in what computes for them.
    pub fn is_mixed(&self) -> bool {
        !self.is_cpu() && !self.is_cuda()
    }

    /// Opens the GPUs of the workers with these numbers on this node; `None` for those that quadrants compute for. A GPU that
    /// several have is opened once.
    pub fn open(&self, seats: Range<usize>) -> Result<Vec<Option<Cuda>>, Failure> {
        let all = if self.0.contains(&Kind::AllCuda) { quadrille_gpu::count()? } else { 0 };
        let one_by_one = self.one_by_one(all);
        let mut opened: Vec<(usize, Cuda)> = Vec::new();
        let mut of = |seat: usize| -> Result<Option<Cuda>, Failure> {
            let Some(number) = one_by_one[seat % one_by_one.len()] else { return Ok(None) };
            if let Some((_, gpu)) = opened.iter().find(|(known, _)| *known == number) {
                return Ok(Some(gpu.clone()));
            }
            let gpu = Cuda::open(number)?;
            opened.push((number, gpu.clone()));
            Ok(Some(gpu))
        };
        seats.map(&mut of).collect()
    }

    /// The devices that workers take in turn, where there are `all` GPUs.
    fn one_by_one(&self, all: usize) -> Vec<Option<usize>> {
        let each = |kind: &Kind| match kind {
            Kind::Cpu => vec![None],
            Kind::Cuda(number) => vec![Some(*number)],
            Kind::AllCuda => (0..all).map(Some).collect(),
        };
        self.0.iter().flat_map(each).collect()
    }
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    Off,
}

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Self::On),
            "off" => Ok(Self::Off),
            other => Err(format!("{other:?}; expected on or off")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_by_kind_and_number() {
        let parse = |text: &str| text.parse::<DeviceChoice>();
        assert_eq!(parse("cpu"), Ok(DeviceChoice::default()));
        for (text, wanted) in [
            ("cuda", &[Some(0)][..]),
            ("1", &[Some(1)]),
            ("0,2", &[Some(0), Some(2)]),
            ("all", &[Some(0), Some(1), Some(2)]),
            ("cuda:0,2", &[Some(0), Some(2)]),
            ("cuda:1,cuda:0", &[Some(1), Some(0)]),
            ("cuda:2,cpu", &[Some(2), None]),
            ("cpu,cuda:all", &[None, Some(0), Some(1), Some(2)]),
        ] {
            let choice = parse(text).expect("a choice");
            assert_eq!(choice.one_by_one(3), wanted, "{text}");
            assert_eq!(parse(&choice.to_string()), Ok(choice), "{text}");
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:0,", "cuda:-1", "cuda0", "cpu,1", "-1", "cuda:all,1"]
        {
            assert!(parse(text).is_err_and(|reason| reason.contains("cuda:0")), "{text:?}");
        }
        let kinds = |text| parse(text).map(|choice| [choice.is_cpu(), choice.is_cuda(), choice.is_mixed()]);
        assert_eq!(kinds("cpu,cpu"), Ok([true, false, false]));
        assert_eq!(kinds("cuda:0,1"), Ok([false, true, false]));
        assert_eq!(kinds("cuda:0,cpu"), Ok([false, false, true]));
    }
}
