//! What a SPIR-V module asks of a device, read from its words: not from what the compiler believes it has written.

use std::collections::{BTreeMap, BTreeSet};

/// Numbers of the SPIR-V specification.
const MAGIC: u32 = 0x0723_0203;
const OP_EXTENSION: u32 = 10;
const OP_EXECUTION_MODE: u32 = 16;
const OP_CAPABILITY: u32 = 17;
const OP_TYPE_BOOL: u32 = 20;
const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_TYPE_VECTOR: u32 = 23;
const OP_TYPE_ARRAY: u32 = 28;
const OP_TYPE_STRUCT: u32 = 30;
const OP_TYPE_POINTER: u32 = 32;
const OP_CONSTANT: u32 = 43;
const OP_VARIABLE: u32 = 59;
const OP_MEMBER_DECORATE: u32 = 72;
const OP_TYPE_COOPERATIVE_MATRIX: u32 = 4456;
const MODE_LOCAL_SIZE: u32 = 17;
const DECORATION_OFFSET: u32 = 35;
const CLASS_WORKGROUP: u32 = 4;
const CLASS_PUSH_CONSTANT: u32 = 9;

/// A module, as far as a device must support it.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) version: (u32, u32),
    pub(crate) capabilities: BTreeSet<u32>,
    pub(crate) extensions: BTreeSet<String>,
    pub(crate) local_size: [u32; 3],
    /// Of all workgroup variables together.
    pub(crate) shared_bytes: u64,
    pub(crate) push_bytes: u64,
    /// Widths of integer types, and of floats (true for bfloat16).
    pub(crate) ints: BTreeSet<u32>,
    pub(crate) floats: BTreeSet<(u32, bool)>,
    /// Rows, columns and component (width, bfloat16) of matrices.
    pub(crate) matrices: BTreeSet<(u32, u32, u32, bool)>,
}

/// Instructions by the number that they define.
struct Reader<'a> {
    types: BTreeMap<u32, (u32, &'a [u32])>,
    constants: BTreeMap<u32, u32>,
    offsets: BTreeMap<(u32, u32), u32>,
}

impl Reader<'_> {
    /// Bytes that a value of a type takes.
    fn bytes(&self, ty: u32) -> u64 {
        let (op, rest) = self.types[&ty];
        match op {
            OP_TYPE_BOOL => 4,
            OP_TYPE_INT | OP_TYPE_FLOAT => u64::from(rest[0] / 8),
            OP_TYPE_POINTER => 8,
            OP_TYPE_VECTOR => self.bytes(rest[0]) * u64::from(rest[1]),
            OP_TYPE_ARRAY => self.bytes(rest[0]) * u64::from(self.constants[&rest[1]]),
            OP_TYPE_STRUCT => {
                let end = |(i, member): (u32, &u32)| {
                    self.offsets.get(&(ty, i)).map(|at| u64::from(*at) + self.bytes(*member))
                };
                let ends: Option<Vec<u64>> = (0..).zip(rest).map(end).collect();
                let sum = || rest.iter().map(|member| self.bytes(*member)).sum();
                ends.map_or_else(sum, |ends| ends.into_iter().max().unwrap_or(0))
            }
            _ => panic!("a variable of type {op}"),
        }
    }
}

fn text(words: &[u32]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).take_while(|b| *b != 0).collect();
    String::from_utf8(bytes).expect("names are UTF-8")
}

/// Opcode and operands of every instruction.
fn instructions(words: &[u32]) -> Vec<(u32, &[u32])> {
    assert_eq!(words[0], MAGIC);
    let (mut rest, mut out) = (&words[5..], vec![]);
    while let Some(first) = rest.first() {
        let (instruction, behind) = rest.split_at((first >> 16) as usize);
        out.push((first & 0xffff, &instruction[1..]));
        rest = behind;
    }
    out
}

/// Reads a module.
pub(crate) fn read(words: &[u32]) -> Module {
    let mut module = Module { version: ((words[1] >> 16) & 0xff, (words[1] >> 8) & 0xff), ..Module::default() };
    let mut reader = Reader { types: BTreeMap::new(), constants: BTreeMap::new(), offsets: BTreeMap::new() };
    let mut variables = vec![];
    let mut matrices = vec![];
    for (op, args) in instructions(words) {
        match op {
            OP_CAPABILITY => {
                let _ = module.capabilities.insert(args[0]);
            }
            OP_EXTENSION => {
                let _ = module.extensions.insert(text(args));
            }
            OP_EXECUTION_MODE if args[1] == MODE_LOCAL_SIZE => module.local_size.copy_from_slice(&args[2..5]),
            OP_MEMBER_DECORATE if args[2] == DECORATION_OFFSET => {
                reader.offsets.insert((args[0], args[1]), args[3]);
            }
            OP_CONSTANT => {
                let _ = reader.constants.insert(args[1], args[2]);
            }
            OP_VARIABLE => variables.push((args[0], args[2])),
            OP_TYPE_COOPERATIVE_MATRIX => matrices.push(args),
            OP_TYPE_BOOL | OP_TYPE_INT | OP_TYPE_FLOAT | OP_TYPE_VECTOR | OP_TYPE_ARRAY | OP_TYPE_STRUCT
            | OP_TYPE_POINTER => {
                reader.types.insert(args[0], (op, &args[1..]));
            }
            _ => {}
        }
    }
    for (op, rest) in reader.types.values() {
        match *op {
            OP_TYPE_INT => {
                let _ = module.ints.insert(rest[0]);
            }
            OP_TYPE_FLOAT => {
                let _ = module.floats.insert((rest[0], rest.len() > 1));
            }
            _ => {}
        }
    }
    for matrix in matrices {
        let (_, component) = reader.types[&matrix[1]];
        let (rows, columns) = (reader.constants[&matrix[3]], reader.constants[&matrix[4]]);
        module.matrices.insert((rows, columns, component[0], component.len() > 1));
    }
    for (pointer, class) in variables {
        let bytes = || reader.bytes(reader.types[&pointer].1[1]);
        match class {
            CLASS_WORKGROUP => module.shared_bytes += bytes(),
            CLASS_PUSH_CONSTANT => module.push_bytes = module.push_bytes.max(bytes()),
            _ => {}
        }
    }
    module
}
