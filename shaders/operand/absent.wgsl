// NAME is not there: it reads as zeros, and the compiler drops what is added to it.

fn load_NAME(i: u32) -> FORMAT {
    return FORMAT(0);
}

fn load4_NAME(i: u32) -> vec4<FORMAT> {
    return vec4<FORMAT>();
}
