//! The small Vulkan runtime that generated crates link: it loads a program onto a device once, records its steps once, and then a run
//! writes inputs and submits. It knows buffers, kernels and barriers; it has no idea of tensors, operations or element types.
//!
//! - [`Gpu`] is an open (or borrowed) device; [`GpuInfo`] its facts; [`Requirements`] what a program needs of it.
//! - [`Model`] is a program on a device: kernels, and weights from a [`WeightSource`].
//! - [`Session`] is one entry point with its slots. A *slot* is a run in flight: an arena, an I/O table and a symbol table. Kernels
//!   get addresses of these in push constants, so one recording serves every shape, and an external buffer is bound by writing one
//!   entry of the I/O table.
//! - [`Recorder`] is what the program's record function calls, once per slot.

#![allow(unsafe_code, reason = "Vulkan is called here and nowhere else; each block says why it is sound")]

mod cache;
mod element;
mod error;
mod gpu;
mod info;
mod instance;
mod kernel;
mod memory;
mod program;
mod queue;
mod recorder;
mod require;
mod session;
mod weights;

pub use cache::CacheDir;
pub use element::{Element, bytes_of, bytes_of_mut};
pub use error::{Error, WeightsFault};
pub use gpu::{BorrowedDevice, Gpu, Select};
pub use info::{Features, GpuInfo, GpuKind, Limits};
pub use kernel::KernelDesc;
pub use memory::{Buffer, MemoryKind};
pub use program::{EntryDesc, IoDesc, Model, ProgramDesc, StateInit};
pub use recorder::{Base, Groups, Recorder};
pub use require::{Cooperative, Requirements};
pub use session::{Arenas, Session, SessionOptions, Ticket, Timestamps};
pub use weights::{WeightSource, WeightsDesc, content_hash, map_file};
