//! The small Vulkan runtime that generated crates link: it loads a program onto a device once, records its steps once, and then a run
//! writes inputs and submits. It knows buffers, kernels and barriers; it has no idea of tensors, operations or element types.
//!
//! - [`Gpu`] is an open (or borrowed) device; [`GpuInfo`] its facts; [`Requirements`] what a program needs of it.
//! - [`Model`] is a program on a device: kernels, and weights from a [`WeightSource`].
//! - [`Session`] is one entry point with its slots. A *slot* is a run in flight: an arena, an I/O table and a symbol table. Kernels
//!   get addresses of these in push constants, so one recording serves every shape, and an external buffer is bound by writing one
//!   entry of the I/O table.
//! - [`Recorder`] is what the program's record function calls, once per slot.
//!
//! ```no_run
//! use jvc_runtime::*;
//!
//! # fn main() -> Result<(), Error> {
//! // One kernel that doubles floats: y = table[1], x = table[0], n = word 0 of the symbol table.
//! let kernel = KernelDesc { name: "double", code: Spirv::Bytes(b""), n_bases: 2, n_operands: 2, subgroup: 0 };
//! let program = ProgramDesc { name: "demo", requirements: Requirements::NONE, kernels: &[kernel], weights: WeightsDesc::default() };
//! let port = |output| IoDesc { max_bytes: 4096, output };
//! let entry = EntryDesc {
//!     name: "main",
//!     arena_bytes: &[],
//!     io: &[port(false), port(true)],
//!     table_words: 4,
//!     state_bytes: 0,
//!     state_init: &[],
//!     record: &|r| {
//!         r.step_label("double x");
//!         r.dispatch(0, &[Base::IoTable, Base::Symbols], &[0, 1], Groups::Table(1));
//!     },
//! };
//! let gpu = Gpu::open(&Select::Auto)?;
//! let model = Model::load(&gpu, &program, WeightSource::None, &CacheDir::None)?;
//! let mut session = model.session(&entry)?;
//! let (x, mut y) = ([0; 400], [0; 400]);
//! session.run(&[100, 2, 1, 1], &[&x], &mut [&mut y])?;
//! # Ok(())
//! # }
//! ```

#![allow(unsafe_code, reason = "Vulkan is called here and nowhere else; each block says why it is sound")]

mod bindings;
mod cache;
mod element;
mod error;
mod gpu;
mod info;
mod instance;
mod kernel;
mod mapped;
mod memory;
mod profile;
mod program;
mod recorder;
mod require;
mod session;
mod weights;

pub use bindings::{Bound, Region};
pub use cache::CacheDir;
pub use element::{Element, bytes_of, bytes_of_mut};
pub use error::{Error, WeightsError};
pub use gpu::{BorrowedDevice, Fault, Gpu, Options, Select};
pub use info::{CooperativeShape, Features, GpuInfo, GpuKind, Heap, Limits};
pub use instance::{Validation, ValidationLog};
pub use kernel::{KernelDesc, Spirv};
pub use mapped::map_file;
pub use memory::{Buffer, MemoryKind};
pub use profile::{Profile, StepTime};
pub use program::{EntryDesc, IoDesc, Model, ProgramDesc, StateInit};
pub use recorder::{Base, Groups, Recorder};
pub use require::{Cooperative, Requirements};
pub use session::{Arenas, MemoryReport, Session, SessionOptions, SlotBytes, Ticket};
pub use weights::{WeightSource, WeightsDesc, content_hash};
