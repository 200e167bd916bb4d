//! RNN and LSTM against the oracle in double precision. The bounds follow rounding errors from step to step in the largest
//! norm: every nonlinearity has a slope of at most 1, sums of k products round k times, a library's function twice.

use quadrille_core::device::{Device, Packed, Region, Scalars};
use quadrille_core::layer::{Cell, Filler, InnerProduct, Layer, Operand, Recurrent};
use quadrille_core::net::{LayerSpec, Net, NetState, Phase};
use quadrille_core::plan::Stage;
use quadrille_core::reference::{Arrays, ReferenceNet};
use quadrille_core::run::{StepTimes, run_step};

use crate::common::{self, fractions, inner_product, input, options, tiers, worker};
use crate::exact::bench::{everywhere, written};
use crate::exact::case::Case;
use crate::exact::rounded::{EPSILON, close};

/// Extents of a layer: steps, streams, inputs, static inputs, outputs.
#[derive(Clone, Copy)]
struct Extents {
    steps: usize,
    streams: usize,
    inputs: usize,
    constants: usize,
    outputs: usize,
}

impl Extents {
    fn layer(&self, cell: Cell) -> Layer {
        let [weight_filler, bias_filler] = [Filler::default(), Filler::default()];
        let bottoms = if self.constants > 0 { 3 } else { 2 };
        let (num_output, expose_hidden) = (self.outputs, false);
        Layer::Recurrent(Recurrent { cell, num_output, expose_hidden, bottoms, weight_filler, bias_filler })
    }

    fn case(&self, cell: Cell) -> Case {
        let Self { steps, streams, inputs, constants, .. } = *self;
        let dims: [&[usize]; 3] = [&[steps, streams, inputs], &[steps, streams], &[streams, constants]];
        Case::new(self.layer(cell), &dims[..if constants > 0 { 3 } else { 2 }])
    }
}

/// Bounds of the errors of the top, of the bottoms' gradients and of the parameters', if every row and column of every
/// weight sums up to at most a quarter, x and s are at most 1 and dY is at most one over the outputs.
struct Bounds {
    top: f64,
    bottom: f64,
    param: f64,
}

fn bounds(cell: Cell, of: Extents, steps: usize) -> Bounds {
    // What comes into a gate is at most 1, so that a sigmoid is at most this, and so are a cell's terms of a step; and what
    // all steps leave in a cell.
    const OPEN: f64 = 0.732;
    const MOST: f64 = OPEN / (1.0 - OPEN);
    let unit = EPSILON;
    let width = (of.inputs + of.constants + of.outputs * if cell == Cell::Lstm { 4 } else { 1 } + 4) as f64;
    // What comes into a gate is four sums of magnitudes up to a quarter; a function and the operations around it round 8
    // times.
    let (sum, own, most) = (width * unit, 8.0 * unit, steps as f64);
    let (mut h, mut c) = (0.0, 0.0);
    let mut forward = 0.0;
    for _ in 0..steps {
        let gate = sum + h / 4.0 + own;
        forward = gate;
        match cell {
            Cell::Rnn => h = gate,
            Cell::Lstm => {
                // Of f · c + i · g, where a sigmoid's slope is a quarter.
                c = OPEN * c + (MOST / 4.0 + 1.0) * gate + own;
                h = gate / 4.0 + OPEN * c + own;
            }
        }
    }
    let top = if cell == Cell::Rnn { sum + h + own } else { h };
    // Gradients of h and c and of what comes into a gate, and their errors; a product has the errors of its factors.
    let dy = 1.0 / of.outputs as f64;
    let (mut dc, mut gate, mut gates) = (0.0f64, 0.0f64, 0.0f64);
    let (mut dc_error, mut gate_error, mut gates_error) = (0.0f64, 0.0f64, 0.0f64);
    for _ in 0..steps {
        let dh = dy + gate / 4.0;
        let dh_error = gate_error / 4.0 + dh * width * unit + dy * (2.0 * top + own);
        match cell {
            Cell::Rnn => (gate, gate_error) = (dh, dh_error + dh * (2.0 * h + own)),
            Cell::Lstm => {
                let cell = dc + OPEN * dh;
                let cell_error = dc_error + OPEN * dh_error + dh * (forward / 4.0 + 2.0 * c + own);
                gate = OPEN * cell;
                gate_error = OPEN * cell_error + dh_error / 4.0 + cell * (c + 2.0 * forward + own);
                (dc, dc_error) = (OPEN * cell, OPEN * cell_error + cell * (forward / 4.0 + own));
            }
        }
        gates += gate;
        gates_error += gate_error;
    }
    let rows = of.streams as f64 * most;
    let bottom = (gates_error + gates * (width + most) * unit) / 4.0;
    let param =
        of.streams as f64 * (gates_error + gates * (h + rows * unit) + most * dy * (top + rows * unit));
    Bounds { top, bottom, param }
}

/// Numbers whose magnitudes, `count` of them, sum up to less than `sum`.
fn small(seed: u64, len: usize, count: usize, sum: f32) -> Vec<f32> {
    fractions(seed, len).iter().map(|v| sum * v / count as f32).collect()
}

fn arrays(case: &Case, of: Extents, cell: Cell) -> Arrays<f32> {
    let gates = of.outputs * if cell == Cell::Lstm { 4 } else { 1 };
    let widest = gates.max(of.inputs).max(of.constants);
    let mut arrays = Arrays::new();
    arrays.insert(Operand::Bottom(0), fractions(1, of.steps * of.streams * of.inputs));
    // Every sequence begins in the mini-batch, and some begin again.
    let goes_on = |i: usize| if i < of.streams || i % 5 == 3 { 0.0 } else { 1.0 };
    arrays.insert(Operand::Bottom(1), (0..of.steps * of.streams).map(goes_on).collect());
    if of.constants > 0 {
        arrays.insert(Operand::Bottom(2), fractions(2, of.streams * of.constants));
    }
    let layer = case.net.layer(case.id);
    for (i, param) in layer.params.iter().enumerate() {
        let shape = &case.net.params.view(*param).shape;
        // A bias is a sum of its own. Of one sign, so that what is summed over steps and streams does not cancel.
        let is_bias = shape.axes() == 1;
        let mut values = small(10 + i as u64, shape.count(), if is_bias { 1 } else { widest }, 0.25);
        values.iter_mut().filter(|_| is_bias).for_each(|value| *value = value.abs());
        arrays.insert(Operand::Param(i), values);
    }
    let dy = small(3, of.steps * of.streams * of.outputs, of.outputs, 1.0);
    arrays.insert(Operand::TopGrad(0), dy.iter().map(|dy| dy.abs()).collect());
    arrays
}

const EXTENTS: [Extents; 4] = [
    Extents { steps: 2, streams: 1, inputs: 1, constants: 0, outputs: 1 },
    Extents { steps: 4, streams: 3, inputs: 5, constants: 2, outputs: 7 },
    Extents { steps: 3, streams: 17, inputs: 20, constants: 0, outputs: 16 },
    Extents { steps: 2, streams: 40, inputs: 70, constants: 33, outputs: 48 },
];

#[test]
fn recurrent_layers() {
    for (cell, of) in [Cell::Rnn, Cell::Lstm].into_iter().flat_map(|cell| EXTENTS.map(|of| (cell, of))) {
        let case = of.case(cell);
        let arrays = arrays(&case, of, cell);
        let mut expected = Arrays::new();
        let operands =
            (0..3).map(Operand::Bottom).chain((0..6).map(Operand::Param)).chain([Operand::TopGrad(0)]);
        for operand in operands {
            if let Some(values) = arrays.find(operand) {
                expected.insert(operand, values.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>());
            }
        }
        for (i, aux) in case.layer.infer(&case.bottoms).expect("possible").aux.iter().enumerate() {
            expected.insert(Operand::Aux(i), vec![0.0; aux.count()]);
        }
        case.reference(&mut expected);
        let Bounds { top, bottom, param } = bounds(cell, of, of.steps);
        everywhere("recurrent layers", &case, &arrays, |case, how, found| {
            for (sub, operand) in written(case) {
                let bound = match operand {
                    Operand::Top(_) => top,
                    Operand::BottomGrad(_) => bottom,
                    _ => param,
                };
                let (what, expected) = (format!("{sub} {operand:?} of {how}"), expected.get(operand));
                let largest = expected.iter().fold(0.0f64, |largest, v| largest.max(v.abs()));
                assert!(largest > bound, "mistrusted: nothing above {bound:e} in {what}");
                close(&what, expected, found.get(operand), |_| bound);
            }
        });
    }
}

#[test]
fn recurrent_layers_give_the_same_bits_for_any_number_of_threads() {
    let of = EXTENTS[3];
    for (isa, cell) in
        tiers("bits of recurrent layers").into_iter().flat_map(|isa| [(isa, Cell::Rnn), (isa, Cell::Lstm)])
    {
        let case = of.case(cell);
        let arrays = arrays(&case, of, cell);
        let run = |threads| crate::exact::bench::run(&case, &options(isa), threads, &arrays);
        let first = run(1);
        for threads in [2, 3, 5] {
            assert_eq!(first, run(threads), "{case} on {isa}, {threads} threads");
        }
    }
}

/// The state that a mini-batch leaves is where the next one starts, whatever else happens to the memory in between.
#[test]
fn a_mini_batch_goes_on_where_the_last_one_ended() {
    let of = Extents { constants: 0, ..EXTENTS[1] };
    for (cell, isa) in [Cell::Rnn, Cell::Lstm]
        .into_iter()
        .flat_map(|cell| tiers("state").into_iter().map(move |isa| (cell, isa)))
    {
        let x_dims = [of.steps, of.streams, of.inputs];
        let product = InnerProduct { axis: 2, ..inner_product(2) };
        let layers = vec![
            input("x", &x_dims),
            input("cont", &x_dims[..2]),
            LayerSpec::new("it", of.layer(cell), &["x", "cont"], &["h"]),
            LayerSpec::new("ip", Layer::InnerProduct(product), &["h"], &["y"]),
        ];
        let net =
            Net::build(&common::network(layers, false), &NetState::new(Phase::Test), 1.0).expect("a net");
        let widest = of.outputs * 4;
        let weights = small(4, net.params.len(), widest, 0.25);
        let mut oracle = ReferenceNet::<f64>::new(net.clone());
        oracle.set_params(&weights);
        let nets = [net];
        let plan = common::plan(&nets, Stage::Forward);
        let worker = worker(&nets, &plan, 2, &options(isa)).expect("a worker");
        let devices = worker.devices(0);
        devices[0].write(Region::Packed(Packed::Weights), &weights).expect("weights");
        let blob = |name: &str| nets[0].blobs.iter().find(|b| b.name == name).expect("a blob");
        let mut tops = Vec::new();
        for step in 0..3 {
            let x = fractions(20, x_dims.iter().product());
            let cont = vec![1.0; of.steps * of.streams];
            for (name, values) in [("x", &x), ("cont", &cont)] {
                oracle.set_input(name, &values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
                devices[0].write(Region::Stage(blob(name).data), values).expect("a stage");
            }
            oracle.forward();
            devices[0].fill_transient(f32::NAN).expect("memory");
            run_step(&devices, &plan, &Scalars::default(), &mut StepTimes::default()).expect("a step");
            let mut found = vec![0.0; blob("y").shape.count()];
            devices[0].read(Region::Storage(blob("y").data), &mut found).expect("an output");
            let expected = oracle.blob("y").expect("an output");
            let bound = bounds(cell, of, (step + 1) * of.steps).top + 8.0 * of.outputs as f64 * EPSILON;
            close(&format!("step {step} of {cell:?} on {isa}"), expected, &found, |_| bound);
            tops.push(found);
        }
        assert!(tops[0] != tops[1], "the same x gives the same y: nothing goes on");
    }
}

/// States come from bottoms and go to tops.
#[test]
fn exposed_states() {
    let of = EXTENTS[1];
    for (cell, isa) in [Cell::Rnn, Cell::Lstm]
        .into_iter()
        .flat_map(|cell| tiers("exposed states").into_iter().map(move |isa| (cell, isa)))
    {
        let states = cell.states();
        let layer = match of.layer(cell) {
            Layer::Recurrent(l) => {
                Layer::Recurrent(Recurrent { expose_hidden: true, bottoms: 3 + states, ..l })
            }
            other => panic!("{other:?}"),
        };
        let state = [1, of.streams, of.outputs];
        let inputs: [(&str, &[usize]); 5] = [
            ("x", &[of.steps, of.streams, of.inputs]),
            ("cont", &[of.steps, of.streams]),
            ("s", &[of.streams, of.constants]),
            ("h", &state),
            ("c", &state),
        ];
        let inputs = &inputs[..3 + states];
        let mut layers: Vec<LayerSpec> = inputs.iter().map(|(name, dims)| input(name, dims)).collect();
        let bottoms: Vec<&str> = inputs.iter().map(|(name, _)| *name).collect();
        let tops = &["y", "h_last", "c_last"][..1 + states];
        layers.push(LayerSpec::new("it", layer, &bottoms, tops));
        let net =
            Net::build(&common::network(layers, false), &NetState::new(Phase::Test), 1.0).expect("a net");
        let weights = small(4, net.params.len(), of.outputs * 4, 0.25);
        let mut oracle = ReferenceNet::<f64>::new(net.clone());
        oracle.set_params(&weights);
        let nets = [net];
        let plan = common::plan(&nets, Stage::Forward);
        let worker = worker(&nets, &plan, 3, &options(isa)).expect("a worker");
        let devices = worker.devices(0);
        devices[0].write(Region::Packed(Packed::Weights), &weights).expect("weights");
        let blob = |name: &str| nets[0].blobs.iter().find(|b| b.name == name).expect("a blob");
        for (seed, (name, dims)) in inputs.iter().enumerate() {
            let values = fractions(seed as u64, dims.iter().product());
            oracle.set_input(name, &values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
            devices[0].write(Region::Stage(blob(name).data), &values).expect("a stage");
        }
        oracle.forward();
        run_step(&devices, &plan, &Scalars::default(), &mut StepTimes::default()).expect("a step");
        for name in tops {
            let mut found = vec![f32::NAN; blob(name).shape.count()];
            devices[0].read(Region::Storage(blob(name).data), &mut found).expect("a top");
            // More than half of a cell's error is in the h that follows from it.
            let bound = 2.0 * bounds(cell, of, of.steps).top;
            close(&format!("{name} of {cell:?} on {isa}"), oracle.blob(name).expect("a top"), &found, |_| {
                bound
            });
        }
    }
}
