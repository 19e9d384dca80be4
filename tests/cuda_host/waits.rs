//! Machine code of kernels that may start before the launch before has ended: where they wait for it.

/// How the names of those kernels begin that read something before, of which the host knows what may still be written (`pdl.rs`), or that only copies
/// write it; and of those that are never started early.
const EARLY: [&str; 7] =
    ["codebook_gemm_", "attention_sm80_decode_block", "attention_sm90_decode", "pointwise_append", "pointwise_heads", "linear_gemv", "linear_skinny_lora"];
/// Instructions that reach device memory, and no other.
const REACHING: [&str; 9] = ["LDG.", "LDGSTS", "UTMALDG", "UBLKCP", "STG.", "UTMASTG", "ATOMG.", "REDG.", "RED."];
const WAIT: &str = "ACQBULK";

/// The kernels of a disassembly that reach device memory in front of their first wait, with the instruction. What the assembler has moved
/// there shows as well as what a source has there.
pub fn ahead(code: &str) -> Vec<(&str, &str)> {
    let mut found = Vec::new();
    for kernel in code.split("\n.text.").skip(1) {
        let name = kernel.split(':').next().unwrap_or_default();
        let Some((before, _)) = kernel.split_once(WAIT) else { continue };
        let instructions = before.lines().filter_map(|line| line.split_once("*/")).map(|(_, instruction)| instruction.trim());
        let reaching = |instruction: &str| instruction.split(' ').any(|word| REACHING.iter().any(|start| word.starts_with(start)));
        if !EARLY.iter().any(|start| name.starts_with(start)) {
            found.extend(instructions.filter(|instruction| reaching(instruction)).map(|instruction| (name, instruction)));
        }
    }
    found
}
