//! The kernels' sources, and what each kernel takes: read from the sources themselves, so that a launch that does not fit is
//! found before it is made.

use std::collections::HashMap;

use crate::op::{Argument, Launch};

/// What stands in front of each of the others.
pub(crate) const COMMON: &str = include_str!("kernels/common.cu");

/// The sources by name.
pub(crate) const SOURCES: [(&str, &str); 9] = [
    ("channel.cu", include_str!("kernels/channel.cu")),
    ("dropout.cu", include_str!("kernels/dropout.cu")),
    ("element.cu", include_str!("kernels/element.cu")),
    ("loss.cu", include_str!("kernels/loss.cu")),
    ("lrn.cu", include_str!("kernels/lrn.cu")),
    ("neuron.cu", include_str!("kernels/neuron.cu")),
    ("pooling.cu", include_str!("kernels/pooling.cu")),
    ("product.cu", include_str!("kernels/product.cu")),
    ("update.cu", include_str!("kernels/update.cu")),
];

/// The type of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    /// A pointer.
    Pointer,
    /// `int`.
    Int,
    /// `u32`.
    Word,
    /// `float`.
    Float,
    /// A struct of so many ints.
    Struct(usize),
}

/// What a kernel takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Which of [`SOURCES`] it stands in.
    pub source: usize,
    /// Its parameters.
    pub parameters: Vec<Parameter>,
}

/// All kernels by name.
#[derive(Clone, Debug)]
pub(crate) struct Signatures(HashMap<&'static str, Signature>);

const START: &str = "extern \"C\" __global__ void ";

impl Signatures {
    /// Reads them from the sources.
    pub fn read() -> Self {
        let mut found = HashMap::new();
        for (source, (_, text)) in SOURCES.iter().enumerate() {
            for line in text.lines().filter_map(|line| line.strip_prefix(START)) {
                let Some((name, rest)) = line.split_once('(') else { continue };
                let list = rest.split(')').next().unwrap_or_default();
                let parameters = list.split(", ").map(|one| parameter(one, text)).collect();
                found.insert(name, Signature { source, parameters });
            }
        }
        Self(found)
    }

    /// What a kernel takes.
    pub fn get(&self, kernel: &str) -> Option<&Signature> {
        self.0.get(kernel)
    }

    /// Whether the arguments of a launch are those that its kernel takes.
    ///
    /// # Errors
    /// With what is wrong. A bug of the program.
    pub fn check(&self, launch: &Launch) -> Result<(), String> {
        let Launch { kernel, arguments, grid } = launch;
        let signature = self.get(kernel).ok_or_else(|| format!("there is no kernel {kernel}"))?;
        let given: Vec<Parameter> = arguments.iter().zip(&signature.parameters).map(fitting).collect();
        if arguments.len() != signature.parameters.len() || given != signature.parameters {
            return Err(format!("{kernel} takes {:?}; given {arguments:?}", signature.parameters));
        }
        // The limits of every GPU since 2012.
        if grid[0] > i32::MAX as u32 || grid[1] > 65_535 || grid[2] > 65_535 {
            return Err(format!("{kernel}: a grid of {grid:?} blocks is too large"));
        }
        Ok(())
    }
}

fn fitting((argument, parameter): (&Argument, &Parameter)) -> Parameter {
    match argument {
        Argument::Array(_) | Argument::Missing => Parameter::Pointer,
        Argument::Int(_) => Parameter::Int,
        Argument::Word(_) => Parameter::Word,
        Argument::Float(_) => Parameter::Float,
        Argument::Struct(values) if *parameter == Parameter::Struct(values.len()) => *parameter,
        Argument::Struct(values) => Parameter::Struct(values.len()),
    }
}

/// The type of a parameter such as `const float* x`, whose structs stand in `text`.
fn parameter(declared: &str, text: &str) -> Parameter {
    let type_name = declared.rsplit_once(' ').map_or(declared, |(type_name, _)| type_name);
    match type_name {
        pointer if pointer.ends_with('*') => Parameter::Pointer,
        "int" => Parameter::Int,
        "u32" => Parameter::Word,
        "float" => Parameter::Float,
        name => Parameter::Struct(ints(name, text)),
    }
}

/// How many ints a struct of `text` has.
fn ints(name: &str, text: &str) -> usize {
    let body = text.split_once(&format!("struct {name} {{\n")).map_or("", |(_, behind)| behind);
    let fields = body.lines().take_while(|line| *line != "};");
    let of_line = |line: &str| Some(line.trim().strip_prefix("int ")?.strip_suffix(';')?.split(", ").count());
    fields.filter_map(of_line).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Op, Span};

    #[test]
    fn every_kernel_is_read_with_its_parameters() {
        let signatures = Signatures::read();
        let declared: usize = SOURCES.iter().map(|(_, text)| text.matches("__global__").count()).sum();
        assert_eq!(signatures.0.len(), declared, "kernels with names of their own, each in one line");
        use Parameter::{Float, Int, Pointer, Struct};
        let of = |name| signatures.get(name).map(|s| s.parameters.clone());
        assert_eq!(of("relu_forward"), Some(vec![Pointer, Pointer, Float, Int]));
        assert_eq!(of("pool_average"), Some(vec![Pointer, Pointer, Struct(11), Int]));
        assert_eq!(of("convolution_grad_weight"), Some(vec![Pointer, Pointer, Pointer, Struct(18)]));
        let structs = signatures.0.values().flat_map(|s| &s.parameters);
        assert!(structs.clone().all(|p| *p != Struct(0)), "every struct is found");
    }

    #[test]
    fn a_launch_that_does_not_fit_is_refused() {
        let signatures = Signatures::read();
        let array = Span::arena(0, 1);
        let check = |op: Op| match op {
            Op::Launch(launch) => signatures.check(&launch),
            _ => Ok(()),
        };
        assert_eq!(check(Op::each("fill", 1, arguments![array, 1.0, 1])), Ok(()));
        for (name, wrong) in [
            ("fill", arguments![array, 1, 1]),
            ("fill", arguments![array, 1.0]),
            ("fill", arguments![array, 1.0, 1, 1]),
            ("scale", arguments![array, array, array, array, [1, 2]]),
            ("nothing", arguments![]),
        ] {
            assert!(check(Op::each(name, 1, wrong)).is_err(), "{name}");
        }
        assert!(check(Op::blocks("fill", [1, 70_000, 1], arguments![array, 1.0, 1])).is_err());
    }

    use crate::op::arguments;
}
