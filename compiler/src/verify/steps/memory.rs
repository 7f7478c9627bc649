//! Values as they lie in a run's memory: storage types and orders undone, and done again.

use super::link::shape;
use super::places::Stored;
use crate::device::DeviceProfile;
use crate::exec::{ExecError, Stepwise};
use crate::ir::eval::{Data, Tensor};
use crate::ir::{Graph, ValueId};
use crate::plan::weights::{narrow, widen};
use crate::schedule::inline::storage_of;
use crate::schedule::layout::{Order, channels_last, first_last};
use jvc_codegen::plan::Region;
use jvc_kernels::dtype::Storage;

/// How values of a graph lie on a device.
#[derive(Clone, Copy)]
pub(super) struct Layouts<'a> {
    pub(super) graph: &'a Graph,
    pub(super) device: &'a DeviceProfile,
    /// Values that do not lie row by row, sorted.
    pub(super) orders: &'a [(ValueId, Order)],
}

impl Layouts<'_> {
    /// The bytes of a value; `None` where a size is not known.
    ///
    /// # Errors
    /// The runtime's.
    pub(super) fn bytes(&self, run: &Stepwise<'_>, stored: Stored) -> Result<Option<Vec<u8>>, ExecError> {
        let Some(shape) = shape(self.graph, stored.value, &run.symbols()) else { return Ok(None) };
        let n: usize = shape.iter().product();
        run.read(stored.region, stored.offset, n as u64 * self.element_bytes(stored)).map(Some)
    }

    /// A value, row by row, from its bytes.
    pub(super) fn decoded(&self, run: &Stepwise<'_>, stored: Stored, bytes: Vec<u8>) -> Option<Tensor> {
        let dtype = self.graph.ty(stored.value).dtype;
        let shape = shape(self.graph, stored.value, &run.symbols())?;
        let bytes = if self.is_words(stored) { narrow(dtype, &bytes) } else { bytes };
        let places = self.places(stored, &shape);
        let t = Tensor::from_bytes(dtype, shape, &bytes)?;
        Some(match places {
            None => t,
            Some(at) => Tensor { data: each(&t.data, |i| at[i]), ..t },
        })
    }

    /// Puts a value, given row by row, in its place.
    ///
    /// # Errors
    /// The runtime's.
    pub(super) fn write(&self, run: &Stepwise<'_>, stored: Stored, t: Tensor) -> Result<(), ExecError> {
        let t = match self.places(stored, &t.shape) {
            None => t,
            Some(at) => {
                let mut from = vec![0; at.len()];
                at.iter().enumerate().for_each(|(i, &place)| from[place] = i);
                Tensor { data: each(&t.data, |i| from[i]), ..t }
            }
        };
        let bytes = t.to_bytes();
        let bytes = if self.is_words(stored) { widen(t.dtype, &bytes) } else { bytes };
        run.write(stored.region, stored.offset, &bytes)
    }

    /// The byte of an element, given by its position row by row.
    pub(super) fn byte(&self, stored: Stored, shape: &[usize], position: usize) -> u64 {
        let place = self.places(stored, shape).map_or(position, |at| at[position]);
        place as u64 * self.element_bytes(stored)
    }

    fn is_words(&self, stored: Stored) -> bool {
        storage_of(self.graph.ty(stored.value).dtype, self.device) == Storage::Word
    }

    fn element_bytes(&self, stored: Stored) -> u64 {
        if self.is_words(stored) { 4 } else { u64::from(self.graph.ty(stored.value).dtype.size_bytes()) }
    }

    /// The place of each element, where that is not its position. Ports and states are always row by row.
    fn places(&self, stored: Stored, shape: &[usize]) -> Option<Vec<usize>> {
        let order = self.orders.binary_search_by_key(&stored.value, |(v, _)| *v).map(|i| self.orders[i].1).ok()?;
        let dims: Vec<usize> = (0..shape.len()).collect();
        let dims = match order {
            Order::ChannelsLast => channels_last(&dims),
            Order::FirstLast => first_last(&dims),
            // Of weights alone.
            Order::Rows | Order::Fragments(_) => return None,
        };
        if !matches!(stored.region, Region::Arena(_)) {
            return None;
        }
        let mut strides = vec![1; shape.len()];
        let mut stride = 1;
        for &d in dims.iter().rev() {
            strides[d] = stride;
            stride *= shape[d];
        }
        let mut out = vec![0usize];
        for (n, stride) in shape.iter().zip(strides) {
            out = out.iter().flat_map(|base| (0..*n).map(move |i| base + i * stride)).collect();
        }
        Some(out)
    }
}

fn each(data: &Data, at: impl Fn(usize) -> usize) -> Data {
    match data {
        Data::Float(v) => Data::Float((0..v.len()).map(|i| v[at(i)]).collect()),
        Data::Int(v) => Data::Int((0..v.len()).map(|i| v[at(i)]).collect()),
    }
}
