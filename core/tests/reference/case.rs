//! One layer on given bottoms, with random arrays, and its gradients by finite differences.

use quadrille_core::layer::{Convolution, Filler, InnerProduct, Layer, Operand, SubTask};
use quadrille_core::net::ParamRule;
use quadrille_core::reference::{Arrays, Context, Real, compute};
use quadrille_core::rng::{Draw, Purpose, Stream};
use quadrille_core::shape::Shape;

/// Half the width of a central difference.
pub const H: f64 = 1e-5;

/// A layer with shapes and loss weights.
pub struct Case {
    pub layer: Layer,
    pub bottoms: Vec<Shape>,
    pub tops: Vec<Shape>,
    pub loss_weights: Vec<f32>,
    pub draw: Draw,
}

impl Case {
    /// A layer with all the tops that it can have, each weighing 1 in the loss.
    pub fn new(layer: Layer, bottoms: &[&[usize]]) -> Self {
        let bottoms: Vec<Shape> = bottoms.iter().map(|dims| Shape::new(*dims)).collect();
        let tops = layer.infer(&bottoms).expect("the case is possible").tops;
        let loss_weights = vec![1.0; tops.len()];
        Self { layer, bottoms, tops, loss_weights, draw: Draw::default() }
    }

    pub fn context(&self) -> Context<'_> {
        let Self { layer, bottoms, tops, loss_weights, draw } = self;
        Context { layer, bottoms, tops, loss_weights, draw: *draw, share: 1.0 }
    }

    fn shape(&self, operand: Operand) -> Shape {
        match operand {
            Operand::Bottom(i) | Operand::BottomGrad(i) => self.bottoms[i].clone(),
            Operand::Top(i) | Operand::TopGrad(i) => self.tops[i].clone(),
            Operand::Param(i) | Operand::ParamGrad(i) => {
                self.layer.infer(&self.bottoms).expect("the case is possible").params[i].shape.clone()
            }
            Operand::Aux(i) => self.layer.infer(&self.bottoms).expect("the case is possible").aux[i].clone(),
        }
    }

    /// Runs `sub` on nothing but what it declares to read, with NaN where it is to write, and adds what it wrote.
    pub fn run<T: Real>(&self, sub: SubTask, arrays: &mut Arrays<T>) {
        let accesses = self.layer.accesses(sub).expect("the layer has the sub-task");
        let mut declared = Arrays::new();
        for &operand in &accesses.writes {
            declared.insert(operand, vec![T::NAN; self.shape(operand).count()]);
        }
        for &operand in &accesses.reads {
            declared.insert(operand, arrays.get(operand).to_vec());
        }
        compute(&self.context(), sub, &mut declared);
        for &operand in &accesses.writes {
            let values = declared.take(operand).expect("declared as written");
            assert_eq!(values.len(), self.shape(operand).count(), "{sub}: {operand:?}");
            arrays.insert(operand, values);
        }
    }

    /// Forward on these bottoms and parameters: values of top 0.
    pub fn forward<T: Real>(&self, bottoms: &[&[T]], params: &[&[T]]) -> Vec<T> {
        let mut arrays = Arrays::new();
        bottoms.iter().enumerate().for_each(|(i, b)| arrays.insert(Operand::Bottom(i), b.to_vec()));
        params.iter().enumerate().for_each(|(i, p)| arrays.insert(Operand::Param(i), p.to_vec()));
        self.run(SubTask::Forward, &mut arrays);
        arrays.take(Operand::Top(0)).expect("forward writes top 0")
    }

    /// Random bottoms and parameters; `labels`, if there are any, are the last bottom.
    pub fn random(&self, seed: u64, labels: &[f64]) -> Arrays<f64> {
        let mut arrays = Arrays::new();
        // Distinct over all bottoms, since some layers compare them.
        let drawn = self.bottoms.len() - usize::from(!labels.is_empty());
        let mut values = distinct(seed, self.bottoms[..drawn].iter().map(Shape::count).sum()).into_iter();
        for (i, bottom) in self.bottoms[..drawn].iter().enumerate() {
            arrays.insert(Operand::Bottom(i), values.by_ref().take(bottom.count()).collect());
        }
        if !labels.is_empty() {
            arrays.insert(Operand::Bottom(drawn), labels.to_vec());
        }
        for (i, param) in self.layer.infer(&self.bottoms).expect("possible").params.iter().enumerate() {
            arrays.insert(Operand::Param(i), distinct(seed + 100 + i as u64, param.shape.count()));
        }
        arrays
    }

    /// Compares every gradient of the layer with central differences of `J = Σ dY · Y` (for a loss, `J` is the weighted
    /// loss), for random dY; terms of running sums are no gradients. `third` bounds the third derivatives of a top by
    /// an input; 0 for layers that are linear in each single input.
    ///
    /// The bound: the truncation `h²/6 · Σ|dY| · third`, and what rounding does to the difference of two values of
    /// `J` over `2h`.
    pub fn check_gradients(&self, seed: u64, labels: &[f64], third: f64) {
        let mut arrays = self.random(seed, labels);
        let objective = Objective::new(self, seed);
        if self.layer.accesses(SubTask::Forward).is_some() {
            self.run(SubTask::Forward, &mut arrays);
        }
        for (i, dy) in objective.seeds.iter().enumerate() {
            arrays.insert(Operand::TopGrad(i), dy.clone());
        }
        for sub in [SubTask::GradActivation, SubTask::GradWeight, SubTask::GradBias] {
            let Some(accesses) = self.layer.accesses(sub) else { continue };
            self.run(sub, &mut arrays);
            for written in accesses.writes {
                self.check_gradient(&objective, &arrays, written, third);
            }
        }
    }

    /// Compares one gradient, if `written` is one, with central differences.
    fn check_gradient(&self, objective: &Objective, arrays: &Arrays<f64>, written: Operand, third: f64) {
        let input = match written {
            Operand::BottomGrad(i) => Operand::Bottom(i),
            Operand::ParamGrad(i) if self.layer.param_rule(i) == ParamRule::Gradient => Operand::Param(i),
            _ => return,
        };
        let gradient = arrays.get(written);
        let bound = H * H / 6.0 * objective.weight * third + objective.rounding(self, arrays) / H;
        let largest = gradient.iter().fold(0.0f64, |m, g| m.max(g.abs()));
        assert!(
            largest > 1e4 * bound,
            "{written:?} of {self}: mistrusted, nothing above the bound {bound:e}"
        );
        for (i, &computed) in gradient.iter().enumerate() {
            let expected = objective.slope(self, arrays, input, i);
            // Written so that NaN fails.
            let close = (computed - expected).abs() <= bound;
            assert!(close, "{written:?} of {self} at {i}: {computed} is not {expected} ± {bound:e}");
        }
    }
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} on {:?}", self.layer, self.bottoms)
    }
}

/// The scalar that is differentiated.
struct Objective {
    /// dY of each top.
    seeds: Vec<Vec<f64>>,
    /// Sum of their magnitudes.
    weight: f64,
}

impl Objective {
    fn new(case: &Case, seed: u64) -> Self {
        let seeds: Vec<Vec<f64>> = if case.layer.is_loss() {
            vec![vec![f64::from(case.loss_weights[0])]]
        } else {
            let counts = case.tops.iter().map(Shape::count).enumerate();
            counts.map(|(i, count)| distinct(seed + 200 + i as u64, count)).collect()
        };
        let weight = seeds.iter().flatten().map(|dy| dy.abs()).sum();
        Self { seeds, weight }
    }

    fn value(&self, tops: &[Vec<f64>]) -> f64 {
        self.seeds.iter().zip(tops).flat_map(|(dy, y)| dy.iter().zip(y)).map(|(dy, y)| dy * y).sum()
    }

    /// Tops for these bottoms and parameters. A layer without forward has its bottom as each of them.
    fn tops(&self, case: &Case, arrays: &Arrays<f64>) -> Vec<Vec<f64>> {
        if case.layer.is_view() {
            return vec![arrays.get(Operand::Bottom(0)).to_vec(); case.tops.len()];
        }
        let mut arrays = arrays.clone();
        case.run(SubTask::Forward, &mut arrays);
        (0..self.seeds.len()).map(|i| arrays.get(Operand::Top(i)).to_vec()).collect()
    }

    /// Central difference of `J` by element `i` of `input`.
    fn slope(&self, case: &Case, arrays: &Arrays<f64>, input: Operand, i: usize) -> f64 {
        let moved = |by: f64| {
            let mut arrays = arrays.clone();
            let element = &mut arrays.get_mut(input)[i];
            *element += by;
            (*element, self.value(&self.tops(case, &arrays)))
        };
        let ((high, above), (low, below)) = (moved(H), moved(-H));
        (above - below) / (high - low)
    }

    /// Bound of the rounding error of `J`: ε times the number of operations on the longest way from an input to `J`
    /// times the sum of all magnitudes. Forward on magnitudes gives the latter for layers that are linear in each
    /// input; elsewhere a top is at most 1, or the loss itself.
    fn rounding(&self, case: &Case, arrays: &Arrays<f64>) -> f64 {
        let magnitudes =
            |operand| arrays.find(operand).map(|a| a.iter().map(|v| v.abs()).collect::<Vec<_>>());
        let mut absolute = arrays.clone();
        let params = case.layer.infer(&case.bottoms).expect("possible").params;
        let inputs =
            (0..case.bottoms.len()).map(Operand::Bottom).chain((0..params.len()).map(Operand::Param));
        for operand in inputs.filter(|_| !case.layer.is_loss()) {
            if let Some(values) = magnitudes(operand) {
                absolute.insert(operand, values);
            }
        }
        let tops = self.tops(case, &absolute);
        let seeds = self.seeds.iter().flatten().map(|dy| dy.abs());
        let magnitude: f64 = seeds.zip(tops.iter().flatten()).map(|(dy, y)| dy * y.abs()).sum();
        let per_top = params.first().map_or(case.bottoms[0].count(), |p| p.shape.count());
        let terms = per_top + tops.iter().map(Vec::len).sum::<usize>() + 8;
        f64::EPSILON * terms as f64 * (magnitude + self.weight)
    }
}

/// `count` values in random order, of both signs, none 0, within ±1, and all further apart than a difference is
/// wide: no kink of a layer lies between two points of one central difference.
pub fn distinct(seed: u64, count: usize) -> Vec<f64> {
    let stream = Stream::new(seed, Purpose::Dummy, 0);
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|&i| stream.bits(i as u64));
    let step = 2.0 / count as f64;
    assert!(step > 10.0 * H, "too many values to keep them apart");
    // A third of a step off the middle, so that no two magnitudes are equal and none is 0.
    order.into_iter().map(|rank| (rank as f64 + 1.0 / 3.0) * step - 1.0).collect()
}

/// Labels in `0..classes`.
pub fn labels(seed: u64, count: usize, classes: usize) -> Vec<f64> {
    let stream = Stream::new(seed, Purpose::Sampling, 0);
    (0..count).map(|i| f64::from(stream.bits(i as u64) % classes as u32)).collect()
}

/// A convolution with a bias; the rest is to be changed.
pub fn convolution(num_output: usize, kernel: [usize; 2]) -> Convolution {
    Convolution {
        num_output,
        kernel,
        pad: [0; 2],
        stride: [1; 2],
        dilation: [1; 2],
        group: 1,
        bias: true,
        relu: false,
        weight_filler: Filler::default(),
        bias_filler: Filler::default(),
    }
}

/// An inner product with a bias over everything from axis 1 on; the rest is to be changed.
pub fn inner_product(num_output: usize) -> InnerProduct {
    InnerProduct {
        num_output,
        bias: true,
        axis: 1,
        transpose: false,
        weight_filler: Filler::default(),
        bias_filler: Filler::default(),
    }
}
