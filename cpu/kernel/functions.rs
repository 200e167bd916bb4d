//! Functions of one number with their derivatives, for passes over arrays.
//!
//! What is made of sums, products and comparisons becomes vectors. Exponentials, logarithms and powers are the standard
//! library's, one number at a time, so that all tiers give the same bits.

use quadrille_core::layer::Neuron;

/// A function of one number. All methods must be `#[inline(always)]`.
pub(crate) trait Function: Copy + Send + Sync + 'static {
    /// y of x.
    fn value(self, x: f32) -> f32;

    /// dx from dy, and from x or y, whichever [`Neuron::derivative_of`] says.
    fn back(self, dy: f32, at: f32) -> f32;
}

/// Something to be done with a function.
pub(crate) trait OnFunction {
    /// What comes of it.
    type Output;

    /// Does it.
    fn run<F: Function>(self, function: F) -> Self::Output;
}

/// Runs `work` with the function of a layer.
pub(crate) fn with_function<W: OnFunction>(neuron: &Neuron, work: W) -> W::Output {
    match *neuron {
        Neuron::AbsVal => work.run(Absolute),
        Neuron::Bnll => work.run(Bnll),
        Neuron::Clip { min, max } => work.run(Clip { min, max }),
        Neuron::Elu { alpha } if alpha >= 0.0 => work.run(Elu { alpha }),
        Neuron::Elu { alpha } => work.run(ReversedElu { alpha }),
        Neuron::Exp { base, scale, shift } => {
            let outer = match base {
                _ if shift == 0.0 => 1.0,
                Some(base) => base.powf(shift),
                None => shift.exp(),
            };
            work.run(Exponential { inner: ln_of(base) * scale, outer })
        }
        Neuron::Log { base, scale, shift } => {
            let ln = ln_of(base);
            work.run(Logarithm { scale, shift, outer: 1.0 / ln, slope: scale / ln })
        }
        Neuron::Power { power: 0.0, .. } => work.run(Constant(1.0)),
        Neuron::Power { power: 1.0, scale: 0.0, shift } => work.run(Constant(shift)),
        Neuron::Power { power, shift, .. } if neuron.is_constant() => work.run(Constant(shift.powf(power))),
        Neuron::Power { power: 1.0, scale, shift } => work.run(Linear { scale, shift }),
        Neuron::Power { power: 2.0, scale, shift } => work.run(Square { scale, shift, slope: 2.0 * scale }),
        Neuron::Power { power, scale, shift } => {
            work.run(Power { power, scale, shift, slope: power * scale })
        }
        Neuron::Sigmoid => work.run(Sigmoid),
        Neuron::Swish { beta } => work.run(Swish { beta }),
        Neuron::TanH => work.run(TanH),
        Neuron::Threshold { threshold } => work.run(Step { threshold }),
    }
}

/// Natural logarithm of a base.
fn ln_of(base: Option<f32>) -> f32 {
    base.map_or(1.0, f32::ln)
}

/// The sigmoid of `x`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[derive(Clone, Copy)]
struct Absolute;

impl Function for Absolute {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x.abs()
    }
    #[inline(always)]
    fn back(self, dy: f32, x: f32) -> f32 {
        let above = if x > 0.0 { 1.0 } else { 0.0 };
        dy * if x < 0.0 { -1.0 } else { above }
    }
}

#[derive(Clone, Copy)]
struct Bnll;

impl Function for Bnll {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        if x > 0.0 { x + (1.0 + (-x).exp()).ln() } else { (1.0 + x.exp()).ln() }
    }
    #[inline(always)]
    fn back(self, dy: f32, x: f32) -> f32 {
        let e = (if 50.0 < x { 50.0 } else { x }).exp();
        dy * (e / (e + 1.0))
    }
}

#[derive(Clone, Copy)]
struct Clip {
    min: f32,
    max: f32,
}

impl Function for Clip {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        let below = if self.max < x { self.max } else { x };
        // As in C++: what is not a number becomes the lower bound.
        if self.min < below { below } else { self.min }
    }
    #[inline(always)]
    fn back(self, dy: f32, x: f32) -> f32 {
        dy * if x >= self.min && x <= self.max { 1.0 } else { 0.0 }
    }
}

/// With an α of at least 0, so that the top tells the side.
#[derive(Clone, Copy)]
struct Elu {
    alpha: f32,
}

#[inline(always)]
fn elu(x: f32, alpha: f32) -> f32 {
    let (above, below) = (if x < 0.0 { 0.0 } else { x }, if x > 0.0 { 0.0 } else { x });
    above + alpha * (below.exp() - 1.0)
}

impl Function for Elu {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        elu(x, self.alpha)
    }
    #[inline(always)]
    fn back(self, dy: f32, y: f32) -> f32 {
        dy * if y > 0.0 { 1.0 } else { self.alpha + y }
    }
}

/// With an α below 0.
#[derive(Clone, Copy)]
struct ReversedElu {
    alpha: f32,
}

impl Function for ReversedElu {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        elu(x, self.alpha)
    }
    #[inline(always)]
    fn back(self, dy: f32, x: f32) -> f32 {
        dy * if x > 0.0 { 1.0 } else { self.alpha * x.exp() }
    }
}

/// `outer · e^(inner · x)`.
#[derive(Clone, Copy)]
struct Exponential {
    inner: f32,
    outer: f32,
}

impl Function for Exponential {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        self.outer * (self.inner * x).exp()
    }
    #[inline(always)]
    fn back(self, dy: f32, y: f32) -> f32 {
        dy * (y * self.inner)
    }
}

/// `outer · ln(scale · x + shift)`.
#[derive(Clone, Copy)]
struct Logarithm {
    scale: f32,
    shift: f32,
    outer: f32,
    slope: f32,
}

impl Function for Logarithm {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        (self.scale * x + self.shift).ln() * self.outer
    }
    #[inline(always)]
    fn back(self, dy: f32, x: f32) -> f32 {
        dy * (1.0 / (self.scale * x + self.shift) * self.slope)
    }
}

/// The same for every bottom.
#[derive(Clone, Copy)]
struct Constant(f32);

impl Function for Constant {
    #[inline(always)]
    fn value(self, _: f32) -> f32 {
        self.0
    }
    #[inline(always)]
    fn back(self, _: f32, _: f32) -> f32 {
        0.0
    }
}

#[derive(Clone, Copy)]
struct Linear {
    scale: f32,
    shift: f32,
}

impl Function for Linear {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        self.scale * x + self.shift
    }
    #[inline(always)]
    fn back(self, dy: f32, _: f32) -> f32 {
        dy * self.scale
    }
}

#[derive(Clone, Copy)]
struct Square {
    scale: f32,
    shift: f32,
    slope: f32,
}

impl Function for Square {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        let inner = self.scale * x + self.shift;
        inner * inner
    }
    #[inline(always)]
    fn back(self, dy: f32, x: f32) -> f32 {
        dy * (self.slope * (self.scale * x + self.shift))
    }
}

#[derive(Clone, Copy)]
struct Power {
    power: f32,
    scale: f32,
    shift: f32,
    slope: f32,
}

impl Function for Power {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        (self.scale * x + self.shift).powf(self.power)
    }
    #[inline(always)]
    fn back(self, dy: f32, x: f32) -> f32 {
        dy * (self.slope * (self.scale * x + self.shift).powf(self.power - 1.0))
    }
}

#[derive(Clone, Copy)]
struct Sigmoid;

impl Function for Sigmoid {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        sigmoid(x)
    }
    #[inline(always)]
    fn back(self, dy: f32, y: f32) -> f32 {
        dy * (y * (1.0 - y))
    }
}

#[derive(Clone, Copy)]
struct Swish {
    beta: f32,
}

impl Function for Swish {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x * sigmoid(self.beta * x)
    }
    #[inline(always)]
    fn back(self, dy: f32, x: f32) -> f32 {
        let s = sigmoid(self.beta * x);
        let y = x * s;
        dy * (self.beta * y + s * (1.0 - self.beta * y))
    }
}

#[derive(Clone, Copy)]
struct TanH;

impl Function for TanH {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        x.tanh()
    }
    #[inline(always)]
    fn back(self, dy: f32, y: f32) -> f32 {
        dy * (1.0 - y * y)
    }
}

/// A step has no gradient; nobody asks for it.
#[derive(Clone, Copy)]
struct Step {
    threshold: f32,
}

impl Function for Step {
    #[inline(always)]
    fn value(self, x: f32) -> f32 {
        if x > self.threshold { 1.0 } else { 0.0 }
    }
    #[inline(always)]
    fn back(self, _: f32, _: f32) -> f32 {
        0.0
    }
}
