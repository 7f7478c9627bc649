//! The step after a count is known: it writes what depends on it into the symbol table, sizes and group counts alike, so that the steps
//! after it run at the size that the data have. The count itself goes into a word of its own as it is, for the host to judge; everything
//! else is computed from the nearest value in the symbol's range, which is what memory is planned for.

use super::super::inline::{Place, Use, storage_of};
use super::super::symtab::SymTable;
use super::super::tile;
use super::Draft;
use crate::device::DeviceProfile;
use crate::ir::{DType, Dim, Graph};
use jvc_codegen::plan::{Cost, Size};
use jvc_kernels::expr::{Binary, Expr, ExprId, Exprs};
use jvc_kernels::spec::{Access, Extent, Interface, KernelSpec, MapSpec, Operand, Store};
use std::collections::BTreeMap;

/// The step of a binding. Its stores are filled in by [`complete`], when all words of the table are known.
pub(super) fn lower(graph: &Graph, device: &DeviceProfile, binding: u32) -> Draft {
    let count = graph.bindings[binding as usize].count;
    let read = Use { place: Place::Value(count), dtype: DType::I32, access: Access::Read };
    let write = Use { place: Place::Table, dtype: DType::I32, access: Access::Write };
    let spec = spec(device, Exprs::new(), vec![]);
    let cost = Cost { flops: 0.0, bytes: 4.0 };
    let (uses, nodes, slow, parts) = (vec![read, write], vec![], vec![], vec![]);
    Draft { spec, uses, result: count, nodes, cost, slow, binding: Some(binding), parts, layer: None, tile: None }
}

fn spec(device: &DeviceProfile, exprs: Exprs, stores: Vec<Store>) -> KernelSpec {
    let storage = storage_of(DType::I32, device);
    let operand = |access| Operand { dtype: DType::I32, storage, access, base: 0, via_table: false };
    let operands = vec![operand(Access::Read), operand(Access::Write)];
    let interface = Interface { operands, n_bases: 0, symbols: false };
    let (wg, per_thread) = tile::map(device, 1.0);
    KernelSpec::Map(MapSpec { interface, exprs, domain: vec![Extent::Const(1)], stores, per_thread, wg, turned: None })
}

/// Words that the host reads the counts from, by binding; they come last in the table, and nothing else uses them.
pub fn found_words(graph: &Graph, symtab: &mut SymTable) -> Vec<u16> {
    // What a formula names must have a word.
    for symbol in graph.ranges.keys() {
        symtab.word(&Dim::symbol(symbol));
    }
    graph.bindings.iter().map(|b| symtab.found(&b.symbol)).collect()
}

/// Fills in the stores of a binding's step.
pub fn complete(
    draft: &mut Draft,
    binding: usize,
    found: &[u16],
    graph: &Graph,
    device: &DeviceProfile,
    symtab: &mut SymTable,
) {
    let symbol = &graph.bindings[binding].symbol;
    let mut e = Exprs::new();
    let zero = e.i32(0);
    let count = e.load(0, DType::I32, vec![zero]);
    let range = graph.ranges[symbol];
    let (least, most) = (e.i32(range.min as i32), e.i32(range.max as i32));
    let raised = e.bin(Binary::Max, count, least);
    let value = e.bin(Binary::Min, raised, most);
    let mut values = BTreeMap::new();
    for (i, name) in graph.ranges.keys().enumerate() {
        let known = if name == symbol { value } else { e.add(Expr::Sym(symtab.word(&Dim::symbol(name)))) };
        values.insert(i as u16, known);
    }
    let at = graph.ranges.keys().position(|name| name == symbol).expect("a bound symbol has a range") as u16;
    let mut stores = vec![];
    for (word, size) in symtab.words().iter().enumerate() {
        let value = match found.iter().position(|w| usize::from(*w) == word) {
            Some(of) if of == binding => count,
            Some(_) => continue,
            None if depends(size, at) => size_expr(&mut e, size, &values),
            None => continue,
        };
        stores.push(Store { operand: 1, index: e.i32(word as i32), value, guard: None });
    }
    draft.spec = spec(device, e, stores).compacted();
}

fn depends(size: &Size, symbol: u16) -> bool {
    match size {
        Size::Const(_) => false,
        Size::Symbol(s) => *s == symbol,
        Size::Add(list) | Size::Mul(list) => list.iter().any(|s| depends(s, symbol)),
        Size::FloorDiv(a, b) | Size::Mod(a, b) | Size::Max(a, b) | Size::Min(a, b) => {
            depends(a, symbol) || depends(b, symbol)
        }
    }
}

fn size_expr(e: &mut Exprs, size: &Size, symbols: &BTreeMap<u16, ExprId>) -> ExprId {
    let mut fold = |list: &[Size], op: Binary, none: i32| {
        let terms: Vec<ExprId> = list.iter().map(|s| size_expr(e, s, symbols)).collect();
        let none = e.i32(none);
        terms.into_iter().reduce(|a, b| e.bin(op, a, b)).unwrap_or(none)
    };
    match size {
        Size::Const(v) => e.i32(*v as i32),
        Size::Symbol(s) => symbols[s],
        Size::Add(list) => fold(list, Binary::Add, 0),
        Size::Mul(list) => fold(list, Binary::Mul, 1),
        Size::Max(a, b) => fold(&[Size::clone(a), Size::clone(b)], Binary::Max, 0),
        Size::Min(a, b) => fold(&[Size::clone(a), Size::clone(b)], Binary::Min, 0),
        Size::FloorDiv(a, b) | Size::Mod(a, b) => {
            let (a, b) = (size_expr(e, a, symbols), size_expr(e, b, symbols));
            let quotient = floor_div(e, a, b);
            if matches!(size, Size::FloorDiv(..)) {
                return quotient;
            }
            let whole = e.bin(Binary::Mul, quotient, b);
            e.bin(Binary::Sub, a, whole)
        }
    }
}

/// ⌊a / b⌋ for b > 0.
fn floor_div(e: &mut Exprs, a: ExprId, b: ExprId) -> ExprId {
    let (quotient, rest, zero, one) = (e.bin(Binary::Div, a, b), e.bin(Binary::Rem, a, b), e.i32(0), e.i32(1));
    let below = e.bin(Binary::Lt, rest, zero);
    let lower = e.bin(Binary::Sub, quotient, one);
    e.select(below, lower, quotient)
}
