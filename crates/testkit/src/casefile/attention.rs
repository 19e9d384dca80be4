use super::tensors::{Tensors, dtype_named, in_f32};
use crate::cases::{Posed, Problem};
use crate::oracle::attention::{Host, HostForm};
use trifuse::error::Result;
use trifuse::ops::attention::{Attention, Form, Scale};
use trifuse::ops::index::{BlockMask, BlockShape, HostIndex, PageShape, PageTable, Varlen};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    dtype: String,
    causal: bool,
    window: i64,
    scale: f64,
    block: u32,
}

pub(super) fn read(tensors: &mut Tensors) -> Result<(Problem, Vec<Vec<Option<f64>>>)> {
    let params: Params = tensors.params()?;
    let dtype = dtype_named(tensors, &params.dtype)?;
    let q_shape @ [batch, q_len, heads, head_dim] = tensors.shape::<4>("q")?;
    let k_shape @ [_, kv_len, kv_heads, _] = tensors.shape::<4>("k")?;
    tensors.ensure(k_shape[3] == head_dim, "k", &format!("head_dim {head_dim}, as q"), format!("{k_shape:?}"))?;
    tensors.ensure(params.window >= -1, "params", "window: -1 or more", params.window)?;
    tensors.ensure(in_f32(params.scale), "params", "scale: a number in the range of f32", params.scale)?;
    tensors.ensure([0, 64, 128].contains(&params.block), "params", "block: 0 (dense), 64 or 128", params.block)?;
    for (name, shape) in [("q", &q_shape), ("k", &k_shape)] {
        // A shape with a zero in it holds no data, so its other sizes may be anything.
        let product = shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size.max(1)));
        tensors.ensure(product.is_some_and(|product| product < 1 << 31), name, "a product of sizes below 2^31", format!("{shape:?}"))?;
    }

    let varlen = tensors.together(&["cu_seqlens_q", "cu_seqlens_k"])?;
    let paged = tensors.together(&["page_table", "kv_len"])?;
    let blocks = tensors.together(&["row_ptr", "col_idx"])?;
    tensors.ensure(blocks == (params.block != 0), "row_ptr", "row_ptr and col_idx where, and only where, block is not 0", format!("block {}", params.block))?;
    tensors.ensure(u8::from(varlen) + u8::from(paged) + u8::from(blocks) <= 1, "params", "blocks, cu_seqlens or a page table", "more than one")?;

    if !varlen {
        let scores = [batch, heads, q_len, kv_len].iter().fold(1u64, |product, &size| product.saturating_mul(size));
        within_work(tensors, scores, head_dim)?;
    }
    let (form, index) = if varlen {
        read_varlen(tensors, [heads, head_dim])?
    } else if paged {
        read_pages(tensors, &q_shape, &k_shape)?
    } else if blocks {
        read_blocks(tensors, params.block, [q_len, kv_len])?
    } else {
        (Form::Dense, HostForm::None)
    };
    let base = match (form, &index) {
        (Form::Varlen(shape), _) => {
            tensors.ensure(batch == 1 && q_len == shape.total_q, "q", &format!("[1, {}, heads, head_dim]", shape.total_q), format!("{q_shape:?}"))?;
            tensors.ensure(k_shape[0] == 1 && kv_len == shape.total_kv, "k", &format!("[1, {}, heads, head_dim]", shape.total_kv), format!("{k_shape:?}"))?;
            Attention::varlen(dtype, shape, [heads, kv_heads], head_dim)
        }
        (Form::Paged(shape), _) => Attention::paged(dtype, shape, [heads, kv_heads], q_len, head_dim),
        _ => {
            tensors.ensure(k_shape[0] == batch, "k", &format!("a batch of {batch}, as q"), format!("{k_shape:?}"))?;
            Attention::dense(dtype, batch, [heads, kv_heads], [q_len, kv_len], head_dim).with_form(form)
        }
    };
    let op = base
        .with_causal(params.causal)
        .with_window(u64::try_from(params.window).ok())
        .with_scale(if params.scale == 0.0 { Scale::Default } else { Scale::from(params.scale as f32) })
        .with_lse(tensors.has("lse"));
    let host =
        Host { q: tensors.float("q", dtype, &q_shape)?, k: tensors.float("k", dtype, &k_shape)?, v: tensors.float("v", dtype, &k_shape)?, index, slots: None };
    let mut expected = vec![tensors.expected("o", &q_shape)?];
    if op.lse {
        let shape = if varlen { vec![heads, q_len] } else { vec![batch, heads, q_len] };
        expected.push(tensors.expected("lse", &shape)?);
    }
    Ok((Posed { op, host }.into(), expected.into_iter().map(|values| values.into_iter().map(Some).collect()).collect()))
}

fn read_varlen(tensors: &mut Tensors, [heads, head_dim]: [u64; 2]) -> Result<(Form, HostForm)> {
    let [totals] = tensors.shape::<1>("cu_seqlens_q")?;
    let (cu_q, cu_kv) = (tensors.integers("cu_seqlens_q", &[totals])?, tensors.integers("cu_seqlens_k", &[totals])?);
    let longest = |cu: &[i32]| cu.windows(2).map(|pair| i64::from(pair[1]) - i64::from(pair[0])).max().unwrap_or(0).max(0) as u64;
    let lengths = |cu: &[i32]| cu.windows(2).map(|pair| (i64::from(pair[1]) - i64::from(pair[0])).max(0) as u64).collect::<Vec<_>>();
    let scores = lengths(&cu_q).into_iter().zip(lengths(&cu_kv)).fold(0u64, |sum, (q, kv)| sum.saturating_add(q.saturating_mul(kv)));
    within_work(tensors, scores.saturating_mul(heads), head_dim)?;
    let index = tensors.at("cu_seqlens_q", Varlen::new(&cu_q, &cu_kv, longest(&cu_q), longest(&cu_kv)))?;
    Ok((Form::Varlen(index.shape()), HostForm::Varlen(index)))
}

/// Work of a case, at most: scores, each of `head_dim` and [`SOFTMAX`] steps. The reference takes some seconds of a processor for that.
const MAX_WORK: u64 = 1 << 32;
/// What a score takes besides its products, in steps.
const SOFTMAX: u64 = 32;
/// Elements of the keys of all sequences, at most: a page table can name one stored page again and again.
const MAX_PAGED: u64 = 1 << 24;

/// Refuses a case of a few bytes that takes hours.
fn within_work(tensors: &Tensors, scores: u64, head_dim: u64) -> Result<()> {
    let work = scores.saturating_mul(head_dim.saturating_add(SOFTMAX));
    let expected = format!("scores · (head_dim + {SOFTMAX}) of at most {MAX_WORK}: cut the case into smaller ones");
    tensors.ensure(work <= MAX_WORK, "q", &expected, work)
}

fn read_pages(tensors: &mut Tensors, &[batch, q_len, heads, head_dim]: &[u64; 4], &[pool_pages, page, kv_heads, _]: &[u64; 4]) -> Result<(Form, HostForm)> {
    let [_, pages] = tensors.shape::<2>("page_table")?;
    let (table, kv_len) = (tensors.integers("page_table", &[batch, pages])?, tensors.integers("kv_len", &[batch])?);
    let longest = kv_len.iter().copied().max().unwrap_or(0).max(0) as u64;
    let rows = batch.saturating_mul(longest);
    let keys = rows.saturating_mul(kv_heads).saturating_mul(head_dim);
    tensors.ensure(keys <= MAX_PAGED, "kv_len", &format!("keys of at most {MAX_PAGED} elements in all sequences"), keys)?;
    within_work(tensors, rows.saturating_mul(q_len).saturating_mul(heads), head_dim)?;
    let shape = PageShape { batch, pages, page, pool_pages };
    let index = tensors.at("page_table", PageTable::new(&table, &kv_len, shape))?;
    Ok((Form::Paged(shape), HostForm::Paged(index)))
}

fn read_blocks(tensors: &mut Tensors, block: u32, lengths: [u64; 2]) -> Result<(Form, HostForm)> {
    let [q_blocks, kv_blocks] = lengths.map(|length| length.div_ceil(u64::from(block)) as u32);
    let row = u64::from(q_blocks) + 1;
    // One pattern as a plain list, several as a matrix.
    let (patterns, row_ptr) = match tensors.shape::<1>("row_ptr") {
        Ok(_) => (1, tensors.integers("row_ptr", &[row])?),
        Err(_) => {
            let [patterns, _] = tensors.shape::<2>("row_ptr")?;
            (patterns as u32, tensors.integers("row_ptr", &[patterns, row])?)
        }
    };
    let [nnz] = tensors.shape::<1>("col_idx")?;
    let col_idx = tensors.integers("col_idx", &[nnz])?;
    let shape = BlockShape { block, q_blocks, kv_blocks, patterns, capacity: nnz as u32, masks: 0 };
    let index = tensors.at("col_idx", BlockMask::new(&row_ptr, &col_idx, &[], &[], shape))?;
    Ok((Form::Blocks(shape), HostForm::Blocks(index)))
}
