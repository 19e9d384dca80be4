//! Shrinking a decoder: projections become two factors each, their ranks spend a budget of parameters or of time, and what it costs is told in nats.
//!
//! A projection `W [d_out, d_in]` becomes `U·V`. What that loses is `½ tr(G·ΔW·C·ΔWᵀ)` nats a token, to second order, with the second moments
//! `C = E[xxᵀ]` of its inputs and `G` of the gradients at its outputs. One currency serves every matrix, so that one budget can be spent on all.
//!
//! | module | what is in it |
//! |---|---|
//! | [`moments`] | second moments of what every projection reads, collected by passes over text, or read from a file |
//! | [`factor`] | the factors of a projection at every rank, and what each rank loses |
//! | [`kept`] | factors that are made once, for every rank and budget that is asked for |
//! | [`weigh`] | what an error at each projection's output is worth, measured by passes with one projection truncated |
//! | [`allocate`] | the ranks that lose least within a budget, and how far from the best they can be |
//! | [`plan`] | the choices of ranks of a model, and their cost |
//! | [`profile`] | measured times of projections at each rank, and the ranks that a budget of time buys |
//! | [`store`] | a folder of the Hugging Face libraries with factors, or with their products |
//! | [`repair`] | ranks that are padded with zeros to sizes that other engines are fast at |

pub mod allocate;
pub mod factor;
pub mod kept;
pub mod moments;
pub mod plan;
pub mod profile;
pub mod repair;
pub mod store;
pub mod weigh;
