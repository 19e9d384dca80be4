use super::attention_forms::page_index;
use super::case::{Case, EDGES, OpKind, Posed, dtype_in_turn};
use super::draw::Draw;
use crate::oracle::pointwise::{Host, x_columns};
use trifuse::dtype::DType;
use trifuse::error::Result;
use trifuse::ops::Activation;
use trifuse::ops::index::{HostIndex, PageShape, TokenAdapters, Varlen};
use trifuse::ops::pointwise::{Heads, Kind, Places, Pointwise, Turn};

/// 1e-5 as a descriptor holds it.
fn eps() -> u32 {
    1e-5f32.to_bits()
}

fn case(name: impl std::fmt::Display, op: Pointwise) -> Case {
    Case::new(OpKind::Pointwise, format!("{name}_{}", op.dtype), move |draw| Ok(pose(op.clone(), draw)?.into()))
}

fn pose(op: Pointwise, draw: &mut Draw) -> Result<Posed<Pointwise>> {
    let dtype = op.dtype;
    let mut host = Host::new(draw.pitched(dtype, [op.x_rows(), x_columns(&op)], op.stride(), 1.0));
    let residual = op.residual_rows();
    host.residual = draw.optional(residual.is_some(), dtype, residual.unwrap_or(0) * op.columns, 1.0);
    host.weight = draw.optional(op.has_weight(), dtype, op.columns, 1.0);
    host.bias = draw.optional(op.is_layer_norm(), dtype, op.columns, 0.5);
    match op.kind {
        // A row without a length stays as it is.
        Kind::L2Normalise => host.x[..op.columns as usize].fill(0.0),
        Kind::Rope { .. } | Kind::RopeInPlace { .. } | Kind::Heads(_) => {
            // The angle is taken in f32: far positions would test the sine of a rounded number, not the operation.
            let far = if dtype == DType::F32 { 32 } else { 2000 };
            host.positions = Some((0..op.rows).map(|_| draw.below(far) as i32 - far as i32 / 8).collect());
            // From more than a radian down to next to none, in no order; one pair turns the other way, and one not at all.
            let radians =
                |j: u64, drawn: u32| [1.0, 1.0, -0.5, 0.0][(j % 7).min(3) as usize * usize::from(j % 7 < 4)] * 2f64.powf(0.5 - f64::from(drawn) / 40.0);
            if let Kind::Heads(Heads { to: Places::Slots(slots), .. }) = op.kind {
                host.slots = Some(places(op.rows, slots, draw));
            }
            host.frequencies = op.frequencies().map(|pairs| (0..pairs).map(|j| DType::F32.round(radians(j, draw.below(900)))).collect());
        }
        Kind::Store { slots, .. } => host.positions = Some(places(op.rows, slots, draw)),
        Kind::Embedding { vocabulary } => {
            let ids: Vec<i32> = (0..op.rows).map(|r| if r % 5 == 4 { -1 } else { draw.below(vocabulary) as i32 }).collect();
            host.ids = Some(TokenAdapters::new(&ids, vocabulary)?);
        }
        Kind::EmbeddingNorm { vocabulary, places, .. } => {
            let mut of =
                |table: u32| TokenAdapters::new(&(0..op.rows).map(|r| if r % 7 == 6 { -1 } else { draw.below(table) as i32 }).collect::<Vec<_>>(), table);
            (host.ids, host.places) = (Some(of(vocabulary)?), Some(of(places)?));
        }
        Kind::MeanPool(shape) => {
            // Cut points in no special place; the second sequence, where there is one, is empty.
            let mut cuts: Vec<i32> = (1..shape.batch).map(|_| draw.below(shape.total_q as u32 + 1) as i32).collect();
            cuts.sort_unstable();
            if cuts.len() > 1 {
                cuts[1] = cuts[0];
            }
            let starts: Vec<i32> = std::iter::once(0).chain(cuts).chain([shape.total_q as i32]).collect();
            host.sequences = Some(Varlen::new(&starts, &starts, shape.max_q, shape.max_kv)?);
        }
        _ => {}
    }
    Ok(Posed { op, host })
}

/// A place of its own for each row, in no order. Every fourth is none: below the pool, behind it, and as far from it as an i32 may be.
fn places(rows: u64, slots: u32, draw: &mut Draw) -> Vec<i32> {
    let mut free: Vec<i32> = (0..slots as i32).collect();
    let outside = [-1, slots as i32, i32::MAX, i32::MIN];
    let mut next = |r: u64| match r % 4 {
        3 => outside[(r / 4 % 4) as usize],
        _ => free.swap_remove(draw.below(free.len() as u32) as usize),
    };
    (0..rows).map(&mut next).collect()
}

/// The table of sequences of those lengths, and a page that none has.
fn cache(page: u64, lengths: &[i32]) -> PageShape {
    let pages = |length: i32| (length as u64).div_ceil(page);
    let (most, used) = (lengths.iter().copied().map(pages).max().unwrap_or(0), lengths.iter().copied().map(pages).sum::<u64>());
    PageShape { batch: lengths.len() as u64, pages: most + 1, page, pool_pages: used + 1 }
}

/// `each` new tokens for sequences of those lengths, with them; columns of rows of x.
fn append(name: &str, dtype: DType, [each, page]: [u64; 2], [columns, stride]: [u64; 2], lengths: &'static [i32]) -> Case {
    let cache = cache(page, lengths);
    paged(format!("append_{name}_{dtype}"), Pointwise::new(dtype, each * cache.batch, columns, Kind::Append { cache, stride }), lengths)
}

/// Rows that are appended to the pages of sequences of those lengths.
fn paged(name: String, op: Pointwise, lengths: &'static [i32]) -> Case {
    let cache = op.cache().unwrap_or(PageShape { batch: 0, pages: 0, page: 1, pool_pages: 0 });
    Case::new(OpKind::Pointwise, name, move |draw| {
        let mut posed = pose(op.clone(), draw)?;
        posed.host.pages = Some(page_index(cache, lengths, draw)?);
        Ok(posed.into())
    })
}

/// Heads of rows `[q | k | v]`, and of q, k and v that lie apart, to pages and to slots; of k and v there are as many.
fn heads(name: &str, dtype: DType, [head_dim, queries, keys]: [u64; 3], turn: Turn, norm: Option<u32>) -> Vec<Case> {
    const LENGTHS: &[i32] = &[9, 2, 0, 5];
    let (columns, all) = ((queries + keys) * head_dim, (queries + 2 * keys) * head_dim);
    let heads = |to| Heads::new(head_dim, turn, all, to).with_norm(norm).with_first(queries * head_dim).with_kept(2 * keys * head_dim);
    let both = |(lie, apart): (&str, bool)| {
        let op = |rows, to| Pointwise::new(dtype, rows, columns, Kind::Heads(heads(to).with_apart(apart)));
        [
            paged(format!("heads_{name}{lie}_pages_{dtype}"), op(12, Places::Pages(cache(4, LENGTHS))), LENGTHS),
            case(format!("heads_{name}{lie}_slots"), op(9, Places::Slots(20))),
        ]
    };
    [("", false), ("_apart", true)].into_iter().flat_map(both).collect()
}

fn pool(dtype: DType, batch: u64, total: u64, columns: u64) -> Result<Pointwise> {
    // Only the shape is wanted here: the bounds on lengths are the total, so that any cuts fit.
    let starts: Vec<i32> = std::iter::once(0).chain((0..batch).map(|_| total as i32)).collect();
    let shape = Varlen::new(&starts, &starts, total, total)?.shape();
    Ok(Pointwise::new(dtype, batch, columns, Kind::MeanPool(shape)))
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (n, columns) in EDGES.into_iter().chain([4096]).enumerate() {
        let dtype = dtype_in_turn(n);
        // A row of one element is its own mean: LayerNorm would give the bias whatever x is.
        if columns > 1 {
            cases.push(case(format!("layer_norm{columns}"), Pointwise::new(dtype, 5, columns, Kind::LayerNorm { eps: eps(), residual: n % 2 == 0 })));
        }
        let dtype = dtype_in_turn(n + 1);
        cases.push(case(format!("rms_norm{columns}"), Pointwise::new(dtype, 5, columns, Kind::RmsNorm { eps: eps(), residual: n % 2 == 1 })));
    }
    for dtype in DType::ALL {
        let op = |rows, columns, kind| Pointwise::new(dtype, rows, columns, kind);
        cases.push(case("layer_norm_residual", op(33, 384, Kind::LayerNorm { eps: eps(), residual: true })));
        cases.push(case("rms_norm_residual", op(33, 384, Kind::RmsNorm { eps: eps(), residual: true })));
        cases.push(case("rope_d64", op(9, 4 * 64, Kind::Rope { head_dim: 64, turn: Turn::base(1e4) })));
        // The heads of q and k in rows [q | k | v], four heads on one; then rows that begin on no whole line.
        cases.push(case("rope_in_place", op(9, 5 * 64, Kind::RopeInPlace { head_dim: 64, turn: Turn::base(1e4), stride: 6 * 64 })));
        cases.push(case("rope_in_place_odd", op(5, 3 * 10, Kind::RopeInPlace { head_dim: 10, turn: Turn::base(5e5), stride: 37 })));
        cases.push(case("rope_d2", op(7, 6, Kind::Rope { head_dim: 2, turn: Turn::base(1e4) })));
        cases.push(case("rope_table", op(9, 4 * 64, Kind::Rope { head_dim: 64, turn: Turn::Table })));
        cases.push(case("rope_table_in_place_odd", op(5, 3 * 10, Kind::RopeInPlace { head_dim: 10, turn: Turn::Table, stride: 37 })));
        cases.push(case("embedding", op(21, 65, Kind::Embedding { vocabulary: 300 })));
        for columns in [65, 384, 1024, 2048] {
            cases.push(case(format!("embedding_norm{columns}"), op(21, columns, Kind::EmbeddingNorm { vocabulary: 90, places: 40, eps: eps() })));
        }
        cases.push(case("l2_normalise", op(7, 385, Kind::L2Normalise)));
        cases.push(case("add", op(13, 129, Kind::Add)));
        cases.extend(Activation::ALL.map(|activation| case(format!("activation_{}", activation.name()), op(9, 131, Kind::Activation(activation)))));
        cases.extend(Activation::ALL.map(|activation| case(format!("glu_{}", activation.name()), op(9, 131, Kind::Glu(activation)))));
        cases.push(case("glu_lines", op(7, 1536, Kind::Glu(Activation::Silu))));
        // Longer than a piece of work of a processor: gates that lie apart are one such row.
        cases.push(case("glu_one_row", op(1, 33_001, Kind::Glu(Activation::Silu))));
        // Places in whole lines, and rows that begin on none.
        cases.push(case("store", op(17, 192, Kind::Store { slots: 40, stride: 320 })));
        cases.push(case("store_odd", op(17, 37, Kind::Store { slots: 13, stride: 41 })));
        cases.push(case("no_rows", op(0, 32, Kind::Add)).zero("zero rows: nothing is written"));
        cases.extend(pool(dtype, 4, 57, 65).map(|op| case("mean_pool", op)));
        cases.extend(pool(dtype, 3, 1, 65).map(|op| case("mean_pool_one_token", op)));
        cases.push(append("one", dtype, [1, 16], [256, 384], &[1, 33, 16, 17]));
        // Over the end of a page; a sequence that has fewer tokens than are new, and one that has none.
        cases.push(append("some", dtype, [3, 4], [128, 128], &[9, 2, 0, 5]));
        cases.push(append("odd", dtype, [2, 5], [37, 41], &[6, 11, 1]));
    }
    let base = Turn::base(1e4);
    for (n, dtype) in DType::ALL.into_iter().enumerate() {
        let norm = Some(eps());
        cases.extend(heads("d64", dtype, [64, 9, 3], base, None));
        cases.extend(heads("d128_norm", dtype, [128, 4, 1], base, norm));
        // Pairs that are no power of two, and rows that begin on no whole line.
        cases.extend(heads("d80", dtype, [80, 2, 2], Turn::Table, [None, norm][n % 2]));
        cases.extend(heads("d10", dtype, [10, 3, 1], base, norm));
        cases.extend(heads("d64_norm_table", dtype, [64, 2, 1], Turn::Table, norm));
        // Keys alone, and columns that end inside a head.
        let alone = |stride, kept| Kind::Heads(Heads::new(64, base, stride, Places::Slots(11)).with_kept(kept));
        cases.push(case("heads_keys", Pointwise::new(dtype, 7, 3 * 64, alone(3 * 64, 3 * 64))));
        cases.push(case("heads_part", Pointwise::new(dtype, 7, 3 * 64, alone(4 * 64, 3 * 64 + 24))));
        // Apart: no query, a value of another width than its key that ends inside a head, and values alone.
        let apart =
            |first, kept| Kind::Heads(Heads::new(64, base, first + kept, Places::Slots(11)).with_norm(norm).with_first(first).with_kept(kept).with_apart(true));
        cases.push(case("heads_apart_keys", Pointwise::new(dtype, 7, 2 * 64, apart(0, 3 * 64))));
        cases.push(case("heads_apart_part", Pointwise::new(dtype, 7, 3 * 64, apart(2 * 64, 64 + 23))));
        cases.push(case("heads_apart_values", Pointwise::new(dtype, 7, 64, apart(64, 2 * 64))));
        cases.push(case("heads_apart_one", Pointwise::new(dtype, 1, 3 * 64, apart(2 * 64, 2 * 64))));
    }
    cases.extend(heads("d256", DType::F16, [256, 2, 1], base, Some(eps())));
    cases.extend(heads("d96_many", DType::BF16, [96, 40, 8], base, None));
    cases.push(case("rope_d254", Pointwise::new(DType::F16, 3, 3 * 254, Kind::Rope { head_dim: 254, turn: Turn::base(5e5) })));
    let grouped = Kind::RopeInPlace { head_dim: 128, turn: Turn::base(1e4), stride: 12 * 128 };
    cases.push(case("rope_in_place_grouped", Pointwise::new(DType::BF16, 3, 10 * 128, grouped)));
    // Norms of rows as wide as those of models of 7, 13 and 70 thousand million weights.
    for (n, columns) in [5120, 8192].into_iter().enumerate() {
        let kinds = [Kind::RmsNorm { eps: eps(), residual: n == 1 }, Kind::LayerNorm { eps: eps(), residual: n == 0 }];
        cases.extend([(DType::F16, kinds[n]), (DType::BF16, kinds[1 - n])].map(|(dtype, kind)| {
            let name = if matches!(kind, Kind::RmsNorm { .. }) { "rms" } else { "layer" };
            case(format!("{name}_norm{columns}"), Pointwise::new(dtype, 3, columns, kind))
        }));
    }
    cases.push(case("l2_normalise_one", Pointwise::new(DType::F16, 21, 1, Kind::L2Normalise)));
    cases.push(case("add_rows4096", Pointwise::new(DType::BF16, 4096, 3, Kind::Add)));
    cases.extend(pool(DType::F16, 1, 511, 33).map(|op| case("mean_pool_one_long", op)));
    cases
}
