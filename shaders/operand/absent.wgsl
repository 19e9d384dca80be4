// NAME is not there: it reads as zeros, what is written to it is dropped, and the compiler drops both.

fn load_NAME(i: u32) -> FORMAT {
    return FORMAT(0);
}

fn load4_NAME(i: u32) -> vec4<FORMAT> {
    return vec4<FORMAT>();
}

fn store_NAME(i: u32, value: FORMAT) {}

fn store4_NAME(i: u32, values: vec4<FORMAT>) {}
