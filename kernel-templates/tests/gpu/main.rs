//! Kernels on whatever Vulkan driver is there, against their references: values, guard bytes around every operand, both interface forms.

mod access_maps;
mod attention;
mod attention_coop;
mod cooperative;
mod fft;
mod filled;
mod functions;
mod int64;
mod map;
mod matmul;
mod recurrent;
mod row;
mod scan_scatter;
mod sort;
mod spec;
mod support;
