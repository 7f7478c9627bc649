//! Every way the runtime can fail, with the values that explain it.

use std::fmt;

use ash::vk;

/// What went wrong. Cheap to clone: a lost device hands out the same error again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum Error {
    /// No Vulkan loader, or it refused to start.
    Loader(String),
    /// No device answers the selection; the names of those present.
    NoDevice { wanted: String, found: Vec<String> },
    /// The device offers less of something than the program needs.
    Requirement { what: &'static str, need: String, fact: String },
    /// The device lacks a feature that the program needs.
    Missing { what: &'static str },
    /// Tables of a program contradict each other.
    Description(String),
    /// An argument of a call does not fit the entry point.
    Argument { what: String, need: String, got: String },
    /// The data of a run give a size that memory was not planned for; the outputs of the run are worth nothing.
    Found { name: String, value: i64, min: i64, max: i64 },
    /// The weight file is not this program's, or damaged.
    Weights { fault: WeightsFault, need: String, got: String },
    /// No memory left on the device.
    OutOfMemory { what: &'static str, bytes: u64 },
    /// Every slot of the session is in flight: wait for a ticket first, or make a session with more slots.
    SlotsBusy { n_slots: usize },
    /// The device is gone, at this step as far as it is known. Sticky: later calls on the same [`crate::Gpu`] return it again.
    DeviceLost { step: String },
    /// Any other Vulkan error.
    Vulkan { call: &'static str, code: i32 },
}

/// Why a weight file was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightsFault {
    /// It cannot be opened or mapped.
    Unreadable,
    /// It does not start as weight files do, in the version that this runtime reads.
    Format,
    /// Fewer or more bytes than the program's weights.
    Size,
    /// Weights of another program or of another compilation: the header has another hash.
    Foreign,
    /// The payload does not have the hash: flipped or overwritten bytes.
    Corrupt,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Loader(reason) => write!(f, "no usable Vulkan loader: {reason}"),
            Error::NoDevice { wanted, found } => write!(f, "no Vulkan device matches {wanted}; found: {found:?}"),
            Error::Requirement { what, need, fact } => {
                write!(f, "this GPU offers {what} {fact}, the program needs {need}")
            }
            Error::Missing { what } => write!(f, "this GPU has no {what}, which the program needs"),
            Error::Description(reason) => write!(f, "program tables are inconsistent: {reason}"),
            Error::Argument { what, need, got } => write!(f, "{what}: got {got}, the entry point takes {need}"),
            Error::Found { name, value, min, max } => {
                write!(f, "the data make size {name} {value}, memory is planned for {min} to {max}")
            }
            Error::Weights { fault, need, got } => {
                let what = match fault {
                    WeightsFault::Unreadable => "cannot be read",
                    WeightsFault::Format => "not a weight file of this version",
                    WeightsFault::Size => "of another size",
                    WeightsFault::Foreign => "made for another program, by the header's hash",
                    WeightsFault::Corrupt => "damaged, by the payload's hash",
                };
                write!(f, "weights {what}: got {got}, the program needs {need}")
            }
            Error::OutOfMemory { what, bytes } => write!(f, "no device memory left for {what} of {bytes} bytes"),
            Error::SlotsBusy { n_slots } => write!(f, "all {n_slots} slots of the session are in flight"),
            Error::DeviceLost { step } => write!(f, "the GPU was lost at {step}"),
            Error::Vulkan { call, code } => write!(f, "{call} failed: {:?}", vk::Result::from_raw(*code)),
        }
    }
}

impl std::error::Error for Error {}

/// Names the Vulkan call in an error.
pub(crate) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, Error>;
}

impl<T> Named<T> for Result<T, vk::Result> {
    fn named(self, call: &'static str) -> Result<T, Error> {
        self.map_err(|code| Error::Vulkan { call, code: code.as_raw() })
    }
}
