//! The runtime on whatever Vulkan driver is there.
//!
//! NVIDIA's driver 580 may hang in a process that has many devices at work from many threads: run with `--test-threads=1` there.

mod binaries;
mod borrowed;
mod faults;
mod loading;
mod pipelines;
mod run;
mod support;
mod trouble;
mod validated;
