//! `linear` by tiles whose tokens are wgmma's N: the variant `sm90_swap_ab`, of `kernels/gemm/sm90/swap_ab.cuh`. It takes what its model below says is done
//! sooner than by the tiles of 128 rows of `sm90`, which cover all of it: where the last of those would be mostly empty.

use crate::backends::cuda::gemm::activation::ActivationForm;
use crate::backends::cuda::gemm::entry::{Entry, entry, listed};
use crate::backends::cuda::gemm::problem::{GemmParams, HALVES, Product, fits, gemm_header, half};
use crate::backends::cuda::gemm::sm80::units::fallback_units;
use crate::backends::cuda::gemm::sm90::cost::Shape;
use crate::backends::cuda::gemm::sm90::tile::WgmmaTile;
use crate::backends::cuda::gemm::sm90::units::Form;
use crate::backends::cuda::jit::{Arch, Unit, source};
use crate::backends::cuda::linear::problem::{product, shape};
use crate::backends::cuda::runtime::queue::Queue;
use crate::backends::cuda::variant::{Cuda, Launch, Plan, RunsOn, Target, TensorCores, Variant};
use crate::device::Slice;
use crate::error::Result;
use crate::ops::{Linear, LinearArgs};

pub(crate) const SWAP_AB: Variant<Linear> = Variant {
    name: "sm90_swap_ab",
    label: "linear/sm90_swap_ab",
    runs_on: RunsOn::Only(90),
    tensor_cores: TensorCores::By("HGMMA"),
    supports,
    suits: |_, _| Ok(()),
    configs: None,
    unit,
    units: |_: Arch| {
        let kernels = TILES.iter().flat_map(|tile| [WHOLE, UNALIGNED].map(|entry| (tile, entry)));
        let own = kernels.flat_map(|(tile, entry)| Form::all(&HALVES, false).map(move |form| kernel(entry, tile, form)));
        listed(own, HALVES.into_iter().flat_map(fallback_units))
    },
    workspace: |_, _| 0,
    launch,
};

/// A block's tile: rows of W, tokens, and the blocks of a cluster, each of which has a part of K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SwapAbTile {
    pub(crate) outputs: u64,
    pub(crate) tokens: u64,
    pub(crate) parts: u64,
}

const fn tile_of(outputs: u64, tokens: u64, parts: u64) -> SwapAbTile {
    SwapAbTile { outputs, tokens, parts }
}

/// Those that the model below wants where tiles of 128 rows are furthest behind (`lab/linear-tiles.md`), and a small one.
const TILES: [SwapAbTile; 8] = [
    tile_of(64, 48, 1),
    tile_of(64, 72, 1),
    tile_of(64, 104, 1),
    tile_of(64, 136, 1),
    tile_of(128, 104, 1),
    tile_of(128, 152, 2),
    tile_of(128, 176, 1),
    tile_of(192, 176, 1),
];

/// What an H200 takes, in microseconds, as measured at 55 products of 129 to 2,048 rows.
mod cost {
    /// From a launch to its first products, and from the last outputs to the next launch; and of clusters.
    pub(crate) const LAUNCH: f64 = 4.7;
    pub(crate) const CLUSTER: f64 = 1.3;
    /// A step of 64 elements of K, and more for 64 outputs of each token.
    pub(crate) const STEP: f64 = 0.03;
    pub(crate) const TOKEN: f64 = 0.0013;
    /// The same where one warpgroup multiplies: each step waits for the one before.
    pub(crate) const STEP_ALONE: f64 = 0.15;
    pub(crate) const TOKEN_ALONE: f64 = 0.0005;
    /// A tile's outputs, what an activation adds to them, and a round behind another.
    pub(crate) const OUTPUTS: f64 = 1.2;
    pub(crate) const ACTIVATION: f64 = 1.1;
    pub(crate) const ROUND: f64 = 2.0;
    /// Outputs that are not whole in eights, for each token of a tile; and in all, for tiles of `sm90`.
    pub(crate) const UNALIGNED_TOKEN: f64 = 0.05;
    pub(crate) const UNALIGNED: f64 = 1.5;
    /// Every doubling of the parts of K.
    pub(crate) const MEET: f64 = 2.0;
    /// Bytes a microsecond from memory, of that what is lost with no SM at work, and from L2.
    pub(crate) const MEMORY: f64 = 3.7e6;
    pub(crate) const IDLE: f64 = 0.3;
    pub(crate) const CACHE: f64 = 14e6;
    /// What tiles of `sm90` of few columns take of what `gemm::sm90::cost` says; and how many columns are few.
    pub(crate) const NARROW: f64 = 1.1;
    pub(crate) const NARROW_COLUMNS: u64 = 80;
}

impl SwapAbTile {
    /// Warpgroups that multiply, and how many times 64 outputs each of them has.
    const fn groups(&self) -> [u64; 2] {
        let each = if self.outputs > 192 { 2 } else { 1 };
        [self.outputs / 64 / each, each]
    }

    /// And a warpgroup of which one warp brings.
    const fn threads(&self) -> u32 {
        self.groups()[0] as u32 * 128 + 128
    }

    /// A stage has two barriers.
    const fn stage_bytes(&self) -> u64 {
        (self.outputs + self.tokens) * WgmmaTile::DEPTH * 2 + 16
    }

    const fn stages(&self) -> u64 {
        let room = (WgmmaTile::SHARED_BYTES - WgmmaTile::START) / self.stage_bytes();
        if room < 12 { room } else { 12 }
    }

    const fn shared_bytes(&self) -> u32 {
        (self.stages() * self.stage_bytes() + WgmmaTile::START) as u32
    }

    fn blocks(&self, rows: u64, outputs: u64) -> u64 {
        rows.div_ceil(self.tokens).saturating_mul(outputs.div_ceil(self.outputs)).saturating_mul(self.parts)
    }

    fn time(&self, shape: &Shape, target: &Target) -> f64 {
        let (blocks, room) = (self.blocks(shape.rows, shape.outputs), WgmmaTile::room_of(self.parts, target));
        let (rounds, idle) = (blocks.div_ceil(room) as f64, 1.0 - blocks.min(room) as f64 / room as f64);
        let steps = shape.depth.div_ceil(WgmmaTile::DEPTH).div_ceil(self.parts) as f64;
        let step = match self.groups() {
            [1, 1] => cost::STEP_ALONE + cost::TOKEN_ALONE * self.tokens as f64,
            _ => cost::STEP + cost::TOKEN * (self.outputs / 64 * self.tokens) as f64,
        };
        let odd = if shape.has_unaligned_outputs() { cost::UNALIGNED_TOKEN * self.tokens as f64 } else { 0.0 };
        let outputs = cost::OUTPUTS + odd + if shape.activated { cost::ACTIVATION } else { 0.0 };
        let products = rounds * (steps * step + outputs) + (rounds - 1.0) * cost::ROUND;
        let memory = shape.bytes() / cost::MEMORY * (1.0 + cost::IDLE * idle);
        let lines = if shape.straddles { 2.0 } else { 1.0 };
        let read = blocks as f64 * steps * (self.outputs + self.tokens) as f64 * lines * 2.0 * WgmmaTile::DEPTH as f64;
        let cluster = if self.parts > 1 { cost::CLUSTER } else { 0.0 };
        cost::LAUNCH + cluster + products.max(memory).max(read / cost::CACHE) + cost::MEET * (self.parts as f64).log2()
    }

    fn name(&self) -> String {
        let Self { outputs, tokens, parts } = self;
        if *parts > 1 { format!("{outputs} columns by {tokens}, K in {parts} parts") } else { format!("{outputs} columns by {tokens}") }
    }

    fn defines(&self) -> Vec<(&'static str, String)> {
        let [groups, each] = self.groups();
        let values = [
            ("SWAP_AB_TOKENS", self.tokens),
            ("SWAP_AB_GROUPS", groups),
            ("SWAP_AB_EACH", each),
            ("SWAP_AB_THREADS", u64::from(self.threads())),
            ("WGMMA_STAGES", self.stages()),
            ("CLUSTER", self.parts),
        ];
        values.map(|(name, value)| (name, value.to_string())).into()
    }

    /// A product's parameters, with what it reads X and W by.
    fn params(&self, product: &Product<'_>) -> Result<GemmParams> {
        let map = |slice: &Slice<Cuda>, count: u64, stride: u64, rows: u64| WgmmaTile::rows_map(product.dtype, slice, [count, product.depth], stride, rows);
        Ok(GemmParams {
            x_map: map(&product.x, product.rows, product.x_stride, self.tokens)?,
            x_last_map: map(&product.x, product.rows, product.x_stride, WgmmaTile::last_box(product.rows, self.tokens))?,
            w_map: map(&product.w, product.columns, product.w_stride, self.outputs)?,
            rest_map: map(&product.w, product.columns, product.w_stride, WgmmaTile::last_box(product.columns, self.outputs))?,
            ..product.params()
        })
    }
}

/// The tile that takes the least time, as the model above says, and that time.
fn choose(shape: &Shape, target: &Target) -> (SwapAbTile, f64) {
    let takes = |tile: &SwapAbTile| tile.parts == 1 || shape.splits();
    let timed = TILES.into_iter().filter(takes).map(|tile| (tile, tile.time(shape, target)));
    timed.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((TILES[0], f64::INFINITY))
}

fn tile(op: &Linear, target: &Target) -> (SwapAbTile, f64) {
    choose(&shape(op), target)
}

/// Whether a product is done sooner so than by the tile of 128 rows that it would take.
pub(crate) fn beats_rows(shape: &Shape, target: &Target) -> bool {
    let tile = shape.choose(target);
    let narrow = tile.columns <= cost::NARROW_COLUMNS && tile.parts() == 1;
    let rows = shape.time(&tile, target) * if narrow { cost::NARROW } else { 1.0 } + if shape.has_unaligned_outputs() { cost::UNALIGNED } else { 0.0 };
    choose(shape, target).1 < rows
}

fn supports(op: &Linear, target: &Target) -> std::result::Result<(), String> {
    half(op.dtype)?;
    op.no_norm()?;
    op.no_delta()?;
    // It copies nothing first.
    for stride in [op.x_stride, op.w_stride] {
        WgmmaTile::reads(op.dtype, op.tokens.max(op.d_out), op.d_in, stride)?;
    }
    fits(tile(op, target).0.shared_bytes(), target)
}

/// The kernel for outputs that can be moved 16 bytes at a time, and that for all others.
const WHOLE: Entry = entry!("linear_swap_ab");
const UNALIGNED: Entry = entry!("linear_swap_ab_unaligned");

fn kernel(entry: Entry, tile: &SwapAbTile, Form { dtype, activation, .. }: Form) -> Unit {
    let mut defines = tile.defines();
    defines.extend([("ELEMENT", dtype.name().into()), ("ACTIVATION_FORM", activation.name().into())]);
    let name = format!("{} {dtype}, {}, {}", entry.name(), tile.name(), activation.name());
    entry.alone(Unit { headers: vec![gemm_header()], defines, shared_bytes: tile.shared_bytes(), ..Unit::new(name, source!("gemm/sm90/swap_ab.cu")) })
}

/// Where outputs start, only the launch knows.
fn unit(op: &Linear, target: &Target) -> Unit {
    let ((tile, _), form) = (tile(op, target), Form::plain(op.dtype, ActivationForm::of(op.activation)));
    let [whole, odd] = [WHOLE, UNALIGNED].map(|entry| kernel(entry, &tile, form));
    match op.d_out.is_multiple_of(8) {
        true => Unit { also: [vec![odd], fallback_units(op.dtype)].concat(), ..whole },
        false => Unit { also: fallback_units(op.dtype), ..odd },
    }
}

unsafe fn launch(queue: &mut Queue, plan: &Plan<Linear>, workspace: &Slice<Cuda>, args: &LinearArgs<Cuda>) -> Result<()> {
    // SAFETY: the caller's promise; rows start where TMA can read them.
    unsafe {
        let (product, _) = product(queue, plan, workspace, args)?;
        if !product.aligned() {
            return product.launch_fallback(queue, plan);
        }
        if product.rows == 0 {
            return Ok(());
        }
        let (tile, time) = plan.once(|plan| Ok(tile(&plan.op, &plan.target)))?;
        let params = tile.params(&product)?;
        let entry = if product.writes_whole() { WHOLE } else { UNALIGNED };
        let launch = Launch {
            cluster: [tile.parts as u32, 1, 1],
            shared_bytes: tile.shared_bytes(),
            // The kernel waits before it reads anything.
            overlap: Shape::starts_early_after(time),
            ..Launch::new(tile.blocks(product.rows, product.columns) as u32, tile.threads())
        };
        plan.launch(queue, entry.name(), &launch, &params)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::cases::{self, Posed, Problem};

    const H200: Target = Target { arch: Arch(90), units: 132, shared_bytes: 227 << 10, config: None };

    #[test]
    fn tiles_divide_the_rows_that_there_are() {
        for (rows, outputs, depth, tile) in [
            (300, 3584, 18944_u64, tile_of(128, 152, 2)),
            (700, 18944, 3584, tile_of(192, 176, 1)),
            (700, 6144, 4096, tile_of(192, 176, 1)),
            (700, 4096, 14336, tile_of(128, 176, 1)),
            (129, 4096, 4096, tile_of(64, 72, 1)),
            (129, 14336, 4096, tile_of(64, 136, 1)),
            (512, 1432, 4096, tile_of(64, 104, 1)),
            (1000, 384, 1536, tile_of(64, 48, 1)),
            (300, 4096, 1432, tile_of(128, 104, 1)),
        ] {
            let straddles = !depth.is_multiple_of(64);
            assert_eq!(choose(&Shape { rows, outputs, depth, straddles, ..Shape::default() }, &H200).0, tile, "{rows} × {outputs} × {depth}");
        }
    }

    #[test]
    fn the_cases_take_every_tile() {
        let mut taken = Vec::new();
        for case in cases::all().into_iter().filter(|case| case.name().starts_with("linear/across")) {
            let Problem::Linear(Posed { op, .. }) = case.problem().unwrap() else { panic!("{}", case.name()) };
            assert_eq!(supports(&op, &H200), Ok(()), "{}", case.name());
            taken.push(tile(&op, &H200).0);
        }
        assert!(TILES.iter().all(|tile| taken.contains(tile)), "{taken:?}");
    }

    #[test]
    fn every_tile_has_room() {
        for tile in TILES {
            assert!(tile.shared_bytes() <= 227 << 10 && tile.threads() <= 512, "{tile:?}");
        }
    }

    #[test]
    fn an_encoder_has_no_product_whose_sums_depend_on_its_rows() {
        for rows in [65, 128, 129, 300, 4096] {
            for (outputs, depth) in [(384, 1536), (1024, 4096), (4096, 1024), (3072, 768)] {
                assert_eq!(choose(&Shape { rows, outputs, depth, ..Shape::default() }, &H200).0.parts, 1, "{rows} × {outputs} × {depth}");
            }
        }
    }
}
