//! The concurrency maintainer: what analyses found, for whoever comes again.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::layer::SubTask;
use crate::net::Net;
use crate::task::Task;

/// Where kernels run: on which device, in which network and layer, for which sub-task, on which shape.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Situation {
    /// The device, as it calls itself.
    pub device: String,
    /// The network's name.
    pub network: String,
    /// The layer's name.
    pub layer: String,
    /// What is done.
    pub sub: SubTask,
    /// The shape of what the layer reads: images first.
    pub shape: Vec<usize>,
}

impl Situation {
    /// Where the kernels of a task of `net` run on a device.
    pub fn of(device: &str, net: &Net, task: &Task) -> Self {
        Self {
            device: device.to_owned(),
            network: net.name.clone(),
            layer: net.layer(task.layer).name.clone(),
            sub: task.sub,
            shape: net.bottom_shapes(task.layer).first().map_or(Vec::new(), |shape| shape.dims().to_vec()),
        }
    }
}

/// Lanes by situation. As text it has one line for each, fields with tabs between them; the order does not depend on that of
/// the analyses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Maintainer {
    lanes: BTreeMap<Situation, u32>,
}

impl Maintainer {
    /// What was found for a situation.
    pub fn get(&self, situation: &Situation) -> Option<u32> {
        self.lanes.get(situation).copied()
    }

    /// Keeps what was found, in place of what was there.
    pub fn keep(&mut self, situation: Situation, lanes: u32) {
        self.lanes.insert(situation, lanes);
    }

    /// The most lanes that any situation on a device asks for.
    pub fn most(&self, device: &str) -> Option<u32> {
        self.lanes.iter().filter(|(at, _)| at.device == device).map(|(_, lanes)| *lanes).max()
    }

    /// How many situations are kept.
    pub fn len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }
}

/// A line that is none of a [`Maintainer`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotKept {
    /// The line, from 1.
    pub line: usize,
    /// What it should be.
    pub expected: &'static str,
}

impl fmt::Display for NotKept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: expected {}", self.line, self.expected)
    }
}

impl std::error::Error for NotKept {}

const HEADER: &str = "# lanes\tsub-task\tshape\tlayer\tnetwork\tdevice";

impl fmt::Display for Maintainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for (at, lanes) in &self.lanes {
            let shape: Vec<String> = at.shape.iter().map(usize::to_string).collect();
            let names = [&at.layer, &at.network, &at.device].map(|name| escaped(name)).join("\t");
            writeln!(f, "{lanes}\t{}\t{}\t{names}", at.sub, shape.join("x"))?;
        }
        Ok(())
    }
}

impl FromStr for Maintainer {
    type Err = NotKept;

    fn from_str(text: &str) -> Result<Self, NotKept> {
        let mut kept = Self::default();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
            let wrong = |expected| NotKept { line: number + 1, expected };
            let fields: Vec<&str> = line.split('\t').collect();
            let [lanes, sub, shape, layer, network, device] = fields[..] else {
                return Err(wrong("six fields with tabs between them"));
            };
            let lanes = lanes.parse().ok().filter(|lanes| *lanes > 0);
            let sub = SubTask::ALL.into_iter().find(|known| known.to_string() == sub);
            let shape: Result<Vec<usize>, _> =
                shape.split('x').filter(|extent| !extent.is_empty()).map(str::parse).collect();
            let names = [layer, network, device].map(plain);
            let [Some(layer), Some(network), Some(device)] = names else {
                return Err(wrong("names in which a backslash is followed by a backslash, t, n or r"));
            };
            let situation = Situation {
                device,
                network,
                layer,
                sub: sub.ok_or_else(|| wrong("a sub-task, such as forward"))?,
                shape: shape.map_err(|_| wrong("a shape, such as 64x3x227x227"))?,
            };
            let lanes = lanes.ok_or_else(|| wrong("a number of lanes, at least 1"))?;
            if kept.lanes.insert(situation, lanes).is_some() {
                return Err(wrong("a situation that no line before has"));
            }
        }
        Ok(kept)
    }
}

/// A name without tabs and ends of lines.
fn escaped(name: &str) -> String {
    name.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n").replace('\r', "\\r")
}

fn plain(escaped: &str) -> Option<String> {
    let mut plain = String::new();
    let mut letters = escaped.chars();
    while let Some(letter) = letters.next() {
        plain.push(match letter {
            '\\' => match letters.next()? {
                '\\' => '\\',
                't' => '\t',
                'n' => '\n',
                'r' => '\r',
                _ => return None,
            },
            other => other,
        });
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn situation(device: &str, layer: &str, sub: SubTask, shape: &[usize]) -> Situation {
        Situation {
            device: device.into(),
            network: "a \t\\ net".into(),
            layer: layer.into(),
            sub,
            shape: shape.into(),
        }
    }

    #[test]
    fn what_is_kept_is_read_as_it_is_written() {
        let mut kept = Maintainer::default();
        assert_eq!(kept.to_string().parse(), Ok(kept.clone()));
        let conv = situation("GPU 0", "conv1\n", SubTask::Forward, &[64, 3, 227, 227]);
        kept.keep(conv.clone(), 3);
        kept.keep(conv.clone(), 5);
        kept.keep(situation("GPU 1", "\\t\r", SubTask::GradWeight, &[]), 9);
        kept.keep(Situation { shape: vec![1], ..conv.clone() }, 2);
        assert_eq!((kept.len(), kept.get(&conv), kept.is_empty()), (3, Some(5), false));
        assert_eq!([kept.most("GPU 0"), kept.most("GPU 1"), kept.most("GPU")], [Some(5), Some(9), None]);
        assert_eq!(kept.get(&Situation { network: "another".into(), ..conv }), None);
        assert_eq!(kept.to_string().parse(), Ok(kept));
    }

    #[test]
    fn other_lines_are_refused_with_their_number() {
        let good = "3\tforward\t2x3\tconv\tnet\tdevice";
        assert!(good.parse::<Maintainer>().is_ok());
        for (from, to, expected) in [
            ("3\t", "0\t", "number of lanes"),
            ("3\t", "x\t", "number of lanes"),
            ("3\t", "", "six fields"),
            ("forward", "backward", "a sub-task"),
            ("2x3", "2x-3", "a shape"),
            ("conv", "co\\nv\\", "names in which"),
            ("conv", "\\x", "names in which"),
        ] {
            let text = format!("{HEADER}\n{good}\n{}\n", good.replacen(from, to, 1));
            let refused = text.parse::<Maintainer>().expect_err(to);
            assert!(refused.line == 3 && refused.to_string().contains(expected), "{to}: {refused}");
        }
        let twice = format!("{good}\n{good}").parse::<Maintainer>().expect_err("twice").to_string();
        assert_eq!(twice, "line 2: expected a situation that no line before has");
    }
}
