//! Queries of attention with drawn operands: as requests, by the library, and by definition.

use std::sync::Arc;

use serde_json::{Value, json};
use trifuse::DType;
use trifuse::backends::cpu::Cpu;
use trifuse::device::Open;
use trifuse::ops::attention::{AttentionIndex, Form};
use trifuse::ops::index::{BlockMap, BlockMask, BlockShape, HostIndex, MapShape};
use trifuse::ops::{Attention, AttentionArgs};
use trifuse::session::Session;
use trifuse_testkit::cases::{Posed, Problem};
use trifuse_testkit::oracle::attention::{Host, HostForm};
use trifuse_testkit::tolerance::expect;

/// The present blocks of a query.
#[derive(Clone)]
pub enum Blocks {
    All,
    Map(Vec<u8>, MapShape),
    Rows(Vec<i32>, Vec<i32>, BlockShape),
}

/// A query with its operands.
#[derive(Clone)]
pub struct Case {
    pub op: Attention,
    pub values: [Vec<f64>; 3],
    pub blocks: Blocks,
}

pub fn name(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "FP16",
        DType::BF16 => "BF16",
        DType::F32 => "FP32",
    }
}

impl Case {
    /// Numbers that look drawn, which the type holds.
    pub fn new(op: Attention, blocks: Blocks) -> Self {
        let mut state = 0x9E37_79B9_7F4A_7C15u64 ^ op.q_len << 20 ^ op.head_dim;
        let mut drawn = |count: u64| -> Vec<f64> {
            let next = |_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                op.dtype.round((state >> 40) as f64 / (1u64 << 24) as f64 * 4.0 - 2.0)
            };
            (0..count).map(next).collect()
        };
        let keys = op.batch * op.kv_len * op.kv_heads * op.head_dim;
        let values = [drawn(op.batch * op.q_len * op.heads * op.head_dim), drawn(keys), drawn(keys)];
        Self { op, values, blocks }
    }

    pub fn shapes(&self) -> [[u64; 4]; 3] {
        let Attention { batch, q_len, kv_len, heads, kv_heads, head_dim, .. } = self.op;
        [[batch, q_len, heads, head_dim], [batch, kv_len, kv_heads, head_dim], [batch, kv_len, kv_heads, head_dim]]
    }

    /// The bytes of q, k and v.
    pub fn bytes(&self) -> [Vec<u8>; 3] {
        [0, 1, 2].map(|at| self.op.dtype.encode(&self.values[at]))
    }

    /// An input, without its data.
    pub fn input(&self, at: usize) -> Value {
        let name_of = ["q", "k", "v"][at];
        json!({"name": name_of, "datatype": name(self.op.dtype), "shape": self.shapes()[at]})
    }

    /// The inputs that say which blocks are present, in JSON, and the parameters.
    pub fn more(&self) -> (Vec<Value>, Value) {
        let mut parameters = json!({"causal": self.op.causal});
        let inputs = match &self.blocks {
            Blocks::All => Vec::new(),
            Blocks::Map(bytes, shape) => {
                parameters["block"] = shape.block.into();
                vec![json!({"name": "block_map", "datatype": "UINT8", "shape": [shape.patterns, shape.q_blocks, shape.kv_blocks], "data": bytes})]
            }
            Blocks::Rows(rows, columns, shape) => {
                parameters["block"] = shape.block.into();
                vec![
                    json!({"name": "row_ptr", "datatype": "INT32", "shape": [shape.patterns, shape.q_blocks + 1], "data": rows}),
                    json!({"name": "col_idx", "datatype": "INT32", "shape": [columns.len()], "data": columns}),
                ]
            }
        };
        (inputs, parameters)
    }

    /// A request with its numbers in JSON.
    pub fn in_json(&self) -> Value {
        let with = |at: usize| {
            let mut input = self.input(at);
            input["data"] = json!(self.values[at]);
            input
        };
        let (more, parameters) = self.more();
        let inputs: Vec<Value> = [0, 1, 2].map(with).into_iter().chain(more).collect();
        json!({"inputs": inputs, "parameters": parameters})
    }

    /// A request with its tensors as binary data, and that data.
    pub fn in_binary(&self) -> (Value, Vec<u8>) {
        let bytes = self.bytes();
        let with = |at: usize| {
            let mut input = self.input(at);
            input["parameters"] = json!({"binary_data_size": bytes[at].len()});
            input
        };
        let (more, parameters) = self.more();
        let inputs: Vec<Value> = [0, 1, 2].map(with).into_iter().chain(more).collect();
        (json!({"inputs": inputs, "parameters": parameters}), bytes.concat())
    }

    /// What the library gives.
    pub fn of_library(&self) -> Vec<u8> {
        let mut session = Session::new(Arc::new(Cpu::open(0).unwrap())).unwrap();
        let [q, k, v] = self.bytes().map(|bytes| session.upload(&bytes).unwrap());
        let o = session.alloc(q.len()).unwrap();
        let (op, index) = match &self.blocks {
            Blocks::All => (self.op.clone(), AttentionIndex::None),
            Blocks::Map(bytes, shape) => {
                let map = BlockMap::new(bytes, *shape).unwrap();
                (self.op.clone().with_form(Form::BlockMap(*shape)), AttentionIndex::BlockMap(session.index(&map).unwrap()))
            }
            Blocks::Rows(rows, columns, shape) => {
                let mask = BlockMask::new(rows, columns, &[], &[], *shape).unwrap();
                (self.op.clone().with_form(Form::Blocks(mask.shape())), AttentionIndex::Blocks(session.index(&mask).unwrap()))
            }
        };
        let plan = session.plan(op).unwrap();
        session.run(&plan, &AttentionArgs::new(q, k, v, o.clone()).with_index(index)).unwrap();
        session.read(&o).unwrap()
    }

    /// Compares an output with the definition in float64.
    pub fn check(&self, o: &[u8]) {
        let [q, k, v] = self.values.clone();
        let (op, index) = match &self.blocks {
            Blocks::All => (self.op.clone(), HostForm::None),
            Blocks::Map(bytes, shape) => (self.op.clone().with_form(Form::BlockMap(*shape)), HostForm::BlockMap(BlockMap::new(bytes, *shape).unwrap())),
            Blocks::Rows(rows, columns, shape) => {
                let mask = BlockMask::new(rows, columns, &[], &[], *shape).unwrap();
                (self.op.clone().with_form(Form::Blocks(*shape)), HostForm::Blocks(mask))
            }
        };
        let expected = expect(&Problem::Attention(Posed { op, host: Host { q, k, v, index, slots: None } })).unwrap().remove(0);
        let metrics = expected.tolerance.compare(&expected.elements, &self.op.dtype.decode(o)).unwrap();
        assert!(metrics.accepted(), "{:?}: {metrics}", self.op);
    }
}

/// A small query of each type, dense.
pub fn dense(dtype: DType) -> Case {
    Case::new(Attention::dense(dtype, 2, [4, 2], [5, 9], 16).with_causal(true), Blocks::All)
}

/// A query with a map of blocks, a pattern a head.
pub fn mapped(dtype: DType) -> Case {
    let shape = MapShape { block: 64, q_blocks: 2, kv_blocks: 3, patterns: 2 };
    Case::new(Attention::dense(dtype, 1, [2, 1], [100, 150], 32), Blocks::Map(vec![1, 0, 2, 0, 1, 1, 1, 1, 0, 1, 0, 0], shape))
}

/// A query with rows of blocks.
pub fn listed(dtype: DType) -> Case {
    let shape = BlockShape { block: 64, q_blocks: 2, kv_blocks: 3, patterns: 1, capacity: 4, masks: 0 };
    Case::new(Attention::dense(dtype, 1, [2, 1], [100, 150], 32), Blocks::Rows(vec![0, 2, 3], vec![0, 2, 1], shape))
}
