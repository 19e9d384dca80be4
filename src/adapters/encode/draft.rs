//! The encoding of one adapter in one projection on one rung, from what is to be coded to what the file will hold, measured.

use half::f16;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::allocate::{Goal, State, allocate, totals};
use super::basis::Basis;
use super::calibration::Inputs;
use super::codebook::WIDTHS;
use super::factor::Coder;
use super::linalg::{Mat, mul, scale_columns, solve_gram};
use super::metric::Metric;
use super::options::{DEFAULT_BITS, EncodeOptions};
use super::terms::{Side, Terms};
use crate::adapters::bundle::size::{ENTRY_BYTES, factor_bytes};
use crate::adapters::certificate::Certificate;
use crate::adapters::encoded::{CodedColumns, EncodedFactor, EncodedProjection, Matrix, Rung, SharedProjection};
use crate::adapters::peft::Lora;
use crate::error::Result;
use crate::ops::codes::{CODEBOOK_LEN, CodeWidth};

/// Allocations tried before the best is taken. Each corrects the last by what was measured.
const ATTEMPTS: usize = 12;

/// Halvings of the search for the bytes that the states alone may take.
const SPEND_STEPS: usize = 12;

/// One adapter in one projection.
pub(crate) struct Member<'a> {
    /// The adapter's original update.
    pub lora: &'a Lora,
    /// The adapter's update as rank-one terms.
    pub terms: Terms,
    /// Seed of the member's k-means.
    pub seed: u64,
}

/// What all drafts of a projection share.
pub(crate) struct Setting<'a> {
    /// The options of the encoding.
    pub options: &'a EncodeOptions,
    /// The metric in which errors weigh.
    pub metric: &'a Metric,
    /// The inputs of the projection.
    pub inputs: Option<&'a Inputs>,
    /// The bases that drafts point into.
    pub shared: SharedProjection,
}

enum Part<'a> {
    Basis(usize, &'a Basis),
    Own(Box<Coder<'a>>),
}

/// An adapter on a rung, before bits are allocated.
pub(crate) struct Draft<'a> {
    member: &'a Member<'a>,
    input: Part<'a>,
    output: Part<'a>,
    /// The energy of each rank-one term.
    energies: Vec<f64>,
    /// The energy that the basis loses.
    lost: f64,
}

/// The widths of a term's input column and of its output column. A basis takes no width.
type Widths = [CodeWidth; 2];

impl<'a> Draft<'a> {
    /// A draft with one side on the basis of this number, and the other side coded.
    pub(crate) fn shared(member: &'a Member<'a>, side: Side, number: usize, basis: &'a Basis, metric: &'a Metric) -> Result<Self> {
        let terms = &member.terms;
        let projected = terms.project(side, &terms.coordinates(side, &basis.directions))?;
        let lost = (terms.energy - projected.energies.iter().sum::<f64>()).max(0.0);
        let shared = Part::Basis(number, basis);
        let (input, output) = match side {
            Side::Input => (shared, Part::Own(Box::new(Coder::new(&projected.columns, None, rng(member, Side::Output))))),
            Side::Output => (Part::Own(Box::new(Coder::new(&metric.lift(&projected.columns), metric.lower(), rng(member, Side::Input)))), shared),
        };
        Ok(Self { member, input, output, energies: projected.energies, lost })
    }

    /// A draft with both sides coded.
    pub(crate) fn private(member: &'a Member<'a>, metric: &'a Metric) -> Self {
        let terms = &member.terms;
        let input = Part::Own(Box::new(Coder::new(&metric.lift(&terms.right), metric.lower(), rng(member, Side::Input))));
        let output = Part::Own(Box::new(Coder::new(&terms.left, None, rng(member, Side::Output))));
        Self { member, input, output, energies: terms.sigma.iter().map(|s| s * s).collect(), lost: 0.0 }
    }

    /// The choices of each term, as bytes and loss.
    fn choices(&self, width: Option<CodeWidth>) -> (Vec<Vec<State>>, Vec<Vec<Widths>>) {
        let widths: Vec<CodeWidth> = width.map_or(WIDTHS.to_vec(), |width| vec![width]);
        let side = |part: &Part<'_>, j: usize| match part {
            Part::Basis(..) => vec![(CodeWidth::Zero, 0.0, 0.0)],
            Part::Own(coder) => widths.iter().map(|&w| (w, 4.0 * w.column_words(coder.d() as u64) as f64, coder.expected_loss(j, w))).collect(),
        };
        let core_row = match (&self.input, &self.output) {
            (Part::Basis(_, basis), _) | (_, Part::Basis(_, basis)) => 2.0 * basis.stored.cols as f64,
            _ => 2.0 * self.energies.len() as f64,
        };
        let term = |j: usize| {
            let mut states = vec![(State { bytes: 0.0, loss: self.energies[j] }, [CodeWidth::Zero; 2])];
            for &(input, input_bytes, input_loss) in &side(&self.input, j) {
                for &(output, output_bytes, output_loss) in &side(&self.output, j) {
                    let loss = self.energies[j] * (1.0 - (1.0 - input_loss) * (1.0 - output_loss));
                    states.push((State { bytes: input_bytes + output_bytes + core_row, loss }, [input, output]));
                }
            }
            states.into_iter().unzip()
        };
        (0..self.energies.len()).map(term).unzip()
    }

    /// Meets what the options ask for in the fewest bytes, or comes as close as this rung can.
    pub(crate) fn meet(&self, setting: &Setting<'_>) -> Result<EncodedProjection> {
        let options = setting.options;
        let (items, widths) = self.choices(options.width);
        let pick = |chosen: &[usize]| -> Vec<Widths> { chosen.iter().zip(&widths).map(|(&state, widths)| widths[state]).collect() };
        if options.bits.is_some() || options.width.is_some() || !options.requires_fidelity() {
            let goal = if options.width.is_some() { f64::INFINITY } else { self.budget(options.bits.unwrap_or(DEFAULT_BITS)) };
            return self.realise(&pick(&allocate(&items, Goal::Bytes(goal)).0), setting);
        }
        let allowed = options.allowed_loss() * self.member.terms.energy;
        let mut target = allowed - self.lost;
        let mut best: Option<EncodedProjection> = None;
        let mut last: Option<(Vec<usize>, f64)> = None;
        for attempt in 0..ATTEMPTS {
            let (mut chosen, mut reachable) = allocate(&items, Goal::Loss(target.max(0.0)));
            if let Some((before, shortfall)) = &last {
                if *shortfall <= 1.0 && (chosen == *before || attempt >= ATTEMPTS / 2) {
                    break;
                }
                // The same choice would miss again, so more is asked for until the choice changes.
                while chosen == *before && reachable {
                    target *= 0.9;
                    (chosen, reachable) = allocate(&items, Goal::Loss(target));
                }
            }
            let found = self.realise(&pick(&chosen), setting)?;
            let shortfall = options.shortfall(&found.certificate);
            let better = best.as_ref().is_none_or(|best| {
                let (now, then) = (options.shortfall(&best.certificate), shortfall);
                if now <= 1.0 && then <= 1.0 { found.certificate.bytes < best.certificate.bytes } else { then < now }
            });
            if better {
                best = Some(found);
            }
            if shortfall > 1.0 && (!reachable || target <= 0.0) {
                break;
            }
            // The codes' loss against what they may lose corrects the next target.
            let (may, did) = (allowed - self.lost, shortfall * allowed - self.lost);
            target *= if may > 0.0 && did > 0.0 { (0.995 * may / did).clamp(0.1, 4.0) } else { 0.3 };
            last = Some((chosen, shortfall));
        }
        match best {
            Some(best) => Ok(best),
            None => self.realise(&pick(&vec![0; items.len()]), setting),
        }
    }

    /// Spends at most `bytes`, with the entry in the index. It spends the least it can where they are too few for any code.
    pub(crate) fn spend(&self, bytes: f64, setting: &Setting<'_>) -> Result<EncodedProjection> {
        let (items, widths) = self.choices(setting.options.width);
        let pick = |chosen: &[usize]| -> Vec<Widths> { chosen.iter().zip(&widths).map(|(&state, widths)| widths[state]).collect() };
        let most = bytes.min(setting.options.bits.map_or(f64::INFINITY, |bits| self.budget(bits)));
        // Centroids, the core's corner and the index come on top of a state's own bytes. The rest for the states alone is found by halving.
        let (mut low, mut high) = (0.0, most);
        let mut best = vec![0; items.len()];
        for step in 0..SPEND_STEPS {
            let left = if step == 0 { high } else { 0.5 * (low + high) };
            let (chosen, _) = allocate(&items, Goal::Bytes(left));
            if self.most_bytes(&pick(&chosen)) > bytes {
                high = left;
                continue;
            }
            low = left;
            if totals(&items, &chosen).1 < totals(&items, &best).1 {
                best = chosen;
            }
            if step == 0 {
                break;
            }
        }
        self.realise(&pick(&best), setting)
    }

    /// Bytes for this many bits an element, and the core.
    fn budget(&self, bits: f64) -> f64 {
        let n = self.energies.len() as f64;
        let column = |part: &Part<'_>| if let Part::Own(coder) = part { 4.0 * coder.d().div_ceil(32) as f64 * bits } else { 0.0 };
        let core = match (&self.input, &self.output) {
            (Part::Basis(_, basis), _) | (_, Part::Basis(_, basis)) => basis.stored.cols as f64,
            _ => n,
        };
        n * (column(&self.input) + column(&self.output) + 2.0 * core) + 0.5
    }

    /// The most bytes of these widths in the file: codes, centroids, core and the entry in the adapter's index.
    fn most_bytes(&self, widths: &[Widths]) -> f64 {
        let live: Vec<&Widths> = widths.iter().filter(|&&each| each != [CodeWidth::Zero; 2]).collect();
        let rank = match (&self.input, &self.output) {
            (Part::Basis(_, basis), _) | (_, Part::Basis(_, basis)) => basis.stored.cols,
            _ => live.len(),
        };
        let part = |part: &Part<'_>, side: usize| {
            let Part::Own(coder) = part else { return 0 };
            let codes: u64 = live.iter().map(|each| 4 * each[side].column_words(coder.d() as u64)).sum();
            codes + factor_bytes(live.iter().map(|each| each[side]), rank)
        };
        (part(&self.input, 0) + part(&self.output, 1) + 2 * (rank * live.len()) as u64 + ENTRY_BYTES) as f64
    }

    /// Codes at these widths, fits the core by least squares to what the codes and bases really are, and measures.
    fn realise(&self, widths: &[Widths], setting: &Setting<'_>) -> Result<EncodedProjection> {
        let mut live: Vec<usize> = (0..widths.len()).filter(|&j| widths[j] != [CodeWidth::Zero; 2]).collect();
        live.sort_by(|&a, &b| self.energies[b].total_cmp(&self.energies[a]));
        let rank = match (&self.input, &self.output) {
            (Part::Basis(_, basis), _) | (_, Part::Basis(_, basis)) => basis.stored.cols,
            _ => live.len().max(1),
        };
        let code = |part: &Part<'_>, side: usize| -> Result<(EncodedFactor, Option<Mat>)> {
            let coder = match part {
                Part::Basis(number, _) => return Ok((EncodedFactor::Shared(*number), None)),
                Part::Own(coder) => coder,
            };
            let columns: Vec<(usize, CodeWidth)> = live.iter().map(|&j| (j, widths[j][side])).collect();
            let (coded, decoded) =
                if live.is_empty() { (empty(coder.d(), rank), Mat::zeros(coder.d(), 0)) } else { coder.code(&columns, &self.energies, rank)? };
            Ok((EncodedFactor::Coded(coded), Some(decoded)))
        };
        let (input, inner) = code(&self.input, 0)?;
        let (output, outer) = code(&self.output, 1)?;
        let (core, scaling) = self.core(inner, outer, rank, setting.metric)?;
        let blank = Certificate {
            rung: Rung::Plain,
            rank,
            basis_energy: 0.0,
            cos_factor: 0.0,
            cos_delta: 0.0,
            output_error_gaussian: 0.0,
            output_error_held_out: None,
            calibrated: false,
            bits_per_element: 0.0,
            bytes: 0,
            bytes_before: 0,
        };
        let mut found = measured(EncodedProjection { input, core: Some(core), output, scaling, certificate: blank }, self.member.lora, setting)?;
        found.certificate.calibrated = setting.metric.lower().is_some();
        Ok(found)
    }

    /// The core `Qᵀ = (OᵀO)⁻¹·Oᵀ·ΔW·C·I·(IᵀCI)⁻¹`, scaled to a largest entry of 1 and rounded to f16, and its scale.
    fn core(&self, inner: Option<Mat>, outer: Option<Mat>, rank: usize, metric: &Metric) -> Result<(Matrix, f32)> {
        let terms = &self.member.terms;
        let inner = match (&self.input, inner) {
            (Part::Basis(_, basis), _) => basis.white.clone(),
            (_, decoded) => metric.whiten(&decoded.unwrap_or_else(|| Mat::zeros(0, 0))),
        };
        let outer = match (&self.output, outer) {
            (Part::Basis(_, basis), _) => basis.white.clone(),
            (_, decoded) => decoded.unwrap_or_else(|| Mat::zeros(0, 0)),
        };
        let mut core = Matrix { rows: rank, cols: rank, data: vec![0.0; rank * rank] };
        if inner.ncols() == 0 || outer.ncols() == 0 || terms.sigma.is_empty() {
            return Ok((core, 1.0));
        }
        let seen_out = mul(outer.transpose(), scale_columns(&terms.left, &terms.sigma).as_ref());
        let both = mul(seen_out.as_ref(), mul(terms.right.transpose(), inner.as_ref()).as_ref());
        let half = solve_gram(&mul(outer.transpose(), outer.as_ref()), &both)?;
        let fitted = solve_gram(&mul(inner.transpose(), inner.as_ref()), &half.transpose().to_owned())?;
        let largest = (0..fitted.ncols()).flat_map(|j| (0..fitted.nrows()).map(move |i| (i, j))).map(|at| fitted[at].abs()).fold(0.0, f64::max);
        let scaling = if largest > 0.0 { largest as f32 } else { 1.0 };
        for i in 0..fitted.nrows() {
            for j in 0..fitted.ncols() {
                core.data[i * rank + j] = f16::from_f64(fitted[(i, j)] / f64::from(scaling)).to_f32();
            }
        }
        Ok((core, scaling))
    }
}

/// The encoding on the last rung: the factors themselves in f16.
pub(crate) fn plain(member: &Member<'_>, setting: &Setting<'_>) -> Result<EncodedProjection> {
    let (a, a_scale) = narrow(&member.lora.a.transposed());
    let (b, b_scale) = narrow(&member.lora.b);
    let scaling = (f64::from(member.lora.scaling) * a_scale * b_scale) as f32;
    let certificate = Certificate::plain(member.lora.rank(), 0);
    let projection = EncodedProjection { input: EncodedFactor::Plain(a), core: None, output: EncodedFactor::Plain(b), scaling, certificate };
    measured(projection, member.lora, setting)
}

/// The matrix in f16, through a power of two where values would overflow or lose bits to subnormals.
fn narrow(matrix: &Matrix) -> (Matrix<f16>, f64) {
    let largest = matrix.data.iter().fold(0f32, |most, value| most.max(value.abs()));
    let scale = if largest == 0.0 || (0.03..=16384.0).contains(&largest) { 1.0 } else { 2f64.powi(f64::from(largest).log2().floor() as i32) };
    (matrix.map(|value| f16::from_f64(f64::from(value) / scale)), scale)
}

fn measured(mut projection: EncodedProjection, lora: &Lora, setting: &Setting<'_>) -> Result<EncodedProjection> {
    projection.certificate = Certificate::measure(lora, &projection, &setting.shared, setting.inputs.map(Inputs::held_out))?;
    Ok(projection)
}

fn empty(d: usize, rank: usize) -> CodedColumns {
    CodedColumns { d, columns: vec![(CodeWidth::Zero, vec![]); rank], codebook: [0.0; CODEBOOK_LEN] }
}

fn rng(member: &Member<'_>, side: Side) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(member.seed);
    rng.set_stream(if side == Side::Input { 1 } else { 2 });
    rng
}
