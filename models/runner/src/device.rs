//! Choosing a Vulkan device by index, name or UUID, with errors that list what there is.

use jvc_runtime::{Error, Gpu, GpuInfo, Select};
use std::fmt;

/// A device of this machine, by what can be used to choose it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Present {
    /// Position in the loader's list.
    pub index: usize,
    /// The device's own name.
    pub name: String,
    /// Stable identity of the device.
    pub uuid: [u8; 16],
}

impl From<&GpuInfo> for Present {
    fn from(info: &GpuInfo) -> Self {
        Self { index: info.index, name: info.name.clone(), uuid: info.uuid }
    }
}

/// `0: NAME (UUID)`.
impl fmt::Display for Present {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.index, self.name, uuid_text(&self.uuid))
    }
}

/// Why there is no device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// None of those present is the one that was asked for.
    #[error("no Vulkan device is {wanted:?}; --device takes an index, a part of a name or a UUID of {}", list(present))]
    NoSuch {
        /// What was asked for.
        wanted: String,
        /// What there is.
        present: Vec<Present>,
    },
    /// There is none at all.
    #[error(
        "this machine has no Vulkan device: install the GPU's Vulkan driver, or Mesa's lavapipe, which needs no GPU"
    )]
    NonePresent,
    /// The runtime could not list or open it.
    #[error("{0}")]
    Runtime(#[from] Error),
}

fn list(present: &[Present]) -> String {
    present.iter().map(|device| format!("\n  {device}")).collect()
}

/// The devices of this machine.
///
/// # Errors
/// No Vulkan loader.
pub fn present() -> Result<Vec<Present>, DeviceError> {
    Ok(Gpu::list()?.iter().map(Present::from).collect())
}

/// Opens a device: the best one, or the one that `wanted` is the index, a part of the name (any case), or the UUID of.
///
/// # Errors
/// No such device, no device at all, or one that cannot be opened.
pub fn open(wanted: Option<&str>) -> Result<Gpu, DeviceError> {
    Ok(Gpu::open(&choose(wanted, &present()?)?)?)
}

/// The selection that `wanted` means among these devices. Digits are an index if there is such a one, else a part of a name
/// (as in "4000"); 32 hexadecimal digits, with or without dashes, are a UUID.
///
/// # Errors
/// No such device, or no device at all.
pub fn choose(wanted: Option<&str>, present: &[Present]) -> Result<Select, DeviceError> {
    if present.is_empty() {
        return Err(DeviceError::NonePresent);
    }
    let Some(wanted) = wanted.filter(|text| *text != "auto") else { return Ok(Select::Auto) };
    let index = wanted.parse().ok().filter(|index| present.iter().any(|device| device.index == *index));
    let named = |device: &Present| device.name.to_lowercase().contains(&wanted.to_lowercase());
    let by_name = || present.iter().any(named).then(|| Select::Name(wanted.to_owned()));
    let uuid = uuid(wanted).filter(|uuid| present.iter().any(|device| device.uuid == *uuid));
    let found = index.map(Select::Index).or(uuid.map(Select::Uuid)).or_else(by_name);
    found.ok_or_else(|| DeviceError::NoSuch { wanted: wanted.to_owned(), present: present.to_vec() })
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let is_uuid = digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit());
    is_uuid.then(|| u128::from_str_radix(&digits, 16).ok().map(u128::to_be_bytes)).flatten()
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two() -> [Present; 2] {
        let device = |index, name: &str, byte| Present { index, name: name.to_owned(), uuid: [byte; 16] };
        [device(0, "llvmpipe (LLVM 19)", 0xab), device(1, "NVIDIA RTX 4000", 0x01)]
    }

    #[test]
    fn a_device_is_found_by_index_name_and_uuid() {
        let choose = |text: &str| choose(Some(text), &two()).expect("there is such a device");
        assert_eq!(choose("auto"), Select::Auto);
        assert_eq!(choose("1"), Select::Index(1));
        assert_eq!(choose("4000"), Select::Name("4000".to_owned()), "no index 4000, so a name");
        assert_eq!(choose("nvidia"), Select::Name("nvidia".to_owned()));
        assert_eq!(choose("01010101-0101-0101-0101-010101010101"), Select::Uuid([1; 16]));
        assert_eq!(choose(&"AB".repeat(16)), Select::Uuid([0xab; 16]));
    }

    #[test]
    fn an_unknown_device_is_an_error_that_lists_every_device_with_its_uuid() {
        let error = choose(Some("radeon"), &two()).expect_err("there is none").to_string();
        assert!(error.contains("\"radeon\"") && error.contains("1: NVIDIA RTX 4000 (01010101-0101-"), "{error}");
        assert!(choose(Some(&"cd".repeat(16)), &two()).is_err(), "a UUID of no device is no name either");
        assert!(choose(None, &[]).expect_err("none").to_string().contains("lavapipe"));
    }
}
