//! The runtime on whatever Vulkan driver is there.

mod borrowed;
mod faults;
mod loading;
mod pipelines;
mod run;
mod support;
mod validated;
