//! Pipeline cache data on disk: one file per program and device, thrown away whenever anything about it is off.

use std::path::{Path, PathBuf};

use ash::vk;

use crate::error::{Error, Named as _};
use crate::queue::Device;
use crate::weights::content_hash;

/// Where compiled pipelines are kept between processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CacheDir {
    /// Nowhere.
    None,
    /// The user's cache folder; nowhere on systems without one.
    #[default]
    Default,
    /// A folder, made when it is not there.
    Path(PathBuf),
}

const MAGIC: [u8; 4] = *b"JVCP";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 52;

impl CacheDir {
    fn folder(&self) -> Option<PathBuf> {
        match self {
            CacheDir::None => None,
            CacheDir::Path(path) => Some(path.clone()),
            CacheDir::Default => {
                let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
                let base = if cfg!(windows) {
                    var("LOCALAPPDATA")
                } else if cfg!(target_os = "macos") {
                    var("HOME").map(|home| home.join("Library/Caches"))
                } else {
                    var("XDG_CACHE_HOME").or_else(|| var("HOME").map(|home| home.join(".cache")))
                };
                base.map(|base| base.join("jvc"))
            }
        }
    }
}

/// Runs `build` with a pipeline cache that starts from the file and is written back when it has grown. Trouble with the file never
/// fails the build: the file only saves time.
pub(crate) fn with<T>(
    device: &Device,
    dir: &CacheDir,
    program: &str,
    build: impl FnOnce(vk::PipelineCache) -> Result<T, Error>,
) -> Result<T, Error> {
    let path = dir.folder().map(|folder| folder.join(file_name(device, program)));
    let before = path.as_deref().and_then(|path| read(device, path)).unwrap_or_default();
    let info = vk::PipelineCacheCreateInfo::default().initial_data(&before);
    // SAFETY: the data is empty, or what this driver wrote: header, UUID and checksum were compared.
    let cache = unsafe { device.raw.create_pipeline_cache(&info, None) }.named("vkCreatePipelineCache")?;
    let built = build(cache);
    // SAFETY: no thread uses the cache any more.
    let after = unsafe {
        let after = device.raw.get_pipeline_cache_data(cache);
        device.raw.destroy_pipeline_cache(cache, None);
        after
    };
    if let (Some(path), Ok(after), true) = (path, after, built.is_ok()) {
        // One driver adds another header of 32 bytes at every start: that is nothing new.
        if before.is_empty() || after.len() > before.len() + 32 {
            let _ = write(device, &path, &after);
        }
    }
    built
}

fn file_name(device: &Device, program: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
    let program: String = program.chars().map(plain).collect();
    let uuid = u128::from_be_bytes(device.info.pipeline_cache_uuid);
    format!("{program}-{:04x}-{:04x}-{uuid:032x}.bin", device.info.vendor_id, device.info.device_id)
}

/// Magic, version, vendor, device, driver version, cache UUID, payload bytes, checksum.
fn header(device: &Device, payload: &[u8]) -> Vec<u8> {
    let info = &device.info;
    let words = [VERSION, info.vendor_id, info.device_id, info.driver_version].map(u32::to_le_bytes);
    let sums = [payload.len() as u64, content_hash(payload)].map(u64::to_le_bytes);
    [&MAGIC, words.as_flattened(), &info.pipeline_cache_uuid, sums.as_flattened()].concat()
}

/// The payload, if the file is whole and this driver's: then the driver wrote it, so it can be trusted with it.
fn read(device: &Device, path: &Path) -> Option<Vec<u8>> {
    let file = std::fs::read(path).ok()?;
    let (header_bytes, payload) = file.split_at_checked(HEADER_BYTES)?;
    (header_bytes == header(device, payload)).then(|| payload.to_vec())
}

/// Written beside and renamed, so that a reader finds the old file or the new one.
fn write(device: &Device, path: &Path, payload: &[u8]) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let beside = path.with_extension(format!("{}.tmp", std::process::id()));
    std::fs::write(&beside, [&header(device, payload), payload].concat())?;
    std::fs::rename(&beside, path).inspect_err(|_| {
        let _ = std::fs::remove_file(&beside);
    })
}
