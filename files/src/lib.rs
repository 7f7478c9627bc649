//! The files that generated crates read and write: weights ([`Header`] and the hash) and pipeline caches ([`CacheDir`]). The compiler
//! writes weight files by the same code as the runtime reads them by. Bytes from a disk may be anything; since there is neither Vulkan
//! nor unsafe code here, what they can do is tested without a device.

#![forbid(unsafe_code)]

mod cache;
mod weights;

pub use cache::{CacheDir, CacheFile};
pub use weights::{
    ContentHasher, Fault, HEADER_BYTES, Header, Refusal, SEGMENT_BYTES, content_hash, copy_segments, segment_hash,
};
