//! `jvc`: an ahead-of-time compiler from PyTorch exports to standalone Vulkan crates.

pub mod ir;
