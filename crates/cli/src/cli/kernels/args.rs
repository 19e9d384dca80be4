//! What can be asked of `kernels`.

use std::path::PathBuf;

/// Arguments of `kernels`.
#[derive(Debug, clap::Args)]
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read where there are CUDA kernels"))]
pub struct Args {
    /// Compile for these architectures into the cache, and show what each kernel uses
    #[arg(long, value_name = "sm_80,sm_90a", value_delimiter = ',')]
    pub arch: Vec<String>,
    /// Write them into this one file, a pack; a machine without NVRTC has it in TRIFUSE_KERNELS
    #[arg(long, short, value_name = "PACK", requires = "arch")]
    pub output: Option<PathBuf>,
    /// Look for tensor-core instructions in the machine code too, by nvdisasm, which must be on the PATH; it takes about as long as compiling
    #[arg(long, requires = "arch")]
    pub disassemble: bool,
    /// Only this operation
    #[arg(long, value_name = "NAME")]
    pub op: Option<String>,
    /// Only this variant of each operation
    #[arg(long, value_name = "NAME")]
    pub variant: Option<String>,
}
