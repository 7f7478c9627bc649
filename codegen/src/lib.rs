//! A fully resolved [`plan::Plan`] in, the files of a standalone crate out. Leaf crate: it knows no graph, kernel template or device.

pub mod plan;
pub mod weights;
