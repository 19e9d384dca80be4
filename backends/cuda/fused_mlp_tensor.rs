//! `fused_mlp` on the tensor cores: the variants `sm80` and `sm90`.
//!
//! Two products a chunk of tokens: the intermediate of a chunk is at most 32 MiB, so that the second-level cache of an A100 or
//! H100 still holds it when the second product reads it.

use super::adapter_basis::adapter_header;
use super::gemm::{ActivationForm, HALVES, MmaTile, Product, elements, fits, gemm_header, half};
use super::jit::{Arch, Unit, source};
use super::kernel::{Plan, RunsOn, Target, TensorCores, Variant};
use super::repack::{Copies, REPACK, padded, repack_header};
use super::wgmma::{WgmmaLaunch, WgmmaTile};
use super::wgmma_choice::{Shape, straddles};
use super::{Cuda, Queue};
use crate::device::Slice;
use crate::dtype::DType;
use crate::error::Result;
use crate::ops::fused_mlp::MAX_WORKSPACE;
use crate::ops::{FusedMlp, FusedMlpArgs};

pub(super) const SM80: Variant<FusedMlp> = Variant {
    name: "sm80",
    label: "fused_mlp/sm80",
    runs_on: RunsOn::From(80),
    tensor_cores: TensorCores::By("HMMA"),
    covers: |op, target| {
        half(op.dtype)?;
        chunk_rows(op, target)?;
        fits(mma_tile(op, target).shared_bytes(), target)
    },
    unit: |op, target| unit_sm80(op.dtype, op.gated, &mma_tile(op, target)),
    units: |arch: Arch| each_form(MmaTile::on(arch)).map(|(dtype, gated, tile)| unit_sm80(dtype, gated, &tile)).collect(),
    workspace,
    launch: launch_sm80,
};

pub(super) const SM90: Variant<FusedMlp> = Variant {
    name: "sm90",
    label: "fused_mlp/sm90",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    covers: covers_sm90,
    unit: |op, target| unit_sm90(op.dtype, op.gated, &wgmma_tiles(op, target), ActivationForm::of(Some(op.activation))),
    units: |_: Arch| {
        let pairs = WgmmaTile::OF_UP.into_iter().flat_map(|up| WgmmaTile::OF_DOWN.map(|down| [up, down]));
        let forms =
            pairs.flat_map(|pair| WAYS.map(|way| pair.map(way))).flat_map(|tiles| each_form([tiles])).filter(|(_, gated, [up, _])| !gated || up.gates());
        forms.flat_map(|(dtype, gated, tiles)| ActivationForm::ALL.map(|form| unit_sm90(dtype, gated, &tiles, form))).collect()
    },
    workspace,
    launch: launch_sm90,
};

/// Both dtypes, both forms, every tile.
pub(super) fn each_form<T: Copy + 'static, const N: usize>(tiles: [T; N]) -> impl Iterator<Item = (DType, bool, T)> {
    let forms = HALVES.into_iter().flat_map(|dtype| [false, true].map(|gated| (dtype, gated)));
    forms.flat_map(move |(dtype, gated)| tiles.map(|tile| (dtype, gated, tile)))
}

/// Elements from a row of the intermediate to the next: a multiple of 16 bytes.
const fn intermediate_stride(op: &FusedMlp) -> u64 {
    op.d_ff.next_multiple_of(8)
}

/// Rows of a tile of either kind: chunks are whole in them, where there is more than one.
const TILE_ROWS: u64 = 128;

/// Elements from a row of a chunk's X to the next, where it is copied; else none.
fn copied_stride(op: &FusedMlp) -> u64 {
    if Copies::of_mlp(op).x { padded(op.d_model) } else { 0 }
}

/// Bytes of a token in the workspace: its intermediate, and its row of X where that is copied.
fn token_bytes(op: &FusedMlp) -> u64 {
    intermediate_stride(op).saturating_add(copied_stride(op)).saturating_mul(op.dtype.size())
}

/// One unit has the kernels of both products: their blocks are by themselves in both, where they can be, or in clusters in both.
const WAYS: [fn(WgmmaTile) -> WgmmaTile; 2] = [|tile| tile.alone().unwrap_or(tile), |tile| tile];

/// Tokens of a chunk: as many as all chunks together take the least time with.
pub(super) fn chunk_rows(op: &FusedMlp, target: &Target) -> std::result::Result<u64, String> {
    let row = token_bytes(op);
    let most = MAX_WORKSPACE / row;
    if most == 0 {
        return Err(format!("a token takes {row} bytes of the workspace, which has {MAX_WORKSPACE}"));
    }
    let tokens = op.tokens.max(1);
    if tokens <= most || most < TILE_ROWS {
        return Ok(tokens.min(most));
    }
    let time = |rows| tiles(op, rows, target).into_iter().map(|(_, time)| time).sum::<f64>();
    let sizes = (1..=most / TILE_ROWS).rev().map(|tiles| (tiles * TILE_ROWS, time(tiles * TILE_ROWS)));
    // The first of equals: the largest, which starts the fewest kernels.
    Ok(sizes.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(TILE_ROWS, |(rows, _)| rows))
}

/// The tile of each product where chunks have that many rows, and how long it takes for all of them. The last chunk, which may be a shorter
/// one, takes the same kernels.
fn tiles(op: &FusedMlp, rows: u64, target: &Target) -> [(WgmmaTile, f64); 2] {
    let tokens = op.tokens.max(1);
    let chunks = [(rows, tokens / rows), (tokens % rows, 1)];
    let activated = ActivationForm::of(Some(op.activation)) != ActivationForm::Floor;
    let product = |shape: Shape| chunks.map(|(rows, times)| (Shape { rows, ..shape }, times));
    // The two weights of the gated form are one in a tile.
    let outputs = if op.gated { 2 * op.d_ff } else { op.d_ff };
    let up = product(Shape { rows, outputs, depth: op.d_model, activated, straddles: straddles(op.dtype, up_strides(op)) });
    let straddles = straddles(op.dtype, [intermediate_stride(op), op.w2_stride]);
    let down = product(Shape { rows, outputs: op.d_out, depth: op.d_ff, activated: false, straddles });
    let of_up = || WgmmaTile::OF_UP.into_iter().filter(|tile| !op.gated || tile.gates());
    let pair = |way: fn(WgmmaTile) -> WgmmaTile| {
        [WgmmaTile::least(of_up().map(way), &up, target), WgmmaTile::least(WgmmaTile::OF_DOWN.into_iter().map(way), &down, target)]
    };
    let time = |[(_, up), (_, down)]: &[(WgmmaTile, f64); 2]| up + down;
    let [alone, clusters] = WAYS.map(pair);
    if time(&alone) < time(&clusters) { alone } else { clusters }
}

fn mma_tile(op: &FusedMlp, target: &Target) -> MmaTile {
    mma_tile_of(op, chunk_rows(op, target).unwrap_or(op.tokens), target)
}

fn mma_tile_of(op: &FusedMlp, rows: u64, target: &Target) -> MmaTile {
    MmaTile::choose(rows, op.d_ff.min(op.d_out), false, target)
}

fn wgmma_tiles(op: &FusedMlp, target: &Target) -> [WgmmaTile; 2] {
    tiles(op, chunk_rows(op, target).unwrap_or(op.tokens), target).map(|(tile, _)| tile)
}

pub(super) fn workspace(op: &FusedMlp, target: &Target) -> u64 {
    chunk_rows(op, target).map_or(0, |rows| rows * token_bytes(op))
}

/// [`chunk_rows`], as the bytes of the plan's workspace tell them: to choose them anew takes the host as long as tens of launches.
fn planned_rows(op: &FusedMlp, workspace: u64) -> u64 {
    workspace / token_bytes(op).max(1)
}

/// The strides of X and of the weights that the first product's kernel finds. A single row of X has none: TMA is told one that it takes.
pub(super) fn up_strides(op: &FusedMlp) -> [u64; 2] {
    let x = if op.tokens == 1 { padded(op.d_model) } else { op.x_stride };
    Copies::of_mlp(op).strides([x, op.w1_stride], op.d_model)
}

fn covers_sm90(op: &FusedMlp, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    WgmmaTile::enough_rows(op.tokens)?;
    chunk_rows(op, target)?;
    if !op.d_ff.is_multiple_of(8) {
        return Err(format!("an intermediate of {}: its first product writes eight outputs at once", op.d_ff));
    }
    for stride in up_strides(op) {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_ff), op.d_model, stride)?;
    }
    WgmmaTile::reads(op.dtype, op.d_out, op.d_ff, op.w2_stride)?;
    fits(shared_bytes_sm90(&wgmma_tiles(op, target)), target)
}

fn shared_bytes_sm90([up, down]: &[WgmmaTile; 2]) -> u32 {
    up.shared_bytes().max(down.odd_shared_bytes())
}

pub(super) fn form(gated: bool) -> &'static str {
    if gated { "gated" } else { "plain" }
}

fn unit_sm80(dtype: DType, gated: bool, tile: &MmaTile) -> Unit {
    let mut defines = tile.defines();
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", gated.to_string())]);
    Unit {
        name: format!("fused_mlp/sm80 {dtype}, {}, {}", form(gated), tile.name()),
        source: source!("fused_mlp/sm80.cu"),
        headers: vec![gemm_header(), repack_header()],
        defines,
        entries: if gated {
            &[
                REPACK,
                "mlp_mma_16",
                "mlp_mma_ragged",
                "mlp_mma_4",
                "mlp_mma_2",
                "mlp_gated_mma_16",
                "mlp_gated_mma_ragged",
                "mlp_gated_mma_4",
                "mlp_gated_mma_2",
            ]
        } else {
            &[REPACK, "mlp_mma_16", "mlp_mma_ragged", "mlp_mma_4", "mlp_mma_2"]
        },
        shared_bytes: tile.shared_bytes(),
        also: Vec::new(),
    }
}

/// The tile of the kernels that take over from wgmma where an operand starts at an odd place.
const INSTEAD: MmaTile = MmaTile::MIDDLE;

fn unit_sm90(dtype: DType, gated: bool, tiles: &[WgmmaTile; 2], activation: ActivationForm) -> Unit {
    let [up, down] = tiles;
    let mut defines = [down.defines(), INSTEAD.defines(), up.up_defines().into()].concat();
    defines.extend([("ELEMENT", dtype.name().into()), ("MLP_GATED", gated.to_string()), ("ACTIVATION_FORM", activation.name().into())]);
    Unit {
        name: format!("fused_mlp/sm90 {dtype}, {}, {}; {}; {}", form(gated), up.name(), down.name(), activation.name()),
        source: source!("fused_mlp/sm90.cu"),
        headers: vec![gemm_header(), adapter_header(), repack_header()],
        defines,
        entries: if gated {
            &[REPACK, "mlp_up_wgmma", "mlp_down_wgmma", "mlp_down_wgmma_odd", "mlp_mma_4", "mlp_mma_2", "mlp_gated_mma_4", "mlp_gated_mma_2"]
        } else {
            &[REPACK, "mlp_up_wgmma", "mlp_down_wgmma", "mlp_down_wgmma_odd", "mlp_mma_4", "mlp_mma_2"]
        },
        shared_bytes: shared_bytes_sm90(tiles).max(INSTEAD.shared_bytes()),
        also: Vec::new(),
    }
}

/// The two products of each chunk of tokens, in order. The first ones' X is as it lies: [`bring`] before each.
pub(super) fn chunks<'a>(plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &'a FusedMlpArgs<Cuda>) -> Result<Vec<[Product<'a>; 2]>> {
    let op = &plan.op;
    let rows = planned_rows(op, workspace.len);
    let mut chunks = Vec::new();
    let mut token = 0;
    while token < op.tokens {
        let count = rows.min(op.tokens - token);
        let part = |slice: &Slice<Cuda>, columns: u64| elements(slice, op.dtype, token * columns, count * columns);
        let x_stride = if count == 1 { padded(op.d_model) } else { op.x_stride };
        let residual = args.residual.as_ref().map(|residual| part(residual, op.d_out)).transpose()?;
        let up = Product {
            dtype: op.dtype,
            x: elements(&args.x, op.dtype, token * op.x_stride, (count - 1) * op.x_stride + op.d_model)?,
            w: args.w1.clone(),
            gate: args.wg.clone(),
            bias: args.b1.as_ref(),
            residual: None,
            y: workspace.clone(),
            rows: count,
            columns: op.d_ff,
            depth: op.d_model,
            x_stride,
            w_stride: op.w1_stride,
            y_stride: intermediate_stride(op),
            activation: Some(op.activation),
            adds: false,
        };
        let down = Product {
            dtype: op.dtype,
            x: workspace.clone(),
            w: args.w2.clone(),
            gate: None,
            bias: args.b2.as_ref(),
            residual,
            y: part(&args.y, op.d_out)?,
            rows: count,
            columns: op.d_out,
            depth: op.d_ff,
            x_stride: intermediate_stride(op),
            w_stride: op.w2_stride,
            y_stride: op.d_out,
            activation: None,
            adds: false,
        };
        chunks.push([up, down]);
        token += count;
    }
    Ok(chunks)
}

/// Copies the X of a first product behind the intermediate, where its rows start anywhere and those of the weights do not.
///
/// # Safety
/// As [`Plan::launch`]; the plan's module has the kernel.
pub(super) unsafe fn bring(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, up: &mut Product<'_>) -> Result<()> {
    let op = &plan.op;
    let rows = planned_rows(op, workspace.len);
    let place = elements(workspace, op.dtype, rows * intermediate_stride(op), rows * copied_stride(op))?;
    // SAFETY: the caller's promise.
    unsafe { Copies::of_mlp(op).launch(queue, plan, &place, up) }
}

/// The kernels for a product on mma.sync, by how many bytes they move at once: 16, 16 and a shorter rest, 4, 2.
pub(super) const fn mma_entries(product: &Product<'_>) -> [&'static str; 4] {
    if product.gate.is_some() {
        ["mlp_gated_mma_16", "mlp_gated_mma_ragged", "mlp_gated_mma_4", "mlp_gated_mma_2"]
    } else {
        ["mlp_mma_16", "mlp_mma_ragged", "mlp_mma_4", "mlp_mma_2"]
    }
}

/// Those that take over from kernels for Hopper. What is on multiples of 16 bytes is on multiples of 4 too.
pub(super) const fn entries_instead(product: &Product<'_>) -> [&'static str; 4] {
    let [_, _, four, two] = mma_entries(product);
    [four, "", four, two]
}

unsafe fn launch_sm80(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let tile = mma_tile_of(&plan.op, planned_rows(&plan.op, workspace.len), &plan.target);
    for [mut up, down] in chunks(plan, workspace, args)? {
        // SAFETY: the caller's promise; a chunk's intermediate fits into the workspace.
        unsafe {
            bring(queue, plan, workspace, &mut up)?;
            up.launch_mma(queue, plan, &tile, mma_entries(&up))?;
            down.launch_mma(queue, plan, &tile, mma_entries(&down))?;
        }
    }
    Ok(())
}

unsafe fn launch_sm90(queue: &mut Queue, plan: &Plan<FusedMlp>, workspace: &Slice<Cuda>, args: &FusedMlpArgs<Cuda>) -> Result<()> {
    let [up_tile, down_tile] = plan.once(|plan| Ok(tiles(&plan.op, planned_rows(&plan.op, workspace.len), &plan.target).map(|(tile, _)| tile)))?;
    // The first of these kernels lets the next start when all before it has ended, and none of them writes weights.
    let mut weights_early = false;
    for mut product in chunks(plan, workspace, args)?.into_iter().flatten() {
        let up = product.activation.is_some();
        // SAFETY: the caller's promise; a chunk's intermediate fits into the workspace, and aligned rows start where
        // TMA can read them. Kernels that are started early wait for the one before.
        unsafe {
            if up {
                bring(queue, plan, workspace, &mut product)?;
            }
            match (product.aligned(), up) {
                (true, true) if product.writes_whole() => {
                    let how = WgmmaLaunch { tile: up_tile, entry: "mlp_up_wgmma", odd_entry: "", overlap: true, weights_early };
                    product.launch_wgmma(queue, plan, &how)?;
                    weights_early = true;
                }
                (true, false) => {
                    let how = WgmmaLaunch { tile: down_tile, entry: "mlp_down_wgmma", odd_entry: "mlp_down_wgmma_odd", overlap: true, weights_early };
                    product.launch_wgmma(queue, plan, &how)?;
                }
                _ => product.launch_mma(queue, plan, &INSTEAD, entries_instead(&product))?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::ops::Activation;

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10 };

    fn op(tokens: u64, d_model: u64, d_ff: u64) -> FusedMlp {
        FusedMlp::new(DType::F16, [tokens, d_model, d_ff, d_model], Activation::GeluTanh)
    }

    #[test]
    fn a_chunk_fits_into_the_workspace_and_is_whole_tiles() {
        for (tokens, d_ff) in [(1, 11008), (300, 11008), (4096, 11008), (4096, 14336), (100_000, 4095), (7, 1 << 24), (9, 3)] {
            let op = op(tokens, 4096, d_ff);
            let rows = chunk_rows(&op, &H200).unwrap();
            assert!(rows > 0 && workspace(&op, &H200) <= MAX_WORKSPACE, "{op:?}: {rows}");
            assert_eq!(planned_rows(&op, workspace(&op, &H200).next_multiple_of(16)), rows, "{op:?}");
            assert!(rows == tokens || rows.is_multiple_of(TILE_ROWS) || MAX_WORKSPACE / (d_ff * 2) < TILE_ROWS, "{op:?}: {rows}");
        }
        assert!(chunk_rows(&op(1, 8, (16 << 20) + 1), &H200).is_err());
    }

    #[test]
    fn chunks_leave_few_multiprocessors_idle() {
        // 8 × 43 and 8 × 16 tiles for 132 multiprocessors; the largest chunk, of 1,408 rows, has 11 × 16: 44 in a second round.
        assert_eq!(chunk_rows(&op(4096, 4096, 11008), &H200), Ok(1024));
    }

    #[test]
    fn weights_packed_at_load_take_the_kernels_of_whole_rows() {
        let takes = |op: &FusedMlp| (covers_sm90(op, &H200).is_ok(), workspace(op, &H200));
        let odd = op(300, 4095, 11008);
        assert_eq!(takes(&odd), (false, 300 * 11008 * 2), "two bytes at a time");
        let padded = odd.with_padded_weights();
        assert_eq!(takes(&padded), (true, 300 * (11008 + 4096) * 2), "X alone is copied");
        assert_eq!(takes(&FusedMlp { x_stride: 4096, ..padded }), (true, 300 * 11008 * 2));
        assert!(!takes(&op(300, 4096, 11007).with_padded_weights()).0, "an odd intermediate");
        assert!(workspace(&op(100_000, 4095, 11008).with_padded_weights(), &H200) <= MAX_WORKSPACE);
    }

    #[test]
    fn both_products_of_an_mlp_fill_whole_rounds() {
        let widths = |tokens, d_model, d_ff| wgmma_tiles(&op(tokens, d_model, d_ff), &H200).map(|tile| (tile.columns, tile.last));
        assert_eq!([256, 512].map(|tokens| widths(tokens, 4096, 11008)), [[(168, 168), (64, 64)], [(168, 168), (128, 128)]]);
        assert_eq!([1024, 4096].map(|tokens| widths(tokens, 4096, 11008)), [[(256, 160), (256, 256)]; 2]);
        assert_eq!([512, 1024].map(|tokens| widths(tokens, 5120, 13824)), [[(256, 168), (160, 160)]; 2]);
        let gated = FusedMlp { gated: true, ..op(2048, 4096, 11008) };
        assert_eq!(
            wgmma_tiles(&gated, &H200).map(Some),
            [WgmmaTile::MIDDLE, WgmmaTile::WIDE].map(WgmmaTile::alone),
            "half of its columns are whole in runs of 32"
        );
    }

    #[test]
    fn the_last_chunk_takes_the_tiles_of_the_others() {
        // 4,224 tokens are 132 tiles of 192 outputs of the second product, and what is left 124.
        let op = op(8192, 768, 3072);
        assert_eq!(chunk_rows(&op, &H200), Ok(4224));
        assert_eq!(wgmma_tiles(&op, &H200).map(Some), [Some(WgmmaTile::IN_TURNS), WgmmaTile::MIDDLE.alone()]);
    }
}
