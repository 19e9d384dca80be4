//! The shaders of `attention` in every specialisation: see `shaders/attention/forward.wgsl`.

use super::source::{Constant, Element, File, Operand, Source, shader};
use crate::dtype::DType;
use crate::ops::attention::Form;

const PLACE: File = shader!("attention/place.wgsl");
const FORWARD: File = shader!("attention/forward.wgsl");
const WHOLE: File = shader!("attention/whole.wgsl");
const PART: File = shader!("attention/part.wgsl");
const COMBINE: File = shader!("attention/combine.wgsl");

/// How a workgroup divides its work: groups of four rows, and the invocations that share the rows of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    row_groups: u32,
    columns: u32,
}

impl Layout {
    /// Layouts for one query, for a few (decoding with grouped heads), and for many.
    const ALL: [Self; 3] = [Self { row_groups: 1, columns: 32 }, Self { row_groups: 2, columns: 32 }, Self { row_groups: 8, columns: 16 }];

    /// The layout of the ragged paged form, whatever the rows: in another one sums are in another order.
    pub const RAGGED_PAGES: Self = Self::ALL[1];

    /// The smallest layout with at least `rows` rows, or else the largest.
    pub fn for_rows(rows: u64) -> Self {
        let [small, middle, large] = Self::ALL;
        *[small, middle].iter().find(|layout| rows <= layout.rows()).unwrap_or(&large)
    }

    /// Rows of a workgroup.
    pub const fn rows(self) -> u64 {
        self.row_groups as u64 * 4
    }

    /// Invocations of a workgroup.
    pub const fn lanes(self) -> u64 {
        (self.row_groups * self.columns) as u64
    }
}

/// A stage of attention, which has a shader of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The stage that attends to all keys of a tile of rows.
    Whole,
    /// The stage that attends to a part of the keys, and writes to the workspace.
    Part,
    /// The stage that combines the parts into the result.
    Combine,
}

impl Stage {
    const fn files(self, form: &Form) -> &'static [File] {
        /// The files of each stage with those of a form.
        macro_rules! with_form {
            ($form:literal) => {
                match self {
                    Self::Whole => &[PLACE, shader!($form), FORWARD, WHOLE],
                    Self::Part => &[PLACE, shader!($form), FORWARD, PART],
                    Self::Combine => &[PLACE, shader!($form), COMBINE],
                }
            };
        }
        match form {
            Form::Dense => with_form!("attention/dense.wgsl"),
            Form::Varlen(_) => with_form!("attention/varlen.wgsl"),
            Form::Blocks(_) => with_form!("attention/blocks.wgsl"),
            Form::BlockMap(_) => with_form!("attention/block_map.wgsl"),
            Form::Paged(_) => with_form!("attention/paged.wgsl"),
            Form::RaggedPaged(_) => &[PLACE, shader!("attention/ragged_pages.wgsl"), FORWARD, WHOLE],
        }
    }
}

/// What a plan fixes of its shaders.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    pub variant: &'static str,
    pub dtype: DType,
    pub form: Form,
    /// Whether q, k and v of a sequence lie at its slot.
    pub at_slots: bool,
    pub head_dim: u64,
    pub layout: Layout,
    pub lse: bool,
}

impl Kind {
    pub fn source(&self, stage: Stage) -> Source {
        let float = Element::Float(self.dtype);
        let f32 = Element::Float(DType::F32);
        let f16 = self.variant == "f16" && stage != Stage::Combine;
        let (reads, ends) = (stage != Stage::Combine, stage != Stage::Part);
        let partial = if stage == Stage::Part { Operand::write("partial", f32) } else { Operand::read("partial", f32) };
        Source {
            kernel: format!("attention {} {}", self.variant, self.dtype),
            files: stage.files(&self.form),
            operands: vec![
                Operand::read("q", float).when(reads),
                Operand::read("k", float).when(reads),
                Operand::read("v", float).when(reads),
                Operand::read("index", Element::I32).when(self.form != Form::Dense),
                Operand::read("slots", Element::I32).when(self.at_slots && reads),
                Operand::write("o", float).when(ends),
                Operand::write("lse", f32).when(self.lse && ends),
                partial.when(stage != Stage::Whole),
            ],
            constants: vec![
                ("HEAD_DIM", Constant::U32(self.head_dim as u32)),
                ("ROW_GROUPS", Constant::U32(self.layout.row_groups)),
                ("COLUMNS", Constant::U32(self.layout.columns)),
                // Quads of a head that are staged at a time, of as many bytes in f16 as in f32.
                ("DEPTH", Constant::U32(if f16 { 16 } else { 8 })),
                ("SPLIT", Constant::Bool(stage != Stage::Whole)),
                ("WITH_LSE", Constant::Bool(self.lse)),
                ("AT_SLOTS", Constant::Bool(self.at_slots)),
                ("Staged", Constant::Type(if f16 { "f16" } else { "f32" })),
            ],
            f16,
        }
    }
}

/// Every specialisation, at the head dimensions between which the shader changes in numbers alone.
pub(super) fn sources() -> Vec<Source> {
    use crate::ops::index::{BlockShape, MapShape, PageShape, RaggedShape, VarlenShape};
    let forms = [
        Form::Dense,
        Form::Varlen(VarlenShape { batch: 1, total_q: 1, total_kv: 1, max_q: 1, max_kv: 1 }),
        Form::Blocks(BlockShape { block: 64, q_blocks: 1, kv_blocks: 1, patterns: 1, capacity: 1, masks: 0 }),
        Form::BlockMap(MapShape { block: 64, q_blocks: 1, kv_blocks: 1, patterns: 1 }),
        Form::Paged(PageShape { batch: 1, pages: 1, page: 1, pool_pages: 1 }),
    ];
    let types = DType::ALL.map(|dtype| ("portable", dtype)).into_iter().chain([("f16", DType::F16)]);
    let mut all = Vec::new();
    for (variant, dtype) in types {
        for layout in Layout::ALL {
            let kind = |form, head_dim, lse| Kind { variant, dtype, form, at_slots: false, head_dim, layout, lse };
            // All head dimensions for one form, then all forms for one head dimension that is no multiple.
            let kinds = [1, 32, 64, 100, 129, 192, 256].map(|head_dim| kind(Form::Dense, head_dim, true)).into_iter();
            for kind in kinds.chain(forms.into_iter().flat_map(|form| [kind(form, 107, false), kind(form, 107, true)])) {
                all.extend([Stage::Whole, Stage::Part, Stage::Combine].map(|stage| kind.source(stage)));
            }
            // Neither sequences end to end nor pages are at slots.
            for form in forms.into_iter().filter(|form| *form == Form::Dense || form.is_sparse()) {
                let kind = Kind { at_slots: true, ..kind(form, 107, true) };
                all.extend([Stage::Whole, Stage::Part].map(|stage| kind.source(stage)));
            }
        }
        let form = Form::RaggedPaged(RaggedShape { batch: 1, total_q: 1, max_q: 1, pages: 1, page: 1, pool_pages: 1 });
        all.extend(
            [false, true].map(|lse| Kind { variant, dtype, form, at_slots: false, head_dim: 107, layout: Layout::RAGGED_PAGES, lse }.source(Stage::Whole)),
        );
    }
    all
}
