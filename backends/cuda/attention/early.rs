//! What a decode kernel reads of a cache before its PDL wait.

use crate::backends::cuda::runtime::pdl::{Early, Pool};
use crate::backends::cuda::variant::{Cuda, address, range};
use crate::device::Slice;
use crate::ops::attention::{AttentionIndex, Form, Strides};
use crate::ops::{Attention, AttentionArgs};

/// What is read of k and of v: all columns of a pool's rows where pages lie end to end.
pub(crate) fn early(op: &Attention, args: &AttentionArgs<Cuda>) -> [Early; 2] {
    [(&args.k, op.k), (&args.v, op.v)].map(|(cache, strides)| of(op, args, cache, strides))
}

fn of(op: &Attention, args: &AttentionArgs<Cuda>, cache: &Slice<Cuda>, Strides { batch, token, head }: Strides) -> Early {
    let (start, size) = (address(cache), op.dtype.size());
    let columns = match (op.form, &args.index) {
        (Form::Paged(cache), AttentionIndex::Paged(table)) if batch == token.saturating_mul(cache.page) => {
            let width = (op.kv_heads - 1).saturating_mul(head).saturating_add(op.head_dim).saturating_mul(size);
            Some((Pool { start, table: address(table.slice()), cache, row: token.saturating_mul(size) }, width))
        }
        _ => None,
    };
    Early { range: range(cache), columns }
}
