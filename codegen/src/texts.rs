//! The text files of a generated crate for its readers: `README.md`, `memory.txt`, `decisions.txt`.

use std::fmt::Write;

use crate::entry::EntryNames;
use crate::model::example;
use crate::plan::{ArenaBuffer, Entry, Plan, PortKind, Step};
use crate::weights::FILE_NAME;

/// `README.md`.
pub(crate) fn readme(plan: &Plan, entries: &[EntryNames<'_>]) -> String {
    let mut text = format!(
        "# {}\n\nA program compiled by jvc for the device profile `{}`. Generated: change the model or the options, and compile again.\n",
        plan.name, plan.device
    );
    if let Some(entry) = entries.first() {
        text += &format!("\n```rust\n{}\n```\n", example(plan, entry));
    }
    text += "\n| entry point | inputs | outputs | steps | arena bytes |\n| --- | --- | --- | --- | --- |\n";
    for entry in &plan.entries {
        let names =
            |ports: &[crate::plan::Port]| ports.iter().map(|p| format!("`{}`", p.name)).collect::<Vec<_>>().join(", ");
        let arena: u64 = entry.arena_bytes.iter().sum();
        let n_steps = entry.steps.iter().filter(|s| **s != Step::Barrier).count();
        text += &format!(
            "| `{}` | {} | {} | {n_steps} | {arena} |\n",
            entry.name,
            names(&entry.inputs),
            names(&entry.outputs)
        );
    }
    text += "\n- `src/`: typed entry points, recordings, tables. No `unsafe`, no build script.\n\
             - `kernels/`: SPIR-V, and its text for review.\n\
             - `plan.txt`: every kernel, buffer, step and barrier. `memory.txt`: the arena. `decisions.txt`: reasons.\n";
    if plan.weights.payload_bytes() > 0 {
        text += &format!("- `{FILE_NAME}`: {} bytes of weights, loaded at run time.\n", plan.weights.payload_bytes());
    }
    text
}

/// `decisions.txt`.
pub(crate) fn decisions(plan: &Plan) -> String {
    plan.decisions.iter().map(|line| format!("{line}\n")).collect()
}

/// `memory.txt`.
pub(crate) fn memory(plan: &Plan) -> String {
    let mut text = String::new();
    let payload: u64 = plan.weights.tensors.iter().map(|t| t.bytes).sum();
    let chunks = plan.weights.chunk_bytes.len();
    line(
        &mut text,
        format_args!("weights: {} bytes in {chunks} chunks, {payload} of them tensors", plan.weights.payload_bytes()),
    );
    for entry in &plan.entries {
        entry_memory(&mut text, entry);
    }
    text
}

fn entry_memory(text: &mut String, entry: &Entry) {
    let arena: u64 = entry.arena_bytes.iter().sum();
    let (bound, at) = live_bytes(entry);
    let over = if bound == 0 { 1.0 } else { arena as f64 / bound as f64 };
    line(text, format_args!("\nentry {}", entry.name));
    line(
        text,
        format_args!(
            "  arena: {arena} bytes in {} chunks; most bytes live at once: {bound}, at step {at}; ratio {over:.3}",
            entry.arena_bytes.len()
        ),
    );
    let io: u64 = entry.io_ports().map(|(_, port)| port.max_bytes).sum();
    line(text, format_args!("  inputs and outputs: {io} bytes; state: {} bytes", entry.state_bytes()));
    for port in entry.inputs.iter().chain(&entry.outputs) {
        if let PortKind::Io(slot) = port.kind {
            line(text, format_args!("  io {slot:>4} {:>14}  {}", port.max_bytes, port.name));
        }
    }
    for state in &entry.states {
        line(text, format_args!("  state at {:>14} {:>14}  {}", state.offset, state.bytes, state.name));
    }
    if !entry.buffers.is_empty() {
        line(
            text,
            format_args!("  {:>5} {:>14} {:>14} {:>7} {:>7}  buffer", "chunk", "offset", "bytes", "first", "last"),
        );
    }
    for ArenaBuffer { name, chunk, offset, bytes, live: (first, last) } in &entry.buffers {
        line(text, format_args!("  {chunk:>5} {offset:>14} {bytes:>14} {first:>7} {last:>7}  {name}"));
    }
}

fn line(text: &mut String, arguments: std::fmt::Arguments<'_>) {
    writeln!(text, "{arguments}").expect("writing to a string does not fail");
}

/// Most bytes of buffers that live at one step, and the first such step; bytes that two buffers share in place count once.
pub(crate) fn live_bytes(entry: &Entry) -> (u64, usize) {
    let mut events: Vec<Vec<&ArenaBuffer>> = vec![Vec::new(); entry.steps.len()];
    for buffer in &entry.buffers {
        if let Some(list) = events.get_mut(buffer.live.0 as usize) {
            list.push(buffer);
        }
    }
    let (mut live, mut best) = (Vec::<&ArenaBuffer>::new(), (0, 0));
    for (step, starts) in events.into_iter().enumerate() {
        live.retain(|b| b.live.1 as usize >= step);
        live.extend(starts);
        let mut places: Vec<(u32, u64, u64)> = live.iter().map(|b| (b.chunk, b.offset, b.bytes)).collect();
        places.sort_unstable();
        places.dedup();
        let bytes = places.iter().map(|p| p.2).sum();
        if bytes > best.0 {
            best = (bytes, step);
        }
    }
    best
}
