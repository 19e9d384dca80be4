//! K and V from their factors, then attention over them, then the join with what `o` and `lse` hold.

use super::attention::{self, HostForm};
use super::codebook_gemm::{FactorHost, turn_factor};
use super::{Define, Output, Rounding, expect_len, products};
use trifuse::dtype::DType;
use trifuse::error::{Error, Result, ensure};
use trifuse::ops::prefix_attention::Factors;
use trifuse::ops::{Op, PrefixAttention};

/// The operands on the host; see [`trifuse::ops::PrefixAttentionArgs`].
#[derive(Clone, Debug)]
pub struct Host {
    /// Queries, from the first element to the last, laid out by the descriptor's strides.
    pub q: Vec<f64>,
    /// The keys' factors.
    pub key: FactorsHost,
    /// The values' factors.
    pub value: FactorsHost,
    /// What o and lse hold before, laid out as they are; where the descriptor joins.
    pub before: Option<(Vec<f64>, Vec<f64>)>,
}

/// Coefficients and basis, each of one adapter.
#[derive(Clone, Debug)]
pub struct FactorsHost {
    /// `[tokens, R]`.
    pub coefficients: FactorHost,
    /// `[kv_heads · head_dim, R]`.
    pub basis: FactorHost,
}

impl FactorsHost {
    /// `C · Bᵀ`, `[tokens, width]`.
    ///
    /// # Errors
    /// Factors that are not the descriptor's.
    pub fn rebuild<R: Rounding>(&self, factors: Factors, [tokens, width]: [u64; 2], rounding: R) -> Result<Vec<f64>> {
        self.coefficients.check("prefix_attention: coefficients", factors.coefficients, 1, tokens, factors.rank)?;
        self.basis.check("prefix_attention: basis", factors.basis, 1, width, factors.rank)?;
        let rank = factors.rank as usize;
        let coefficients = self.coefficients.of(0, tokens as usize, rank, rounding)?;
        let basis = self.basis.of(0, width as usize, rank, rounding)?;
        Ok(products(&coefficients, &basis, rank, rounding, |_, _, value| rounding.keep(value)))
    }
}

impl Define for PrefixAttention {
    type Host = Host;

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn evaluate<R: Rounding>(&self, host: &Host, rounding: R) -> Result<Vec<Output>> {
        self.validate()?;
        let prefix = [self.tokens, self.width()];
        let k = host.key.rebuild(self.key, prefix, rounding)?;
        let v = host.value.rebuild(self.value, prefix, rounding)?;
        let mut outputs = self.plain().evaluate(&attention::Host { q: host.q.clone(), k, v, index: HostForm::None, slots: None }, rounding)?;
        // Scores are of keys that were rounded to the operands' type.
        outputs[1].rounded = self.dtype;
        ensure(host.before.is_some() == self.join, "prefix_attention: o and lse before", "present where the descriptor joins", !self.join)?;
        let Some((o, lse)) = &host.before else { return Ok(outputs) };
        expect_len("prefix_attention: o", o, outputs[0].elements.len() as u64)?;
        expect_len("prefix_attention: lse", lse, self.rows())?;

        let (heads, q_len) = (self.heads as usize, self.q_len as usize);
        let [values, logs] = &mut outputs[..] else { return Err(Error::invalid("attention", "two outputs", "others")) };
        for (row, (own, &other)) in logs.elements.iter_mut().zip(lse).enumerate() {
            let (batch, head, query) = (row / q_len / heads, row / q_len % heads, row % q_len);
            let first = batch * self.o.batch as usize + query * self.o.token as usize + head * self.o.head as usize;
            let Some(prefix) = *own else { continue };
            let most = prefix.max(other);
            let [weight, other_weight] = [prefix, other].map(|log| rounding.step(rounding.step(log - most).exp()));
            let total = rounding.step(weight + other_weight);
            for (value, &before) in values.elements[first..][..self.head_dim as usize].iter_mut().zip(&o[first..]) {
                // What has seen nothing holds nothing, whatever lies there.
                let joined = if other == f64::NEG_INFINITY { 0.0 } else { rounding.step(before * other_weight) };
                *value = value.map(|value| rounding.keep(rounding.step(value * weight + joined) / total));
            }
            *own = Some(rounding.step(most + rounding.step(total.ln())));
        }
        Ok(outputs)
    }

    fn disordered(&self, host: &Host) -> Vec<(&'static str, Host)> {
        let mut wrong = Vec::new();
        let mut turn = |name, change: &dyn Fn(&mut Host) -> Option<()>| {
            let mut host = host.clone();
            if change(&mut host).is_some() {
                wrong.push((name, host));
            }
        };
        let (tokens, width) = (self.tokens as usize, self.width() as usize);
        let ranks = [self.key.rank as usize, self.value.rank as usize];
        turn("key coefficients", &|host| turn_factor(&mut host.key.coefficients, tokens, ranks[0]));
        turn("key basis", &|host| turn_factor(&mut host.key.basis, width, ranks[0]));
        turn("value coefficients", &|host| turn_factor(&mut host.value.coefficients, tokens, ranks[1]));
        turn("value basis", &|host| turn_factor(&mut host.value.basis, width, ranks[1]));
        turn("no join", &|host| host.before.as_mut().map(|(_, lse)| lse.fill(f64::NEG_INFINITY)));
        wrong
    }
}
