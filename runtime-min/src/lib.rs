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

mod error;
mod gpu;
mod info;
mod kernel;
mod memory;
mod queue;
mod recorder;
mod session;
mod weights;

pub use error::{Error, Result};
pub use gpu::{BorrowedDevice, Gpu, Select};
pub use info::{Cooperative, Features, GpuInfo, GpuKind, Requirements};
pub use jvc_files::{CacheDir, Fault as WeightsFault, content_hash};
pub use kernel::KernelDesc;
pub use memory::{Buffer, MemoryKind};
pub use queue::SubmitBy;
pub use recorder::{Base, Groups, Recorder};
pub use session::{
    Arenas, EntryDesc, IoDesc, Model, ProgramDesc, Session, SessionOptions, StateInit, Ticket, Timestamps,
};
pub use weights::{WeightSource, WeightsDesc, map_file};

/// A number: slices of it may be seen as bytes, in the machine's order, and written as bytes.
///
/// # Safety
///
/// The type has no padding, and every bit pattern is a value.
pub unsafe trait Element: Copy {}

macro_rules! elements {
    // SAFETY: numbers have no padding, and any bits are a value.
    ($($ty:ty),*) => { $(unsafe impl Element for $ty {})* };
}

elements!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

/// The bytes of a slice.
pub fn bytes_of<T: Element>(values: &[T]) -> &[u8] {
    // SAFETY: elements have no padding, and bytes have no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// The bytes of a slice, to be written.
pub fn bytes_of_mut<T: Element>(values: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; every pattern of bytes is a value of these types.
    unsafe { std::slice::from_raw_parts_mut(values.as_mut_ptr().cast(), size_of_val(values)) }
}
