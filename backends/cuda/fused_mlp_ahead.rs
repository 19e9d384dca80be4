//! `fused_mlp` on 65 to 128 tokens, both products at the speed of memory: the variant `sm90_ahead`, of `kernels/tile/wgmma_ahead.cuh`.

use super::fused_mlp_tensor::{bring, chunk_rows, chunks, entries_instead, up_strides, workspace};
use super::gemm::{ActivationForm, GemmParams, HALVES, MmaTile, Product, fits, gemm_header, half};
use super::jit::{Arch, Unit, source};
use super::kernel::{Launch, Plan, RunsOn, Target, TensorCores, Variant, range};
use super::repack::{REPACK, repack_header};
use super::wgmma::WgmmaTile;
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(super) const AHEAD: Variant<FusedMlp> = Variant {
    name: "sm90_ahead",
    label: "fused_mlp/sm90_ahead",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers,
    unit: |op, target| {
        let [up, down] = tiles(op, target).unwrap_or([AheadTile::UP[0], AheadTile::DOWN[0]]);
        unit(op.dtype, &up, &down, ActivationForm::of(Some(op.activation)))
    },
    units: |_: Arch| {
        let pairs = || AheadTile::UP.into_iter().flat_map(|up| AheadTile::DOWN.map(|down| (up, down)));
        let forms = || pairs().flat_map(|pair| ActivationForm::ALL.map(|form| (pair, form)));
        HALVES.iter().flat_map(|&dtype| forms().map(move |((up, down), form)| unit(dtype, &up, &down, form))).collect()
    },
    workspace,
    launch,
};

/// What a block computes: its one tile of outputs of all tokens, or a part of its K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AheadTile {
    columns: u64,
    /// Of K: the blocks of a cluster.
    parts: u64,
}

impl AheadTile {
    /// Those of the first product, and of the second, whose outputs are fewer: the widths of Llama's layers.
    const UP: [Self; 3] = [Self::new(88, 1), Self::new(112, 1), Self::new(128, 1)];
    const DOWN: [Self; 3] = [Self::new(64, 2), Self::new(80, 2), Self::new(128, 2)];
    const ROWS: u64 = 128;
    const DEPTH: u64 = 64;
    const THREADS: u32 = 384;
    /// Of X. What is left of shared memory is W's.
    const X_STAGES: u64 = 7;
    const SHARED_BYTES: u64 = 227 << 10;
    /// What it may take to start on a multiple of 1,024.
    const START: u64 = 1024;

    const fn new(columns: u64, parts: u64) -> Self {
        Self { columns, parts }
    }

    /// Of a stage of so many rows, with its two barriers.
    const fn stage_bytes(rows: u64) -> u64 {
        rows * Self::DEPTH * 2 + 16
    }

    const fn x_bytes() -> u64 {
        Self::X_STAGES * Self::stage_bytes(Self::ROWS)
    }

    /// Of W.
    const fn stages(&self) -> u64 {
        (Self::SHARED_BYTES - Self::START - Self::x_bytes()) / Self::stage_bytes(self.columns)
    }

    const fn shared_bytes(&self) -> u32 {
        (self.stages() * Self::stage_bytes(self.columns) + Self::x_bytes() + Self::START) as u32
    }

    const fn blocks(&self, outputs: u64) -> u64 {
        outputs.div_ceil(self.columns).saturating_mul(self.parts)
    }

    /// The narrowest of `tiles` whose blocks all have room at once, where few multiprocessors are left idle then.
    fn choose(tiles: [Self; 3], outputs: u64, target: &Target) -> Option<Self> {
        let units = u64::from(target.units);
        let room = |tile: &Self| units / tile.parts * tile.parts;
        tiles.into_iter().find(|tile| tile.blocks(outputs) <= room(tile)).filter(|tile| tile.blocks(outputs) * 4 >= units * 3)
    }

    fn launch(&self, outputs: u64) -> Launch {
        Launch { shared_bytes: self.shared_bytes(), cluster: [self.parts as u32, 1, 1], ..Launch::new(self.blocks(outputs) as u32, Self::THREADS) }
    }

    fn params(&self, product: &Product<'_>) -> Result<GemmParams> {
        let mut params = product.params();
        params.x_map = WgmmaTile::rows_map(product.dtype, &product.x, [product.rows, product.depth], product.x_stride, product.rows.next_multiple_of(8))?;
        params.w_map = WgmmaTile::rows_map(product.dtype, &product.w, [product.columns, product.depth], product.w_stride, self.columns)?;
        Ok(params)
    }

    /// Puts kernel `entry` of a product into the queue. Weights and bias that no launch which may still run writes, it reads before that has ended.
    ///
    /// # Safety
    /// As [`Plan::launch`]; aligned rows start where TMA can read them.
    unsafe fn run(&self, queue: &mut Queue, plan: &Plan<FusedMlp>, entry: &str, product: &Product<'_>) -> Result<()> {
        let (ahead, open) = queue.ahead(&product.constants(), vec![range(&product.y)]);
        let params = GemmParams { weights_early: ahead.into(), ..self.params(product)? };
        // SAFETY: the caller's promise.
        unsafe { plan.launch(queue, entry, &Launch { overlap: ahead, ..self.launch(product.columns) }, &params)? };
        queue.leave_open(open);
        Ok(())
    }
}

/// Those of both products.
fn tiles(op: &FusedMlp, target: &Target) -> Option<[AheadTile; 2]> {
    Some([AheadTile::choose(AheadTile::UP, op.d_ff, target)?, AheadTile::choose(AheadTile::DOWN, op.d_out, target)?])
}

fn covers(op: &FusedMlp, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    WgmmaTile::enough_rows(op.tokens)?;
    if op.tokens > AheadTile::ROWS {
        return Err(format!("{} tokens: a block has one tile of {}", op.tokens, AheadTile::ROWS));
    }
    if op.gated {
        return Err("a gated product has two weights, whose stages there is little room for".into());
    }
    if chunk_rows(op, target)? < op.tokens {
        return Err(format!("the intermediate of {} tokens is larger than the workspace", op.tokens));
    }
    for stride in up_strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_ff), op.d_model, stride)?;
    }
    WgmmaTile::reads(op.dtype, op.d_out, op.d_ff, op.w2_stride)?;
    let [up, down] = tiles(op, target).ok_or_else(|| format!("{} and {} outputs: not a tile for most multiprocessors, and no more", op.d_ff, op.d_out))?;
    fits(up.shared_bytes().max(down.shared_bytes()), target)
}

/// The tile of the kernels that take over where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::MIDDLE;

fn unit(dtype: DType, up: &AheadTile, down: &AheadTile, activation: ActivationForm) -> Unit {
    let numbers = [
        ("UP_COLUMNS", up.columns),
        ("UP_STAGES", up.stages()),
        ("UP_PARTS", up.parts),
        ("DOWN_COLUMNS", down.columns),
        ("DOWN_STAGES", down.stages()),
        ("DOWN_PARTS", down.parts),
        ("TOKEN_STAGES", AheadTile::X_STAGES),
        ("CLUSTER", down.parts),
    ];
    let mut defines = [numbers.map(|(name, value)| (name, value.to_string())).into(), INSTEAD.defines()].concat();
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", false.to_string()), ("ACTIVATION_FORM", activation.name().into())]);
    Unit {
        name: format!("fused_mlp/sm90_ahead {dtype}, {} columns, {} columns, {}", up.columns, down.columns, activation.name()),
        source: source!("fused_mlp/sm90_ahead.cu"),
        headers: vec![gemm_header(), repack_header()],
        defines,
        entries: &[REPACK, "mlp_up_ahead", "mlp_down_ahead", "mlp_mma_4", "mlp_mma_2"],
        shared_bytes: up.shared_bytes().max(down.shared_bytes()).max(INSTEAD.shared_bytes()),
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; the intermediate fits into the workspace, and aligned rows start where TMA can read them.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            match tiles(&plan.op, &plan.target) {
                Some([up_tile, down_tile]) if up.aligned() && down.aligned() => {
                    up_tile.run(queue, plan, "mlp_up_ahead", &up)?;
                    down_tile.run(queue, plan, "mlp_down_ahead", &down)?;
                }
                _ => {
                    for product in [up, down] {
                        product.launch_mma(queue, plan, &INSTEAD, entries_instead(&product))?;
                    }
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    #[test]
    fn a_tile_a_block_of_most_multiprocessors() {
        let columns =
            |dims: [u64; 4]| tiles(&FusedMlp::new(DType::F16, dims, crate::ops::Activation::GeluTanh), &H200).map(|tiles| tiles.map(|tile| tile.columns));
        assert_eq!(columns([128, 4096, 11008, 4096]), Some([88, 64]));
        assert_eq!(columns([128, 4096, 14336, 4096]), Some([112, 64]));
        assert_eq!(columns([128, 5120, 13824, 5120]), Some([112, 80]));
        assert_eq!([[128, 8192, 28672, 8192], [128, 768, 3072, 768]].map(columns), [None; 2], "more than a tile, and fewer than multiprocessors");
        for tile in AheadTile::UP.into_iter().chain(AheadTile::DOWN) {
            assert!(tile.shared_bytes() <= 227 << 10 && tile.stages() >= AheadTile::X_STAGES, "{tile:?}: {} stages", tile.stages());
        }
    }
}
