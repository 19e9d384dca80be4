// Whole numbers of 64 bits, as a high and a low word.

// The product of two words.
fn product(a: u32, b: u32) -> vec2<u32> {
    let low = (a & 0xffffu) * (b & 0xffffu);
    let left = (a >> 16u) * (b & 0xffffu) + (low >> 16u);
    let right = (a & 0xffffu) * (b >> 16u) + (left & 0xffffu);
    return vec2<u32>((a >> 16u) * (b >> 16u) + (left >> 16u) + (right >> 16u), a * b);
}

// The sum of two numbers, modulo 2^64.
fn add_wide(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    let low = a.y + b.y;
    return vec2<u32>(a.x + b.x + select(0u, 1u, low < a.y), low);
}
