//! Tells the program the level at which its own code was optimised: reports hold it, and `cargo` has no `cfg` for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=TRIFUSE_OPT_LEVEL={}", std::env::var("OPT_LEVEL").unwrap_or_default());
}
