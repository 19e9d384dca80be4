//! Activations as kernels number them, and the forms that Hopper's kernels are compiled for.

use crate::ops::Activation;

/// The numbers of `kernels/tile/activation.cuh`.
pub(crate) fn activation_code(activation: Option<Activation>) -> u32 {
    match activation {
        None => 0,
        Some(Activation::GeluTanh) => 1,
        Some(Activation::GeluErf) => 2,
        Some(Activation::Silu) => 3,
        Some(Activation::Relu) => 4,
    }
}

/// How the kernels of `gemm/sm90/mainloop.cuh` compute an activation: each form is compiled by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActivationForm {
    /// None, relu.
    Floor,
    /// silu, gelu with tanh.
    Sigmoid,
    /// gelu with the error function.
    ExactGelu,
}

impl ActivationForm {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Floor, Self::Sigmoid, Self::ExactGelu];

    pub(crate) const fn of(activation: Option<Activation>) -> Self {
        match activation {
            None | Some(Activation::Relu) => Self::Floor,
            Some(Activation::Silu | Activation::GeluTanh) => Self::Sigmoid,
            Some(Activation::GeluErf) => Self::ExactGelu,
        }
    }

    /// The name that the kernels know it by.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Floor => "FLOOR",
            Self::Sigmoid => "SIGMOID",
            Self::ExactGelu => "EXACT_GELU",
        }
    }
}
