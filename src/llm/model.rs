//! A decoder on a device: tokens in, logits out.

use std::collections::HashMap;
use std::sync::Arc;

use super::config::Config;
use super::context::Context;
use super::files::Files;
use super::forward::Pass;
use super::head::Head;
use super::layout::Layout;
use super::loading::Loading;
use super::part::part;
use super::placed::Placed;
use super::plans::Arena;
use super::weights::WeightSource;
use crate::backend::Backend;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::session::Session;

/// The most tokens of a pass. A longer text takes several.
const CHUNK: usize = 512;
/// The most tokens whose logits are computed together.
const HEAD_ROWS: usize = 64;

/// A model with its weights on a device.
pub struct Model<D: Backend> {
    pub(super) session: Session<D>,
    pub(super) config: Config,
    pub(super) dtype: DType,
    pub(super) weights: Placed<D>,
    loading: Loading,
    arena: Arena<D>,
    heads: HashMap<usize, Head<D>>,
}

impl<D: Backend> Model<D> {
    /// Puts a model on `device`, computing in `dtype`.
    ///
    /// # Errors
    /// Weights that are not sound; no device memory; what no operation can compute.
    pub fn open(device: Arc<D>, files: &Files, dtype: DType) -> Result<Self> {
        Self::new(device, files.config.clone(), files.weights.as_ref(), dtype)
    }

    /// The model of a configuration with the weights of `source`.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub fn new(device: Arc<D>, config: Config, source: &dyn WeightSource, dtype: DType) -> Result<Self> {
        let config = config.with_ranks_of(source)?;
        let mut session = Session::new(device)?;
        let (weights, loading) = Placed::new(&mut session, source, &config, dtype)?;
        let arena = Arena::new(&session, &config, dtype, [CHUNK, HEAD_ROWS], false)?;
        Ok(Self { session, config, dtype, weights, loading, arena, heads: HashMap::new() })
    }

    /// The model's sizes and rules.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the model computes in.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// What the way of the weights to the device took.
    pub fn loading(&self) -> Loading {
        self.loading
    }

    /// The session in which the model works.
    pub fn session(&mut self) -> &mut Session<D> {
        &mut self.session
    }

    /// A place for a text of up to `tokens` tokens.
    ///
    /// # Errors
    /// More tokens than the model was made for, or none; no device memory.
    pub fn context(&mut self, tokens: usize) -> Result<Context<D>> {
        ensure(tokens <= self.config.context, "context", format_args!("at most the {} tokens that the model was made for", self.config.context), tokens)?;
        Context::new(&mut self.session, &self.config, self.dtype, tokens)
    }

    /// Adds tokens to a text, and returns the logits of the last `wanted` of them, `[wanted, vocabulary]`. Blocks.
    ///
    /// # Errors
    /// No tokens, an id that is not in the table, more `wanted` than tokens, more tokens than there is room for; a device that fails.
    pub fn run(&mut self, context: &mut Context<D>, ids: &[u32], wanted: usize) -> Result<Vec<f32>> {
        ensure(!ids.is_empty(), "tokens", "at least one", 0)?;
        ensure(wanted <= ids.len(), "wanted logits", format_args!("at most {}, one a token", ids.len()), wanted)?;
        let room = context.capacity() - context.length;
        ensure(ids.len() <= room, "tokens", format_args!("at most {room}, as there is room for"), ids.len())?;
        let mut logits = Vec::with_capacity(wanted * self.config.vocabulary as usize);
        let from = ids.len() - wanted;
        for (number, chunk) in ids.chunks(CHUNK).enumerate() {
            let start = number * CHUNK;
            let first = from.saturating_sub(start).min(chunk.len());
            self.chunk(context, chunk, first, &mut logits)?;
        }
        Ok(logits)
    }

    /// Runs one pass, and adds the logits of its tokens from `first` on.
    fn chunk(&mut self, context: &mut Context<D>, ids: &[u32], first: usize, logits: &mut Vec<f32>) -> Result<()> {
        let (rows, length) = (ids.len(), context.length + ids.len());
        context.plan(&mut self.session, &self.config, self.dtype, rows)?;
        let count = (rows - first).min(HEAD_ROWS);
        if count > 0 {
            self.plan_head(count)?;
        }
        let one = rows == 1 && first == 0;
        let Context { plans, pools, graph, warm, .. } = context;
        let plans = plans.get(&rows).ok_or_else(|| Error::invalid("pass", "plans", "none"))?;
        let layout = Layout::of_text(ids, context.length, &plans.shape)?;
        let (config, dtype, arena, session) = (&self.config, self.dtype, &self.arena, &mut self.session);
        plans.write(session, &layout, arena, config.vocabulary, pools.shape)?;
        let (weights, heads) = (&self.weights, &self.heads);
        let run = |session: &mut Session<D>| {
            Pass { session, config, dtype, arena, plans, deltas: None }.run(weights, pools)?;
            match (one, heads.get(&1)) {
                (true, Some(head)) => head.run(session, weights, arena, &arena.state).map(Some),
                _ => Ok(None),
            }
        };
        let made = match (one, &*graph) {
            (true, Some(graph)) => {
                session.replay(graph)?;
                let bytes = u64::from(config.vocabulary) * DType::F32.size();
                Some(part(&arena.logits, 0, bytes)?)
            }
            (true, None) if *warm => {
                let mut made = None;
                let captured = session.capture(|session| run(session).map(|logits| made = logits))?;
                session.replay(&captured)?;
                *graph = Some(captured);
                made
            }
            _ => {
                *warm |= one;
                run(session)?
            }
        };
        match made {
            Some(made) => logits.extend(session.download::<f32>(&made)?),
            None => {
                for at in (first..rows).step_by(HEAD_ROWS) {
                    let count = HEAD_ROWS.min(rows - at);
                    self.plan_head(count)?;
                    let head = self.heads.get(&count).ok_or_else(|| Error::invalid("head", "plans", "none"))?;
                    let Self { session, config, arena, weights, .. } = self;
                    let offset = at as u64 * config.hidden * dtype.size();
                    let made = head.run(session, weights, arena, &part(&arena.state, offset, arena.state.len - offset)?)?;
                    logits.extend(session.download::<f32>(&made)?);
                }
            }
        }
        context.length = length;
        Ok(())
    }

    fn plan_head(&mut self, rows: usize) -> Result<()> {
        if !self.heads.contains_key(&rows) {
            self.heads.insert(rows, Head::new(&self.session, &self.config, self.dtype, (rows, false))?);
        }
        Ok(())
    }
}

impl<D: Backend> std::fmt::Debug for Model<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a {} of {} layers of {}, {} in {:?}", self.config.family.name(), self.config.layers, self.config.hidden, self.dtype, self.session)
    }
}
