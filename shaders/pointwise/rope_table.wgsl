// Frequencies of a table, in radians: of pair j in units of 2⁻⁶⁴ turns, the high word first. Of m · 2^(e − 150) radians it is m · 2⁶⁴/2π, 88 bits,
// shifted by 150 − e; whole turns fall off the front.
fn frequency(j: u32) -> vec2<u32> {
    let bits = bitcast<u32>(load_frequencies(j));
    let exponent = (bits >> 23u) & 0xffu;
    let significand = (bits & 0x7fffffu) | 0x800000u;
    // 2⁶⁴/2π, and the product from the lowest word to the highest.
    let high = 0x28be60dbu;
    let low = 0x9391054au;
    let first = significand * low;
    let middle = significand * high;
    let second = middle + high_product(significand, low);
    let third = high_product(significand, high) + select(0u, 1u, second < middle);
    let shift = 150u - min(exponent, 150u);
    var words = array<u32, 5>(first, second, third, 0u, 0u);
    let whole = min(shift / 32u, 3u);
    let rest = shift % 32u;
    let over = (32u - rest) % 32u;
    let from_middle = select(0u, words[min(whole + 1u, 4u)] << over, rest > 0u);
    let from_high = select(0u, words[min(whole + 2u, 4u)] << over, rest > 0u);
    let share = vec2<u32>((words[min(whole + 1u, 4u)] >> rest) | from_high, (words[whole] >> rest) | from_middle);
    // Numbers below the normal ones are next to nothing.
    let units = select(share, vec2<u32>(), exponent == 0u || shift >= 96u);
    let negative = vec2<u32>(~units.x + select(0u, 1u, units.y == 0u), ~units.y + 1u);
    return select(units, negative, (bits >> 31u) == 1u);
}
