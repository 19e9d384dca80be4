//! Attention over sequences of different length, listed blocks, and pages.

use super::attention::{Scores, case_with};
use super::case::Case;
use super::draw::Draw;
use crate::oracle::attention::HostForm;
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::attention::{Attention, Form, Strides};
use trifuse::ops::index::{BlockKind, BlockMap, BlockMask, BlockShape, HostIndex, MapShape, PageShape, PageTable, Varlen};

pub(super) fn cases() -> Vec<Case> {
    let mut cases = varlen();
    cases.extend(blocks());
    cases.extend(block_maps());
    cases.extend(paged());
    cases
}

pub(super) fn starts(lengths: &[i32]) -> Vec<i32> {
    let mut total = 0;
    std::iter::once(0)
        .chain(lengths.iter().map(|length| {
            total += length;
            total
        }))
        .collect()
}

pub(super) fn varlen_case(name: &str, dtype: DType, heads: [u64; 2], head_dim: u64, lengths: [&[i32]; 2], change: fn(&mut Attention)) -> Option<Case> {
    let most = |lengths: &[i32]| lengths.iter().copied().max().unwrap_or(0) as u64;
    let index = Varlen::new(&starts(lengths[0]), &starts(lengths[1]), most(lengths[0]), most(lengths[1])).ok()?;
    let mut op = Attention::varlen(dtype, index.shape(), heads, head_dim).with_lse(true);
    change(&mut op);
    Some(case_with(name, op, Scores::Normal, move |_, _| Ok(HostForm::Varlen(index.clone()))))
}

fn varlen() -> Vec<Case> {
    let mut cases = Vec::new();
    let causal = |op: &mut Attention| op.causal = true;
    for dtype in DType::ALL {
        let lengths: &[i32] = &[31, 1, 0, 65, 7];
        cases.extend(varlen_case("varlen", dtype, [2, 2], 40, [lengths, lengths], |_| ()));
        cases.extend(varlen_case("varlen_causal_gqa", dtype, [4, 2], 64, [lengths, lengths], causal));
        // A sequence without keys has empty rows; one without queries writes nothing.
        cases.extend(varlen_case("varlen_empty_sequences", dtype, [2, 1], 32, [&[9, 0, 17, 3], &[33, 5, 0, 129]], causal));
    }
    cases.extend(varlen_case("varlen_window", DType::F16, [2, 1], 48, [&[70, 12], &[90, 130]], |op| op.window = Some(20)));
    cases.extend(sentences());
    cases.extend(varlen_case("varlen_last_empty", DType::BF16, [1, 1], 64, [&[129, 0], &[129, 0]], |_| ()));
    cases
}

/// What an encoder asks for: sequences of at most 512, around every width at which more of them, or more of their heads, go together.
fn sentences() -> Vec<Case> {
    let mut cases = Vec::new();
    const LENGTHS: &[i32] = &[33, 1, 128, 0, 64, 16, 129, 32, 17, 65, 300, 31, 127, 63, 5];
    const SHORT: &[i32] = &[9, 30, 2, 64, 0, 12, 33, 1, 40, 25, 61, 7];
    let plain = |op: &mut Attention| op.lse = false;
    for dtype in [DType::F16, DType::BF16] {
        cases.extend(varlen_case("sentences_d32", dtype, [3, 3], 32, [LENGTHS, LENGTHS], plain));
        cases.extend(varlen_case("sentences_d64_gqa", dtype, [4, 2], 64, [LENGTHS, LENGTHS], plain));
        cases.extend(varlen_case("sentences_d24", dtype, [2, 2], 24, [SHORT, SHORT], plain));
        cases.extend(varlen_case("sentences_lse", dtype, [2, 1], 32, [LENGTHS, LENGTHS], |_| ()));
        cases.extend(varlen_case("sentences_causal_window", dtype, [2, 2], 40, [LENGTHS, LENGTHS], |op| (op.causal, op.window) = (true, Some(70))));
    }
    // So many heads that several are a tile's, and more tiles than blocks stay.
    cases.extend(varlen_case("sentences_many_heads", DType::F16, [402, 402], 16, [SHORT, SHORT], plain));
    cases
}

/// Lists of the blocks of each pattern, row and column that `there` says; kinds in turn from `kinds`.
pub(super) fn listed_blocks(shape: BlockShape, kinds: &[BlockKind], draw: &mut Draw, there: impl Fn(&mut Draw, [u32; 3]) -> bool) -> Result<HostForm> {
    let (mut row_ptr, mut columns, mut listed) = (Vec::new(), Vec::new(), Vec::new());
    for pattern in 0..shape.patterns {
        row_ptr.push(columns.len() as i32);
        for row in 0..shape.q_blocks {
            for column in 0..shape.kv_blocks {
                if there(draw, [pattern, row, column]) {
                    columns.push(column as i32);
                    listed.push(kinds[listed.len() % kinds.len()]);
                }
            }
            row_ptr.push(columns.len() as i32);
        }
    }
    // Two words of three set: most keys seen, some rows with none.
    let words = shape.masks * shape.block * shape.block / 32;
    let bits: Vec<u32> = (0..words).map(|_| if draw.below(3) == 0 { 0 } else { draw.word() }).collect();
    Ok(HostForm::Blocks(BlockMask::new(&row_ptr, &columns, &listed, &bits, shape)?))
}

/// How many blocks the rows of a pattern list.
#[derive(Clone, Copy)]
pub(super) enum RowLengths {
    /// None the first, all the second, half of them the others.
    Half,
    /// One row all, the others a half, a third and so on of them, another row in each pattern.
    PowerLaw,
    /// All.
    Every,
}

impl RowLengths {
    pub(super) fn there(self, draw: &mut Draw, shape: &BlockShape, [pattern, row, column]: [u32; 3]) -> bool {
        match self {
            Self::Half => row == 1 || (row > 1 || shape.q_blocks == 1) && (draw.below(2) == 0 || column == row % shape.kv_blocks),
            Self::PowerLaw => draw.below((row + 3 * pattern + 2) % shape.q_blocks + 1) == 0,
            Self::Every => true,
        }
    }
}

pub(super) const FULL: &[BlockKind] = &[BlockKind::Full];
pub(super) const ALL: &[BlockKind] = &[BlockKind::Full, BlockKind::Bits(0), BlockKind::Causal, BlockKind::Bits(1)];

pub(super) struct Blocks {
    pub(super) lengths: [u64; 2],
    pub(super) block: u32,
    pub(super) patterns: u32,
    pub(super) kinds: &'static [BlockKind],
}

pub(super) fn block_case(name: &str, base: Attention, blocks: Blocks) -> Case {
    block_rows_case(name, base, blocks, RowLengths::Half)
}

pub(super) fn block_rows_case(name: &str, base: Attention, Blocks { lengths, block, patterns, kinds }: Blocks, rows: RowLengths) -> Case {
    let [q_blocks, kv_blocks] = lengths.map(|length| length.div_ceil(u64::from(block)) as u32);
    // Room for more blocks than are there, and for a mask that none names.
    let capacity = patterns * q_blocks * kv_blocks + 3;
    let shape = BlockShape { block, q_blocks, kv_blocks, patterns, capacity, masks: 3 };
    let dense = Attention::dense(base.dtype, base.batch, [base.heads, base.kv_heads], lengths, base.head_dim);
    let op = dense.with_causal(base.causal).with_window(base.window).with_lse(true).with_form(Form::Blocks(shape));
    case_with(name, op, Scores::Normal, move |_, draw| listed_blocks(shape, kinds, draw, |draw, place| rows.there(draw, &shape, place)))
}

fn blocks() -> Vec<Case> {
    let base = |dtype, batch, heads: [u64; 2], d| Attention::dense(dtype, batch, heads, [1, 1], d);
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        cases.push(block_case("blocks_full", base(dtype, 1, [2, 2], 32), Blocks { lengths: [192, 192], block: 64, patterns: 1, kinds: FULL }));
        let kinds = Blocks { lengths: [200, 200], block: 64, patterns: 1, kinds: ALL };
        cases.push(block_case("blocks_all_kinds_ragged", base(dtype, 1, [2, 1], 48), kinds));
    }
    let causal = |op: Attention| op.with_causal(true);
    let f16 = DType::F16;
    let cross = |patterns, kinds| Blocks { lengths: [150, 257], block: 64, patterns, kinds };
    cases.push(block_case("blocks_causal", causal(base(f16, 1, [2, 2], 32)), Blocks { lengths: [257, 257], block: 64, patterns: 1, kinds: FULL }));
    cases.push(block_case("blocks_q_shorter", base(f16, 1, [2, 2], 32), cross(1, ALL)));
    cases.push(block_case("blocks_q_shorter_causal", causal(base(f16, 1, [2, 2], 32)), cross(1, ALL)));
    cases.push(block_case("blocks_per_head", base(DType::BF16, 2, [4, 2], 32), cross(4, ALL)));
    cases.push(block_case("blocks_per_batch_and_head", base(f16, 2, [2, 1], 32), cross(4, ALL)));
    cases.push(block_case("blocks128", base(f16, 1, [2, 1], 64), Blocks { lengths: [300, 300], block: 128, patterns: 1, kinds: ALL }));
    cases.push(block_case("blocks128_one_ragged", base(f16, 1, [1, 1], 107), Blocks { lengths: [65, 65], block: 128, patterns: 1, kinds: FULL }));
    let windowed = causal(base(f16, 1, [2, 2], 32)).with_window(Some(50));
    cases.push(block_case("blocks_window_causal", windowed, Blocks { lengths: [200, 200], block: 64, patterns: 1, kinds: FULL }));

    let shape = BlockShape { block: 64, q_blocks: 2, kv_blocks: 2, patterns: 1, capacity: 0, masks: 0 };
    let op = Attention::dense(f16, 1, [2, 2], [100, 100], 32).with_lse(true).with_form(Form::Blocks(shape));
    let none = case_with("blocks_none_listed", op, Scores::Normal, move |_, _| Ok(HostForm::Blocks(BlockMask::new(&[0, 0, 0], &[], &[], &[], shape)?)));
    cases.push(none.zero("no block is listed: every row is empty"));
    cases
}

/// A random map: of the rows of each pattern the first is empty, the second full.
pub(super) fn map_index(shape: MapShape, draw: &mut Draw) -> Result<HostForm> {
    let mut bytes = Vec::new();
    for place in 0..shape.blocks() {
        bytes.push(match place / u64::from(shape.kv_blocks) % u64::from(shape.q_blocks) {
            0 => 0,
            1 => 1,
            _ => [0, 1, 0, 2, 255][draw.below(5) as usize],
        });
    }
    Ok(HostForm::BlockMap(BlockMap::new(&bytes, shape)?))
}

fn map_case(name: &str, base: Attention, lengths: [u64; 2], block: u32, patterns: u32) -> Case {
    let [q_blocks, kv_blocks] = lengths.map(|length| length.div_ceil(u64::from(block)) as u32);
    let shape = MapShape { block, q_blocks, kv_blocks, patterns };
    let dense = Attention::dense(base.dtype, base.batch, [base.heads, base.kv_heads], lengths, base.head_dim);
    let op = dense.with_causal(base.causal).with_window(base.window).with_lse(true).with_form(Form::BlockMap(shape));
    case_with(name, op, Scores::Normal, move |_, draw| map_index(shape, draw))
}

fn block_maps() -> Vec<Case> {
    let base = |dtype, batch, heads: [u64; 2], d| Attention::dense(dtype, batch, heads, [1, 1], d);
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        cases.push(map_case("block_map", base(dtype, 1, [2, 1], 48), [200, 200], 64, 1));
        // A pattern starts anywhere in a word, and several blocks of threads list its rows.
        cases.push(map_case("block_map_per_head", base(dtype, 1, [2, 1], 32), [650, 700], 64, 2));
    }
    let f16 = DType::F16;
    let causal = |op: Attention| op.with_causal(true);
    cases.push(map_case("block_map128", base(f16, 1, [2, 1], 64), [300, 300], 128, 1));
    cases.push(map_case("block_map128_causal", causal(base(DType::BF16, 1, [2, 2], 107)), [400, 400], 128, 2));
    cases.push(map_case("block_map_per_batch_and_head", base(f16, 2, [2, 1], 32), [150, 257], 64, 4));
    let windowed = causal(base(f16, 1, [2, 2], 32)).with_window(Some(50));
    cases.push(map_case("block_map_window_causal", windowed, [200, 200], 64, 1));
    // Words in which most bytes are not there, in rows of more than a warp's columns.
    cases.push(map_case("block_map_wide", base(f16, 1, [1, 1], 32), [192, 2500], 64, 1));
    // More columns than a warp has under way at once.
    cases.push(map_case("block_map_long", base(f16, 1, [1, 1], 16), [70, 17_000], 64, 1));
    cases
}

/// A pool with its pages in no order, one more page than is used, and sequences of those lengths.
pub(super) fn page_index(shape: PageShape, lengths: &[i32], draw: &mut Draw) -> Result<PageTable> {
    let mut free: Vec<i32> = (0..shape.pool_pages as i32).collect();
    for place in (1..free.len()).rev() {
        free.swap(place, draw.below(place as u32 + 1) as usize);
    }
    let mut table = Vec::new();
    for &length in lengths {
        let used = (length as u64).div_ceil(shape.page);
        // Entries past a sequence's length may be anything.
        table.extend((0..shape.pages).map(|p| if p < used { free.pop().unwrap_or(0) } else { -1 }));
    }
    PageTable::new(&table, lengths, shape)
}

pub(super) fn paged_case(name: &str, dtype: DType, page: u64, heads: [u64; 2], sizes: [u64; 2], lengths: &'static [i32]) -> Case {
    paged_window_case(name, dtype, page, (heads, sizes, None), lengths)
}

fn paged_window_case(
    name: &str,
    dtype: DType,
    page: u64,
    (heads, [q_len, head_dim], window): ([u64; 2], [u64; 2], Option<u64>),
    lengths: &'static [i32],
) -> Case {
    let pages = lengths.iter().map(|&length| (length as u64).div_ceil(page)).max().unwrap_or(0) + 1;
    let used: u64 = lengths.iter().map(|&length| (length as u64).div_ceil(page)).sum();
    let shape = PageShape { batch: lengths.len() as u64, pages, page, pool_pages: used + 1 };
    let op = Attention::paged(dtype, shape, heads, q_len, head_dim).with_causal(true).with_lse(true).with_window(window);
    super::Case::new(super::OpKind::Attention, format!("{name}_{dtype}"), move |draw| {
        let table = page_index(shape, lengths, draw)?;
        let mut posed = super::attention::pose(op.clone(), HostForm::Paged(table.clone()), Scores::Normal, draw);
        let unused = unused_elements(&op, &table);
        for (place, _) in unused.iter().enumerate().filter(|&(_, &unused)| unused) {
            (posed.host.k[place], posed.host.v[place]) = (f64::NAN, f64::NAN);
        }
        Ok(posed.into())
    })
}

/// Elements of the pool that belong to no sequence: whoever reads them gets NaN.
pub(super) fn unused_elements(op: &Attention, table: &PageTable) -> Vec<bool> {
    let shape = table.shape();
    let Strides { batch, token, .. } = op.k;
    let mut unused = vec![true; (shape.pool_pages * batch) as usize];
    for (b, &length) in table.kv_len().iter().enumerate() {
        for j in 0..length as u64 {
            let page = table.table()[b * shape.pages as usize + (j / shape.page) as usize] as u64;
            let first = (page * batch + j % shape.page * token) as usize;
            unused[first..first + token as usize].fill(false);
        }
    }
    unused
}

fn paged() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DType::ALL {
        cases.push(paged_case("paged16", dtype, 16, [4, 2], [1, 64], &[1, 33, 129, 16]));
        cases.push(paged_case("paged64_gqa_64_to_8", dtype, 64, [64, 8], [1, 32], &[65, 7]));
    }
    cases.push(paged_case("paged16_long", DType::F16, 16, [4, 1], [1, 64], &[2049]));
    cases.push(paged_case("paged128_q4", DType::F16, 128, [4, 2], [4, 80], &[300, 4, 129]));
    cases.push(paged_case("paged256_head_dim107", DType::BF16, 256, [2, 2], [1, 107], &[257, 255, 511]));
    // A sequence with no keys at all, and one with fewer keys than queries: empty rows.
    cases.push(paged_case("paged32_empty_sequence", DType::F16, 32, [2, 1], [3, 48], &[40, 0, 2]));
    // A head of keys whose block has all of them, in one turn of its warps and in several.
    cases.push(paged_case("paged32_block", DType::BF16, 32, [9, 3], [1, 96], &[1, 260, 0, 129]));
    for (dtype, window) in [(DType::F16, 130), (DType::BF16, 7)] {
        cases.push(paged_window_case("paged64_block_window", dtype, 64, ([6, 2], [1, 64], Some(window)), &[5, 300, 128]));
        cases.push(paged_window_case("paged16_block_window", dtype, 16, ([8, 1], [1, 128], Some(window)), &[1000, 131]));
    }
    cases.push(paged_case("paged1", DType::F16, 1, [2, 2], [1, 32], &[9, 5]));
    cases
}
