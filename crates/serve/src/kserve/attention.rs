//! What a request asks of `op.attention`: shapes, parameters and outputs, checked without looking at a tensor's elements.

use trifuse::ops::attention::Scale;
use trifuse::ops::{Attention, Op};
use trifuse::{DType, Error, Result};

use super::datatype::Datatype;
use super::message::{Request, Wanted};
use super::tensor::Tensor;

/// The name by which attention is asked for.
pub const NAME: &str = "op.attention";
/// The most floating-point operations of a query, so that one caller cannot hold the device for long.
const MAX_FLOPS: f64 = (1u64 << 42) as f64;

/// The blocks of the score matrix that are present.
#[derive(Debug)]
pub enum Blocks {
    /// All.
    All,
    /// Blocks that a byte each marks: a tensor of `[patterns, q_blocks, kv_blocks]`.
    Map(Tensor, Grid),
    /// Blocks in compressed sparse rows: `row_ptr [patterns, q_blocks + 1]` and `col_idx`.
    Rows(Tensor, Tensor, Grid),
}

/// The sizes of a score matrix in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    /// Queries and keys of a block.
    pub block: u32,
    /// Blocks along the queries.
    pub q_blocks: u32,
    /// Blocks along the keys.
    pub kv_blocks: u32,
    /// Patterns.
    pub patterns: u32,
}

/// A query.
#[derive(Debug)]
pub struct Query {
    /// The operation, dense: the form of sparse ones depends on the elements of their tensors.
    pub op: Attention,
    /// Queries, keys and values.
    pub tensors: [Tensor; 3],
    /// The present blocks.
    pub blocks: Blocks,
    /// The shape of the output, which is that of q.
    pub shape: Vec<u64>,
    /// How the output is wanted.
    pub o: Option<Wanted>,
    /// How the checksum of the output is wanted.
    pub checksum: Option<Wanted>,
    /// The bytes of the output.
    pub bytes: u64,
}

/// `[batch, tokens, heads, head_dim]` of a tensor, of which the last two may be one dimension.
fn sizes(tensor: &Tensor, heads: Option<u64>) -> Result<[u64; 4]> {
    let fault = |expected: String| Error::invalid(format!("input {:?}: shape", tensor.name), expected, format_args!("{:?}", tensor.shape));
    let sizes = match (&tensor.shape[..], heads) {
        (&[batch, tokens, own, dim], None) => [batch, tokens, own, dim],
        (&[batch, tokens, own, dim], Some(heads)) if own == heads => [batch, tokens, own, dim],
        (&[batch, tokens, wide], Some(heads)) if heads > 0 && wide.is_multiple_of(heads) => [batch, tokens, heads, wide / heads],
        (_, Some(heads)) => return Err(fault(format!("[batch, tokens, {heads}, head_dim], or [batch, tokens, {heads} · head_dim]"))),
        (_, None) => return Err(fault("[batch, tokens, heads, head_dim]; or [batch, tokens, heads · head_dim] with the parameter heads".into())),
    };
    if sizes.contains(&0) {
        return Err(fault("no dimension of 0".into()));
    }
    Ok(sizes)
}

impl Query {
    /// The query that a request makes.
    ///
    /// # Errors
    /// An input that is missing or unknown; shapes that do not fit each other; an operation that the library refuses, or that takes too long.
    pub fn read(mut request: Request) -> Result<Self> {
        let missing = |name: &str| Error::invalid("inputs", "q, k and v", format_args!("no {name}"));
        let [q, k, v] = ["q", "k", "v"].map(|name| request.input(name).ok_or_else(|| missing(name)));
        let (q, k, v) = (q?, k?, v?);
        q.must_be(&[Datatype::Fp16, Datatype::Bf16, Datatype::Fp32])?;
        [&k, &v].into_iter().try_for_each(|tensor| tensor.must_be(&[q.datatype]))?;
        let dtype = q.datatype.dtype().unwrap_or(DType::F32);
        let heads = request.parameters.count("heads")?;
        let kv_heads = request.parameters.count("kv_heads")?.or(if q.shape.len() == 4 { None } else { heads });
        let [batch, q_len, heads, head_dim] = sizes(&q, heads)?;
        let [key, value] = [sizes(&k, kv_heads)?, sizes(&v, kv_heads)?];
        if key != value || key[0] != batch || key[3] != head_dim {
            let expected = format!("k and v of [{batch}, tokens, kv_heads, {head_dim}], both alike");
            return Err(Error::invalid("inputs", expected, format_args!("{key:?} and {value:?}")));
        }
        let [_, kv_len, kv_heads, _] = key;
        let mut op = Attention::dense(dtype, batch, [heads, kv_heads], [q_len, kv_len], head_dim);
        op = op.with_causal(request.parameters.flag("causal")?.unwrap_or(false));
        if let Some(scale) = request.parameters.number("scale")? {
            op = op.with_scale(Scale::from(scale as f32));
        }
        op.validate()?;
        let flops = op.cost().dense_flops;
        if flops > MAX_FLOPS {
            return Err(Error::invalid("attention", format!("at most {MAX_FLOPS:.1e} operations"), format_args!("{flops:.1e}")));
        }
        let blocks = blocks(&mut request, &op)?;
        // Where nothing is asked for, it is the output.
        let given = if request.outputs.is_empty() { Some(Wanted { name: "o".into(), delivery: request.delivery.clone() }) } else { None };
        let (o, checksum) = (request.output("o").or(given), request.output("checksum"));
        request.end()?;
        let (shape, bytes) = (q.shape.clone(), q.bytes());
        Ok(Self { op, tensors: [q, k, v], blocks, shape, o, checksum, bytes })
    }
}

/// The present blocks, by the inputs that name them.
fn blocks(request: &mut Request, op: &Attention) -> Result<Blocks> {
    let (map, rows, columns) = (request.input("block_map"), request.input("row_ptr"), request.input("col_idx"));
    let block = request.parameters.count("block")?;
    if map.is_none() && rows.is_none() && columns.is_none() {
        return match block {
            None => Ok(Blocks::All),
            Some(block) => Err(Error::invalid("block", "an input block_map, or row_ptr and col_idx, that it belongs to", block)),
        };
    }
    let block = block.filter(|block| *block == 64 || *block == 128).and_then(|block| u32::try_from(block).ok());
    let block = block.ok_or_else(|| Error::invalid("block", "64 or 128, with block_map or row_ptr", "another value or none"))?;
    let count = |tokens: u64| u32::try_from(tokens.div_ceil(block.into())).map_err(|_| Error::invalid("blocks", "fewer than 2^32", tokens));
    let (q_blocks, kv_blocks) = (count(op.q_len)?, count(op.kv_len)?);
    let patterns = |tensor: &Tensor, each: u64| {
        let expected = || format!("1, {} or {} patterns of {each}", op.heads, op.heads * op.batch);
        let found = tensor.count.checked_div(each).filter(|patterns| patterns * each == tensor.count && [1, op.heads, op.heads * op.batch].contains(patterns));
        let found = found.and_then(|patterns| u32::try_from(patterns).ok());
        found.ok_or_else(|| Error::invalid(format!("input {:?}: elements", tensor.name), expected(), tensor.count))
    };
    match (map, rows, columns) {
        (Some(map), None, None) => {
            map.must_be(&[Datatype::Uint8])?;
            let patterns = patterns(&map, u64::from(q_blocks) * u64::from(kv_blocks))?;
            Ok(Blocks::Map(map, Grid { block, q_blocks, kv_blocks, patterns }))
        }
        (None, Some(rows), Some(columns)) => {
            rows.must_be(&[Datatype::Int32])?;
            columns.must_be(&[Datatype::Int32])?;
            let patterns = patterns(&rows, u64::from(q_blocks) + 1)?;
            let most = u64::from(q_blocks).saturating_mul(kv_blocks.into()).saturating_mul(patterns.into());
            if columns.count > most || columns.count > 1 << 30 {
                return Err(Error::invalid("input \"col_idx\": elements", format!("at most {most}, one a block"), columns.count));
            }
            Ok(Blocks::Rows(rows, columns, Grid { block, q_blocks, kv_blocks, patterns }))
        }
        _ => Err(Error::invalid("inputs", "block_map alone, or row_ptr and col_idx", "another choice of them")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;
    use crate::kserve::json as in_json;

    fn query(shapes: [Value; 3], parameters: Value, more: &[Value]) -> Result<Query> {
        let named = |(name, shape): (&str, Value)| {
            let count: u64 = shape.as_array().unwrap().iter().map(|size| size.as_u64().unwrap()).product();
            let place = json!({"shared_memory_region": name, "shared_memory_byte_size": 2 * count});
            json!({"name": name, "datatype": "FP16", "shape": shape, "parameters": place})
        };
        let inputs: Vec<Value> = ["q", "k", "v"].into_iter().zip(shapes).map(named).chain(more.iter().cloned()).collect();
        let request = json!({"inputs": inputs, "parameters": parameters});
        Query::read(in_json::read(request.to_string().as_bytes(), Bytes::new())?)
    }

    fn input(name: &str, datatype: &str, data: &[i64]) -> Value {
        json!({"name": name, "datatype": datatype, "shape": [data.len()], "data": data})
    }

    #[test]
    fn heads_are_told_by_the_shape_or_by_a_parameter() {
        let four = query([json!([2, 3, 4, 16]), json!([2, 5, 2, 16]), json!([2, 5, 2, 16])], json!({"causal": true, "scale": 0.5}), &[]).unwrap();
        let three =
            query([json!([2, 3, 64]), json!([2, 5, 32]), json!([2, 5, 32])], json!({"heads": 4, "kv_heads": 2, "causal": true, "scale": 0.5}), &[]).unwrap();
        let expected = Attention::dense(DType::F16, 2, [4, 2], [3, 5], 16).with_causal(true).with_scale(0.5f32);
        assert_eq!((&four.op, &three.op), (&expected, &expected));
        assert_eq!((four.shape, three.shape, four.bytes), (vec![2, 3, 4, 16], vec![2, 3, 64], 768));
        let one = query([json!([1, 3, 64]), json!([1, 5, 64]), json!([1, 5, 64])], json!({"heads": 4}), &[]).unwrap();
        assert_eq!((one.op.heads, one.op.kv_heads), (4, 4));
        assert!(one.o.is_some() && one.checksum.is_none());
    }

    #[test]
    fn blocks_are_counted_and_what_does_not_fit_is_refused() {
        let shapes = || [json!([1, 100, 2, 16]), json!([1, 130, 2, 16]), json!([1, 130, 2, 16])];
        let map = query(shapes(), json!({"block": 64}), &[input("block_map", "UINT8", &[1; 6])]).unwrap();
        assert!(matches!(map.blocks, Blocks::Map(_, Grid { block: 64, q_blocks: 2, kv_blocks: 3, patterns: 1 })));
        let rows = query(shapes(), json!({"block": 128}), &[input("row_ptr", "INT32", &[0, 1, 1, 2]), input("col_idx", "INT32", &[0, 1])]).unwrap();
        assert!(matches!(rows.blocks, Blocks::Rows(_, _, Grid { block: 128, q_blocks: 1, kv_blocks: 2, patterns: 2 })));
        for (parameters, more) in [
            (json!({"block": 64}), vec![]),
            (json!({}), vec![input("block_map", "UINT8", &[1; 6])]),
            (json!({"block": 32}), vec![input("block_map", "UINT8", &[1; 6])]),
            (json!({"block": 64}), vec![input("block_map", "UINT8", &[1; 5])]),
            (json!({"block": 64}), vec![input("block_map", "UINT8", &[1; 18])]),
            (json!({"block": 64}), vec![input("block_map", "INT32", &[1; 6])]),
            (json!({"block": 64}), vec![input("row_ptr", "INT32", &[0, 1, 1])]),
            (json!({"block": 64}), vec![input("row_ptr", "INT32", &[0, 1, 1]), input("col_idx", "INT32", &[0; 7])]),
            (json!({"block": 64}), vec![input("block_map", "UINT8", &[1; 6]), input("row_ptr", "INT32", &[0, 1, 1]), input("col_idx", "INT32", &[0])]),
            (json!({"another": 1}), vec![]),
            (json!({}), vec![input("mask", "UINT8", &[1])]),
        ] {
            assert!(query(shapes(), parameters.clone(), &more).is_err(), "{parameters} {more:?}");
        }
    }

    #[test]
    fn shapes_that_do_not_fit_each_other_are_refused() {
        for shapes in [
            [json!([1, 3, 4, 16]), json!([1, 5, 3, 16]), json!([1, 5, 3, 16])],
            [json!([1, 3, 4, 16]), json!([2, 5, 4, 16]), json!([2, 5, 4, 16])],
            [json!([1, 3, 4, 16]), json!([1, 5, 4, 16]), json!([1, 6, 4, 16])],
            [json!([1, 3, 4, 16]), json!([1, 5, 4, 8]), json!([1, 5, 4, 8])],
            [json!([1, 3, 4, 300]), json!([1, 5, 4, 300]), json!([1, 5, 4, 300])],
            [json!([1, 0, 4, 16]), json!([1, 5, 4, 16]), json!([1, 5, 4, 16])],
            [json!([1, 3, 64]), json!([1, 5, 64]), json!([1, 5, 64])],
            [json!([1, 1048576, 64, 64]), json!([1, 1048576, 64, 64]), json!([1, 1048576, 64, 64])],
        ] {
            assert!(query(shapes.clone(), json!({}), &[]).is_err(), "{shapes:?}");
        }
        let four = || [json!([1, 3, 4, 16]), json!([1, 5, 4, 16]), json!([1, 5, 4, 16])];
        for parameters in [json!({"heads": 3}), json!({"kv_heads": 2}), json!({"scale": "x"}), json!({"causal": 1}), json!({"scale": 1e300})] {
            assert!(query(four(), parameters.clone(), &[]).is_err(), "{parameters}");
        }
    }
}
