//! How large the house is: counts that a design fixed, and that may not grow unnoticed.

use std::collections::HashSet;

use libtest_mimic::Trial;
use trifuse::backends::cuda::catalogue;
use trifuse::backends::cuda::jit::Arch;

use super::trial;

/// Names of variants, at most. The design asked for 32. Kernels of one family are configurations of one variant; what is left apart differs in more than how
/// an operand is brought: `sgmv_long` prepares factors for products, which find it by its name; `sgmv_simt` has no tensor cores, and a variant has one
/// instruction; `sm90_swap_ab` has another operand in registers; `sm90_varlen`, `sm80_varlen_short` and `sm80_ragged_pages` read other forms;
/// `sm90_skinny_gated` writes one y of two products, which no configuration of `sm90_skinny` does.
const VARIANTS: usize = 31;
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
