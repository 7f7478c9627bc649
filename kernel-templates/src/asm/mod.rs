//! The structured assembler: the only place that names rspirv. It owns one module with one entry point, and hands out typed
//! values; callers nest loops and conditions and never see blocks, types or decorations.
//!
//! Rules that hold for every module, from what drivers were found to do: addresses travel as `uvec2` and become pointers at the
//! point of use (never through a phi, never pointer to pointer); 32-bit integers are all declared unsigned (SPIR-V's signed operations take them);
//! floating-point arithmetic keeps NaN, infinities and signed zeros, and is contracted only where a template asks.

#![allow(dead_code, reason = "an assembler offers what templates to come use")]

mod components;
mod convert;
mod cooperative;
mod fill;
mod flow;
mod int64;
mod memory;
mod ops;
mod types;

pub(crate) use cooperative::{Blocks, Lines, MatrixUse};
pub(crate) use flow::{If, Loop};
pub(crate) use memory::{BlockRun, Buffers, OwnBlocks, Shared};
pub(crate) use ops::Glsl;
pub(crate) use types::St;

use crate::spec::{Int64, InterfaceForm, Needs, Target};
use rspirv::binary::{Assemble, Disassemble};
use rspirv::dr::{Block, Function, Instruction, Module, ModuleHeader, Operand};
use rspirv::spirv::{
    AddressingModel, BuiltIn, Capability, Decoration, ExecutionMode, ExecutionModel, FunctionControl, MemoryModel, Op,
    StorageClass,
};
use std::collections::{BTreeMap, BTreeSet};

/// Result id of an instruction: a value, a type, a variable.
pub(crate) type Id = u32;

/// A module under construction. The current block is always open until [`Asm::finish`].
pub(crate) struct Asm {
    form: InterfaceForm,
    int64: Int64,
    capabilities: BTreeSet<u32>,
    extensions: BTreeSet<&'static str>,
    annotations: Vec<Instruction>,
    globals: Vec<Instruction>,
    blocks: Vec<Block>,
    types: BTreeMap<types::TypeKey, Id>,
    consts: BTreeMap<(St, u64), Id>,
    /// Words of 64-bit integers that were put together from them.
    word_pairs: BTreeMap<Id, (Id, Id)>,
    /// Per id: scalar type, type id, and bits of a constant.
    values: Vec<types::ValueInfo>,
    glsl: Id,
    void: Id,
    main: Id,
    vulkan_memory: bool,
    workgroup_size: u32,
    inputs: BTreeMap<u32, Id>,
    entry_interface: Vec<Id>,
    needs: Needs,
    shared_bytes: u32,
    /// Loops are not to be unrolled.
    rolled: bool,
}

/// A finished module with what it needs.
pub(crate) struct Finished {
    /// SPIR-V words.
    pub(crate) words: Vec<u32>,
    /// Bytes of workgroup memory.
    pub(crate) shared_bytes: u32,
    /// Device features.
    pub(crate) needs: Needs,
}

impl Asm {
    /// Starts a module whose entry point `main` has `workgroup_size` × 1 × 1 invocations.
    pub(crate) fn new(target: Target, workgroup_size: u32) -> Asm {
        let mut asm = Asm {
            form: target.form,
            int64: target.int64,
            capabilities: BTreeSet::new(),
            extensions: BTreeSet::new(),
            annotations: vec![],
            globals: vec![],
            blocks: vec![],
            types: BTreeMap::new(),
            consts: BTreeMap::new(),
            word_pairs: BTreeMap::new(),
            values: vec![types::ValueInfo::default()],
            glsl: 0,
            void: 0,
            main: 0,
            vulkan_memory: false,
            workgroup_size,
            inputs: BTreeMap::new(),
            entry_interface: vec![],
            needs: Needs::default(),
            shared_bytes: 0,
            rolled: false,
        };
        asm.require(Capability::Shader);
        asm.require(Capability::SignedZeroInfNanPreserve);
        if target.form == InterfaceForm::Addresses {
            asm.require(Capability::PhysicalStorageBufferAddresses);
        }
        asm.glsl = asm.fresh(St::Other, 0);
        asm.void = asm.type_void();
        asm.main = asm.fresh(St::Other, 0);
        asm.open_block();
        asm
    }

    /// Declares a capability.
    fn require(&mut self, capability: Capability) {
        self.capabilities.insert(capability as u32);
    }

    /// A new id of the given scalar type and type id.
    fn fresh(&mut self, st: St, type_id: Id) -> Id {
        self.values.push(types::ValueInfo { st, type_id, bits: None });
        (self.values.len() - 1) as Id
    }

    /// Appends an instruction with a result to the current block.
    fn push(&mut self, op: Op, type_id: Id, operands: Vec<Operand>) -> Id {
        let st = self.values[type_id as usize].st;
        let id = self.fresh(st, type_id);
        self.block().instructions.push(Instruction::new(op, Some(type_id), Some(id), operands));
        id
    }

    /// Appends an instruction without a result.
    fn push_void(&mut self, op: Op, operands: Vec<Operand>) {
        self.block().instructions.push(Instruction::new(op, None, None, operands));
    }

    fn block(&mut self) -> &mut Block {
        self.blocks.last_mut().expect("a block is open from new to finish")
    }

    /// Opens a block with a new label.
    fn open_block(&mut self) -> Id {
        let label = self.fresh(St::Other, 0);
        self.open_labelled(label);
        label
    }

    fn open_labelled(&mut self, label: Id) {
        let mut block = Block::new();
        block.label = Some(Instruction::new(Op::Label, None, Some(label), vec![]));
        self.blocks.push(block);
    }

    fn current_label(&self) -> Id {
        self.blocks.last().and_then(Block::label_id).expect("a block is open from new to finish")
    }

    fn decorate(&mut self, target: Id, decoration: Decoration, extra: &[u32]) {
        let mut operands = vec![Operand::IdRef(target), Operand::Decoration(decoration)];
        operands.extend(extra.iter().map(|&w| Operand::LiteralBit32(w)));
        self.annotations.push(Instruction::new(Op::Decorate, None, None, operands));
    }

    /// Linear number of the workgroup, however the grid of [`crate::spec::Kernel`] is folded: `x + (workgroups along x)·y`.
    pub(crate) fn workgroup_index(&mut self) -> Id {
        let [[x, y], [row, _]] = [BuiltIn::WorkgroupId, BuiltIn::NumWorkgroups].map(|builtin| {
            let var = self.input(builtin, 3);
            let vec = self.type_vector(St::U32, 3);
            let value = self.push(Op::Load, vec, vec![Operand::IdRef(var)]);
            [0, 1].map(|i| self.extract(value, i))
        });
        let below = self.imul(y, row);
        self.iadd(x, below)
    }

    /// Number of the invocation within its workgroup.
    pub(crate) fn local_index(&mut self) -> Id {
        let var = self.input(BuiltIn::LocalInvocationIndex, 1);
        let ty = self.type_scalar(St::U32);
        self.push(Op::Load, ty, vec![Operand::IdRef(var)])
    }

    fn input(&mut self, builtin: BuiltIn, width: u32) -> Id {
        if let Some(&var) = self.inputs.get(&(builtin as u32)) {
            return var;
        }
        let ty = if width == 1 { self.type_scalar(St::U32) } else { self.type_vector(St::U32, width) };
        let var = self.global_variable(StorageClass::Input, ty);
        self.decorate(var, Decoration::BuiltIn, &[builtin as u32]);
        self.inputs.insert(builtin as u32, var);
        var
    }

    /// A module-scope variable, listed in the entry point's interface (SPIR-V 1.4 and later).
    fn global_variable(&mut self, class: StorageClass, pointee: Id) -> Id {
        let ptr = self.type_pointer(class, pointee);
        let var = self.fresh(St::Other, ptr);
        self.globals.push(Instruction::new(Op::Variable, Some(ptr), Some(var), vec![Operand::StorageClass(class)]));
        self.entry_interface.push(var);
        var
    }

    /// Ends the entry point and assembles the words.
    pub(crate) fn finish(mut self) -> Finished {
        self.push_void(Op::Return, vec![]);
        let fn_ty = self.type_function_void();
        let module = Module {
            header: Some(self.header()),
            capabilities: self.capability_list(),
            extensions: self.extension_list(),
            ext_inst_imports: vec![Instruction::new(
                Op::ExtInstImport,
                None,
                Some(self.glsl),
                vec![Operand::LiteralString("GLSL.std.450".into())],
            )],
            memory_model: Some(self.memory_model()),
            entry_points: vec![self.entry_point()],
            execution_modes: self.execution_modes(),
            annotations: std::mem::take(&mut self.annotations),
            types_global_values: std::mem::take(&mut self.globals),
            functions: vec![self.function(fn_ty)],
            ..Module::default()
        };
        Finished { words: module.assemble(), shared_bytes: self.shared_bytes, needs: self.needs }
    }

    fn header(&self) -> ModuleHeader {
        let mut header = ModuleHeader::new(self.values.len() as u32);
        header.set_version(1, 5);
        header
    }

    fn capability_list(&self) -> Vec<Instruction> {
        let one = |&c: &u32| {
            let c = Capability::from_u32(c).expect("only declared capabilities are inserted");
            Instruction::new(Op::Capability, None, None, vec![Operand::Capability(c)])
        };
        self.capabilities.iter().map(one).collect()
    }

    fn extension_list(&self) -> Vec<Instruction> {
        let one = |e: &&'static str| {
            Instruction::new(Op::Extension, None, None, vec![Operand::LiteralString((*e).to_owned())])
        };
        self.extensions.iter().map(one).collect()
    }

    fn memory_model(&self) -> Instruction {
        let addressing = match self.form {
            InterfaceForm::Addresses => AddressingModel::PhysicalStorageBuffer64,
            InterfaceForm::Bindings => AddressingModel::Logical,
        };
        let memory = if self.vulkan_memory { MemoryModel::Vulkan } else { MemoryModel::GLSL450 };
        let operands = vec![Operand::AddressingModel(addressing), Operand::MemoryModel(memory)];
        Instruction::new(Op::MemoryModel, None, None, operands)
    }

    fn entry_point(&self) -> Instruction {
        let mut operands = vec![
            Operand::ExecutionModel(ExecutionModel::GLCompute),
            Operand::IdRef(self.main),
            Operand::LiteralString("main".into()),
        ];
        operands.extend(self.entry_interface.iter().map(|&v| Operand::IdRef(v)));
        Instruction::new(Op::EntryPoint, None, None, operands)
    }

    fn execution_modes(&self) -> Vec<Instruction> {
        let mode = |mode, words: &[u32]| {
            let mut operands = vec![Operand::IdRef(self.main), Operand::ExecutionMode(mode)];
            operands.extend(words.iter().map(|&w| Operand::LiteralBit32(w)));
            Instruction::new(Op::ExecutionMode, None, None, operands)
        };
        let mut modes = vec![
            mode(ExecutionMode::LocalSize, &[self.workgroup_size, 1, 1]),
            mode(ExecutionMode::SignedZeroInfNanPreserve, &[32]),
        ];
        if self.needs.float64 {
            modes.push(mode(ExecutionMode::SignedZeroInfNanPreserve, &[64]));
        }
        if self.needs.float16 {
            modes.push(mode(ExecutionMode::RoundingModeRTE, &[16]));
        }
        modes
    }

    fn function(&mut self, fn_ty: Id) -> Function {
        let control = Operand::FunctionControl(FunctionControl::NONE);
        Function {
            def: Some(Instruction::new(
                Op::Function,
                Some(self.void),
                Some(self.main),
                vec![control, Operand::IdRef(fn_ty)],
            )),
            end: Some(Instruction::new(Op::FunctionEnd, None, None, vec![])),
            parameters: vec![],
            blocks: std::mem::take(&mut self.blocks),
        }
    }
}

/// Text of a module, for review. `None` when the words are not a module.
pub(crate) fn disassemble(words: &[u32]) -> Option<String> {
    let mut loader = rspirv::dr::Loader::new();
    rspirv::binary::parse_words(words, &mut loader).ok()?;
    Some(loader.module().disassemble())
}
