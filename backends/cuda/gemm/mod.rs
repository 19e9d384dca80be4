//! Matrix products that `linear` and `fused_mlp` share.

pub(crate) mod activation;
pub(crate) mod entry;
pub(crate) mod lora;
pub(crate) mod problem;
pub(crate) mod repack;
pub(crate) mod sm80;
pub(crate) mod sm90;
