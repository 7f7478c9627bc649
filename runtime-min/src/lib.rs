//! placeholder

mod mapped;

pub use mapped::map_file;
