//! One convolution alone on the engine: its sub-tasks, their times and what they computed.

use quadrille_core::device::{Device, Event, Packed, Region, Scalars};
use quadrille_core::layer::{Convolution, Input, Layer, Normalization, SoftmaxWithLoss, SubTask};
use quadrille_core::net::{GivenState, LayerId, LayerSpec, Net, NetSpec, NetState, Phase, StorageId};
use quadrille_core::plan::{Plan, PlanOptions, Stage};
use quadrille_core::rng::{Purpose, Stream};
use quadrille_core::solver::Rule;
use quadrille_core::task::{DeviceId, Task, Tile};
use quadrille_cpu::isa::Numerics;
use quadrille_cpu::{CpuDevice, CpuWorker, CrewSpec, EngineError, EngineOptions, Program};

use crate::shapes::ConvolutionShape;

/// Most channels of images, which come from the data and not from a layer.
const IMAGE_CHANNELS: usize = 4;

/// What is measured, in the order in which it runs.
pub const SUBS: [SubTask; 3] = [SubTask::Forward, SubTask::GradActivation, SubTask::GradWeight];

/// The layer's name in its net, and that of the one that would compute its bottom.
const NAME: &str = "it";
const BEFORE: &str = "before";

/// An implementation whose blobs lie plain.
const PLAIN: &str = "im2col-gemm";

/// A convolution between another one and a loss, so that all its gradients exist, and its bottom lies as in a network: in blocks, in
/// bf16 if that is asked for, unless it is an image of a few channels.
pub struct Case {
    net: Net,
    id: LayerId,
    plan: Plan,
}

/// One implementation's times and results.
pub struct Outcome {
    /// Milliseconds of each of [`SUBS`], medians.
    pub ms: [f64; 3],
    /// What each wrote: tops, gradients of the bottoms, gradient of the weight.
    pub results: [Vec<f32>; 3],
}

/// How a case is run.
#[derive(Clone, Debug)]
pub struct Setting<'a> {
    /// The tier and the precision of products.
    pub numerics: Numerics,
    /// The implementation.
    pub kernel: &'a str,
    /// The crew.
    pub crew: &'a CrewSpec,
    /// Measured runs, at least 1, after one that is not; `None` for a single run.
    pub repeat: Option<usize>,
}

impl Case {
    /// The net around a shape.
    ///
    /// # Errors
    /// If no such convolution is possible.
    pub fn new(shape: &ConvolutionShape) -> Result<Self, String> {
        let impossible = |reason: String| format!("{}: {reason}", shape.name);
        let [n, channels, h, w] = shape.input;
        let layer = shape.layer();
        let [rows, columns] =
            layer.output([h, w]).ok_or_else(|| impossible("the kernel is larger than the image".into()))?;
        let input = |name: &str, dims: &[usize]| {
            let layer = Layer::Input(Input { shapes: vec![dims.to_vec()], tops: 1 });
            LayerSpec::new(name, layer, &[], &[name])
        };
        // A class a channel: the only loss that adds no parameters of its own.
        let loss = SoftmaxWithLoss { axis: 1, ignore_label: None, normalization: Normalization::None };
        let before = Convolution {
            num_output: channels,
            kernel: [1; 2],
            pad: [0; 2],
            stride: [1; 2],
            dilation: [1; 2],
            group: 1,
            ..layer.clone()
        };
        let mut layers = if channels <= IMAGE_CHANNELS {
            vec![input("bottom", &shape.input)]
        } else {
            let before = LayerSpec::new(BEFORE, Layer::Convolution(before), &["x"], &["bottom"]);
            vec![input("x", &[n, 1, h, w]), before]
        };
        layers.extend([
            input("label", &[n, rows, columns]),
            LayerSpec::new(NAME, Layer::Convolution(layer), &["bottom"], &["top"]),
            LayerSpec::new("loss", Layer::SoftmaxWithLoss(loss), &["top", "label"], &["loss"]),
        ]);
        let file = "<shape>".into();
        let spec = NetSpec {
            name: shape.name.clone(),
            file,
            force_backward: true,
            state: GivenState::default(),
            layers,
            notes: Vec::new(),
        };
        let net = Net::build(&spec, &NetState::new(Phase::Train), 1.0);
        let net = net.map_err(|error| impossible(error.to_string()))?;
        let id = net.layers.iter().position(|layer| layer.name == NAME);
        let id = LayerId(id.ok_or_else(|| impossible("the layer is not in its net".into()))?);
        let options = PlanOptions::new(Stage::Iteration);
        let plan = Plan::build(std::slice::from_ref(&net), options).map_err(|e| impossible(e.to_string()))?;
        Ok(Self { net, id, plan })
    }

    /// Floating-point operations of a sub-task.
    pub fn flops(&self, sub: SubTask) -> u64 {
        self.net.flops(self.id, sub)
    }

    fn worker(&self, numerics: Numerics, kernel: &str, crew: &CrewSpec) -> Result<CpuWorker, EngineError> {
        let plain = !["tiles", "winograd"].iter().any(|blocked| kernel.starts_with(blocked));
        let mut kernels = vec![(NAME.to_owned(), kernel.to_owned())];
        if plain && self.net.layers.iter().any(|layer| layer.name == BEFORE) {
            kernels.push((BEFORE.to_owned(), PLAIN.to_owned()));
        }
        let options = EngineOptions {
            isa: numerics.isa,
            precision: numerics.precision,
            kernels,
            rule: Rule::default(),
            elastic: false,
            spin: true,
        };
        let program = Program { nets: std::slice::from_ref(&self.net), plans: &[&self.plan] };
        CpuWorker::new(std::slice::from_ref(crew), &[program], &options)
    }

    /// The names of all implementations, best first. The engine tells them when it refuses one that is none.
    ///
    /// # Errors
    /// If the refusal does not tell them.
    pub fn implementations(&self, numerics: Numerics, crew: &CrewSpec) -> Result<Vec<String>, String> {
        let refusal = match self.worker(numerics, "?", crew) {
            Err(EngineError::Kernel(refusal)) => refusal,
            Err(error) => return Err(error.to_string()),
            Ok(_) => return Err("an implementation without a name was accepted".to_owned()),
        };
        let names = refusal.split_once("its implementations are ").map(|(_, names)| names);
        let names = names.ok_or_else(|| format!("no list of implementations in: {refusal}"))?;
        Ok(names.split(", ").map(str::to_owned).collect())
    }

    /// Runs every sub-task on small integers, whose sums are exact, so that all implementations agree in every bit.
    /// `None` if the implementation cannot do this convolution.
    ///
    /// # Errors
    /// If the engine fails.
    pub fn run(&self, setting: &Setting<'_>) -> Result<Option<Outcome>, String> {
        let worker = match self.worker(setting.numerics, setting.kernel, setting.crew) {
            Ok(worker) => worker,
            Err(EngineError::Kernel(_)) => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let device = &worker.devices(0)[0];
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        device.begin(&Scalars::default()).map_err(|e| failed(&e))?;
        self.fill(device)?;
        let mut outcome = Outcome { ms: [0.0; 3], results: Default::default() };
        for (index, sub) in SUBS.into_iter().enumerate() {
            let tile = Tile { first: 0, images: self.net.batch() };
            let task = Task { layer: self.id, sub, tile };
            let lane = self.plan.lane_of(DeviceId(0), self.id, sub).ok_or("a sub-task without a lane")?;
            let mut times = Vec::new();
            for _ in 0..setting.repeat.map_or(1, |repeat| 1 + repeat.max(1)) {
                let event = device.submit(lane, &task).map_err(|e| failed(&e))?;
                device.synchronize().map_err(|e| failed(&e))?;
                let span = event.span().ok_or("a task that is done has no time")?;
                times.push((span.end - span.start) as f64 * 1e-6);
            }
            outcome.ms[index] = crate::record::median(if times.len() > 1 { &times[1..] } else { &times });
            outcome.results[index] = self.read(device, sub)?;
        }
        Ok(Some(outcome))
    }

    /// Values and gradient of a blob of the layer.
    fn storages(&self, bottom: bool) -> Result<[StorageId; 2], String> {
        let layer = self.net.layer(self.id);
        let blob = self.net.blob(if bottom { layer.bottoms[0] } else { layer.tops[0] });
        Ok([blob.data, blob.grad.ok_or("a blob of the case has no gradient")?])
    }

    fn fill(&self, device: &CpuDevice) -> Result<(), String> {
        let [bottom, _] = self.storages(true)?;
        let [_, top_grad] = self.storages(false)?;
        let weights = self.net.params.len();
        let regions = [
            (Region::Storage(bottom), self.net.storages[bottom.0]),
            (Region::Packed(Packed::Weights), weights),
            (Region::Storage(top_grad), self.net.storages[top_grad.0]),
        ];
        for (number, (region, count)) in regions.into_iter().enumerate() {
            let values = integers(number as u32, count);
            device.write(region, &values).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn read(&self, device: &CpuDevice, sub: SubTask) -> Result<Vec<f32>, String> {
        let storage = |id: StorageId| (Region::Storage(id), self.net.storages[id.0]);
        let (region, count) = match sub {
            SubTask::Forward => storage(self.storages(false)?[0]),
            SubTask::GradActivation => storage(self.storages(true)?[1]),
            _ => (Region::Packed(Packed::Gradients), self.net.params.len()),
        };
        let mut values = vec![0.0; count];
        device.read(region, &mut values).map_err(|error| error.to_string())?;
        if sub == SubTask::GradWeight {
            // Without what lies between parameters.
            let weight = self.net.params.view(self.net.layer(self.id).params[0]);
            values = values[weight.range()].to_vec();
        }
        Ok(values)
    }
}

/// -2, -1, 1 and 2 by chance.
fn integers(purpose: u32, count: usize) -> Vec<f32> {
    let stream = Stream::new(4, Purpose::Dummy, purpose);
    let blocks = (0..count.div_ceil(4) as u64).map(|block| stream.block(block));
    blocks.flatten().take(count).map(|word| [-2.0, -1.0, 1.0, 2.0][(word >> 30) as usize]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quadrille_cpu::isa::Isa;

    fn case(line: &str) -> (ConvolutionShape, Case) {
        let shape: ConvolutionShape = line.parse().unwrap();
        let case = Case::new(&shape).unwrap();
        (shape, case)
    }

    fn crew() -> CrewSpec {
        CrewSpec::roaming("crew", 2)
    }

    #[test]
    fn the_engine_tells_its_implementations() {
        let (_, case) = case("small 3 4 7 9 6 3 2 2x1 1x0 1 2");
        let names = case.implementations(Isa::Portable.into(), &crew()).unwrap();
        assert!(names.len() > 1 && names.last().is_some_and(|last| last == "reference"), "{names:?}");
    }

    /// Every product of a convolution: (place in the top, in the bottom, in the weight).
    fn products(shape: &ConvolutionShape) -> Vec<[usize; 3]> {
        let ([n, c, h, w], [kh, kw]) = (shape.input, shape.kernel);
        let [rows, columns] = shape.layer().output([h, w]).unwrap();
        let (outs, ins) = (shape.out / shape.group, c / shape.group);
        let mut found = Vec::new();
        let places = (0..n).flat_map(|i| (0..shape.out).map(move |o| (i, o)));
        for (image, out) in places {
            for at in 0..rows * columns * ins * kh * kw {
                let (x, at) = (at % columns, at / columns);
                let (y, at) = (at % rows, at / rows);
                let (kx, at) = (at % kw, at / kw);
                let (ky, channel) = (at % kh, at / kh);
                let row = (y * shape.stride[0] + ky * shape.dilation[0]).checked_sub(shape.pad[0]);
                let column = (x * shape.stride[1] + kx * shape.dilation[1]).checked_sub(shape.pad[1]);
                let (Some(row), Some(column)) = (row.filter(|r| *r < h), column.filter(|c| *c < w)) else {
                    continue;
                };
                let top = ((image * shape.out + out) * rows + y) * columns + x;
                let bottom = ((image * c + out / outs * ins + channel) * h + row) * w + column;
                found.push([top, bottom, ((out * ins + channel) * kh + ky) * kw + kx]);
            }
        }
        found
    }

    #[test]
    fn results_are_those_of_the_formula() {
        for line in ["small 3 4 7 9 6 3 2 2x1 1x0 1 2", "blocks 2 32 5 6 20 3 3 1 1 1 1"] {
            check_results(line);
        }
    }

    /// By every implementation of the highest tier.
    fn check_results(line: &str) {
        let (shape, case) = case(line);
        let count = |blob| case.net.blob(blob).shape.count();
        let layer = case.net.layer(case.id);
        let weight = case.net.params.view(layer.params[0]).range();
        let bottom = integers(0, count(layer.bottoms[0]));
        let weights = integers(1, case.net.params.len())[weight].to_vec();
        let top_grad = integers(2, count(layer.tops[0]));
        let mut expected = [vec![0.0; top_grad.len()], vec![0.0; bottom.len()], vec![0.0; weights.len()]];
        for [t, b, w] in products(&shape) {
            expected[0][t] += bottom[b] * weights[w];
            expected[1][b] += top_grad[t] * weights[w];
            expected[2][w] += top_grad[t] * bottom[b];
        }
        let highest = [Isa::detect().into(), Numerics::bf16(Isa::detect())];
        let ways = highest.into_iter().filter(|numerics| numerics.check().is_ok()).flat_map(|numerics| {
            let kernels = case.implementations(numerics, &crew()).unwrap();
            kernels.into_iter().map(move |kernel| (numerics, kernel))
        });
        for (numerics, kernel) in ways {
            let setting = Setting { numerics, kernel: &kernel, crew: &crew(), repeat: Some(1) };
            let Some(outcome) = case.run(&setting).unwrap() else { continue };
            for ((found, expected), sub) in outcome.results.iter().zip(&expected).zip(SUBS) {
                assert_eq!(found, expected, "{sub} by {kernel} on {numerics}");
            }
            assert!(outcome.ms.iter().all(|ms| *ms > 0.0), "{:?}", outcome.ms);
        }
    }

    #[test]
    fn an_impossible_shape_is_refused() {
        for line in ["large 1 3 5 5 4 7 7 1 0 1 1", "groups 1 3 5 5 4 1 1 1 0 1 2"] {
            assert!(Case::new(&line.parse().unwrap()).is_err_and(|reason| reason.len() > 10), "{line}");
        }
    }
}
