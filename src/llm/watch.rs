//! Passes in which what each projection reads is seen, and weights that are replaced: for who measures a model.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::context::Context;
use super::form::{GATE_UP, QKV};
use super::forward::{Pass, Watch};
use super::layout::Layout;
use super::model::Model;
use super::part::part;
use super::plans::{Arena, Plans};
use super::shape::{Queries, Shape};
use crate::backend::Backend;
use crate::error::{Error, Result, ensure};

/// The most tokens of a pass.
const CHUNK: usize = 512;

/// The memory and the plans of passes that are watched.
pub struct Watched<D: Backend> {
    context: Context<D>,
    arena: Arena<D>,
    plans: HashMap<usize, Plans<D>>,
}

impl<D: Backend> Model<D> {
    /// Room for texts of up to `tokens` tokens, each by itself.
    ///
    /// # Errors
    /// The errors of [`context`](Self::context).
    pub fn watched(&mut self, tokens: usize) -> Result<Watched<D>> {
        let context = self.context(tokens)?;
        let arena = Arena::new(&self.session, &self.config, self.dtype, [CHUNK.min(tokens), 1], true)?;
        Ok(Watched { context, arena, plans: HashMap::new() })
    }

    /// Runs a text through all layers, and shows what each projection reads.
    ///
    /// # Errors
    /// No tokens, or more than there is room for; an id that is not in the vocabulary; what `watch` returns; a device that fails.
    pub fn watch(&mut self, watched: &mut Watched<D>, ids: &[u32], watch: &mut Watch<'_>) -> Result<()> {
        let Watched { context, arena, plans } = watched;
        ensure((1..=context.capacity()).contains(&ids.len()), "tokens", format_args!("1 to {}", context.capacity()), ids.len())?;
        let Self { session, config, dtype, weights, .. } = self;
        let dtype = *dtype;
        context.truncate(0);
        for chunk in ids.chunks(CHUNK) {
            let (rows, pools) = (chunk.len(), context.pools.shape);
            let plans = match plans.entry(rows) {
                Entry::Occupied(there) => there.into_mut(),
                Entry::Vacant(room) => {
                    let pages = pools.pages as usize;
                    let gathered = if config.latent { pages } else { 0 };
                    let shape = Shape { rows, sequences: 1, queries: Queries::Even, pages, gathered, batch_invariant: false };
                    room.insert(Plans::new(session, config, dtype, shape, pools, true)?)
                }
            };
            let layout = Layout::of_text(chunk, context.length, &plans.shape)?;
            plans.write(session, &layout, arena, config.vocabulary, pools)?;
            Pass { session, config, dtype, arena, plans, deltas: None }.run_watched(weights, &context.pools, Some(watch))?;
            context.length += rows;
        }
        Ok(())
    }

    /// Replaces the weight of a projection that is one matrix, `[d_out, d_in]`. Contexts forget nothing: theirs are keys and values of the old one.
    ///
    /// # Errors
    /// A projection that the model does not have, or has as two factors; values of another number, or that the model's type cannot hold.
    pub fn replace(&mut self, path: &str, values: &[f32]) -> Result<()> {
        let unknown = || Error::invalid("projection", "one of the model, such as model.layers.0.self_attn.q_proj", path);
        let [d_out, d_in] = self.config.projection(path).ok_or_else(unknown)?;
        ensure(self.config.ranks.get(path).is_none(), path, "a projection that is one matrix", "one of two factors")?;
        ensure(values.len() as u64 == d_out * d_in, path, format_args!("{d_out} rows of {d_in} values"), values.len())?;
        let bytes = self.dtype.encode_f32(values);
        ensure(self.dtype.all_finite(&bytes), path, format_args!("values that {} can hold", self.dtype), "one that it cannot")?;
        let place = |layer: usize| self.config.projections(layer).iter().position(|(own, _)| own == path).map(|number| (layer, number));
        let (layer, number) = (0..self.config.layers).find_map(place).ok_or_else(unknown)?;
        let block = &self.weights.blocks[layer];
        let (group, first) = match number {
            0..3 => (&block.qkv, QKV.start),
            3 => (&block.output, 3),
            4..6 => (&block.gate_up, GATE_UP.start),
            _ => (&block.down, 6),
        };
        let (size, stride) = (self.dtype.size(), self.dtype.row_stride(d_in));
        // Matrices of one product lie one below the other.
        let above = if group.parts.len() == 1 { first..number } else { number..number };
        let rows: u64 = self.config.projections(layer)[above].iter().map(|(_, [rows, _])| rows).sum();
        let weight = group.parts.get(if group.parts.len() == 1 { 0 } else { number - first }).ok_or_else(unknown)?;
        let place = part(&weight.weight, rows * stride * size, d_out * stride * size)?;
        let mut padded = vec![0; (d_out * stride * size) as usize];
        for (to, from) in padded.chunks_exact_mut((stride * size) as usize).zip(bytes.chunks_exact((d_in * size) as usize)) {
            to[..from.len()].copy_from_slice(from);
        }
        self.session.write(&place, &padded)
    }
}
