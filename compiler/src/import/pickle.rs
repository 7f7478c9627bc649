//! Unpickler for the state dictionaries of torch 2.5 to 2.8. Pickle is a program for a stack machine; this one knows only the
//! instructions and the few constructors that `torch.save` of plain tensors uses, and never looks up anything else.

use super::error::ImportError;
use super::limits::Limits;
use super::program::ScalarType;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A tensor of the dictionary: a view of a storage file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PickledTensor {
    pub(super) dtype: ScalarType,
    /// Name of the storage file, `archive/data/<key>`.
    pub(super) key: String,
    pub(super) sizes: Vec<i64>,
    pub(super) strides: Vec<i64>,
    pub(super) offset: i64,
}

/// Reads `data.pkl`: name → tensor. Entries that are no tensors (custom objects cannot be built) are refused.
pub(super) fn read_state_dict(
    bytes: &[u8],
    entry: &str,
    limits: &Limits,
) -> Result<BTreeMap<String, PickledTensor>, ImportError> {
    let fail = |why: String| ImportError::Pickle { entry: entry.to_string(), why };
    ImportError::limit("bytes of a pickle", bytes.len() as u64, limits.pickle_bytes)?;
    let mut machine = Machine { bytes, at: 0, stack: vec![], marks: vec![], memo: BTreeMap::new(), objects: vec![] };
    let root = machine.run().map_err(fail)?;
    let Value::Dict(id) = root else { return Err(fail("is not a dictionary".into())) };
    let mut out = BTreeMap::new();
    for (name, value) in machine.pairs(id).map_err(fail)? {
        let Value::Tensor(tensor) = value else { return Err(fail(format!("`{name}` is not a tensor"))) };
        if out.insert(name.clone(), (*tensor).clone()).is_some() {
            return Err(ImportError::Duplicate { what: "weight", name });
        }
    }
    ImportError::limit("tensors of a checkpoint", out.len() as u64, limits.weights)?;
    Ok(out)
}

/// A value of the machine. Lists and dictionaries live in an arena, so that no value owns a deep structure.
#[derive(Clone)]
enum Value {
    None,
    Bool,
    Int(i64),
    Float,
    Text(Rc<str>),
    Tuple(Rc<Tuple>),
    List(usize),
    Dict(usize),
    Global(Global),
    Storage(Rc<StorageRef>),
    Tensor(Rc<PickledTensor>),
}

impl Value {
    /// What it is, for messages. Its contents are not shown: parts that tuples share would be printed once for each use.
    fn kind(&self) -> &'static str {
        match self {
            Value::None => "None",
            Value::Bool => "a truth value",
            Value::Int(_) => "an integer",
            Value::Float => "a float",
            Value::Text(_) => "a string",
            Value::Tuple(_) => "a tuple",
            Value::List(_) => "a list",
            Value::Dict(_) => "a dictionary",
            Value::Global(_) => "a name of Python",
            Value::Storage(_) => "a storage",
            Value::Tensor(_) => "a tensor",
        }
    }
}

struct Tuple {
    items: Vec<Value>,
    depth: u32,
}

struct StorageRef {
    dtype: Option<ScalarType>,
    key: String,
}

/// The names that a state dictionary may mention.
#[derive(Debug, Clone, Copy)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildTensorV3,
    RebuildParameter,
    Parameter,
    /// A storage class; `None` for the untyped one.
    Storage(Option<ScalarType>),
    DType(ScalarType),
}

const STORAGES: [(&str, ScalarType); 14] = [
    ("ByteStorage", ScalarType::U8),
    ("CharStorage", ScalarType::I8),
    ("ShortStorage", ScalarType::I16),
    ("IntStorage", ScalarType::I32),
    ("LongStorage", ScalarType::I64),
    ("HalfStorage", ScalarType::F16),
    ("FloatStorage", ScalarType::F32),
    ("DoubleStorage", ScalarType::F64),
    ("BoolStorage", ScalarType::Bool),
    ("BFloat16Storage", ScalarType::BF16),
    ("ComplexFloatStorage", ScalarType::C64),
    ("ComplexDoubleStorage", ScalarType::C128),
    ("Float8_e4m3fnStorage", ScalarType::F8E4M3Fn),
    ("Float8_e5m2Storage", ScalarType::F8E5M2),
];

const DTYPES: [(&str, ScalarType); 18] = [
    ("uint8", ScalarType::U8),
    ("int8", ScalarType::I8),
    ("int16", ScalarType::I16),
    ("int32", ScalarType::I32),
    ("int64", ScalarType::I64),
    ("float16", ScalarType::F16),
    ("float32", ScalarType::F32),
    ("float64", ScalarType::F64),
    ("complex32", ScalarType::C32),
    ("complex64", ScalarType::C64),
    ("complex128", ScalarType::C128),
    ("bool", ScalarType::Bool),
    ("bfloat16", ScalarType::BF16),
    ("uint16", ScalarType::U16),
    ("float8_e4m3fn", ScalarType::F8E4M3Fn),
    ("float8_e5m2", ScalarType::F8E5M2),
    ("float8_e4m3fnuz", ScalarType::F8E4M3Fnuz),
    ("float8_e5m2fnuz", ScalarType::F8E5M2Fnuz),
];

impl Global {
    fn find(module: &str, name: &str) -> Option<Global> {
        let by_name = |table: &[(&str, ScalarType)]| table.iter().find(|(n, _)| *n == name).map(|(_, t)| *t);
        match (module, name) {
            ("collections", "OrderedDict") => Some(Global::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Global::RebuildTensor),
            ("torch._utils", "_rebuild_tensor_v3") => Some(Global::RebuildTensorV3),
            ("torch._utils", "_rebuild_parameter") => Some(Global::RebuildParameter),
            ("torch.nn.parameter", "Parameter") => Some(Global::Parameter),
            ("torch.storage", "UntypedStorage") => Some(Global::Storage(None)),
            ("torch", _) => {
                by_name(&STORAGES).map(|t| Global::Storage(Some(t))).or_else(|| by_name(&DTYPES).map(Global::DType))
            }
            _ => None,
        }
    }
}

type Step<T> = Result<T, String>;

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, Value>,
    /// Contents of lists; of dictionaries, keys and values in turn.
    objects: Vec<Vec<Value>>,
}

impl Machine<'_> {
    fn run(&mut self) -> Step<Value> {
        loop {
            let op = self.take(1)?[0];
            if op == b'.' {
                return self.pop();
            }
            self.step(op)?;
        }
    }

    fn step(&mut self, op: u8) -> Step<()> {
        match op {
            0x80 => self.protocol(),
            0x95 => self.take(8).map(|_| ()), // FRAME
            b'(' => {
                self.marks.push(self.stack.len());
                Ok(())
            }
            b'N' => self.push(Value::None),
            0x88 | 0x89 => self.push(Value::Bool),
            b'J' | b'K' | b'M' | 0x8a => self.integer(op),
            b'G' => self.take(8).map(|_| ()).and_then(|()| self.push(Value::Float)),
            b'X' | 0x8c | 0x8d => self.text(op),
            b'}' => self.new_object(Value::Dict),
            b']' => self.new_object(Value::List),
            b')' => self.push_tuple(vec![]),
            0x85..=0x87 => {
                let items = self.pop_n(usize::from(op - 0x84))?;
                self.push_tuple(items)
            }
            b't' => {
                let items = self.pop_mark()?;
                self.push_tuple(items)
            }
            b's' => self.pop_n(2).and_then(|items| self.extend(items, true)),
            b'u' => self.pop_mark().and_then(|items| self.extend(items, true)),
            b'a' => self.pop_n(1).and_then(|items| self.extend(items, false)),
            b'e' => self.pop_mark().and_then(|items| self.extend(items, false)),
            b'c' | 0x93 => self.global(op),
            b'Q' => self.persistent(),
            b'R' | 0x81 => self.call(),
            b'q' | b'r' | 0x94 => self.put(op),
            b'h' | b'j' => self.get(op),
            _ => Err(format!("instruction {op:#04x} at byte {} is not allowed", self.at - 1)),
        }
    }

    fn take(&mut self, n: usize) -> Step<&[u8]> {
        let end = self.at.checked_add(n).filter(|&e| e <= self.bytes.len()).ok_or("ends in the middle")?;
        let out = &self.bytes[self.at..end];
        self.at = end;
        Ok(out)
    }

    fn unsigned(&mut self, n: usize) -> Step<u64> {
        Ok(self.take(n)?.iter().rev().fold(0, |v, b| v << 8 | u64::from(*b)))
    }

    fn line(&mut self) -> Step<String> {
        let rest = &self.bytes[self.at..];
        let n = rest.iter().take(256).position(|&b| b == b'\n').ok_or("a name does not end")?;
        let text = String::from_utf8_lossy(&rest[..n]).into_owned();
        self.at += n + 1;
        Ok(text)
    }

    fn push(&mut self, v: Value) -> Step<()> {
        self.stack.push(v);
        Ok(())
    }

    fn pop(&mut self) -> Step<Value> {
        self.pop_n(1).map(|mut v| v.remove(0))
    }

    fn pop_n(&mut self, n: usize) -> Step<Vec<Value>> {
        let floor = self.marks.last().copied().unwrap_or(0);
        let from = self.stack.len().checked_sub(n).filter(|&f| f >= floor).ok_or("takes from an empty stack")?;
        Ok(self.stack.split_off(from))
    }

    fn pop_mark(&mut self) -> Step<Vec<Value>> {
        let from = self.marks.pop().ok_or("a mark is missing")?;
        Ok(self.stack.split_off(from))
    }

    fn protocol(&mut self) -> Step<()> {
        match self.take(1)?[0] {
            2..=5 => Ok(()),
            other => Err(format!("protocol {other} is not supported (2 to 5)")),
        }
    }

    fn integer(&mut self, op: u8) -> Step<()> {
        let value = match op {
            b'J' => i64::from(self.unsigned(4)? as u32 as i32),
            b'K' => self.unsigned(1)? as i64,
            b'M' => self.unsigned(2)? as i64,
            _ => {
                let n = self.unsigned(1)? as usize;
                if n > 8 {
                    return Err("an integer has over 64 bits".into());
                }
                let shift = 64 - 8 * n as u32;
                let raw = self.unsigned(n)?;
                if n == 0 { 0 } else { (raw << shift) as i64 >> shift }
            }
        };
        self.push(Value::Int(value))
    }

    fn text(&mut self, op: u8) -> Step<()> {
        let n = self.unsigned(match op {
            b'X' => 4,
            0x8c => 1,
            _ => 8,
        })?;
        let n = usize::try_from(n).map_err(|_| "a string is too long")?;
        let text = std::str::from_utf8(self.take(n)?).map_err(|_| "a string is not UTF-8")?;
        let text: Rc<str> = text.into();
        self.push(Value::Text(text))
    }

    fn new_object(&mut self, kind: fn(usize) -> Value) -> Step<()> {
        self.objects.push(vec![]);
        self.push(kind(self.objects.len() - 1))
    }

    /// Tuples are the only values that own others; their nesting is bounded so that dropping them is.
    fn push_tuple(&mut self, items: Vec<Value>) -> Step<()> {
        const MAX_DEPTH: u32 = 32;
        let inner = items.iter().map(|v| if let Value::Tuple(t) = v { t.depth } else { 0 }).max().unwrap_or(0);
        if inner >= MAX_DEPTH {
            return Err(format!("tuples nest deeper than {MAX_DEPTH}"));
        }
        self.push(Value::Tuple(Rc::new(Tuple { items, depth: inner + 1 })))
    }

    fn extend(&mut self, items: Vec<Value>, dict: bool) -> Step<()> {
        let id = match self.stack.last() {
            Some(Value::Dict(id)) if dict && items.len().is_multiple_of(2) => *id,
            Some(Value::List(id)) if !dict => *id,
            _ => return Err("adds items to what is no container".into()),
        };
        self.objects[id].extend(items);
        Ok(())
    }

    fn global(&mut self, op: u8) -> Step<()> {
        let (module, name) = if op == b'c' {
            (self.line()?, self.line()?)
        } else {
            match self.pop_n(2)?.as_slice() {
                [Value::Text(module), Value::Text(name)] => (module.to_string(), name.to_string()),
                _ => return Err("a global's name is no text".into()),
            }
        };
        let found = Global::find(&module, &name);
        let value = found.ok_or_else(|| format!("refers to `{module}.{name}`, which is not a plain tensor's part"))?;
        self.push(Value::Global(value))
    }

    /// `('storage', class, key, location, numel)`.
    fn persistent(&mut self) -> Step<()> {
        let Value::Tuple(id) = self.pop()? else { return Err("a storage is not named by a tuple".into()) };
        match id.items.as_slice() {
            [
                Value::Text(kind),
                Value::Global(Global::Storage(dtype)),
                Value::Text(key),
                Value::Text(_),
                Value::Int(_),
            ] if &**kind == "storage" => {
                self.push(Value::Storage(Rc::new(StorageRef { dtype: *dtype, key: key.to_string() })))
            }
            _ => Err("a storage's name has an unknown form".into()),
        }
    }

    fn call(&mut self) -> Step<()> {
        let Value::Tuple(args) = self.pop()? else { return Err("a call has no argument tuple".into()) };
        let Value::Global(function) = self.pop()? else { return Err("calls what is no function".into()) };
        let result = match (function, args.items.as_slice()) {
            (Global::OrderedDict, []) => return self.new_object(Value::Dict),
            (Global::RebuildTensor, [storage, offset, sizes, strides, ..]) => {
                rebuild(storage, offset, sizes, strides, None)?
            }
            (Global::RebuildTensorV3, [storage, offset, sizes, strides, _, _, Value::Global(Global::DType(t)), ..]) => {
                rebuild(storage, offset, sizes, strides, Some(*t))?
            }
            (Global::RebuildParameter | Global::Parameter, [tensor @ Value::Tensor(_), ..]) => tensor.clone(),
            _ => return Err(format!("{function:?} is called with unknown arguments")),
        };
        self.push(result)
    }

    fn put(&mut self, op: u8) -> Step<()> {
        let key = match op {
            b'q' => self.unsigned(1)? as u32,
            b'r' => self.unsigned(4)? as u32,
            _ => self.memo.len() as u32,
        };
        let value = self.stack.last().cloned().ok_or("keeps a value of an empty stack")?;
        self.memo.insert(key, value);
        Ok(())
    }

    fn get(&mut self, op: u8) -> Step<()> {
        let key = self.unsigned(if op == b'h' { 1 } else { 4 })? as u32;
        let value = self.memo.get(&key).cloned().ok_or("uses a value that was not kept")?;
        self.push(value)
    }

    fn pairs(&self, dict: usize) -> Step<Vec<(String, Value)>> {
        let name = |v: &Value| match v {
            Value::Text(t) => Ok(t.to_string()),
            other => Err(format!("a key is {}, not a name", other.kind())),
        };
        self.objects[dict].chunks_exact(2).map(|p| Ok((name(&p[0])?, p[1].clone()))).collect()
    }
}

fn rebuild(storage: &Value, offset: &Value, sizes: &Value, strides: &Value, dtype: Option<ScalarType>) -> Step<Value> {
    let (Value::Storage(storage), Value::Int(offset)) = (storage, offset) else {
        return Err("a tensor has no storage or offset".into());
    };
    let dtype = dtype.or(storage.dtype).ok_or("a tensor has no element type")?;
    let (sizes, strides) = (ints(sizes)?, ints(strides)?);
    Ok(Value::Tensor(Rc::new(PickledTensor { dtype, key: storage.key.clone(), sizes, strides, offset: *offset })))
}

fn ints(v: &Value) -> Step<Vec<i64>> {
    let Value::Tuple(t) = v else { return Err("sizes are no tuple".into()) };
    let int = |v: &Value| if let Value::Int(i) = v { Ok(*i) } else { Err("a size is no integer".to_string()) };
    t.items.iter().map(int).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::import::limits::LIMITS;

    fn why(bytes: &[u8]) -> String {
        read_state_dict(bytes, "data.pkl", &LIMITS).expect_err("is refused").to_string()
    }

    #[test]
    fn an_empty_dictionary_is_read() {
        assert!(read_state_dict(b"\x80\x02}.", "data.pkl", &LIMITS).expect("valid").is_empty());
    }

    #[test]
    fn a_tensor_keeps_offset_sizes_and_strides() {
        let mut p = b"\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nHalfStorage\n".to_vec();
        p.extend(b"X\x01\x00\x00\x003X\x03\x00\x00\x00cpuK\x18tQK\x02K\x03M\x01\x01\x86K\x01K\x04\x86\x89ccollections\nOrderedDict\n)RtRs.");
        let dict = read_state_dict(&p, "data.pkl", &LIMITS).expect("valid");
        let expect = PickledTensor {
            dtype: ScalarType::F16,
            key: "3".into(),
            sizes: vec![3, 257],
            strides: vec![1, 4],
            offset: 2,
        };
        assert_eq!(dict["w"], expect);
    }

    #[test]
    fn only_listed_names_are_built() {
        assert!(why(b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00ls\x85R.").contains("os.system"));
        assert!(why(b"\x80\x02cbuiltins\neval\n.").contains("builtins.eval"));
        assert!(why(b"\x80\x04\x8c\x05posix\x8c\x06system\x93.").contains("posix.system"));
    }

    #[test]
    fn malformed_programs_are_errors() {
        let deep = [b"\x80\x02)".as_slice(), &[0x85; 100_000], b"."].concat();
        assert!(why(&deep).contains("deeper"));
        for bad in [b"".as_slice(), b".", b"\x80\x02", b"\x80\x09}.", b"\x80\x02t.", b"\x80\x02(}u.", b"\x80\x02h\x07."]
        {
            assert!(read_state_dict(bad, "data.pkl", &LIMITS).is_err(), "{bad:?}");
        }
        assert!(why(b"\x80\x02K\x01.").contains("dictionary"));
        assert!(why(b"\x80\x02}X\x01\x00\x00\x00wK\x01s.").contains("not a tensor"));
        assert!(why(b"\x80\x02X\xff\xff\xff\xff.").contains("middle"));
    }
}
