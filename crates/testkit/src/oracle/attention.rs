//! `O = softmax(scale · Q · Kᵀ + mask) · V`, query by query, every score at once.

use super::{Define, LANES, Output, Rounding, beside, dots_beside, expect_len, reversed, spread};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result, ensure};
use trifuse::ops::Op;
use trifuse::ops::attention::{Attention, Form, Scale, Strides};
use trifuse::ops::index::{BlockKind, BlockMap, BlockMask, HostIndex, PageShape, PageTable, RaggedPages, RaggedShape, SlotShape, Slots, Varlen, VarlenShape};

/// The operands on the host, each from its first element to its last, laid out by the descriptor's strides.
#[derive(Clone, Debug)]
pub struct Host {
    /// Queries.
    pub q: Vec<f64>,
    /// Keys.
    pub k: Vec<f64>,
    /// Values.
    pub v: Vec<f64>,
    /// The index data, for the forms that need one.
    pub index: HostForm,
    /// The slot of each sequence in q, k and v, where they do not lie in order.
    pub slots: Option<Slots>,
}

/// The index data of a [`Form`].
#[derive(Clone, Debug)]
pub enum HostForm {
    /// No index data: for [`Form::Dense`].
    None,
    /// Index data for [`Form::Varlen`].
    Varlen(Varlen),
    /// Index data for [`Form::Blocks`].
    Blocks(BlockMask),
    /// Index data for [`Form::BlockMap`].
    BlockMap(BlockMap),
    /// Index data for [`Form::Paged`].
    Paged(PageTable),
    /// Index data for [`Form::RaggedPaged`].
    RaggedPaged(RaggedPages),
}

/// Elements from the first to the last of a tensor with that many sequences (or pages), tokens and heads.
pub fn span(strides: Strides, [batch, tokens, heads]: [u64; 3], head_dim: u64) -> u64 {
    if batch == 0 || tokens == 0 {
        return 0;
    }
    (batch - 1) * strides.batch + (tokens - 1) * strides.token + (heads - 1) * strides.head + head_dim
}

/// A place in a tensor, in elements, by its strides and the number of a token.
type Place<'a> = Box<dyn Fn(Strides, usize) -> usize + Sync + 'a>;

/// Where the tokens of sequence `number` lie among sequences of one length.
fn in_order<'a>(number: usize) -> Place<'a> {
    Box::new(move |strides, token| number * strides.batch as usize + token * strides.token as usize)
}

/// Where the tokens of a sequence lie that begins with token `first` of all.
fn end_to_end<'a>(first: usize) -> Place<'a> {
    Box::new(move |strides, token| (first + token) * strides.token as usize)
}

/// Where the keys of sequence `b` lie in pages.
fn in_pages(table: &PageTable, b: usize) -> Place<'_> {
    let (pages, size) = (table.shape().pages as usize, table.shape().page as usize);
    Box::new(move |strides, j| {
        let page = table.table()[b * pages + j / size] as usize;
        page * strides.batch as usize + j % size * strides.token as usize
    })
}

/// One sequence: where its tokens lie, and how many there are.
struct Sequence<'a> {
    number: usize,
    q_len: usize,
    kv_len: usize,
    /// The element where a query's first head starts, for given strides.
    query: Place<'a>,
    /// As of a query, of its output.
    output: Place<'a>,
    /// The element where a key's first head starts, for given strides.
    key: Place<'a>,
    /// The element of the LSE for a head and query.
    lse: Box<dyn Fn(usize, usize) -> usize + Sync + 'a>,
}

impl Host {
    fn sequence<'a>(&'a self, op: &'a Attention, b: usize) -> Sequence<'a> {
        let heads = op.heads as usize;
        let (q_len, kv_len) = (op.q_len as usize, op.kv_len as usize);
        let lse = Box::new(move |head, i| (b * heads + head) * q_len + i);
        match &self.index {
            HostForm::None | HostForm::Blocks(_) | HostForm::BlockMap(_) => {
                let slot = self.slots.as_ref().map_or(b, |slots| slots.slots()[b] as usize);
                Sequence { number: b, q_len, kv_len, query: in_order(slot), output: in_order(b), key: in_order(slot), lse }
            }
            HostForm::Varlen(varlen) => {
                let (cu_q, cu_kv) = (varlen.cu_q(), varlen.cu_kv());
                let (first_q, first_kv) = (cu_q[b] as usize, cu_kv[b] as usize);
                let total = varlen.shape().total_q as usize;
                Sequence {
                    number: b,
                    q_len: cu_q[b + 1] as usize - first_q,
                    kv_len: cu_kv[b + 1] as usize - first_kv,
                    query: end_to_end(first_q),
                    output: end_to_end(first_q),
                    key: end_to_end(first_kv),
                    lse: Box::new(move |head, i| head * total + first_q + i),
                }
            }
            HostForm::Paged(table) => {
                Sequence { number: b, q_len, kv_len: table.kv_len()[b] as usize, query: in_order(b), output: in_order(b), key: in_pages(table, b), lse }
            }
            HostForm::RaggedPaged(index) => {
                let (first, total) = (index.cu_q()[b] as usize, index.shape().total_q as usize);
                Sequence {
                    number: b,
                    q_len: index.cu_q()[b + 1] as usize - first,
                    kv_len: index.table().kv_len()[b] as usize,
                    query: end_to_end(first),
                    output: end_to_end(first),
                    key: in_pages(index.table(), b),
                    lse: Box::new(move |head, i| head * total + first + i),
                }
            }
        }
    }

    /// Whether the blocks of a map let query `i` see key `j`.
    fn map_shows(map: &BlockMap, pattern: usize, i: usize, j: usize, position: i64) -> bool {
        let block = map.shape().block as usize;
        match map.block(pattern, i / block, j / block) {
            None => false,
            Some(BlockKind::Causal) => j as i64 <= position,
            Some(_) => true,
        }
    }

    /// Whether the listed blocks let query `i` see key `j`.
    fn block_shows(mask: &BlockMask, pattern: usize, i: usize, j: usize, position: i64) -> bool {
        let block = mask.shape().block as usize;
        let found = mask.row(pattern, i / block).find(|&(column, _)| column == j / block);
        match found {
            None => false,
            Some((_, BlockKind::Full)) => true,
            Some((_, BlockKind::Causal)) => j as i64 <= position,
            Some((_, BlockKind::Bits(bits))) => mask.sees(bits, i % block, j % block),
        }
    }

    /// The keys that query `i` of a sequence sees.
    fn visible(&self, op: &Attention, sequence: &Sequence<'_>, head: usize, i: usize) -> Vec<usize> {
        let position = i as i64 + sequence.kv_len as i64 - sequence.q_len as i64;
        let window = op.window.map(|window| i64::try_from(window).unwrap_or(i64::MAX));
        let pattern_of = |patterns: u32| match u64::from(patterns) {
            1 => 0,
            patterns if patterns == op.heads => head,
            _ => sequence.number * op.heads as usize + head,
        };
        (0..sequence.kv_len)
            .filter(|&j| {
                let key = j as i64;
                let causal = !op.causal || key <= position;
                let near = window.is_none_or(|window| key >= position.saturating_sub(window) && (op.causal || key <= position.saturating_add(window)));
                let listed = match &self.index {
                    HostForm::Blocks(mask) => Self::block_shows(mask, pattern_of(mask.shape().patterns), i, j, position),
                    HostForm::BlockMap(map) => Self::map_shows(map, pattern_of(map.shape().patterns), i, j, position),
                    _ => true,
                };
                causal && near && listed
            })
            .collect()
    }
}

impl Define for Attention {
    type Host = Host;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        self.validate()?;
        let same_form = match (&host.index, self.form) {
            (HostForm::None, Form::Dense) => true,
            (HostForm::Varlen(index), Form::Varlen(shape)) => index.shape() == shape,
            (HostForm::Blocks(index), Form::Blocks(shape)) => index.shape() == shape,
            (HostForm::BlockMap(index), Form::BlockMap(shape)) => index.shape() == shape,
            (HostForm::Paged(index), Form::Paged(shape)) => index.shape() == shape,
            (HostForm::RaggedPaged(index), Form::RaggedPaged(shape)) => index.shape() == shape,
            _ => false,
        };
        if !same_form {
            return Err(Error::invalid("attention: index", format!("the index of {:?}", self.form), "another"));
        }
        let (expected, found) = (self.slots.map(|slots| SlotShape { batch: self.batch, slots }), host.slots.as_ref().map(HostIndex::shape));
        ensure(expected == found, "attention: slots", format_args!("{expected:?}"), format_args!("{found:?}"))?;
        let d = self.head_dim as usize;
        let (q_rows, o_rows, kv_rows) = (query_rows(self), output_rows(self), key_rows(self));
        expect_len("attention: q", &host.q, span(self.q, q_rows, self.head_dim))?;
        expect_len("attention: k", &host.k, span(self.k, kv_rows, self.head_dim))?;
        expect_len("attention: v", &host.v, span(self.v, kv_rows, self.head_dim))?;

        let scale = match self.scale {
            Scale::Default => rounding.step(1.0 / (d as f64).sqrt()),
            Scale::Bits(bits) => f64::from(f32::from_bits(bits)),
        };
        let mut o = vec![None; span(self.o, o_rows, self.head_dim) as usize];
        let mut lse = vec![None; self.lse_len() as usize];
        let mut averaged = 0.0_f64;
        let at = |strides: Strides, token: usize, head: usize| token + head * strides.head as usize;
        for b in 0..self.batch as usize {
            let sequence = host.sequence(self, b);
            // Of each head of k, its rows beside each other; of v, the greatest element of each row. Every query meets the same.
            let (kv_heads, kv_len) = (self.kv_heads as usize, sequence.kv_len);
            let key = |head: usize, j: usize| &host.k[at(self.k, (sequence.key)(self.k, j), head)..][..d];
            let value = |head: usize, j: usize| &host.v[at(self.v, (sequence.key)(self.v, j), head)..][..d];
            let near = |head: usize| (0..kv_len).step_by(LANES).map(move |first| beside((first..kv_len).map(|j| key(head, j)), d));
            let near: Vec<Vec<_>> = (0..kv_heads).map(|head| near(head).collect()).collect();
            let peak = |head: usize, j: usize| value(head, j).iter().fold(0.0, |most: f64, value| most.max(value.abs()));
            let peaks: Vec<Vec<f64>> = (0..kv_heads).map(|head| (0..kv_len).map(|j| peak(head, j)).collect()).collect();
            // Of a head and a query: the row of o, its LSE, and the greatest element of the values that it averages.
            let attend = |head: usize, i: usize| {
                let kv_head = head / (self.heads / self.kv_heads) as usize;
                let query = &host.q[at(self.q, (sequence.query)(self.q, i), head)..][..d];
                let keys = host.visible(self, &sequence, head, i);
                let mut scores = Vec::with_capacity(keys.len());
                // Keys come in order: those beside each other are met together, whether the query sees all of them or not.
                let (mut met, mut products) = (usize::MAX, [0.0; LANES]);
                for &j in &keys {
                    if met != j / LANES {
                        (met, products) = (j / LANES, dots_beside(query, &near[kv_head][j / LANES], rounding));
                    }
                    scores.push(rounding.step(scale * products[j % LANES]));
                }
                let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let (mut sum, mut greatest) = (0.0, 0.0_f64);
                let mut row = vec![0.0; d];
                for (&j, score) in keys.iter().zip(&scores) {
                    let weight = rounding.step(rounding.step(score - most).exp());
                    sum = rounding.step(sum + weight);
                    // The product with V takes its weights in the operand's type.
                    let weight = rounding.keep(weight);
                    row.iter_mut().zip(value(kv_head, j)).for_each(|(out, value)| *out = rounding.step(*out + weight * value));
                    greatest = greatest.max(peaks[kv_head][j]);
                }
                if keys.is_empty() {
                    // ln 0 = −∞ is what an empty row gives.
                    return (row, f64::NEG_INFINITY, greatest);
                }
                row.iter_mut().for_each(|value| *value = rounding.keep(*value / sum));
                (row, rounding.step(most + rounding.step(sum.ln())), greatest)
            };
            let queries = sequence.q_len;
            let rows = spread(self.heads as usize * queries, sequence.kv_len * d, |range| range.map(|n| attend(n / queries, n % queries)).collect());
            for (n, (row, log, greatest)) in rows.into_iter().enumerate() {
                averaged = averaged.max(greatest);
                let (head, i) = (n / queries, n % queries);
                let first = at(self.o, (sequence.output)(self.o, i), head);
                for (place, value) in o[first..][..d].iter_mut().zip(row) {
                    *place = Some(value);
                }
                lse[(sequence.lse)(head, i)] = Some(log);
            }
        }
        if let HostForm::RaggedPaged(index) = &host.index {
            // Spare queries see nothing.
            for (i, head) in (index.queries() as usize..q_rows[1] as usize).flat_map(|i| (0..self.heads as usize).map(move |head| (i, head))) {
                o[at(self.o, i * self.o.token as usize, head)..][..d].fill(Some(0.0));
                lse[head * q_rows[1] as usize + i] = Some(f64::NEG_INFINITY);
            }
        }
        // In fewer bits what a weight is rounded to is more than what its exponential is off by.
        let least = if self.dtype == DType::F32 && averaged.is_finite() { averaged } else { 0.0 };
        let mut outputs = vec![Output { name: "o".into(), dtype: self.dtype, rounded: self.dtype, elements: o, least, cut: 0, integers: false }];
        if self.lse {
            outputs.push(Output { name: "lse".into(), dtype: DType::F32, rounded: DType::F32, elements: lse, least: 8.0, cut: 0, integers: false });
        }
        Ok(outputs)
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        reversed(&host.v).map(|v| ("v", Host { v, ..host.clone() })).into_iter().collect()
    }
}

/// Sequences as laid out, tokens of each, heads: of o.
pub(crate) fn output_rows(op: &Attention) -> [u64; 3] {
    match op.form {
        Form::Varlen(VarlenShape { total_q, .. }) | Form::RaggedPaged(RaggedShape { total_q, .. }) => [1, total_q, op.heads],
        _ => [op.batch, op.q_len, op.heads],
    }
}

/// Sequences or slots as laid out, tokens of each, heads: of q.
pub(crate) fn query_rows(op: &Attention) -> [u64; 3] {
    let [sequences, tokens, heads] = output_rows(op);
    [op.slots.map_or(sequences, u64::from), tokens, heads]
}

/// Sequences, slots or pages as laid out, tokens of each, heads: of k and v.
pub(crate) fn key_rows(op: &Attention) -> [u64; 3] {
    match op.form {
        Form::Varlen(shape) => [1, shape.total_kv, op.kv_heads],
        Form::Paged(PageShape { pool_pages, page, .. }) | Form::RaggedPaged(RaggedShape { pool_pages, page, .. }) => [pool_pages, page, op.kv_heads],
        _ => [op.slots.map_or(op.batch, u64::from), op.kv_len, op.kv_heads],
    }
}
