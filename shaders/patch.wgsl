// The edges of a host write that starts or ends inside a word: the bytes beside it are kept.

struct Params {
    // The bytes of the word that stay.
    keep: u32,
    // The bytes that are written.
    bits: u32,
}

@compute @workgroup_size(1)
fn main() {
    atomicAnd(&words[launch.words_offset], launch.params.keep);
    atomicOr(&words[launch.words_offset], launch.params.bits);
}
