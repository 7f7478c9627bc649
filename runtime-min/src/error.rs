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
    /// The validation layer was asked for and is not installed.
    NoValidationLayer,
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
    /// The weights cannot be used.
    Weights(WeightsError),
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
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the messages say what the fields are")]
pub enum WeightsError {
    /// The file cannot be opened or mapped.
    Io { path: String, reason: String },
    /// It does not start with the magic of a weight file.
    NotWeights,
    /// A format version that this runtime does not read.
    Version { found: u32, supported: u32 },
    /// Fewer or more bytes of payload than the program's weights.
    Size { need: u64, got: u64 },
    /// Weights of another program or of another compilation: the header has another hash.
    Foreign { need: u64, got: u64 },
    /// The bytes do not have the hash: flipped or overwritten.
    Corrupt { need: u64, got: u64 },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Loader(reason) => write!(f, "no usable Vulkan loader: {reason}"),
            Error::NoDevice { wanted, found } => write!(f, "no Vulkan device matches {wanted}; found: {found:?}"),
            Error::NoValidationLayer => write!(f, "VK_LAYER_KHRONOS_validation is not installed"),
            Error::Requirement { what, need, fact } => {
                write!(f, "this GPU offers {what} {fact}, the program needs {need}")
            }
            Error::Missing { what } => write!(f, "this GPU has no {what}, which the program needs"),
            Error::Description(reason) => write!(f, "program tables are inconsistent: {reason}"),
            Error::Argument { what, need, got } => write!(f, "{what}: got {got}, the entry point takes {need}"),
            Error::Found { name, value, min, max } => {
                write!(f, "the data make size {name} {value}, memory is planned for {min} to {max}")
            }
            Error::Weights(error) => write!(f, "weights: {error}"),
            Error::OutOfMemory { what, bytes } => write!(f, "no device memory left for {what} of {bytes} bytes"),
            Error::SlotsBusy { n_slots } => write!(f, "all {n_slots} slots of the session are in flight"),
            Error::DeviceLost { step } => write!(f, "the GPU was lost at {step}"),
            Error::Vulkan { call, code } => write!(f, "{call} failed: {:?}", vk::Result::from_raw(*code)),
        }
    }
}

impl fmt::Display for WeightsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightsError::Io { path, reason } => write!(f, "{path}: {reason}"),
            WeightsError::NotWeights => write!(f, "not a weight file (magic JVCW is missing)"),
            WeightsError::Version { found, supported } => {
                write!(f, "weight file of version {found}, this runtime reads version {supported}")
            }
            WeightsError::Size { need, got } => write!(f, "{got} bytes of payload, the program needs {need}"),
            WeightsError::Foreign { need, got } => {
                write!(f, "made for another program (hash {got:016x}, the program needs {need:016x})")
            }
            WeightsError::Corrupt { need, got } => {
                write!(f, "the payload is damaged (its hash is {got:016x}, the header says {need:016x})")
            }
        }
    }
}

impl std::error::Error for Error {}
impl std::error::Error for WeightsError {}

impl From<WeightsError> for Error {
    fn from(error: WeightsError) -> Error {
        Error::Weights(error)
    }
}

/// Names the Vulkan call in an error.
pub(crate) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, Error>;
}

impl<T> Named<T> for Result<T, vk::Result> {
    fn named(self, call: &'static str) -> Result<T, Error> {
        self.map_err(|code| Error::Vulkan { call, code: code.as_raw() })
    }
}
