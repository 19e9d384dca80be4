// Frequencies that the host worked out of a base: of pair j in units of 2⁻⁶⁴ turns, the high word first.
fn frequency(j: u32) -> vec2<u32> {
    return vec2<u32>(load_units(2u * j), load_units(2u * j + 1u));
}
