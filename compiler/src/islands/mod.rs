//! f32 islands by an error budget (`jvc compile --precision f16 --error-budget 1e-3 --samples in.safetensors`): which operations of a program
//! must stay in f32, beyond the rules of [`crate::passes::mix_precision`], for its outputs to be off by no more than asked, at inputs that
//! the caller gives.
//!
//! The program runs on a GPU, compiled anew for each measurement: what is measured is what ships, on samples that the
//! caller knows to matter. [`mod@search`] chooses, [`measure`] compiles, runs and compares, [`mod@file`] keeps the choice:
//! compiling with the file needs neither GPU nor samples, and gives the same bytes as the search did.

mod file;
mod measure;
mod search;

pub use file::{Denominator, FILE_NAME, Island, Islands, IslandsFileError, ProgramIslands};
pub use measure::{IslandsError, Measured, Samples};
pub use search::{Found, Kept, Limits, search};
