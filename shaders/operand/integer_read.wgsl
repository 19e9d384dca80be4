// Reading NAME, integers (FORMAT).

// Element i.
fn load_NAME(i: u32) -> FORMAT {
    return NAME[launch.NAME_offset + i];
}
