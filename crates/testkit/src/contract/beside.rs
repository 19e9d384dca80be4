//! Attention of blocks gives a sequence the bits that it has alone, whatever is beside it, where the launch is computed in the same way. Configurations
//! that cut lists of blocks (`split_kv`) do not promise that.

use std::sync::Arc;

use trifuse::backend::Backend;
use trifuse::ops::attention::{AttentionIndex, Form};
use trifuse::ops::index::{BlockMap, BlockMask, BlockShape, HostIndex, MapShape};
use trifuse::ops::{Attention, AttentionArgs};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};

use super::Test;
use super::work::noise;

pub fn tests<B: Backend>() -> Vec<(&'static str, Test<B>)> {
    vec![("sequences with blocks have the bits that each has alone", beside)]
}

/// Sequences of a launch.
const SEQUENCES: u64 = 3;
const HEADS: [u64; 2] = [2, 1];

/// Queries, keys, elements of a head, and the length of a block.
const SHAPES: [([u64; 2], u64, u32); 3] = [([100, 333], 32, 64), ([70, 600], 64, 128), ([256, 256], 128, 64)];

fn beside<B: Backend>(device: &Arc<B>) -> Result<()> {
    let mut session = Session::new(device.clone())?;
    for dtype in DType::ALL {
        for (lengths, head_dim, block) in SHAPES {
            for causal in [false, true] {
                let alone = Attention::dense(dtype, 1, HEADS, lengths, head_dim).with_causal(causal);
                compare(&mut session, &alone, block)?;
            }
        }
    }
    Ok(())
}

/// The blocks of as many sequences from `first` on, as a map and as lists.
fn blocks(op: &Attention, block: u32, first: u64, count: u64) -> Result<(BlockMap, BlockMask)> {
    let [q_blocks, kv_blocks] = [op.q_len, op.kv_len].map(|length| length.div_ceil(block.into()) as u32);
    let patterns = (count * op.heads) as u32;
    let size = (q_blocks * kv_blocks) as usize;
    let start = (first * op.heads) as usize * size;
    let bytes: Vec<u8> = (start..start + patterns as usize * size).map(|at| u8::from(!noise(11, at).is_multiple_of(3))).collect();
    let (mut starts, mut columns) = (Vec::new(), Vec::new());
    for pattern in bytes.chunks(size) {
        starts.push(columns.len() as i32);
        for row in pattern.chunks(kv_blocks as usize) {
            columns.extend((0i32..).zip(row).filter(|(_, byte)| **byte > 0).map(|(column, _)| column));
            starts.push(columns.len() as i32);
        }
    }
    let shape = BlockShape { block, q_blocks, kv_blocks, patterns, capacity: columns.len().max(1) as u32, masks: 0 };
    Ok((BlockMap::new(&bytes, MapShape { block, q_blocks, kv_blocks, patterns })?, BlockMask::new(&starts, &columns, &[], &[], shape)?))
}

fn compare<B: Backend>(session: &mut Session<B>, alone: &Attention, block: u32) -> Result<()> {
    let drawn = |seed: u32, count: u64| alone.dtype.encode(&(0..count as usize).map(|at| f64::from(noise(seed, at)) / 64.0 - 2.0).collect::<Vec<f64>>());
    let sizes = [alone.q_len * alone.heads, alone.kv_len * alone.kv_heads, alone.kv_len * alone.kv_heads].map(|rows| rows * alone.head_dim);
    let mut tensors = Vec::new();
    for (seed, size) in (1..).zip(sizes) {
        tensors.push(session.upload(&drawn(seed, SEQUENCES * size))?);
    }
    let out = session.alloc(SEQUENCES * sizes[0] * alone.dtype.size())?;
    for is_map in [false, true] {
        let index = |session: &mut Session<B>, first: u64, count: u64| -> Result<(Form, AttentionIndex<B>)> {
            let (map, lists) = blocks(alone, block, first, count)?;
            Ok(match is_map {
                true => (Form::BlockMap(map.shape()), AttentionIndex::BlockMap(session.index(&map)?)),
                false => (Form::Blocks(lists.shape()), AttentionIndex::Blocks(session.index(&lists)?)),
            })
        };
        let (form, own) = index(session, 0, 1)?;
        let plan = match session.plan(alone.clone().with_form(form)) {
            // A device that has no such type.
            Err(Error::Unsupported { .. }) => continue,
            plan => plan?,
        };
        // Its parts are as long as is fastest for all lists together.
        if plan.config().is_some_and(|config| config.starts_with("split_kv")) {
            continue;
        }
        let way = plan.config().map_or_else(|| plan.variant().to_owned(), |config| format!("{}:{config}", plan.variant()));
        drop(own);
        let mut expected = Vec::new();
        for sequence in 0..SEQUENCES {
            let (form, own) = index(session, sequence, 1)?;
            let one = session.plan_variant(alone.clone().with_form(form), Some(&way))?;
            let part = |number: usize| {
                let bytes = sizes[number] * alone.dtype.size();
                tensors[number].sub_slice(sequence * bytes, bytes).ok_or_else(|| Error::invalid("a sequence", "one that is there", sequence))
            };
            let o = out.sub_slice(0, sizes[0] * alone.dtype.size()).ok_or_else(|| Error::invalid("a sequence", "room for it", sequence))?;
            session.run(&one, &AttentionArgs::new(part(0)?, part(1)?, part(2)?, o.clone()).with_index(own))?;
            expected.extend(session.read(&o)?);
        }
        let (form, all) = index(session, 0, SEQUENCES)?;
        let plan = session.plan_variant(alone.clone().with_batch(SEQUENCES).with_form(form), Some(&way))?;
        let [q, k, v] = [0, 1, 2].map(|number| tensors[number].clone());
        session.run(&plan, &AttentionArgs::new(q, k, v, out.clone()).with_index(all))?;
        assert!(session.read(&out)? == expected, "{way}: {alone:?}, blocks of {block}, by a map: {is_map}");
    }
    Ok(())
}
