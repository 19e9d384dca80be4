//! How large the house is: counts that a design fixed, and that may not grow unnoticed.

use std::collections::HashSet;

use libtest_mimic::Trial;
use trifuse::backends::cuda::catalogue;
use trifuse::backends::cuda::jit::Arch;

use super::trial;

/// Names of variants, at most. The design asked for 32: two are of LoRA as it is trained, one is of `sample`, one of `checksum`, one of a server's steps, three
/// are of a decoder's steps with fewer launches (`sm80_gemv`, `sm80_decode_block`, `heads`), and two are of groups of products.
const VARIANTS: usize = 32;
/// Kernels of all architectures that are checked, each counted once for each machine code, at most: what the design asked for.
const KERNELS: usize = 3500;

pub fn trials() -> Vec<Trial> {
    vec![trial("house: variants and kernels stay few", None, || {
        let entries = catalogue();
        println!("variants: {}", entries.len());
        let mut names: HashSet<&str> = HashSet::new();
        let mut all = HashSet::new();
        for arch in Arch::CHECKED {
            let mut units = HashSet::new();
            for unit in entries.iter().flat_map(|entry| [entry.units(arch), entry.helpers(arch)]).flatten() {
                names.extend(unit.entries);
                if unit.entries.len() != 1 {
                    return Err(format!("{}: {} kernels in a unit", unit.name, unit.entries.len()).into());
                }
                units.insert(unit.hash(arch));
            }
            println!("kernels compiled for {arch}: {}", units.len());
            all.extend(units);
        }
        let all = all.len();
        println!("kernels compiled for all architectures: {all}");
        println!("kernel entries: {}", names.len());
        match (entries.len() <= VARIANTS, all <= KERNELS) {
            (true, true) => Ok(()),
            _ => Err(format!("expected at most {VARIANTS} variants and {KERNELS} kernels; found {} and {all}", entries.len()).into()),
        }
    })]
}
