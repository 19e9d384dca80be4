//! In which form adapters are held on the device: as they are encoded, or unpacked to dense factors when they get there.

use std::collections::{BTreeMap, BTreeSet};

use super::class::{self, Form};
use crate::adapters::encoded::{EncodedAdapter, EncodedProjection, SharedProjection};
use crate::device::Hints;
use crate::dtype::DType;
use crate::error::{Error, Result};

/// Whether adapters are unpacked when they get to the device.
///
/// An unpacked projection is LoRA as it is trained: two dense factors in the engine's dtype, the core and the scale in them, private to the
/// adapter. All ranks up to 16 share a launch, likewise those up to 32, 64, 128 and 256. A scale that is no power of two rounds the output
/// factor once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unpack {
    /// Where launches are the faster for it: on a device that says so ([`Hints::dense_adapters`](crate::device::Hints)), in f16 and bf16, and in
    /// every projection but those whose adapters all have codes over shared input bases, the form that S2LC published, of a rank that is a multiple
    /// of 8.
    #[default]
    WhereFaster,
    /// Always, but for adapters of more than 256 columns.
    Always,
    /// Never: adapters take the bytes that they have in the bundle.
    Never,
}

impl Unpack {
    /// What it says of a device and a type.
    pub(super) fn on(self, hints: Hints, dtype: DType) -> Self {
        if self == Self::WhereFaster && !(hints.dense_adapters && dtype != DType::F32) { Self::Never } else { self }
    }
}

/// The forms that a projection of an adapter may be held in.
pub struct Forms {
    encoded: Form,
    /// `None` where it is never unpacked.
    unpacked: Option<Form>,
}

impl Forms {
    /// The forms of a projection that [`class::check`] let pass.
    fn of(unpack: Unpack, path: &str, projection: &EncodedProjection, shared: &SharedProjection) -> Self {
        let unpacked = if unpack == Unpack::Never { None } else { Form::unpacked(path, projection, shared) };
        Self { encoded: Form::of(path, projection, shared), unpacked }
    }

    /// The forms of an adapter's projections, in their order.
    ///
    /// # Errors
    /// A projection that the population lacks, or that does not fit what it shares.
    pub fn all(unpack: Unpack, shared: &BTreeMap<String, SharedProjection>, name: &str, adapter: &EncodedAdapter) -> Result<Vec<Self>> {
        let of = |(path, projection): (&String, &EncodedProjection)| {
            let shared = shared.get(path).ok_or_else(|| Error::invalid(format!("adapter {name}"), "projections of the population", path))?;
            class::check(name, path, projection, shared)?;
            Ok(Self::of(unpack, path, projection, shared))
        };
        adapter.projections.iter().map(of).collect()
    }
}

/// The decision for each projection.
pub struct Served {
    /// Whether adapters are unpacked.
    pub unpack: Unpack,
    /// The forms that stay as they are encoded.
    kept: BTreeMap<String, Form>,
}

impl Served {
    /// The decision for the projections of a population.
    pub fn new<'a>(unpack: Unpack, forms: impl IntoIterator<Item = &'a Forms>) -> Self {
        let (mut kept, mut mixed) = (BTreeMap::<String, Form>::new(), BTreeSet::new());
        for Forms { encoded, .. } in forms {
            match kept.get(encoded.path()) {
                Some(known) if known.same_class(encoded) => {}
                Some(_) => drop(mixed.insert(encoded.path().to_owned())),
                None => drop(kept.insert(encoded.path().to_owned(), encoded.clone())),
            }
        }
        kept.retain(|path, form| unpack != Unpack::Always && form.is_fast() && !mixed.contains(path));
        Self { unpack, kept }
    }

    /// The form in which a projection is held.
    pub fn choose(&self, forms: Forms) -> Form {
        let Forms { encoded, unpacked } = forms;
        let kept = self.kept.get(encoded.path()).is_some_and(|kept| kept.same_class(&encoded));
        unpacked.filter(|_| !kept).unwrap_or(encoded)
    }

    /// The form in which the projection of an adapter, which [`class::check`] let pass, is held.
    pub fn form(&self, path: &str, projection: &EncodedProjection, shared: &SharedProjection) -> Form {
        self.choose(Forms::of(self.unpack, path, projection, shared))
    }

    /// An adapter's encoding in the projection of `form`, where it is held in that form, and what the population shares of it.
    pub fn held<'a>(
        &self,
        form: &Form,
        adapter: &'a EncodedAdapter,
        shared: &'a BTreeMap<String, SharedProjection>,
    ) -> Option<(&'a EncodedProjection, &'a SharedProjection)> {
        let path = form.path();
        let (projection, shared) = (adapter.projections.get(path)?, shared.get(path)?);
        form.same_class(&self.form(path, projection, shared)).then_some((projection, shared))
    }
}
