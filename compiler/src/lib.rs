//! `jvc`: an ahead-of-time compiler from PyTorch exports to standalone Vulkan crates.

pub mod aten;
pub mod cli;
pub mod commands;
pub mod device;
pub mod diff;
pub mod exec;
pub mod explain;
pub mod golden;
pub mod import;
pub mod ir;
pub mod islands;
pub mod measure;
pub mod memory;
pub mod options;
pub mod pass_rule;
pub mod passes;
pub mod pipeline;
pub mod plan;
pub mod predict;
pub mod report;
pub mod schedule;
pub mod tensor_file;
pub mod tune;
pub mod verify;
pub mod walkthrough;
