//! The networks of a solver: one to train, and any number to test, in all of Caffe's ways to name them.

use quadrille_core::net::NetSpec;
use quadrille_core::site::Fault;
use quadrille_core::solver::{NetSource, StateChange, TestNet};

use super::required_count;
use crate::prototxt::fields::unsupported;
use crate::prototxt::inline::Inline;
use crate::schema::{NetState, Phase, SolverParameter};

/// More than any solver tests; bounds the memory that a file can take up.
const MAX_TESTS: usize = 100;

/// The networks of a solver file by the fields that name them.
pub(super) struct Networks {
    /// `net` or `net_param`: for training and testing.
    generic: Option<NetSource>,
    train: NetSource,
    /// `test_net_param` and then `test_net`: Caffe's order.
    tests: Vec<NetSource>,
}

impl Networks {
    pub(super) fn new(solver: &SolverParameter, inline: Vec<Inline>) -> Result<Self, Fault> {
        let file = |field: &'static str, path: &String| match path.is_empty() {
            true => Err(Fault::new(field, "the name of the network file is empty")),
            false => Ok(NetSource::File { field, path: path.clone() }),
        };
        let mut of_field: Vec<(String, NetSpec)> = inline.into_iter().map(|i| (i.field, i.net)).collect();
        let mut take = |field: &str| {
            let at = of_field.iter().position(|(name, _)| name == field)?;
            Some(NetSource::Inline(Box::new(of_field.remove(at).1)))
        };
        let mut tests: Vec<NetSource> = std::iter::from_fn(|| take("test_net_param")).collect();
        for path in &solver.test_net {
            tests.push(file("test_net", path)?);
        }
        let named = [
            ("net_param", take("net_param")),
            ("net", solver.net.as_ref().map(|path| file("net", path)).transpose()?),
            ("train_net_param", take("train_net_param")),
            ("train_net", solver.train_net.as_ref().map(|path| file("train_net", path)).transpose()?),
        ];
        let mut given = named.into_iter().filter_map(|(field, source)| Some((field, source?)));
        let hint = "name the network file: net: \"train_val.prototxt\"";
        let (first, train) = given.next().ok_or_else(|| Fault::new("net", "missing").hint(hint))?;
        if let Some((second, _)) = given.next() {
            let message = format!("conflicts with {first}; a solver has one network to train");
            return Err(Fault::new(second, message).hint("remove one of them"));
        }
        let generic = ["net", "net_param"].contains(&first).then(|| train.clone());
        Ok(Self { generic, train, tests })
    }

    pub(super) fn train(&self) -> NetSource {
        self.train.clone()
    }

    /// The networks to test, each with its number of mini-batches and its state.
    pub(super) fn tests(&self, solver: &SolverParameter) -> Result<Vec<TestNet>, Fault> {
        let (wanted, named) = (solver.test_iter.len(), self.tests.len());
        if wanted < named || wanted > named && self.generic.is_none() {
            let message = format!("{wanted} values for {named} test networks; expected one for each");
            return Err(Fault::new("test_iter", message)
                .hint("test_iter is the number of mini-batches of a test; write it once for each test_net"));
        }
        if wanted > MAX_TESTS {
            return Err(Fault::new("test_iter", format!("{wanted} tests; at most {MAX_TESTS} are possible")));
        }
        let states = &solver.test_state;
        if !states.is_empty() && states.len() != wanted {
            let message =
                format!("{} states for {wanted} tests; expected none, or one for each", states.len());
            return Err(Fault::new("test_state", message));
        }
        if wanted > 0 && solver.test_interval() == 0 {
            return Err(Fault::new("test_interval", "missing or 0, but test_iter asks for tests")
                .hint("say after how many iterations to test, or remove test_iter"));
        }
        // What is left of the tests is of the network for both phases.
        let sources = self.tests.iter().chain(self.generic.iter().cycle());
        let tests = sources.zip(&solver.test_iter).enumerate().map(|(index, (source, batches))| {
            Ok(TestNet {
                source: source.clone(),
                state: state(states.get(index), "test_state", Phase::Test)?,
                batches: required_count(Some(*batches), "test_iter")?,
            })
        });
        tests.collect()
    }
}

/// What a state in the solver adds to that of a net in `phase`.
pub(super) fn state(given: Option<&NetState>, field: &str, phase: Phase) -> Result<StateChange, Fault> {
    let Some(given) = given else { return Ok(StateChange::default()) };
    if given.phase.is_some() && given.phase() != phase {
        let path = format!("{field}.phase");
        return Err(unsupported(&path, &format!("the phase {} here is", given.phase().as_str_name()))
            .hint("remove it; the phase follows from the field"));
    }
    Ok(StateChange { level: given.level, stages: given.stage.clone() })
}
