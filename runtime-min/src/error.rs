//! Every way the runtime can fail, with the values that explain it.

use std::fmt;

use ash::vk;
use jvc_files::{Fault, Refusal};

/// Declares the errors: what each is, its values, and its message.
macro_rules! errors {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $ty:ty),+ } => ($($message:tt)+);)+) => {
        /// What went wrong. Cheap to clone: a lost device hands out the same error again and again.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        #[expect(missing_docs, reason = "the messages say what the fields are")]
        pub enum Error { $($(#[$doc])* $name { $($field: $ty),+ }),+ }

        impl fmt::Display for Error {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Error::$name { $($field),+ } => write!(f, $($message)+)),+ }
            }
        }
    };
}

errors! {
    /// No Vulkan loader, or it refused to start.
    Loader { reason: String } => ("no usable Vulkan loader: {reason}");
    /// No device answers the selection; the names of those present.
    NoDevice { wanted: String, found: Vec<String> } => ("no Vulkan device matches {wanted}; found: {found:?}");
    /// The device offers less of something than the program needs.
    Requirement { what: &'static str, need: String, fact: String } =>
        ("this GPU offers {what} {fact}, the program needs {need}");
    /// The device lacks a feature that the program needs.
    Missing { what: &'static str } => ("this GPU has no {what}, which the program needs");
    /// Tables of a program contradict each other.
    Description { reason: String } => ("program tables are inconsistent: {reason}");
    /// An argument of a call does not fit the entry point.
    Argument { what: String, need: String, got: String } => ("{what}: got {got}, the entry point takes {need}");
    /// The data of a run give a size that memory was not planned for; the outputs of the run are worth nothing.
    Found { name: String, value: i64, min: i64, max: i64 } =>
        ("the data make size {name} {value}, memory is planned for {min} to {max}");
    /// The weight file is not this program's, or damaged.
    Weights { fault: Fault, need: String, got: String } => ("weights {fault}: got {got}, the program needs {need}");
    /// No memory left on the device.
    OutOfMemory { what: &'static str, bytes: u64 } => ("no device memory left for {what} of {bytes} bytes");
    /// Every slot of the session is in flight: wait for a ticket first, or make a session with more slots.
    SlotsBusy { n_slots: usize } => ("all {n_slots} slots of the session are in flight");
    /// The device is gone, at this step as far as it is known. Sticky: later calls on the same [`crate::Gpu`] return it again.
    DeviceLost { step: String } => ("the GPU was lost at {step}");
    /// Any other Vulkan error.
    Vulkan { call: &'static str, code: i32 } => ("{call} failed: {:?}", vk::Result::from_raw(*code));
}

impl std::error::Error for Error {}

impl From<Refusal> for Error {
    fn from(Refusal { fault, need, got }: Refusal) -> Error {
        Error::Weights { fault, need, got }
    }
}

/// The result of what can fail in this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error unless a condition holds.
pub(crate) fn ensure(holds: bool, error: impl FnOnce() -> Error) -> Result<()> {
    if holds { Ok(()) } else { Err(error()) }
}

/// An argument that does not fit.
pub(crate) fn argument(what: impl ToString, need: impl ToString, got: impl ToString) -> Error {
    Error::Argument { what: what.to_string(), need: need.to_string(), got: got.to_string() }
}

/// Names the Vulkan call that failed.
pub(crate) fn vulkan(call: &'static str) -> impl FnOnce(vk::Result) -> Error {
    move |code| Error::Vulkan { call, code: code.as_raw() }
}
