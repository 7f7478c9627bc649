//! What fusing gives: which values are in memory, why, and the kernels-to-be.

use super::is_leaf;
use crate::ir::{Dim, Graph, NodeId, ValueId};
use crate::schedule::inline::Place;
use crate::schedule::layout::Order;

/// One kernel-to-be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What it computes.
    pub kind: GroupKind,
    /// The value whose element its (main) store writes.
    pub result: ValueId,
    /// Position in the order: index of its last node.
    pub position: u32,
}

/// Kinds of kernels-to-be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupKind {
    /// `result` at every coordinate.
    Map,
    /// An anchor, then the nodes of its epilogue in order.
    Anchor {
        /// The anchor.
        node: NodeId,
        /// Nodes inlined at its stores.
        epilogue: Vec<NodeId>,
    },
    /// A part (`arm`) of a materialised concatenation, copied into it.
    Part {
        /// The part.
        arm: ValueId,
        /// Where it starts.
        start: Dim,
        /// Dimension of the concatenation.
        dim: usize,
    },
    /// Copies a value over the n-th state, after everything that reads the state.
    StateUpdate(u32),
    /// Writes what depends on the n-th binding's count into the symbol table.
    Bind(u32),
}

/// Why a value has its own buffer; a line of the decision log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "see `text`")]
pub enum Reason {
    Root,
    Anchor,
    SharedAndCostly,
    AnchorOperand,
    IndexedOperand,
    TooLarge,
    Broadcast,
    Concat,
    Turned,
    Beside,
}

impl Reason {
    /// In words.
    pub const fn text(self) -> &'static str {
        match self {
            Reason::Root => "it is an output",
            Reason::Anchor => "it is the result of a kernel",
            Reason::SharedAndCostly => "several kernels would recompute it",
            Reason::AnchorOperand => "an inner loop would recompute it",
            Reason::IndexedOperand => "it is read at computed coordinates",
            Reason::TooLarge => "the fused expression would be too large",
            Reason::Broadcast => "a broadcast would recompute it",
            Reason::Concat => "its parts are stored into it",
            Reason::Turned => "convolutions read blocks of its channels",
            Reason::Beside => "convolutions read blocks of it, and the kernel of what it is made of stores it, too",
        }
    }
}

/// What is in memory, and the kernels in order.
#[derive(Debug, Clone, Default)]
pub struct Fusion {
    pub(super) buffers: Vec<Option<Reason>>,
    pub(super) places: Vec<Vec<Place>>,
    pub(super) parts: Vec<Option<(ValueId, usize, Dim)>>,
    pub(super) orders: Vec<Order>,
    /// Of each value the maps whose results its kernel stores beside it.
    pub(super) beside: Vec<Vec<NodeId>>,
    /// Kernels in execution order.
    pub groups: Vec<Group>,
}

impl Fusion {
    /// True for leaves and materialised values: they are read by loads.
    pub fn in_memory(&self, graph: &Graph, v: ValueId) -> bool {
        is_leaf(&graph.def(v).op) || self.buffers[v.0 as usize].is_some()
    }

    /// True for values with a buffer of their own (in the arena).
    pub fn has_buffer(&self, v: ValueId) -> bool {
        self.places[v.0 as usize].contains(&Place::Value(v))
    }

    /// Where the elements of a value are stored.
    pub fn places(&self, v: ValueId) -> Vec<Place> {
        self.places[v.0 as usize].clone()
    }

    /// How the elements of a value lie in its own memory.
    pub fn order(&self, v: ValueId) -> Order {
        self.orders[v.0 as usize]
    }

    /// The values whose elements do not lie row by row, sorted.
    pub fn ordered(&self) -> Vec<(ValueId, Order)> {
        let all = (0u32..).zip(&self.orders).map(|(i, order)| (ValueId(i), *order));
        all.filter(|(_, order)| *order != Order::Rows).collect()
    }

    /// Gives a value another order.
    pub(in crate::schedule) fn set_order(&mut self, v: ValueId, order: Order) {
        self.orders[v.0 as usize] = order;
    }

    /// The maps of a value whose results its kernel stores beside it.
    pub fn beside(&self, v: ValueId) -> &[NodeId] {
        &self.beside[v.0 as usize]
    }

    /// Has the result of a map of `v`, which was inlined so far, stored by `v`'s kernel.
    pub(in crate::schedule) fn store_beside(&mut self, v: ValueId, map: NodeId, result: ValueId) {
        self.beside[v.0 as usize].push(map);
        self.buffers[result.0 as usize] = Some(Reason::Beside);
        self.places[result.0 as usize].push(Place::Value(result));
    }

    /// The concatenation that a value's kernel stores into, with dimension and start.
    pub fn part_of(&self, v: ValueId) -> Option<(ValueId, usize, Dim)> {
        self.parts[v.0 as usize].clone()
    }

    /// One line per materialised value, for the decision log.
    pub fn decisions(&self, graph: &Graph) -> Vec<String> {
        let reasons = self.buffers.iter().enumerate().filter_map(|(i, r)| Some((i, (*r)?)));
        let order = |i: usize| if self.orders[i] == Order::ChannelsLast { ", with its channels last" } else { "" };
        reasons.map(|(i, r)| format!("{}: stored because {}{}", graph.values[i].name, r.text(), order(i))).collect()
    }

    /// Why a value is materialised.
    pub fn reason(&self, v: ValueId) -> Option<Reason> {
        self.buffers[v.0 as usize]
    }
}
