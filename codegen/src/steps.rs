//! The recording of an entry point (`src/ENTRY/steps.rs`): straight-line functions of dispatches and barriers. A block of steps that
//! occurs several times is one function over a table of what differs: labels, bases and offsets.

use std::ops::Range;

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use crate::block_table::{BlockTable, Column, Kind};
use crate::blocks::{Block, find_blocks};
use crate::docs::{docs, file_docs};
use crate::ident::{Unique, camel, ident, snake};
use crate::imports::import_runtime;
use crate::plan::{Base, Dispatch, Entry, Groups, Step};

/// Steps that one function records; a longer run is split, so that no function takes the compiler long.
const STEPS_PER_FUNCTION: usize = 120;

/// `src/ENTRY/steps.rs`. `kernels` names the kernels' index constants.
pub(crate) fn steps_file(entry: &Entry, kernels: &[Ident]) -> TokenStream {
    let (unique, types) = (Unique::default(), Unique::default());
    let mut emitter = Emitter { entry, kernels, unique, types, items: Vec::new(), calls: Vec::new() };
    emitter.unique.take("record".to_string());
    emitter.emit();
    let Emitter { items, calls, .. } = emitter;
    let n_dispatches = entry.steps.iter().filter(|s| matches!(s, Step::Dispatch(_))).count();
    let n_barriers = entry.steps.len() - n_dispatches;
    let header = file_docs(&format!("Steps of `{}`: {n_dispatches} dispatches, {n_barriers} barriers.", entry.name));
    let record = quote! {
        /// Records every step, in order.
        pub(super) fn record(r: &mut Recorder<'_>) { #(#calls)* }
    };
    let record = if entry.steps.is_empty() {
        quote! {
            /// There is nothing to do.
            pub(super) fn record(_: &mut Recorder<'_>) {}
        }
    } else {
        record
    };
    let body = quote!(#record #(#items)*);
    let runtime = import_runtime(&body);
    let kernels = if n_dispatches > 0 {
        quote!(
            use crate::kernels as k;
        )
    } else {
        quote!()
    };
    quote!(#header #kernels #runtime #body)
}

fn dispatches(steps: &[Step]) -> impl Iterator<Item = &Dispatch> {
    steps.iter().filter_map(|step| match step {
        Step::Dispatch(d) => Some(d),
        Step::Barrier => None,
    })
}

/// One key per step: equal for steps that one line of a block function can record.
fn step_keys(entry: &Entry) -> Vec<u32> {
    let shape = |(at, step): (usize, &Step)| match step {
        Step::Barrier => Err(entry.orders_groups(at)),
        Step::Dispatch(d) => {
            let groups = match d.groups {
                Groups::Fixed(dims) => (0, dims),
                Groups::Table(word) => (1, [u32::from(word), 0, 0]),
            };
            Ok((d.kernel, groups, d.bases.len(), d.offsets.len()))
        }
    };
    let shapes: Vec<_> = entry.steps.iter().enumerate().map(shape).collect();
    let mut distinct = shapes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    shapes.iter().map(|s| distinct.binary_search(s).expect("every shape is among the distinct ones") as u32).collect()
}

struct Emitter<'a> {
    entry: &'a Entry,
    kernels: &'a [Ident],
    unique: Unique,
    types: Unique,
    items: Vec<TokenStream>,
    /// Statements of `record`.
    calls: Vec<TokenStream>,
}

impl Emitter<'_> {
    fn emit(&mut self) {
        let weights: Vec<u64> = self.entry.steps.iter().map(|s| u64::from(*s != Step::Barrier)).collect();
        let blocks = find_blocks(&step_keys(self.entry), &weights);
        let mut places: Vec<(usize, &Block, usize)> = Vec::new();
        for block in &blocks {
            places.extend(block.starts.iter().enumerate().map(|(row, start)| (*start, block, row)));
        }
        places.sort_by_key(|(start, ..)| *start);
        let tables: Vec<BlockTable> = blocks.iter().map(|block| self.block(block)).collect();
        let table_of = |block: &Block| {
            let at = blocks.iter().position(|b| b.starts == block.starts).expect("places come from the blocks");
            &tables[at]
        };
        let (mut at, mut next) = (0, 0);
        while at < self.entry.steps.len() {
            let Some(&(start, block, row)) = places.get(next) else {
                self.straight(at..self.entry.steps.len());
                break;
            };
            self.straight(at..start);
            let n_rows = run_length(&places[next..]);
            self.calls.push(table_of(block).call(row..row + n_rows));
            next += n_rows;
            at = start + block.len * n_rows;
        }
    }

    /// Steps that are recorded once: inline where they are few and all there is, else in functions of their own.
    fn straight(&mut self, steps: Range<usize>) {
        let is_all = steps == (0..self.entry.steps.len());
        for part in split(steps) {
            let lines: Vec<TokenStream> = part.clone().map(|at| self.line(at, None, 0)).collect();
            if part.len() <= 6 || is_all && part.len() == self.entry.steps.len() {
                self.calls.extend(lines);
                continue;
            }
            let name = ident(&self.unique.take(self.name_of("steps", part.clone())));
            let (text, never) = (docs(&self.describe(part)), never_inline());
            self.items.push(quote!(#text #never fn #name(r: &mut Recorder<'_>) { #(#lines)* }));
            self.calls.push(quote!(#name(r);));
        }
    }

    /// Emits a block's table and functions.
    fn block(&mut self, block: &Block) -> BlockTable {
        let first = block.starts[0]..block.starts[0] + block.len;
        let name = self.unique.take(self.name_of("block", first.clone()));
        let row = self.types.take_type(camel(&name));
        let table = BlockTable::new(&self.entry.steps, block, &name, &row);
        self.items.push(table.items(&self.entry.steps, block, &self.describe(first.clone())));
        let parts: Vec<Range<usize>> = split(first.clone()).collect();
        if let [_] = parts.as_slice() {
            self.block_fn(&ident(&name), first.clone(), first.start, &table);
        } else {
            let names: Vec<Ident> = (0..parts.len()).map(|part| ident(&format!("{name}_part_{part}"))).collect();
            for (name, part) in names.iter().zip(parts) {
                self.block_fn(name, part, first.start, &table);
            }
            let (name, row, never) = (ident(&name), &table.row, never_inline());
            self.items.push(quote!(#never fn #name(r: &mut Recorder<'_>, row: &#row) { #(#names(r, row);)* }));
        }
        table
    }

    fn block_fn(&mut self, name: &Ident, steps: Range<usize>, first: usize, table: &BlockTable) {
        let (row, never) = (&table.row, never_inline());
        let lines: Vec<TokenStream> = steps.map(|at| self.line(at, Some(table), first)).collect();
        self.items.push(quote!(#never fn #name(r: &mut Recorder<'_>, row: &#row) { #(#lines)* }));
    }

    /// One step; what the table has for it is taken from the row. `first` is the block's first step.
    fn line(&self, at: usize, table: Option<&BlockTable>, first: usize) -> TokenStream {
        let Step::Dispatch(d) = &self.entry.steps[at] else {
            return if self.entry.orders_groups(at) { quote!(r.barrier_for_groups();) } else { quote!(r.barrier();) };
        };
        let kernel = &self.kernels[d.kernel as usize];
        let from_row = |kind, operand| table.and_then(|t| t.row_field(Column { kind, step: at - first, operand }));
        let text = &d.label;
        let label = from_row(Kind::Label, 0).unwrap_or_else(|| quote!(#text));
        let bases = d.bases.iter().enumerate();
        let bases = bases.map(|(idx, base)| from_row(Kind::Base, idx).unwrap_or_else(|| base_tokens(*base)));
        let offsets = d.offsets.iter().map(|offset| Literal::u32_unsuffixed(*offset)).enumerate();
        let offsets = offsets.map(|(idx, offset)| from_row(Kind::Offset, idx).unwrap_or_else(|| quote!(#offset)));
        let groups = groups_tokens(d.groups);
        quote! {
            r.step_label(#label);
            r.dispatch(k::#kernel, &[#(#bases),*], &[#(#offsets),*], #groups);
        }
    }

    /// A function name from the labels: what they share, else the first one.
    fn name_of(&self, kind: &str, steps: Range<usize>) -> String {
        let labels: Vec<&str> = dispatches(&self.entry.steps[steps]).map(|d| d.label.as_str()).collect();
        let first = labels.first().copied().unwrap_or("");
        let shared = labels.iter().fold(first, |shared, label| shared_module(shared, label));
        let name = if shared.is_empty() { first } else { shared };
        snake(&format!("{kind}_{}", name.chars().take(60).collect::<String>()))
    }

    fn describe(&self, steps: Range<usize>) -> String {
        let mut labels = dispatches(&self.entry.steps[steps]).map(|d| d.label.as_str());
        let first = labels.next().unwrap_or("");
        match labels.last() {
            Some(last) => format!("`{first}` to `{last}`."),
            None => format!("`{first}`."),
        }
    }
}

/// Inlined into loops over constant tables, and unrolled, these functions would take the compiler minutes.
fn never_inline() -> TokenStream {
    quote!(#[inline(never)])
}

/// The longest run of dotted names that both start with.
fn shared_module<'a>(a: &'a str, b: &str) -> &'a str {
    let mut end = 0;
    for (idx, (x, y)) in a.split('.').zip(b.split('.')).enumerate() {
        if x != y {
            break;
        }
        end += x.len() + usize::from(idx > 0);
    }
    &a[..end]
}

/// How many places from the first on follow each other in the same block, row by row and without a gap.
fn run_length(places: &[(usize, &Block, usize)]) -> usize {
    let (start, block, row) = places[0];
    let follows = |(idx, place): &(usize, &(usize, &Block, usize))| {
        place.0 == start + idx * block.len && place.1.starts == block.starts && place.2 == row + idx
    };
    places.iter().enumerate().take_while(follows).count()
}

fn split(steps: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = steps.end;
    steps.step_by(STEPS_PER_FUNCTION).map(move |at| at..end.min(at + STEPS_PER_FUNCTION))
}

/// Tokens of a base.
pub(crate) fn base_tokens(base: Base) -> TokenStream {
    match base {
        Base::Arena(chunk) => {
            let chunk = Literal::u32_unsuffixed(chunk);
            quote!(Base::Arena(#chunk))
        }
        Base::Weights(chunk) => {
            let chunk = Literal::u32_unsuffixed(chunk);
            quote!(Base::Weights(#chunk))
        }
        Base::IoTable => quote!(Base::IoTable),
        Base::State => quote!(Base::State),
        Base::Symbols => quote!(Base::Symbols),
    }
}

fn groups_tokens(groups: Groups) -> TokenStream {
    match groups {
        Groups::Fixed(dims) => {
            let dims = dims.map(Literal::u32_unsuffixed);
            quote!(Groups::Fixed([#(#dims),*]))
        }
        Groups::Table(word) => {
            let word = Literal::u16_unsuffixed(word);
            quote!(Groups::Table(#word))
        }
    }
}
