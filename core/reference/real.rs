//! The numbers that the oracle computes with.

use std::fmt::Debug;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};

/// Single precision, as Caffe computes, or double, for finite differences and error bounds.
pub trait Real:
    Copy
    + Debug
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// Not a number.
    const NAN: Self;

    /// The value of a layer's or solver's field.
    fn from_f32(value: f32) -> Self;
    /// A count or an index, rounded to nearest (f32 is exact up to 2²⁴).
    fn from_usize(value: usize) -> Self;
    /// The same value in double precision.
    fn to_f64(self) -> f64;
    /// eˣ.
    fn exp(self) -> Self;
    /// Natural logarithm.
    fn ln(self) -> Self;
    /// Square root.
    fn sqrt(self) -> Self;
    /// Hyperbolic tangent.
    fn tanh(self) -> Self;
    /// x to a power.
    fn powf(self, exponent: Self) -> Self;

    /// −1, 0 or 1 by the side of 0; 0 for what is not a number, as in Caffe.
    fn sign(self) -> Self {
        if self > Self::ZERO {
            Self::ONE
        } else if self < Self::ZERO {
            -Self::ONE
        } else {
            Self::ZERO
        }
    }

    /// The larger of two, `self` unless it is less: C++'s `std::max`, so that NaN in `self` stays, where Rust's
    /// `max` would hide it.
    fn larger(self, other: Self) -> Self {
        if self < other { other } else { self }
    }

    /// The smaller of two, `self` unless it is more: C++'s `std::min`, so that NaN in `self` stays.
    fn smaller(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NAN: Self = f32::NAN;

    fn from_f32(value: f32) -> Self {
        value
    }
    fn from_usize(value: usize) -> Self {
        value as f32
    }
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
    fn exp(self) -> Self {
        f32::exp(self)
    }
    fn ln(self) -> Self {
        f32::ln(self)
    }
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
    fn tanh(self) -> Self {
        f32::tanh(self)
    }
    fn powf(self, exponent: Self) -> Self {
        f32::powf(self, exponent)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    const NAN: Self = f64::NAN;

    fn from_f32(value: f32) -> Self {
        f64::from(value)
    }
    fn from_usize(value: usize) -> Self {
        value as f64
    }
    fn to_f64(self) -> f64 {
        self
    }
    fn exp(self) -> Self {
        f64::exp(self)
    }
    fn ln(self) -> Self {
        f64::ln(self)
    }
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
    fn tanh(self) -> Self {
        f64::tanh(self)
    }
    fn powf(self, exponent: Self) -> Self {
        f64::powf(self, exponent)
    }
}
