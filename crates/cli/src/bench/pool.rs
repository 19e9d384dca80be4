//! Where the operands of a shape come from: drawn for it alone, or shared by all shapes of a sweep or a list of products.

use super::operand::Values;
use super::shape::{Point, Suite};
use trifuse::device::{Device, Slice};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result};
use trifuse::session::Session;
use trifuse_testkit::cases::Draw;

/// Operands that lie on the device already, by what they are for.
pub struct Pool<D: Device> {
    held: Vec<Held<D>>,
    output: Option<Slice<D>>,
    /// Whether shapes of every suite have their operands in common.
    always: bool,
}

struct Held<D: Device> {
    role: &'static str,
    dtype: DType,
    deviation: f64,
    values: Values,
    slice: Slice<D>,
}

impl<D: Device> Default for Pool<D> {
    fn default() -> Self {
        Self { held: Vec::new(), output: None, always: false }
    }
}

/// The pool, and where a shape's own numbers are drawn from.
pub struct Source<'a, D: Device> {
    pool: &'a mut Pool<D>,
    /// Whether the shape takes what the one before it had.
    shared: bool,
    /// Seeded by the shape's name and type.
    pub draw: Draw,
}

impl<D: Device> Pool<D> {
    /// One whose shapes have their operands in common, whatever their suite.
    pub fn sharing() -> Self {
        Self { always: true, ..Self::default() }
    }

    /// Whether the shapes of `suite` have their operands in common.
    pub fn shares(suite: Suite) -> bool {
        matches!(suite, Suite::Align | Suite::Projections)
    }

    /// Where the operands of `point` come from. Shapes of a sweep, and products of one list of models, share theirs: numbers repeat
    /// with a prime period, so rows differ at every size, and drawing a thousand shapes anew would take longer than timing them.
    pub fn source(&mut self, point: &Point) -> Source<'_, D> {
        let shared = self.always || Self::shares(point.suite);
        if !shared {
            *self = Self::default();
        }
        Source { pool: self, shared, draw: Draw::seeded(&format!("{} {}", point.shape.name(), point.dtype)) }
    }
}

impl<D: Device> Source<'_, D> {
    /// `count` normal numbers for `role`, and a copy on the device. Of a sweep they are seeded by the role and the type, and
    /// `deviation` is rounded to a power of two, so that sizes beside each other have it in common.
    ///
    /// # Errors
    /// The device has no room.
    pub fn normal(&mut self, session: &mut Session<D>, role: &'static str, dtype: DType, count: u64, deviation: f64) -> Result<(Values, Slice<D>)> {
        if !self.shared {
            let values = Values::normal(&mut self.draw, dtype, count, deviation);
            let slice = values.upload(session)?;
            return Ok((values, slice));
        }
        let deviation = deviation.log2().round().exp2();
        let bytes = count * dtype.size();
        let fits = |held: &Held<D>| (held.role, held.dtype, held.deviation) == (role, dtype, deviation) && held.slice.len() >= bytes;
        if !self.pool.held.iter().any(fits) {
            self.pool.held.retain(|held| (held.role, held.deviation) != (role, deviation));
            // Room for the sizes that come next.
            let values = Values::normal(&mut Draw::seeded(&format!("{role} {dtype}")), dtype, count + count / 8, deviation);
            let slice = values.upload(session)?;
            self.pool.held.push(Held { role, dtype, deviation, values, slice });
        }
        let held = self.pool.held.iter().find(|held| fits(held));
        let slice = held.and_then(|held| Some((held.values.resized(count), held.slice.sub_slice(0, bytes)?)));
        slice.ok_or_else(|| Error::invalid(role, "a part of what is held", bytes))
    }

    /// Normal numbers for a matrix of rows, columns, and elements from a row to the next. Where rows are apart, they are this shape's own.
    ///
    /// # Errors
    /// The device has no room.
    pub fn rows(
        &mut self,
        session: &mut Session<D>,
        role: &'static str,
        dtype: DType,
        [rows, columns, stride]: [u64; 3],
        deviation: f64,
    ) -> Result<(Values, Slice<D>)> {
        if stride == columns {
            return self.normal(session, role, dtype, rows * columns, deviation);
        }
        let count = rows * columns;
        let values = if self.shared { self.normal(session, role, dtype, count, deviation)?.0 } else { Values::normal(&mut self.draw, dtype, count, deviation) };
        let slice = values.upload_rows(session, columns, stride)?;
        Ok((values, slice))
    }

    /// Memory for an output, contents unspecified.
    ///
    /// # Errors
    /// The device has no room.
    pub fn output(&mut self, session: &mut Session<D>, bytes: u64) -> Result<Slice<D>> {
        if !self.shared {
            return session.alloc(bytes);
        }
        let part = |whole: &Slice<D>| whole.sub_slice(0, bytes);
        if let Some(held) = self.pool.output.as_ref().and_then(part) {
            return Ok(held);
        }
        let whole = session.alloc(bytes + bytes / 8)?;
        let part = part(&whole).ok_or_else(|| Error::invalid("output", "a part of what is held", bytes));
        self.pool.output = Some(whole);
        part
    }
}

#[cfg(all(test, feature = "cpu"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::bench::shape::{Padding, Shape};
    use trifuse::backends::cpu::Cpu;
    use trifuse::device::Open;

    #[test]
    fn a_sweep_shares_and_other_suites_do_not() {
        let mut session = Session::new(std::sync::Arc::new(Cpu::open(0).unwrap())).unwrap();
        let mut pool = Pool::default();
        let point = |suite, d_out| Point {
            suite,
            dtype: DType::F16,
            captured: false,
            shape: Shape::Linear { tokens: 1, d_out, d_in: 8, delta: None, padding: Padding::None, layers: 1 },
        };
        let mut made = |suite, d_out, count| {
            let (values, slice) = pool.source(&point(suite, d_out)).normal(&mut session, "w", DType::F16, count, 0.3).unwrap();
            let found = DType::F16.decode(&session.read(&slice).unwrap());
            assert_eq!(found, values.all());
            (Cpu::buffer_id(slice.buffer()), found)
        };
        let (first, second) = (made(Suite::Align, 100, 800), made(Suite::Align, 101, 808));
        assert_eq!(first.0, second.0, "the same memory");
        assert_eq!(first.1[..], second.1[..800]);
        let wide = made(Suite::Align, 200, 1600);
        assert_eq!(wide.1[..808], second.1[..]);
        assert_ne!(made(Suite::Linear, 100, 800).1, first.1, "drawn for this shape alone");
    }
}
