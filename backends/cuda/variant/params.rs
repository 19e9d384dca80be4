//! A kernel's parameters: one struct passed by value, declared once for Rust and CUDA.

/// Declares `struct Name` twice: `#[repr(C)]` in Rust, and as CUDA text that `Name::cuda()` returns and that asserts the same size.
///
/// A field is a number (`u32`, `u64`, `i32`, `f32`, `f64`), a tensor map (`map`), an array of structs (`[Name; 16]`), or an address. An
/// address is `[element]`, or `[const element]` where it is only read; it is a `u64` in Rust.
macro_rules! params {
    ($(#[$meta:meta])* $name:ident { $($(#[$note:meta])* $field:ident: $kind:tt,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name {
            $($(#[$note])* pub(crate) $field: $crate::backends::cuda::variant::params::params!(@rust $kind),)*
        }

        impl $name {
            /// The CUDA declaration of this struct.
            pub(crate) fn cuda() -> String {
                let fields = [$($crate::backends::cuda::variant::params::params!(@cuda $kind $field)),*];
                $crate::backends::cuda::variant::params::declare(stringify!($name), &fields, size_of::<Self>())
            }
        }
    };
    (@rust [const $t:ident]) => { u64 };
    (@rust [$t:ident]) => { u64 };
    (@rust [$t:ident; $count:literal]) => { [$t; $count] };
    (@rust map) => { $crate::backends::cuda::variant::tensor_map::TensorMap };
    (@rust $t:ident) => { $t };
    (@cuda [const $t:ident] $field:ident) => { concat!("const ", stringify!($t), " *", stringify!($field)) };
    (@cuda [$t:ident] $field:ident) => { concat!(stringify!($t), " *", stringify!($field)) };
    (@cuda [$t:ident; $count:literal] $field:ident) => { concat!(stringify!($t), " ", stringify!($field), "[", $count, "]") };
    (@cuda map $field:ident) => { concat!("tensor_map ", stringify!($field)) };
    (@cuda $t:ident $field:ident) => { concat!(stringify!($t), " ", stringify!($field)) };
}

pub(crate) use params;

/// The text of a CUDA struct of `fields`, with an assertion that it has `size` bytes.
pub(crate) fn declare(name: &str, fields: &[&str], size: usize) -> String {
    let body: String = fields.iter().map(|field| format!("    {field};\n")).collect();
    format!(
        "#pragma once\n#include \"ptx/copy.cuh\"\n\nstruct {name} {{\n{body}}};\n\n\
         static_assert(sizeof({name}) == {size}, \"the host's {name} has another layout\");\n"
    )
}

#[cfg(test)]
mod tests {
    params! {
        /// Parameters of a kernel that scales.
        Scaling {
            /// The operand that is read.
            x: [const element],
            /// The operand that is written.
            y: [element],
            count: u32,
            factor: f32,
        }
    }

    #[test]
    fn one_declaration_gives_both_languages() {
        let text = Scaling::cuda();
        for line in ["    const element *x;", "    element *y;", "    u32 count;", "    f32 factor;", "static_assert(sizeof(Scaling) == 24"] {
            assert!(text.contains(line), "{text}");
        }
        let rust = Scaling { x: 1, y: 2, count: 3, factor: 4.0 };
        assert_eq!((rust.x, rust.y, rust.count, rust.factor), (1, 2, 3, 4.0));
    }
}
