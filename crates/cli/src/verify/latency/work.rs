//! The launches of one row of the table, and whether what they leave is right.

use rayon::prelude::*;

use super::population::{DTYPE, Place, Population, Rows, Sizes, WIDTH};
use trifuse::backend::Backend;
use trifuse::device::Slice;
use trifuse::error::{Error, Result};
use trifuse::ops::codebook_gemm::{CodebookSliceArgs, Factor, FactorArgs};
use trifuse::ops::index::{BasisOf, Codes, Index, TokenAdapters};
use trifuse::ops::{CodebookGemm, CodebookGemmArgs};
use trifuse::session::{Plan, Session};
use trifuse_testkit::cases::Draw;

/// Rows of every projection that are compared, where there are more: the oracle takes two milliseconds a row.
const COMPARED: u64 = 4;

/// Launches in their order.
pub struct Work<B: Backend> {
    plans: Vec<Plan<CodebookGemm, B>>,
    launches: Vec<Launch<B>>,
    /// The adapter of each token.
    ids: Vec<i32>,
}

struct Launch<B: Backend> {
    plan: usize,
    args: CodebookGemmArgs<B>,
    /// The projection of each slice; `None` where each token's adapter is one.
    projections: Vec<Option<usize>>,
    hosted: Option<Hosted>,
}

/// What the host copies in before a launch.
struct Hosted {
    basis: Vec<u8>,
    codes: Codes,
    codebook: Vec<f32>,
}

/// How right a row's outputs are.
pub struct Rightness {
    /// The greatest error of any projection, as a share of what is allowed.
    pub error_of_allowed: f64,
    /// The root mean square of the outputs of the projection where it is least: zeros would be right of nothing.
    pub least_size: f64,
}

/// The adapters in turn: neighbours differ, and all are in use.
fn mixed(tokens: u64, adapters: u32) -> Vec<i32> {
    (0..tokens).map(|token| (token % u64::from(adapters)) as i32).collect()
}

fn operation(sizes: Sizes, tokens: u64, adapters: u32, slices: usize) -> CodebookGemm {
    let mut op = CodebookGemm::s2lc(DTYPE, tokens, [sizes.d, sizes.d, sizes.rank], adapters, WIDTH).with_accumulate(false);
    op.slices = vec![op.slices[0].clone(); slices];
    op
}

/// What every launch of a row shares.
struct Batch<B: Backend> {
    token_adapter: Index<TokenAdapters, B>,
    scaling: Slice<B>,
    x: Slice<B>,
    bytes: u64,
}

impl<B: Backend> Batch<B> {
    fn new(session: &mut Session<B>, sizes: Sizes, ids: &[i32], adapters: u32) -> Result<Self> {
        let (tokens, mut draw) = (ids.len() as u64, Draw::seeded("latency: x"));
        Ok(Self {
            token_adapter: session.index(&TokenAdapters::new(ids, adapters)?)?,
            scaling: session.upload(&vec![1f32; adapters as usize])?,
            x: session.upload(&DTYPE.encode(&draw.normal(DTYPE, tokens * sizes.d, 1.0)))?,
            bytes: tokens * sizes.d * DTYPE.size(),
        })
    }

    fn args(&self, x: &Slice<B>, slices: Vec<CodebookSliceArgs<B>>) -> CodebookGemmArgs<B> {
        CodebookGemmArgs::new(x.clone(), self.token_adapter.clone(), self.scaling.clone(), slices)
    }
}

/// The adapters of one projection.
fn places(projection: usize, adapters: u32) -> Vec<Place> {
    (0..adapters as usize).map(|adapter| Place { projection, adapter }).collect()
}

fn slice<B: Backend>(session: &mut Session<B>, population: &Population, projection: usize, adapters: u32, y: Slice<B>) -> Result<CodebookSliceArgs<B>> {
    let input = FactorArgs::Dense { values: session.upload(&population.bases([projection]))?, basis_of: None };
    Ok(CodebookSliceArgs::new(input, population.coded(session, &places(projection, adapters))?, y))
}

impl<B: Backend> Work<B> {
    /// Every projection reads what the one before wrote.
    pub fn chained(session: &mut Session<B>, population: &Population, tokens: u64, adapters: u32) -> Result<Self> {
        Self::calls(session, population, (tokens, adapters), &[1])
    }

    /// Projections called as in an attention layer: query, key and value from one x in one call, then the output projection
    /// of what the query's wrote.
    pub fn merged(session: &mut Session<B>, population: &Population, tokens: u64, adapters: u32) -> Result<Self> {
        Self::calls(session, population, (tokens, adapters), &[3, 1])
    }

    /// Calls of as many slices as `turns` says, in turn; each reads the first output of the one before.
    fn calls(session: &mut Session<B>, population: &Population, (tokens, adapters): (u64, u32), turns: &[usize]) -> Result<Self> {
        let sizes = population.sizes;
        let ids = mixed(tokens, adapters);
        let batch = Batch::new(session, sizes, &ids, adapters)?;
        let plans = turns.iter().map(|&slices| session.plan(operation(sizes, tokens, adapters, slices))).collect::<Result<Vec<_>>>()?;
        let (mut x, mut launches, mut next) = (batch.x.clone(), Vec::new(), 0);
        for plan in (0..turns.len()).cycle() {
            let projections = next..next + turns[plan];
            if projections.end > sizes.projections {
                break;
            }
            next = projections.end;
            let mut slices = Vec::new();
            for projection in projections.clone() {
                let y = session.alloc(batch.bytes)?;
                slices.push(slice(session, population, projection, adapters, y)?);
            }
            let y = slices[0].y.clone();
            launches.push(Launch { plan, args: batch.args(&x, slices), projections: projections.map(Some).collect(), hosted: None });
            x = y;
        }
        Ok(Self { plans, launches, ids })
    }

    /// All projections as one launch: each, with an x of its own, is an adapter with a basis of its own.
    pub fn grouped(session: &mut Session<B>, population: &Population, tokens: u64) -> Result<Self> {
        let sizes = population.sizes;
        let count = sizes.projections as u32;
        let ids: Vec<i32> = (0..count as i32).flat_map(|projection| std::iter::repeat_n(projection, tokens as usize)).collect();
        let batch = Batch::new(session, sizes, &ids, count)?;
        let mut op = operation(sizes, ids.len() as u64, count, 1);
        op.slices[0].input = Factor::Dense { bases: count };
        let basis_of = BasisOf::new(&(0..count as i32).collect::<Vec<_>>(), count)?;
        let values = session.upload(&population.bases(0..sizes.projections))?;
        let input = FactorArgs::Dense { values, basis_of: Some(session.index(&basis_of)?) };
        let places: Vec<Place> = (0..sizes.projections).map(|projection| Place { projection, adapter: 0 }).collect();
        let slices = vec![CodebookSliceArgs::new(input, population.coded(session, &places)?, session.alloc(batch.bytes)?)];
        let launch = Launch { plan: 0, args: batch.args(&batch.x, slices), projections: vec![None], hosted: None };
        Ok(Self { plans: vec![session.plan(op)?], launches: vec![launch], ids })
    }

    /// Projections as in [`chained`](Self::chained) with one adapter, but the host holds its bases and codes. It copies those of each
    /// projection into the same place on the device before the launch that uses them.
    pub fn hosted(session: &mut Session<B>, population: &Population, tokens: u64) -> Result<Self> {
        let mut work = Self::chained(session, population, tokens, 1)?;
        let Some(first) = work.launches.first().map(|launch| launch.args.slices[0].clone()) else { return Ok(work) };
        for launch in &mut work.launches {
            for (slice, projection) in launch.args.slices.iter_mut().zip(launch.projections.iter().flatten()) {
                let places = places(*projection, 1);
                let (basis, codes, codebook) = (population.bases([*projection]), population.codes(&places)?, population.codebooks(&places));
                launch.hosted = Some(Hosted { basis, codes, codebook });
                (slice.input, slice.output) = (first.input.clone(), first.output.clone());
            }
        }
        Ok(work)
    }

    /// Puts every launch into the queue. What the host holds cannot be copied inside a capture.
    pub fn run(&self, session: &mut Session<B>) -> Result<()> {
        for launch in &self.launches {
            if let (Some(hosted), [slice]) = (&launch.hosted, &launch.args.slices[..])
                && let (FactorArgs::Dense { values, .. }, FactorArgs::Coded { codes, codebooks }) = (&slice.input, &slice.output)
            {
                session.write(values, &hosted.basis)?;
                session.update_index(codes, &hosted.codes)?;
                session.write(codebooks, bytemuck::cast_slice(&hosted.codebook))?;
            }
            session.run(&self.plans[launch.plan], &launch.args)?;
        }
        Ok(())
    }

    /// How many calls a run is.
    pub fn calls_made(&self) -> usize {
        self.launches.len()
    }

    /// Fills every output with NaN, so that what is read later was written since.
    pub fn poison(&self, session: &mut Session<B>) -> Result<()> {
        let slices = || self.launches.iter().flat_map(|launch| &launch.args.slices);
        let bytes = vec![0xff; slices().map(|slice| slice.y.len()).max().unwrap_or(0) as usize];
        slices().try_for_each(|slice| session.write(&slice.y, &bytes))
    }

    /// Compares what the last run left, some rows of every projection, with the oracle.
    pub fn compare(&self, session: &mut Session<B>, population: &Population) -> Result<Rightness> {
        let rows = self.rows(session, population)?;
        // The oracle's part, each row by itself.
        let judged: Vec<_> = rows.par_iter().map(|rows| population.judge(rows)).collect::<Result<_>>()?;
        let mut right = Rightness { error_of_allowed: 0.0, least_size: f64::INFINITY };
        for judged in judged {
            let Some((metrics, size)) = judged else {
                right.error_of_allowed = f64::INFINITY;
                continue;
            };
            let share = (metrics.max_abs / metrics.tolerance.max_abs).max(metrics.relative_l2 / metrics.tolerance.relative_l2);
            // A NaN of 0 / 0 must not be lost: `max` would drop it.
            right.error_of_allowed = if share.is_nan() { f64::INFINITY } else { right.error_of_allowed.max(share) };
            right.least_size = right.least_size.min(size);
        }
        Ok(right)
    }

    /// Reads some rows of every projection.
    fn rows(&self, session: &mut Session<B>, population: &Population) -> Result<Vec<Rows>> {
        let (tokens, mut draw) = (self.ids.len() as u64, Draw::seeded("latency: rows"));
        let row = population.sizes.d * DTYPE.size();
        let mut all = Vec::new();
        for launch in &self.launches {
            for (slice, projection) in launch.args.slices.iter().zip(&launch.projections) {
                // A grouped launch holds the rows of one projection after those of another.
                let parts = if projection.is_some() { 1 } else { population.sizes.projections as u64 };
                for part in 0..parts {
                    let each = tokens / parts;
                    let count = COMPARED.min(each);
                    let first = part * each + u64::from(draw.below((each - count + 1) as u32));
                    let place = |&id: &i32| match projection {
                        Some(projection) => Place { projection: *projection, adapter: id as usize },
                        None => Place { projection: id as usize, adapter: 0 },
                    };
                    let places = self.ids[first as usize..(first + count) as usize].iter().map(place).collect();
                    let rows = |of: &Slice<B>| of.sub_slice(first * row, count * row).ok_or_else(|| Error::invalid("rows", format!("{tokens}"), first + count));
                    let (x, y) = (rows(&launch.args.x)?, rows(&slice.y)?);
                    all.push(Rows { places, x: session.read(&x)?, y: session.read(&y)? });
                }
            }
        }
        Ok(all)
    }
}
