use super::tensors::{Tensors, dtype_named, in_f32};
use crate::cases::{Posed, Problem};
use crate::oracle::codebook_gemm::{FactorHost, Host, SliceHost};
use trifuse::error::Result;
use trifuse::ops::codes::{CODEBOOK_LEN, CodeWidth};
use trifuse::ops::index::{AdapterCodes, Codes, CodesShape, TokenAdapters};
use trifuse::ops::{CodebookGemm, Op};

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Params {
    dtype: String,
    accumulate: bool,
    scaling: Vec<f64>,
}

pub(super) fn read(tensors: &mut Tensors) -> Result<(Problem, Vec<Vec<Option<f64>>>)> {
    let params: Params = tensors.params()?;
    let dtype = dtype_named(tensors, &params.dtype)?;
    let [tokens, d_in] = tensors.shape("x")?;
    let [_, rank] = tensors.shape("basis")?;
    let [adapters, d_out, _] = tensors.shape("codes1")?;
    tensors.ensure(params.scaling.iter().all(|&scaling| in_f32(scaling)), "params", "scaling: numbers in the range of f32", format!("{:?}", params.scaling))?;
    tensors.ensure(params.scaling.len() as u64 == adapters, "params", &format!("scaling: {adapters} numbers"), params.scaling.len())?;
    let sizes = [adapters, d_out, d_in, rank, tokens];
    tensors.ensure(sizes.iter().all(|&size| size < 1 << 27), "codes1", "sizes below 2^27", format!("{sizes:?}"))?;

    let shape = [adapters, d_out, rank];
    let (codes1, codes2) = (tensors.codes("codes1", &shape, 16)?, tensors.codes("codes2", &shape, 8)?);
    let (codebook1, codebook2) = (tensors.float("codebook1", dtype, &[adapters, 16])?, tensors.float("codebook2", dtype, &[adapters, 8])?);
    let width = CodeWidth::Bytes;
    let (mut coded, mut codebooks) = (Vec::new(), Vec::new());
    for a in 0..adapters as usize {
        let own = a * (d_out * rank) as usize..(a + 1) * (d_out * rank) as usize;
        let made = AdapterCodes::from_indices(d_out as u32, rank as u32, width, &codes1[own.clone()], &codes2[own]);
        coded.push(tensors.at("codes1", made)?);
        let mut book = vec![0.0; CODEBOOK_LEN];
        book[width.stage1()].copy_from_slice(&codebook1[a * 16..][..16]);
        book[width.stage2()].copy_from_slice(&codebook2[a * 8..][..8]);
        codebooks.extend(book);
    }

    let mut op = CodebookGemm::s2lc(dtype, tokens, [d_in, d_out, rank], adapters as u32, width).with_accumulate(params.accumulate);
    op.slices[0].core = tensors.has("core");
    // The descriptor's own rules first, so that index data is only made for a legal one.
    tensors.at("x", op.validate())?;
    let codes = tensors.at("codes1", CodesShape::uniform(adapters as u32, d_out as u32, rank as u32, width).and_then(|shape| Codes::new(shape, &coded)))?;
    let ids = tensors.integers("token_adapter", &[tokens])?;
    let token_adapter = tensors.at("token_adapter", TokenAdapters::new(&ids, adapters as u32))?;
    let y_shape = [tokens, d_out];
    // The expected y first: it bounds what a file can make this allocate.
    let y = tensors.expected("y", &y_shape)?;
    let y_in = if params.accumulate { tensors.float("y_in", dtype, &y_shape)? } else { vec![0.0; y.len()] };
    let slice = SliceHost {
        input: FactorHost::Dense { values: tensors.float("basis", dtype, &[d_in, rank])?, basis_of: None },
        core: tensors.optional("core", dtype, &[adapters, rank, rank])?,
        output: FactorHost::Coded { codes, codebooks },
        y: y_in.clone(),
    };
    let mut expected = Vec::with_capacity(y.len());
    for (at, (&y, &before)) in y.iter().zip(&y_in).enumerate() {
        let untouched = params.accumulate && ids[at / d_out as usize] < 0;
        let place = format!("{y:e} at element {at}, of a token without an adapter");
        tensors.ensure(!untouched || y == before, "y", &format!("y_in, {before:e}"), place)?;
        expected.push((!untouched).then_some(y));
    }
    let host = Host { x: tensors.float("x", dtype, &[tokens, d_in])?, token_adapter, scaling: params.scaling, slices: vec![slice] };
    Ok((Posed { op, host }.into(), vec![expected]))
}
