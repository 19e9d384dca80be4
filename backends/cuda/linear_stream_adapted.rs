//! `linear` on few rows with what adapters add, in one launch: `kernels/tile/stream_adapters.cuh`. Part of the variant `sm90_stream`.

use super::codebook_gemm::{FactorParams, factor, factor_header};
use super::gemm::{ActivationForm, GemmParams, gemm_header};
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, Target, address, address_of};
use super::linear_stream::{INSTEAD, splits};
use super::linear_tensor::{product, unpacked};
use super::params::params;
use super::stream::StreamTile;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::codebook_gemm::Factor;
use crate::ops::codes::CODEBOOK_LEN;
use crate::ops::{Linear, LinearArgs};

params! {
    /// Of `linear_stream_adapted`.
    LinearAdaptedParams {
        gemm: GemmParams,
        /// The words of the token index.
        index: [const i32],
        scaling: [const f32],
        core: [const f32],
        /// Parts of h, and how many blocks have left theirs.
        partial: [f32],
        arrived: [u32],
        input: FactorParams,
        output: FactorParams,
        tile_rows: u32,
        unused: u32,
    }
}

const ENTRY: &str = "linear_stream_adapted";
/// A warp group more than without adapters.
const THREADS: u32 = 512;
/// Blocks that compute a part of h.
const PUBLISHERS: u64 = 16;
/// Bytes that the kernel keeps for the barriers of the stages.
const BARRIERS: u64 = 256;
/// Tokens and columns of both factors that kernels are compiled for.
const TOKENS: [u64; 2] = [16, 32];
const RANKS: [u64; 3] = [16, 32, 64];

/// A kernel for a product with adapters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Adapted {
    tile: StreamTile,
    tokens: u64,
    rank: u64,
    split: bool,
    /// Of the adapters' own shared memory.
    own_bytes: u64,
}

impl Adapted {
    /// The kernel for that many tokens and ranks, where a block has room for the rows of U of as many adapters.
    fn new(tokens: u64, rank: u64, split: bool, shared_bytes: u32) -> Option<Self> {
        let rows = StreamTile::most_weight_rows(split);
        // U, g, h, the codebooks, five words a token, and the rest; and the barriers of the stages.
        let own_bytes = tokens * (rows * rank * 2 + (rank + 8) * 2 + rank * 4 + CODEBOOK_LEN as u64 * 4 + 20) + 256;
        let tile = StreamTile::within(u64::from(shared_bytes).checked_sub(own_bytes + BARRIERS)?, tokens, split)?;
        Some(Self { tile, tokens, rank, split, own_bytes })
    }

    /// All that there are on an architecture.
    pub(super) fn all(arch: Arch) -> Vec<Self> {
        let shared_bytes = arch.shared_bytes().unwrap_or(0);
        let of = |tokens| RANKS.into_iter().flat_map(move |rank| [false, true].map(|split| Self::new(tokens, rank, split, shared_bytes)));
        TOKENS.into_iter().flat_map(of).flatten().collect()
    }

    /// The kernel for an operation that `sm90_stream` covers, where it has adapters of a form that there is one for.
    pub(super) fn of(op: &Linear, target: &Target) -> Option<Self> {
        let [slice] = op.delta.as_ref()?.slices.as_slice() else { return None };
        let (Factor::Dense { .. }, Factor::Coded { .. }) = (slice.input, slice.output) else { return None };
        let least = |sizes: &[u64], wanted: u64| sizes.iter().copied().find(|&size| wanted <= size);
        Self::new(least(&TOKENS, op.tokens)?, least(&RANKS, slice.rank)?, splits(op, target), target.shared_bytes)
    }

    fn shared_bytes(&self) -> u32 {
        self.tile.shared_bytes() + (self.own_bytes + BARRIERS) as u32
    }

    pub(super) fn unit(&self, dtype: DType, activation: ActivationForm) -> Unit {
        let mut defines = [self.tile.defines(self.split), INSTEAD.defines()].concat();
        defines.extend([("ELEMENT", dtype.name().into()), ("ACTIVATION_FORM", activation.name().into()), ("RANK", self.rank.to_string())]);
        defines.extend([("PUBLISHERS", PUBLISHERS.to_string()), ("ADAPTER_BYTES", self.own_bytes.to_string())]);
        let split = if self.split { ", K split" } else { "" };
        Unit {
            name: format!("linear/sm90_stream {dtype}, {} rows, adapters of rank {}, {}{split}", self.tokens, self.rank, activation.name()),
            source: source!("linear/sm90_stream_adapted.cu"),
            headers: vec![gemm_header(), factor_header(), ("linear/stream_adapted_params.cuh", LinearAdaptedParams::cuda())],
            defines,
            entries: &["linear_stream_adapted", "linear_mma_4", "linear_mma_2"],
            shared_bytes: self.shared_bytes().max(INSTEAD.shared_bytes()),
        }
    }

    /// The parts of h.
    pub(super) fn workspace(&self) -> u64 {
        PUBLISHERS * self.tokens * self.rank * 4
    }

    fn start(&self, clusters: u64) -> Launch {
        Launch { threads: THREADS, shared_bytes: self.shared_bytes(), cooperative: true, ..self.tile.launch(clusters) }
    }

    /// # Safety
    /// As [`Plan::launch`].
    pub(super) unsafe fn launch(&self, queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
        let op = &plan.op;
        let own = unpacked(op, args);
        let room = StreamTile::resident(plan, ENTRY, |clusters| self.start(clusters))?;
        let (Some(delta), Some(of), true) = (&op.delta, &args.delta, own.width() >= 16 && (!self.split || StreamTile::splits(op.d_out, room))) else {
            // SAFETY: the caller's promise. What is on multiples of 16 bytes is on multiples of 4 too.
            unsafe {
                let (product, _) = product(queue, plan, workspace, args)?;
                return product.launch_mma(queue, plan, &INSTEAD, ["linear_mma_4", "linear_mma_4", "linear_mma_2"]);
            }
        };
        let (slice, operands) = (&delta.slices[0], &of.slices[0]);
        let tile_rows = StreamTile::tile_rows(op.d_out, room, self.split);
        let clusters = StreamTile::clusters_of(op.d_out, tile_rows, self.split).min(room);
        let mut gemm = self.tile.params(&own, tile_rows)?;
        // Nothing is found in y.
        gemm.adds = 0;
        let params = LinearAdaptedParams {
            gemm,
            index: address(of.token_adapter.slice()),
            scaling: address(&of.scaling),
            core: address_of(operands.core.as_ref()),
            partial: address(workspace),
            arrived: queue.counters()?,
            input: factor(slice.input, &operands.input, op.d_in, slice.rank),
            output: factor(slice.output, &operands.output, op.d_out, slice.rank),
            tile_rows,
            unused: 0,
        };
        // SAFETY: the caller's promise; the width says that rows start where TMA can read them, and all blocks run at once.
        unsafe { plan.launch(queue, ENTRY, &self.start(clusters), &params) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{CodeWidth, CodebookGemm};

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    fn of([tokens, d_out, rank]: [u64; 3]) -> Option<Adapted> {
        let delta = CodebookGemm::s2lc(DType::F16, tokens, [4096, d_out, rank], 5, CodeWidth::FourThree);
        Adapted::of(&Linear { delta: Some(delta), ..Linear::new(DType::F16, [tokens, d_out, 4096]) }, &H200)
    }

    #[test]
    fn blocks_have_room_for_the_adapters_of_a_batch() {
        for sizes in [[1, 4096, 8], [16, 4096, 16], [16, 4096, 64], [16, 11008, 16], [32, 4096, 16], [17, 1024, 9]] {
            let adapted = of(sizes).map(|adapted| (adapted.shared_bytes() <= H200.shared_bytes, Adapted::all(H200.arch).contains(&adapted)));
            assert_eq!(adapted, Some((true, true)), "{sizes:?}");
        }
        for sizes in [[33, 4096, 16], [16, 11008, 64], [16, 4096, 65]] {
            assert_eq!(of(sizes), None, "{sizes:?}");
        }
    }
}
