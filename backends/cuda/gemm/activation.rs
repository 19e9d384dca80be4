//! Activations as kernels number them, and the forms that the sm90 kernels are compiled for.

use crate::ops::Activation;

/// The number of an activation in `kernels/tile/activation.cuh`.
pub(crate) fn activation_code(activation: Option<Activation>) -> u32 {
    match activation {
        None => 0,
        Some(Activation::GeluTanh) => 1,
        Some(Activation::GeluErf) => 2,
        Some(Activation::Silu) => 3,
        Some(Activation::Relu) => 4,
    }
}

/// How the kernels of `gemm/sm90/mainloop.cuh` compute an activation. Each form is compiled by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ActivationForm {
    /// No activation, and relu.
    Floor,
    /// silu, and gelu with tanh.
    Sigmoid,
    /// gelu with the error function.
    ExactGelu,
}

impl ActivationForm {
    /// Every form.
    pub(crate) const ALL: [Self; 3] = [Self::Floor, Self::Sigmoid, Self::ExactGelu];

    pub(crate) const fn of(activation: Option<Activation>) -> Self {
        match activation {
            None | Some(Activation::Relu) => Self::Floor,
            Some(Activation::Silu | Activation::GeluTanh) => Self::Sigmoid,
            Some(Activation::GeluErf) => Self::ExactGelu,
        }
    }

    /// The form's name in the kernels' sources.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Floor => "FLOOR",
            Self::Sigmoid => "SIGMOID",
            Self::ExactGelu => "EXACT_GELU",
        }
    }
}
