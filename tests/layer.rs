//! A whole transformer layer on every backend of this build against the oracle of the whole: that the operations are put
//! together as they should be. A backend that is not there shows as an ignored test with the reason.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::{Arc, OnceLock};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use trifuse::backend::Backend;
use trifuse::backends::{AnyDevice, Choice, NAMES};
use trifuse::layer::{Affine, Launch, States, TransformerLayer, Weights};
use trifuse::ops::layer::{Layer, Sizes, Style};
use trifuse::session::Session;
use trifuse::{DType, Error, Result};
use trifuse_testkit::cases::Draw;
use trifuse_testkit::oracle::layer::{Affine as HostAffine, Weights as HostWeights, evaluate};
use trifuse_testkit::oracle::{Exact, Stepwise};
use trifuse_testkit::tolerance::Tolerance;

/// Sizes of no tile, and sizes of whole ones.
const UNEVEN: Sizes = Sizes { hidden: 42, heads: 4, kv_heads: 2, head_dim: 10, intermediate: 71 };
/// An intermediate that is wider than the rows of q, k and v, and of 8,400 tokens fits into no workspace of the fused MLP.
const PRODUCTS: Sizes = Sizes { hidden: 4, heads: 11, kv_heads: 11, head_dim: 16, intermediate: 1000 };
const EVEN: Sizes = Sizes { hidden: 256, heads: 4, kv_heads: 2, head_dim: 64, intermediate: 384 };

/// A layer with its operands, and what it should give.
struct Case {
    name: String,
    layer: Layer,
    weights: HostWeights,
    x: Vec<f64>,
    positions: Vec<i32>,
    expected: OnceLock<(Vec<Option<f64>>, Tolerance)>,
}

impl Case {
    fn new(name: &str, layer: Layer) -> Self {
        let name = format!("{name} {} {}", layer.style.name(), layer.dtype);
        let mut draw = Draw::seeded(&name);
        let (dtype, sizes, biases) = (layer.dtype, layer.sizes, layer.biases());
        let mut affine = |rows: u64, columns: u64| HostAffine {
            weight: draw.normal(dtype, rows * columns, 1.0 / (columns as f64).sqrt()),
            bias: draw.optional(biases, dtype, rows, 0.5),
        };
        let mut weights = HostWeights {
            attention_norm: affine(sizes.hidden, 1),
            qkv: affine(sizes.qkv(), sizes.hidden),
            output: affine(sizes.hidden, sizes.query()),
            mlp_norm: affine(sizes.hidden, 1),
            gate: None,
            up: affine(sizes.intermediate, sizes.hidden),
            down: affine(sizes.hidden, sizes.intermediate),
        };
        weights.gate = (layer.style == Style::Llama).then(|| affine(sizes.intermediate, sizes.hidden).weight);
        let x = draw.normal(dtype, layer.rows() * sizes.hidden, 1.0);
        // In no order: as after a cache, or in a batch of several requests.
        let positions = (0..layer.rows()).map(|_| draw.below(1000) as i32).collect();
        Self { name, layer, weights, x, positions, expected: OnceLock::new() }
    }

    fn expected(&self) -> &(Vec<Option<f64>>, Tolerance) {
        self.expected.get_or_init(|| {
            let exact = evaluate(&self.layer, &self.weights, &self.x, &self.positions, Exact).unwrap();
            let plain = evaluate(&self.layer, &self.weights, &self.x, &self.positions, Stepwise(self.layer.dtype)).unwrap();
            let [exact, plain] = [exact, plain].map(|values| values.into_iter().map(Some).collect::<Vec<_>>());
            let tolerance = Tolerance::new(self.layer.dtype, &exact, &plain, 0.0);
            (exact, tolerance)
        })
    }

    /// Runs the layer, and again from a graph; what the first differs by has to be allowed, the second by nothing.
    fn run<D: Backend>(&self, device: &Arc<D>) -> Result<std::result::Result<(), String>> {
        let mut session = Session::new(device.clone())?;
        let (dtype, layer) = (self.layer.dtype, TransformerLayer::new(&session, self.layer.clone())?);
        let weights = upload(&mut session, &self.layer, &self.weights)?;
        let positions = if self.layer.style == Style::Llama { Some(session.upload(&self.positions)?) } else { None };
        let poison = vec![u8::MAX; self.x.len() * dtype.size() as usize];
        let states = States { x: session.upload(&dtype.encode(&self.x))?, positions, y: session.upload(&poison)? };
        for step in layer.steps(&weights, &states)? {
            // Whoever reads a launch's output finds nothing beside it, though the intermediate may lie where q, k and v do.
            if let Launch::Linear(plan, args) = &step.launch {
                let (found, written) = (args.y.len(), plan.op().tokens * plan.op().d_out * dtype.size());
                if found != written {
                    return Ok(Err(format!("{}: an output of {found} bytes for {written}", step.name)));
                }
            }
        }
        layer.run(&mut session, &weights, &states)?;
        let first = session.read(&states.y)?;
        let (expected, tolerance) = self.expected();
        let metrics = tolerance.compare(expected, &dtype.decode(&first))?;
        if !metrics.accepted() {
            return Ok(Err(metrics.to_string()));
        }
        let graph = layer.capture(&mut session, &weights, &states)?;
        session.write(&states.y, &poison)?;
        session.replay(&graph)?;
        if session.read(&states.y)? != first {
            return Ok(Err("the graph gives other bits than its launches".into()));
        }
        // Another layer of the same model: its own weights and states, the same plans and memory.
        let other = Case::new(&format!("{} again", self.name), self.layer.clone());
        let next = upload(&mut session, &self.layer, &other.weights)?;
        let through = States { x: states.y.clone(), y: session.upload(&poison)?, ..states.clone() };
        layer.run(&mut session, &next, &through)?;
        let second = evaluate(&self.layer, &other.weights, &dtype.decode(&first), &self.positions, Exact)?.into_iter().map(Some).collect::<Vec<_>>();
        // Weights drawn as the first ones were: of the same size, so is what rounding does.
        let metrics = Tolerance { max_abs: 2.0 * tolerance.max_abs, ..*tolerance }.compare(&second, &dtype.decode(&session.read(&through.y)?))?;
        Ok(if metrics.accepted() { Ok(()) } else { Err(format!("the second layer: {metrics}")) })
    }
}

/// Rows of products' weights go where the layer's operations say.
fn upload<D: Backend>(session: &mut Session<D>, layer: &Layer, host: &HostWeights) -> Result<Weights<D>> {
    let (dtype, size) = (layer.dtype, layer.dtype.size());
    let mlp = layer.parts()?.mlp;
    let (across, of_query, of_wide) = (mlp.d_model, layer.sizes.query(), mlp.d_ff);
    let mut affine = |of: &HostAffine, columns: u64| -> Result<Affine<D>> {
        let stride = if columns > 1 { dtype.row_stride(columns) } else { columns };
        let weight = session.upload_rows(&dtype.encode(&of.weight), columns * size, stride * size)?;
        Ok(Affine { weight, bias: of.bias.as_ref().map(|bias| session.upload(&dtype.encode(bias))).transpose()? })
    };
    let weights = Weights {
        attention_norm: affine(&host.attention_norm, 1)?,
        qkv: affine(&host.qkv, across)?,
        output: affine(&host.output, of_query)?,
        mlp_norm: affine(&host.mlp_norm, 1)?,
        gate: None,
        up: affine(&host.up, across)?,
        down: affine(&host.down, of_wide)?,
    };
    let upload_rows = |gate: &Vec<f64>| session.upload_rows(&dtype.encode(gate), across * size, mlp.w1_stride * size);
    let gate = host.gate.as_ref().map(upload_rows).transpose()?;
    Ok(Weights { gate, ..weights })
}

fn cases() -> Vec<Arc<Case>> {
    let mut cases = Vec::new();
    for style in Style::ALL {
        for dtype in DType::ALL {
            // Llama's with its mask, the reference's without, as each is used.
            cases.push(Case::new("uneven", Layer::new(dtype, [2, 13], UNEVEN, style, style == Style::Llama)));
        }
        cases.push(Case::new("even", Layer::new(DType::F16, [2, 70], EVEN, style, style == Style::Reference)));
    }
    cases.push(Case::new("two products", Layer::new(DType::F32, [8400, 1], PRODUCTS, Style::Reference, false)));
    cases.into_iter().map(Arc::new).collect()
}

fn main() {
    let arguments = Arguments::from_args();
    let cases = cases();
    let two_products = cases.iter().any(|case| case.layer.mlp_products().unwrap().is_some());
    let mut trials = vec![
        Trial::test("another position, style or mask is another answer", || {
            differs();
            Ok(())
        }),
        Trial::test("one case has an MLP of two products", move || {
            assert!(two_products);
            Ok(())
        }),
        Trial::test("operands that do not belong are refused", || {
            refused();
            Ok(())
        }),
    ];
    for name in NAMES {
        match Choice::Named(name, 0).open_any() {
            Ok(device) => trials.extend(of_device(&cases, device)),
            Err(error) => {
                let absent = Trial::test(format!("not available: {error}"), || Err("this backend is not there".into()));
                trials.push(absent.with_kind(*name).with_ignored_flag(true));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

/// The trials of one backend's device. Behind one type for all of them, the layer is compiled once.
fn of_device(cases: &[Arc<Case>], device: AnyDevice) -> Vec<Trial> {
    let device = Arc::new(device);
    // Never dropped: the last trial's worker could still be at it when the process exits and the driver goes.
    std::mem::forget(device.clone());
    cases.iter().map(|case| trial(case, &device)).collect()
}

fn trial(case: &Arc<Case>, device: &Arc<AnyDevice>) -> Trial {
    let (own, device, kind) = (case.clone(), device.clone(), device.backend());
    let run = move || match own.run(&device) {
        Ok(Ok(())) => Ok(Completion::Completed),
        Ok(Err(why)) => Err(Failed::from(why)),
        Err(Error::Unsupported { subject, reason }) => Ok(Completion::ignored_with(format!("{subject}: {reason}"))),
        Err(error) => Err(Failed::from(error)),
    };
    Trial::ignorable_test(case.name.clone(), run).with_kind(kind)
}

/// The tolerance of the whole is worth something only where it refuses what a part put wrongly would give.
fn differs() {
    let case = Case::new("uneven", Layer::new(DType::F16, [2, 13], UNEVEN, Style::Llama, true));
    let (exact, tolerance) = case.expected();
    let accepted = |layer: &Layer, weights: &HostWeights, positions: &[i32]| {
        let found = evaluate(layer, weights, &case.x, positions, Exact).unwrap();
        tolerance.compare(exact, &found).unwrap().accepted()
    };
    assert!(accepted(&case.layer, &case.weights, &case.positions));
    let shifted: Vec<i32> = case.positions.iter().enumerate().map(|(row, &position)| position + (row % 2) as i32).collect();
    assert!(!accepted(&case.layer, &case.weights, &shifted), "other distances between tokens");
    assert!(!accepted(&Layer { causal: false, ..case.layer.clone() }, &case.weights, &case.positions), "no mask");
    let swapped = HostWeights { attention_norm: case.weights.mlp_norm.clone(), mlp_norm: case.weights.attention_norm.clone(), ..case.weights.clone() };
    assert!(!accepted(&case.layer, &swapped, &case.positions), "the norms in each other's place");
    // All positions moved alike: only the distance of two tokens counts.
    let moved: Vec<i32> = case.positions.iter().map(|position| position + 77).collect();
    assert!(accepted(&case.layer, &case.weights, &moved), "the same distances");
}

#[cfg(feature = "cpu")]
fn refused() {
    use trifuse::backends::cpu::Cpu;
    use trifuse::device::Open;
    let mut session = Session::new(Arc::new(Cpu::open(0).unwrap())).unwrap();
    let case = Case::new("refused", Layer::new(DType::F32, [1, 3], UNEVEN, Style::Llama, true));
    let layer = TransformerLayer::new(&session, case.layer.clone()).unwrap();
    let weights = upload(&mut session, &case.layer, &case.weights).unwrap();
    let x = session.upload(&DType::F32.encode(&case.x)).unwrap();
    let states = States { y: session.alloc(x.len()).unwrap(), positions: Some(session.upload(&case.positions).unwrap()), x };
    layer.run(&mut session, &weights, &states).unwrap();
    let short = States { x: states.x.sub_slice(0, states.x.len() - 4).unwrap(), ..states.clone() };
    let without = States { positions: None, ..states.clone() };
    let small = States { y: session.upload(&[0u8; 4]).unwrap(), ..states.clone() };
    for (name, states) in [("a short x", &short), ("no positions", &without), ("a short y", &small)] {
        assert!(matches!(layer.run(&mut session, &weights, states), Err(Error::Invalid { .. })), "{name}");
    }
    let ungated = Weights { gate: None, ..weights.clone() };
    let biased = Weights { qkv: Affine { bias: Some(states.x.clone()), ..weights.qkv.clone() }, ..weights };
    for weights in [&ungated, &biased] {
        assert!(matches!(layer.run(&mut session, weights, &states), Err(Error::Invalid { .. })));
    }
}

#[cfg(not(feature = "cpu"))]
fn refused() {}
