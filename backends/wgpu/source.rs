//! The text of a shader: constants, operands and their accessors, the prelude, then the shader's own files.

use std::fmt::Write;

use crate::dtype::DType;

/// A file of `shaders/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct File {
    /// Path of the file in `shaders/`.
    pub name: &'static str,
    /// Text of the file.
    pub text: &'static str,
}

/// The [`File`] of a name.
macro_rules! shader {
    ($name:literal) => {
        $crate::backends::wgpu::source::File { name: $name, text: include_str!(concat!("../../shaders/", $name)) }
    };
}
pub(super) use shader;

const PRELUDE: File = shader!("prelude.wgsl");
const HALF_READ: File = shader!("operand/half_read.wgsl");
const HALF_WRITE: File = shader!("operand/half_write.wgsl");
const FULL_READ: File = shader!("operand/full_read.wgsl");
const FULL_WRITE: File = shader!("operand/full_write.wgsl");
const INTEGER_READ: File = shader!("operand/integer_read.wgsl");
const ABSENT: File = shader!("operand/absent.wgsl");

/// The type of an operand's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// Floating-point numbers, which a shader sees as f32.
    Float(DType),
    /// Index data.
    I32,
    /// Packed words. Where they are written, the binding is `array<atomic<u32>>`, without accessors.
    U32,
}

impl Element {
    /// Bytes an element.
    pub const fn size(self) -> u64 {
        match self {
            Self::Float(dtype) => dtype.size(),
            Self::I32 | Self::U32 => 4,
        }
    }

    /// The type that `load_…` returns.
    const fn loaded(self) -> &'static str {
        match self {
            Self::Float(_) => "f32",
            Self::I32 => "i32",
            Self::U32 => "u32",
        }
    }
}

/// One operand of a shader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Name of the operand in the shader.
    pub name: &'static str,
    /// Type of the operand's elements.
    pub element: Element,
    /// Whether the shader writes it.
    pub written: bool,
    /// Whether the operand is present. If not, it reads as zeros and takes no binding.
    pub present: bool,
}

impl Operand {
    /// An operand that is only read.
    pub const fn read(name: &'static str, element: Element) -> Self {
        Self { name, element, written: false, present: true }
    }

    /// An operand that is written, and may be read.
    pub const fn write(name: &'static str, element: Element) -> Self {
        Self { name, element, written: true, present: true }
    }

    /// This operand, present only where `present` is true.
    pub const fn when(self, present: bool) -> Self {
        Self { present, ..self }
    }

    /// The element type of the binding, and the files its accessors are made from.
    fn parts(&self) -> (&'static str, Vec<File>) {
        let with = |read, write| if self.written { vec![read, write] } else { vec![read] };
        match (self.element, self.written) {
            _ if !self.present => ("", vec![ABSENT]),
            (Element::Float(DType::F32), _) => ("f32", with(FULL_READ, FULL_WRITE)),
            (Element::Float(_), false) => ("u32", vec![HALF_READ]),
            (Element::Float(_), true) => ("atomic<u32>", vec![HALF_READ, HALF_WRITE]),
            (Element::I32, false) => ("i32", vec![INTEGER_READ]),
            (Element::I32, true) => ("atomic<i32>", vec![]),
            (Element::U32, false) => ("u32", vec![INTEGER_READ]),
            (Element::U32, true) => ("atomic<u32>", vec![]),
        }
    }

    fn compose(&self, binding: usize, text: &mut String) {
        let Self { name, element, .. } = self;
        let (stored, files) = self.parts();
        if self.present {
            let _ = writeln!(text, "@group(0) @binding({binding}) var<storage, read_write> {name}: array<{stored}>;");
        }
        if let (true, Element::Float(DType::F16 | DType::BF16)) = (self.present, element) {
            let load = if self.written { format!("atomicLoad(&{name}[at])") } else { format!("{name}[at]") };
            let _ = writeln!(text, "fn word_{name}(at: u32) -> u32 {{ return {load}; }}");
        }
        let format = match element {
            Element::Float(dtype) if self.present => dtype.name(),
            other => other.loaded(),
        };
        for file in files {
            text.push_str(&file.text.replace("NAME", name).replace("FORMAT", format));
        }
    }
}

/// A constant in front of a shader.
#[derive(Clone, Debug, PartialEq)]
pub enum Constant {
    /// A number: `const NAME = 1u;`
    U32(u32),
    /// A flag: `const NAME = true;`
    Bool(bool),
    /// A type: `alias NAME = f16;`
    Type(&'static str),
    /// Words that a plan fixes; the shader reads them by `load_NAME(i: u32) -> u32`.
    Table(Vec<u32>),
}

/// A shader in one specialisation.
#[derive(Clone, Debug)]
pub struct Source {
    /// Name of the kernel in errors: the operation, the variant, the element type.
    pub kernel: String,
    /// Files of the kernel's own, after the prelude.
    pub files: &'static [File],
    /// Operands of the kernel, in the order they are bound.
    pub operands: Vec<Operand>,
    /// Constants and type aliases of the kernel.
    pub constants: Vec<(&'static str, Constant)>,
    /// Whether the shader computes or stages in f16, which not every adapter can.
    pub f16: bool,
}

impl Source {
    /// The whole text of the shader.
    pub fn compose(&self) -> String {
        let mut text = String::new();
        if self.f16 {
            text.push_str("enable f16;\n");
        }
        for (name, constant) in &self.constants {
            let _ = match constant {
                Constant::U32(value) => writeln!(text, "const {name} = {value}u;"),
                Constant::Bool(value) => writeln!(text, "const {name} = {value};"),
                Constant::Type(value) => writeln!(text, "alias {name} = {value};"),
                Constant::Table(words) => {
                    let list = words.iter().map(|word| format!("{word}u")).collect::<Vec<_>>().join(", ");
                    let count = words.len();
                    // A variable is used, because not every driver lets a run-time index into a constant array.
                    writeln!(text, "fn load_{name}(i: u32) -> u32 {{\n    var words = array<u32, {count}>({list});\n    return words[i];\n}}")
                }
            };
        }
        text.push_str("struct Launch {\n    groups: u32,\n");
        for operand in self.present() {
            let _ = writeln!(text, "    {}_offset: u32,", operand.name);
        }
        text.push_str("    params: Params,\n}\nvar<immediate> launch: Launch;\n");
        let mut binding = 0;
        for operand in &self.operands {
            operand.compose(binding, &mut text);
            binding += usize::from(operand.present);
        }
        for file in std::iter::once(&PRELUDE).chain(self.files) {
            text.push_str(file.text);
        }
        text
    }

    /// The operands that are present, in the order of their bindings.
    pub fn present(&self) -> impl Iterator<Item = &Operand> {
        self.operands.iter().filter(|operand| operand.present)
    }

    /// The names of all files that the text is made of.
    pub fn file_names(&self) -> Vec<&'static str> {
        let own = self.files.iter().map(|file| file.name);
        let access = self.operands.iter().flat_map(|operand| operand.parts().1).map(|file| file.name);
        own.chain(access).chain([PRELUDE.name]).collect()
    }
}
