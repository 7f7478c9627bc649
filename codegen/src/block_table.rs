//! What differs between the occurrences of a block: a struct and a static table of it in the generated code.

use std::ops::Range;

use proc_macro2::{Ident, Literal, TokenStream};
use quote::quote;

use crate::blocks::Block;
use crate::docs::docs;
use crate::ident::ident;
use crate::plan::Step;
use crate::steps::base_tokens;

/// What can differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Name of the step.
    Label,
    /// A base address.
    Base,
    /// An operand's offset.
    Offset,
}

/// One thing that differs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Column {
    /// What it is.
    pub(crate) kind: Kind,
    /// Step within the block.
    pub(crate) step: usize,
    /// Base or operand of the step.
    pub(crate) operand: usize,
}

/// Names and columns of a block's table.
pub(crate) struct BlockTable {
    /// Type of a row.
    pub(crate) row: Ident,
    table: Ident,
    function: Ident,
    n_rows: usize,
    columns: Vec<Column>,
}

impl BlockTable {
    /// The table of a block whose function has this name; `row` is the name of its rows' type.
    pub(crate) fn new(steps: &[Step], block: &Block, name: &str, row: &str) -> Self {
        let columns = columns(steps, block);
        let (row, table) = (ident(row), ident(&name.to_ascii_uppercase()));
        BlockTable { row, table, function: ident(name), n_rows: block.starts.len(), columns }
    }

    /// The expression of a column, if it is one.
    pub(crate) fn row_field(&self, column: Column) -> Option<TokenStream> {
        let same_kind = self.columns.iter().filter(|c| c.kind == column.kind);
        let n = Literal::usize_unsuffixed(same_kind.clone().position(|c| *c == column)?);
        Some(match column.kind {
            Kind::Label => quote!(row.labels[#n]),
            Kind::Base => quote!(row.bases[#n]),
            Kind::Offset => quote!(row.offsets[#n]),
        })
    }

    /// The statement that records some occurrences.
    pub(crate) fn call(&self, rows: Range<usize>) -> TokenStream {
        let (table, function) = (&self.table, &self.function);
        if rows.len() == 1 {
            let row = Literal::usize_unsuffixed(rows.start);
            return quote!(#function(r, &#table[#row]););
        }
        if rows == (0..self.n_rows) {
            return quote!(for row in &#table { #function(r, row); });
        }
        let (start, end) = (Literal::usize_unsuffixed(rows.start), Literal::usize_unsuffixed(rows.end));
        quote!(for row in &#table[#start..#end] { #function(r, row); })
    }

    /// The struct and the table.
    pub(crate) fn items(&self, steps: &[Step], block: &Block, first: &str) -> TokenStream {
        let (row, table) = (&self.row, &self.table);
        let n = |kind| self.columns.iter().filter(|c| c.kind == kind).count();
        let counts = [Kind::Label, Kind::Base, Kind::Offset].map(|kind| Literal::usize_unsuffixed(n(kind)));
        let [n_labels, n_bases, n_offsets] = &counts;
        let text = docs(&format!("What differs between {} occurrences of {first}", self.n_rows));
        let bases = (n(Kind::Base) > 0).then(|| quote!(bases: [Base; #n_bases],));
        let offsets = (n(Kind::Offset) > 0).then(|| quote!(offsets: [u32; #n_offsets],));
        let rows = block.starts.iter().map(|start| self.row_tokens(steps, *start));
        let n_rows = Literal::usize_unsuffixed(self.n_rows);
        quote! {
            #text
            struct #row { labels: [&'static str; #n_labels], #bases #offsets }
            static #table: [#row; #n_rows] = [#(#rows),*];
        }
    }

    fn row_tokens(&self, steps: &[Step], start: usize) -> TokenStream {
        let (mut labels, mut bases, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
        for column in &self.columns {
            let Step::Dispatch(d) = &steps[start + column.step] else { continue };
            match column.kind {
                Kind::Label => labels.push(&d.label),
                Kind::Base => bases.push(base_tokens(d.bases[column.operand])),
                Kind::Offset => offsets.push(Literal::u32_unsuffixed(d.offsets[column.operand])),
            }
        }
        let row = &self.row;
        let bases = (!bases.is_empty()).then(|| quote!(bases: [#(#bases),*],));
        let offsets = (!offsets.is_empty()).then(|| quote!(offsets: [#(#offsets),*],));
        quote!(#row { labels: [#(#labels),*], #bases #offsets })
    }
}

/// Every label; bases and offsets that are not the same in all occurrences.
fn columns(steps: &[Step], block: &Block) -> Vec<Column> {
    let dispatch = |at: usize| match &steps[at] {
        Step::Dispatch(d) => Some(d),
        Step::Barrier => None,
    };
    let mut columns = Vec::new();
    for step in 0..block.len {
        let all: Vec<_> = block.starts.iter().filter_map(|start| dispatch(start + step)).collect();
        let Some(first) = all.first() else { continue };
        columns.push(Column { kind: Kind::Label, step, operand: 0 });
        let base_differs = |idx: &usize| all.iter().any(|d| d.bases[*idx] != first.bases[*idx]);
        let bases = (0..first.bases.len()).filter(base_differs);
        columns.extend(bases.map(|operand| Column { kind: Kind::Base, step, operand }));
        let offset_differs = |idx: &usize| all.iter().any(|d| d.offsets[*idx] != first.offsets[*idx]);
        let offsets = (0..first.offsets.len()).filter(offset_differs);
        columns.extend(offsets.map(|operand| Column { kind: Kind::Offset, step, operand }));
    }
    columns
}
