//! The runtime on whatever Vulkan driver is there.

mod run;
mod support;
