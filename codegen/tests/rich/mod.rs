//! A plan with everything that generated code has a form for.

use super::sample::{dispatch, io_port, kernel, range};
use jvc_codegen::plan::{
    ArenaBuffer, Base, Elem, Entry, Groups, Plan, Port, PortKind, Region, Requirements, Size, State, Step, Symbol,
    WeightTensor, Weights,
};

/// A plan with everything that generated code has a form for: two entry points, symbols, an integer argument, elements in words,
/// state, weights in two chunks, cooperative matrices, a table grid and twelve equal layers.
pub(crate) fn rich_plan() -> Plan {
    let mut encode = layers_entry();
    encode.name = "encode".into();
    let requirements = Requirements {
        int8: true,
        float16: true,
        cooperative: vec![(16, 16, 16, Elem::F16)],
        subgroup: 32,
        max_workgroup: 256,
        shared_bytes: 16384,
        push_bytes: 128,
        max_allocation_bytes: 1 << 30,
        ..Requirements::default()
    };
    let tensor = |layer: u64| WeightTensor {
        name: format!("layers.{layer}.weight"),
        elem: Elem::F16,
        shape: vec![32, 64],
        chunk: (layer / 6) as u32,
        offset: layer % 6 * 4096,
        bytes: 4096,
    };
    let mut kernels = vec![
        kernel("matmul_1x63x8_3_3_3_f32_registers_8x1_f32_d140bb27", vec![0, 1, 0]),
        kernel("map.relu", vec![0, 0]),
        kernel("copy", vec![0, 1]),
        kernel("step", vec![0, 1, 2]),
    ];
    kernels[0].subgroup = 32;
    kernels[3].n_bases = 4;
    Plan {
        name: "rich-model".into(),
        device: "lavapipe".into(),
        requirements,
        kernels,
        weights: Weights {
            chunk_bytes: vec![24576, 24576],
            tensors: (0..12).map(tensor).collect(),
            content_hash: 0x0123_4567_89ab_cdef,
        },
        entries: vec![encode, step_entry()],
        decisions: vec!["matmul-16x16: cooperative, since the device has 16x16x16 f16".into()],
    }
}

/// x → twelve times (matmul, relu) → y.
fn layers_entry() -> Entry {
    let arena = |half: u64| range(Region::Arena(0), half * 4096, 4096);
    let mut first = dispatch("copy_x", vec![range(Region::Io(0), 0, 4096)], arena(0));
    first.kernel = 2;
    let mut steps = vec![Step::Dispatch(first)];
    for layer in 0..12u64 {
        let weight = range(Region::Weights((layer / 6) as u32), layer % 6 * 4096, 4096);
        let mut matmul = dispatch(&format!("layers.{layer}.matmul"), vec![arena(0), weight], arena(1));
        matmul.bases.pop();
        matmul.groups = Groups::Fixed([2, 1, 1]);
        let mut relu = dispatch(&format!("layers.{layer}.relu"), vec![arena(1)], arena(0));
        (relu.kernel, relu.bases) = (1, vec![Base::Arena(0)]);
        steps.extend([Step::Barrier, Step::Dispatch(matmul), Step::Barrier, Step::Dispatch(relu)]);
    }
    let mut last = dispatch("copy_y", vec![arena(0)], range(Region::Io(1), 0, 4096));
    last.kernel = 2;
    steps.extend([Step::Barrier, Step::Dispatch(last)]);
    let n = steps.len() as u32;
    let buffer = |name: &str, half: u64| ArenaBuffer {
        name: name.into(),
        chunk: 0,
        offset: half * 4096,
        bytes: 4096,
        live: if half == 0 { (0, n - 1) } else { (2, n - 3) },
    };
    Entry {
        inputs: vec![io_port("x", 0, Elem::F16, &[32, 64])],
        outputs: vec![io_port("type", 1, Elem::F16, &[32, 64])],
        arena_bytes: vec![8192],
        live_bytes: 8192,
        buffers: vec![buffer("even", 0), buffer("odd", 1)],
        steps,
        ..Entry::default()
    }
}

/// A step with symbols, one of them found on the device, state and every element type in words and as itself.
fn step_entry() -> Entry {
    let symbol = |name: &str, min, max| Symbol { name: name.into(), min, max, found: None };
    let n = || Size::Symbol(0);
    let half = Size::FloorDiv(Box::new(Size::Add(vec![n(), Size::Const(-1)])), Box::new(Size::Const(2)));
    let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
    for elem in Elem::ALL {
        let mut port = io_port(elem.name(), inputs.len() as u32, elem, &[]);
        port.shape = vec![n(), Size::Const(3)];
        port.word_storage = !matches!(elem, Elem::I64 | Elem::F64);
        port.max_bytes = 100 * 3 * port.device_elem_bytes();
        inputs.push(port);
    }
    let n_inputs = inputs.len() as u32;
    for elem in Elem::ALL {
        let mut port = io_port(&format!("{}_out", elem.name()), n_inputs + outputs.len() as u32, elem, &[]);
        port.shape = vec![Size::Add(vec![half.clone(), Size::Const(1)])];
        port.word_storage = !matches!(elem, Elem::I64 | Elem::F64);
        port.max_bytes = 50 * port.device_elem_bytes();
        outputs.push(port);
    }
    let mut plain = io_port("mask", n_inputs * 2, Elem::Bool, &[4]);
    plain.max_bytes = 4;
    inputs.push(plain);
    let integer = |name: &str, symbol| Port { kind: PortKind::Symbol(symbol), ..io_port(name, 0, Elem::I64, &[]) };
    inputs.push(integer("position", 1));
    outputs.push(integer("position", 1));
    // As many as the data say.
    let mut found = io_port("chosen", n_inputs * 2 + 1, Elem::F32, &[]);
    found.shape = vec![Size::Symbol(3)];
    found.max_bytes = 50 * 4;
    let mut steps: Vec<Step> = outputs.iter().filter(|p| p.has_buffer()).map(step_dispatch).collect();
    let mut count = step_dispatch(&found);
    if let Step::Dispatch(d) = &mut count {
        d.writes.push(range(Region::Symbols, 0, 28));
    }
    steps.extend([Step::Barrier, count]);
    outputs.push(found);
    let tail = Size::Max(Box::new(Size::Const(1)), Box::new(Size::Mod(Box::new(n()), Box::new(Size::Const(7)))));
    Entry {
        name: "step".into(),
        symbols: vec![
            symbol("s0", 1, 100),
            symbol("s1", 0, 4096),
            symbol("unused", 2, 3),
            Symbol { found: Some(6), ..symbol("u0", 0, 50) },
        ],
        inputs,
        outputs,
        states: vec![
            State { name: "cache".into(), offset: 0, bytes: 4096, init: None },
            State { name: "bank".into(), offset: 4096, bytes: 4096, init: Some(3) },
        ],
        table: vec![
            n(),
            Size::Mul(vec![n(), Size::Symbol(1), Size::Const(1)]),
            half,
            tail,
            Size::Const(1),
            Size::Const(1),
            Size::Symbol(3),
        ],
        steps,
        ..Entry::default()
    }
}

fn step_dispatch(port: &Port) -> Step {
    let PortKind::Io(slot) = port.kind else { unreachable!("only ports with a buffer") };
    let reads = vec![range(Region::Io(slot - 10), 0, 3), range(Region::State, 4096, 16)];
    let mut d = dispatch(&format!("write_{}", port.name), reads, range(Region::Io(slot), 0, port.max_bytes));
    d.kernel = 3;
    d.bases.push(Base::Symbols);
    d.groups = Groups::Table(3);
    Step::Dispatch(d)
}
