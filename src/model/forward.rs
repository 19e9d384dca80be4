//! The encoder on a device: batches of sentences in, embeddings out.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::config::Config;
use super::laid_out::{LaidOut, Row};
use super::layer::{Pass, Watch};
use super::pipeline::Pipeline;
use super::plans::{Arena, Class};
use super::shape::Shape;
use super::weights::Weights;
use crate::adapters::encoded::EncodedAdapter;
use crate::adapters::engine::{AdapterId, AdapterSource, Engine, EngineOptions};
use crate::backend::Backend;
use crate::dtype::DType;
use crate::error::{Error, Result, ensure};
use crate::session::Session;

/// The most classes of batches that are kept. Past that all are dropped, and made anew when needed.
const MAX_CLASSES: usize = 64;

/// How an encoder is set up.
#[derive(Clone, Copy, Debug)]
pub struct EncoderOptions {
    /// Element type of weights, states and embeddings on the device.
    pub dtype: DType,
    /// The most bytes of device memory for adapters; `None` holds them all.
    pub pool_bytes: Option<u64>,
    /// Whether an adapter's part is added in the epilogue of its product, where its projection has one product to itself and all adapters
    /// have one form there. Otherwise the part is a launch of its own. It is added there by default.
    pub ride: Option<bool>,
    /// Adapters that memory is kept free for beyond those that are attached; 0. Adding as many, of forms that are there, makes no batch anew.
    pub reserve: u32,
}

impl Default for EncoderOptions {
    fn default() -> Self {
        Self { dtype: DType::F32, pool_bytes: None, ride: None, reserve: 0 }
    }
}

/// A batch whose tokens and adapters are on the device.
#[derive(Clone, Copy, Debug)]
pub struct Prepared {
    shape: Shape,
    count: usize,
    tokens: usize,
    number: u64,
}

impl Prepared {
    /// The class in which the batch runs.
    pub fn shape(&self) -> Shape {
        self.shape
    }
}

/// A model on a device, with or without adapters.
pub struct Encoder<D: Backend> {
    session: Session<D>,
    config: Config,
    options: EncoderOptions,
    weights: Weights<D>,
    engine: Option<Engine<D>>,
    arena: Option<Arena<D>>,
    classes: HashMap<Shape, Class<D>>,
    /// The number of the batch whose embeddings the buffers hold, which all classes share; 0 for none.
    held: u64,
    pipeline: Pipeline<D>,
}

/// A batch's number, which no encoder gives to another batch.
fn number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl<D: Backend> Encoder<D> {
    /// Opens the model in `folder`, with its weights on `device`.
    ///
    /// # Errors
    /// Files that are missing, unsound, or not of this kind of model; no device memory.
    pub fn open(device: Arc<D>, folder: &Path, options: EncoderOptions) -> Result<Self> {
        let config = Config::open(folder)?;
        let mut session = Session::new(device)?;
        let weights = Weights::open(&mut session, folder, &config, options.dtype)?;
        Ok(Self { session, config, options, weights, engine: None, arena: None, classes: HashMap::new(), held: 0, pipeline: Pipeline::default() })
    }

    /// The model's sizes and rules.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The session in which the encoder works.
    pub fn session(&mut self) -> &mut Session<D> {
        &mut self.session
    }

    /// Attaches the adapters of `source`, in place of any that were attached before.
    ///
    /// # Errors
    /// Adapters of another model, by the first projection that does not fit; the errors of [`Engine::open`].
    pub fn attach(&mut self, source: Box<dyn AdapterSource>) -> Result<()> {
        for (path, shared) in source.projections()? {
            self.config.fits(&path, [shared.d_out as u64, shared.d_in as u64])?;
        }
        let EncoderOptions { dtype, pool_bytes, reserve, .. } = self.options;
        let options = EngineOptions::new(dtype).with_pool_bytes(pool_bytes).with_reserve(reserve);
        self.classes.clear();
        self.engine = None;
        self.engine = Some(Engine::open(&mut self.session, source, options)?);
        Ok(())
    }

    /// The adapters that are attached.
    pub fn engine(&self) -> Option<&Engine<D>> {
        self.engine.as_ref()
    }

    /// The adapter named `name`.
    ///
    /// # Errors
    /// There is no such adapter.
    pub fn adapter(&self, name: &str) -> Result<AdapterId> {
        match &self.engine {
            Some(engine) => engine.adapter(name),
            None => Err(Error::invalid("adapter", "none: no adapters are attached", format!("{name:?}"))),
        }
    }

    /// Adds an adapter to those that are attached. With [`ForModel`](crate::adapters::engine::ForModel) attached it may touch any projection.
    ///
    /// # Errors
    /// No adapters are attached; the errors of [`Engine::add`].
    pub fn add_adapter(&mut self, name: &str, adapter: EncodedAdapter) -> Result<AdapterId> {
        let Some(engine) = &mut self.engine else { return Err(Error::invalid("adapter", "none: no adapters are attached", format!("{name:?}"))) };
        let before = engine.generation();
        let added = engine.add(&mut self.session, name, adapter);
        // Batches and graphs of another generation name memory that is used no more.
        if engine.generation() != before {
            self.classes.clear();
        }
        added
    }

    /// Forgets an adapter.
    ///
    /// # Errors
    /// An adapter that is not attached.
    pub fn remove_adapter(&mut self, adapter: AdapterId) -> Result<()> {
        match &mut self.engine {
            Some(engine) => engine.remove(adapter),
            None => Err(Error::invalid("adapter", "none: no adapters are attached", format!("{adapter:?}"))),
        }
    }

    /// The embeddings of `rows`, `[rows, hidden]`, in their order.
    ///
    /// # Errors
    /// No rows, or a row that [`prepare`](Self::prepare) refuses.
    pub fn embed(&mut self, rows: &[Row<'_>]) -> Result<Vec<f32>> {
        let batch = self.prepare(rows)?;
        self.run(&batch)?;
        self.read(&batch)
    }

    /// The embeddings of each batch in turn, as from [`embed`](Self::embed). While the device works on one batch, the host lays out the
    /// next and takes the one before. Batches before one that fails are still given to `each`.
    ///
    /// # Errors
    /// The errors of [`embed`](Self::embed), by the first batch that fails; whatever `each` fails with; a batch that was [submitted](Self::submit) before and
    /// is not finished.
    pub fn embed_each<'r>(&mut self, batches: impl IntoIterator<Item = Vec<Row<'r>>>, each: &mut dyn FnMut(Vec<f32>) -> Result<()>) -> Result<()> {
        ensure(self.pipeline.is_empty(), "embed_each", "batches that were submitted to be finished before", "some that are not")?;
        let mut before = false;
        for rows in batches {
            let submitted = self.submit(&rows);
            if std::mem::replace(&mut before, submitted.is_ok()) {
                let given = self.finish().and_then(&mut *each);
                // What is on the device still is nobody's.
                if given.is_err() && submitted.is_ok() {
                    drop(self.finish());
                }
                given?;
            }
            submitted?;
        }
        if before { self.finish().and_then(each) } else { Ok(()) }
    }

    /// Puts a batch on the device, behind those that are there, and does not wait for it. [`finish`](Self::finish) gives the embeddings, the bits of
    /// [`embed`](Self::embed). Each batch holds memory for its embeddings until then.
    ///
    /// Adapters may come and go while batches run: each has those that it was submitted with.
    ///
    /// # Errors
    /// The errors of [`prepare`](Self::prepare) and [`run`](Self::run). Then this batch is not on the device, and those before it are.
    pub fn submit(&mut self, rows: &[Row<'_>]) -> Result<()> {
        self.submit_first(rows, rows.len())
    }

    /// Puts a batch on the device as [`submit`](Self::submit) does, of which [`finish`](Self::finish) gives the first `wanted` embeddings. Rows that only fill a
    /// batch up, so that it has a shape that was captured, are not read.
    ///
    /// # Errors
    /// The errors of [`submit`](Self::submit).
    pub fn submit_first(&mut self, rows: &[Row<'_>], wanted: usize) -> Result<()> {
        let batch = self.prepare(rows)?;
        let bytes = self.bytes(wanted.min(batch.count));
        // Of the largest batch there is memory for: a later one then finds it large enough, whatever is wanted of either.
        let most = self.bytes(self.arena.as_ref().map_or(batch.count, |arena| arena.sequences));
        let room = self.pipeline.room(&self.session, most)?;
        self.run(&batch)?;
        let class = self.classes.get(&batch.shape).ok_or_else(|| Error::invalid("batch", "a class", "none"))?;
        self.pipeline.push(&mut self.session, &class.buffers.out, bytes, room)
    }

    /// The embeddings, `[rows, hidden]`, of the batch that was submitted first of those that are not finished. Blocks until the device is done with it, and
    /// not for those behind it where the device can tell.
    ///
    /// # Errors
    /// No batch was submitted; a device that fails, also in work that was put on it later. Then the batch is gone.
    pub fn finish(&mut self) -> Result<Vec<f32>> {
        let bytes = self.pipeline.pop(&mut self.session)?;
        Ok(self.decoded(&bytes))
    }

    /// Copies a batch to the device. [`run`](Self::run) may then run it any number of times, until another batch of its class is prepared,
    /// or one that is larger than any before.
    ///
    /// # Errors
    /// No rows; a row with no tokens or more than the model allows; an id that is not in the table; more adapters than the
    /// pool holds at once.
    pub fn prepare(&mut self, rows: &[Row<'_>]) -> Result<Prepared> {
        self.load(&LaidOut::new(&self.config, rows)?, false)
    }

    fn load(&mut self, batch: &LaidOut, watched: bool) -> Result<Prepared> {
        let LaidOut { shape, count, tokens, ids, positions, places, adapters } = batch;
        self.make_room(shape, watched)?;
        let number = number();
        let session = &mut self.session;
        match self.classes.get_mut(shape) {
            Some(class) => {
                // Until all of the new batch is there, the class holds neither that batch nor the one before.
                class.loaded = 0;
                session.update_index(&class.ids, ids)?;
                session.update_index(&class.positions, positions)?;
                session.update_index(&class.places, places)?;
                if let (Some(engine), Some(batch)) = (&mut self.engine, &mut class.adapters) {
                    engine.update(session, batch, adapters)?;
                }
                class.loaded = number;
            }
            None => {
                let batch = self.engine.as_mut().map(|engine| engine.batch(session, adapters)).transpose()?;
                let arena = self.arena.as_ref().ok_or_else(|| Error::invalid("batch", "room for it", "none"))?;
                let mut class = Class::new(session, &self.config, arena, *shape, [ids, positions], places, batch)?;
                class.loaded = number;
                self.classes.insert(*shape, class);
            }
        }
        Ok(Prepared { shape: *shape, count: *count, tokens: *tokens, number })
    }

    /// Makes sure that the buffers hold a batch of this class, and that there is a place for it among the classes.
    fn make_room(&mut self, shape: &Shape, watched: bool) -> Result<()> {
        let wide = watched
            || self.session.device().hints().split_mlp
            || self.engine.is_some()
            || self.arena.as_ref().is_some_and(|arena| arena.fits(&Shape { rows: 0, sequences: 0, longest: 0 }, true));
        let place = self.classes.contains_key(shape) || self.classes.len() < MAX_CLASSES;
        if place && self.arena.as_ref().is_some_and(|arena| arena.fits(shape, wide)) {
            return Ok(());
        }
        let (rows, sequences) = self.arena.as_ref().map_or((0, 0), |arena| (arena.rows, arena.sequences));
        self.classes.clear();
        self.arena = None;
        let room = [rows.max(shape.rows), sequences.max(shape.sequences)];
        self.arena = Some(Arena::new(&self.session, &self.config, self.options.dtype, room, wide)?);
        Ok(())
    }

    /// Runs a batch. Does not block. The second batch of a class is captured, and later ones are replayed.
    ///
    /// # Errors
    /// A batch of the same class, or a larger one, was prepared since, or one whose adapters took the room of this one's; a device that
    /// fails.
    pub fn run(&mut self, batch: &Prepared) -> Result<()> {
        self.run_watched(batch, None)
    }

    /// The embeddings of `rows`, as from [`embed`](Self::embed). `watch` sees what each projection reads, block by block: q, k and v of a
    /// block, the output, and both layers of the MLP.
    ///
    /// # Errors
    /// The errors of [`embed`](Self::embed); whatever `watch` fails with.
    pub fn embed_watched(&mut self, rows: &[Row<'_>], watch: &mut Watch<'_>) -> Result<Vec<f32>> {
        let batch = self.load(&LaidOut::new(&self.config, rows)?, true)?;
        self.run_watched(&batch, Some(watch))?;
        self.read(&batch)
    }

    fn run_watched<'w>(&mut self, batch: &Prepared, watch: Option<&'w mut Watch<'w>>) -> Result<()> {
        self.held = 0;
        self.launch(batch, watch)?;
        self.held = batch.number;
        Ok(())
    }

    fn launch<'w>(&mut self, batch: &Prepared, watch: Option<&'w mut Watch<'w>>) -> Result<()> {
        let Self { session, config, options, weights, engine, classes, .. } = self;
        let class = classes.get_mut(&batch.shape).filter(|class| class.loaded == batch.number);
        let class = class.ok_or_else(|| Error::invalid("batch", "the last one prepared of its class", "one that another took the place of"))?;
        if let Some(engine) = engine.as_mut() {
            // A graph applies what its slots hold, whatever adapter is in them now.
            class.adapters.as_ref().map_or(Ok(()), |batch| engine.check(batch))?;
            engine.refresh(session)?;
        }
        if let (Some(graph), None) = (&class.graph, &watch) {
            return session.replay(graph);
        }
        let watch = watch.map(|watch| (watch, batch.tokens));
        let (watched, warm) = (watch.is_some(), class.warm);
        let (dtype, ride) = (options.dtype, options.ride.unwrap_or(true));
        if watched || !warm {
            let mut pass = Pass { session, engine: engine.as_mut(), class: &mut *class, config, dtype, ride, capturing: false, watch };
            pass.run(weights)?;
            class.warm = warm || !watched;
            return Ok(());
        }
        let graph = session
            .capture(|session| Pass { session, engine: engine.as_mut(), class: &mut *class, config, dtype, ride, capturing: true, watch: None }.run(weights))?;
        session.replay(&graph)?;
        class.graph = Some(graph);
        Ok(())
    }

    /// The embeddings of the batch that was run last, `[rows, hidden]`. Blocks.
    ///
    /// # Errors
    /// Another batch was run since, or prepared in its class; a device that fails.
    pub fn read(&mut self, batch: &Prepared) -> Result<Vec<f32>> {
        ensure(self.held == batch.number, "batch", "the one that was run last", "another")?;
        let class = self.classes.get(&batch.shape).filter(|class| class.loaded == batch.number);
        let class = class.ok_or_else(|| Error::invalid("batch", "the last one prepared of its class", "one that another took the place of"))?;
        let out = class.buffers.out.sub_slice(0, self.bytes(batch.count)).ok_or_else(|| Error::invalid("batch", "embeddings of every row", "fewer"))?;
        let bytes = self.session.read(&out)?;
        Ok(self.decoded(&bytes))
    }

    /// Bytes of a batch's embeddings.
    fn bytes(&self, count: usize) -> u64 {
        count as u64 * self.config.hidden * self.options.dtype.size()
    }

    fn decoded(&self, bytes: &[u8]) -> Vec<f32> {
        self.options.dtype.decode_f32(bytes)
    }
}

impl<D: Backend> std::fmt::Debug for Encoder<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "encoder of {} layers of {}, {} in {:?}", self.config.layers, self.config.hidden, self.options.dtype, self.session)
    }
}
