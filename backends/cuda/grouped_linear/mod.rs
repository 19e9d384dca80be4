//! `grouped_linear` on CUDA: its variants, best first.

pub(crate) mod each;
pub(crate) mod gated;
pub(crate) mod problem;
pub(crate) mod skinny;

use each::EACH;
use gated::GATED;
use skinny::SKINNY;

use crate::backends::cuda::variant::{Table, Variant, count, names};
use crate::ops::{GroupedLinear, Linear};

impl Table for GroupedLinear {
    const VARIANTS: &'static [Variant<Self>] = &VARIANTS;
    const NAMES: &'static [&'static str] = &names::<Self, { count(&VARIANTS) }>(&VARIANTS);

    fn products(&self, variant: &Variant<Self>) -> Vec<Linear> {
        if variant.name == EACH.name { self.problems.clone() } else { Vec::new() }
    }
}

const VARIANTS: [Variant<GroupedLinear>; 3] = [SKINNY, GATED, EACH];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::cuda::variant::{Target, choose};
    use crate::dtype::DType;
    use crate::ops::Activation;

    #[test]
    fn few_rows_take_one_launch() {
        let name = |tokens: u64, parts: usize, target: &Target, of: &dyn Fn(Linear) -> Linear| {
            let problem = |d_in| of(Linear::new(DType::F16, [tokens, d_in, 4096]).with_x_stride(5120).with_padded_weights());
            let op = GroupedLinear::new((0..parts as u64).map(|n| problem(1440 + 8 * n)).collect());
            choose(&VARIANTS, &op, target, None).map(|(variant, _)| variant.name).ok()
        };
        let same = |op| op;
        assert_eq!([1, 16, 17].map(|tokens| name(tokens, 3, &Target::H200, &same)), [Some("sm90_skinny"), Some("sm90_skinny"), Some("each")]);
        assert_eq!([1, 4].map(|parts| name(1, parts, &Target::H200, &same)), [Some("each"); 2]);
        assert_eq!(name(1, 3, &Target::RTX_3090, &same), Some("each"));
        assert_eq!(name(1, 3, &Target::H200, &|op| op.with_activation(Some(Activation::Silu))), Some("each"));
        assert_eq!(name(1, 3, &Target::H200, &|op| op.with_w_stride(4001)), Some("each"));
        let gated = |tokens: u64, target: &Target| {
            let problem = |d_in| Linear::new(DType::F16, [tokens, d_in, 11_008]).with_x_stride(4864).with_padded_weights();
            let op = GroupedLinear::new(vec![problem(2432), problem(2388)]).with_gate(Activation::Silu);
            choose(&VARIANTS, &op, target, None).map(|(variant, _)| variant.name).ok()
        };
        // Others have no kernel that writes one y: their models take two operations.
        assert_eq!([gated(1, &Target::H200), gated(16, &Target::H200)], [Some("sm90_skinny_gated"); 2]);
        assert_eq!([gated(17, &Target::H200), gated(1, &Target::RTX_3090)], [None; 2]);
    }
}
