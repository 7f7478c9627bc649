//! Memory: operands through push-constant addresses or bindings, the symbol table, arrays of workgroups and of invocations.

use super::convert::MemoryForm;
use super::{Asm, Id, St};
use crate::dtype::Storage;
use crate::spec::{Interface, InterfaceForm, Operand as SpecOperand};
use rspirv::dr::{Instruction, Operand};
use rspirv::spirv::{Capability, Decoration, MemoryAccess, Op, Scope, StorageClass};
use std::collections::BTreeMap;

/// Where an operand's bytes start.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// A 64-bit address as uvec2.
    Address(Id),
    /// A storage-buffer variable.
    Variable(Id),
}

#[derive(Debug, Clone, Copy)]
struct BufferRef {
    place: Place,
    form: MemoryForm,
    block: Id,
    element: Id,
}

/// The operands of a kernel, ready for loads and stores.
pub(crate) struct Buffers {
    operands: Vec<BufferRef>,
    /// Bindings form: the variables through which operands are used by whole blocks of so many words, as they are needed.
    block_views: BTreeMap<(u16, u32), Id>,
    symbols: Option<BufferRef>,
}

/// Blocks of an operand from one on, found once and loaded at known distances.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BlockRun {
    base: Id,
    /// Bindings form: the first block's index.
    index: Option<Id>,
}

/// An array in workgroup memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared {
    var: Id,
    element: Id,
    st: St,
}

/// An array of blocks of four f32, of each invocation's own.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnBlocks {
    var: Id,
}

impl Asm {
    /// Declares the interface and computes each operand's address; call once, at the start.
    pub(crate) fn interface(&mut self, interface: &Interface) -> Buffers {
        match self.form {
            InterfaceForm::Addresses => self.address_interface(interface),
            InterfaceForm::Bindings => self.binding_interface(interface),
        }
    }

    fn address_interface(&mut self, interface: &Interface) -> Buffers {
        let words2 = self.type_vector(St::U32, 2);
        let word = self.type_scalar(St::U32);
        let n_bases = u32::from(interface.n_bases);
        let mut members: Vec<(Id, u32)> = (0..n_bases).map(|i| (words2, 8 * i)).collect();
        members.extend((0..interface.operands.len() as u32).map(|i| (word, 8 * n_bases + 4 * i)));
        if members.is_empty() {
            return Buffers { operands: vec![], block_views: BTreeMap::new(), symbols: None };
        }
        let block = self.type_push_struct(&members);
        let push = self.global_variable(StorageClass::PushConstant, block);
        let bases: Vec<Id> = (0..n_bases).map(|i| self.push_member(push, i, words2)).collect();
        let operands = (0u32..).zip(&interface.operands).map(|(i, operand)| {
            let offset = self.push_member(push, n_bases + i, word);
            let base = bases[usize::from(operand.base)];
            let address =
                if operand.via_table { self.table_entry(base, offset) } else { self.offset_address(base, offset) };
            self.buffer_at(Place::Address(address), memory_form(operand))
        });
        let operands = operands.collect();
        let symbols = interface.symbols.then(|| {
            let base = *bases.last().expect("a kernel with symbols has their base");
            self.buffer_at(Place::Address(base), MemoryForm::native(crate::dtype::DType::I32))
        });
        Buffers { operands, block_views: BTreeMap::new(), symbols }
    }

    fn push_member(&mut self, push: Id, member: u32, ty: Id) -> Id {
        let ptr = self.type_pointer(StorageClass::PushConstant, ty);
        let member = self.u32(member);
        let at = self.push(Op::AccessChain, ptr, vec![Operand::IdRef(push), Operand::IdRef(member)]);
        self.push(Op::Load, ty, vec![Operand::IdRef(at)])
    }

    /// `base + 16·offset`, in 64 bits by halves.
    fn offset_address(&mut self, base: Id, offset: Id) -> Id {
        let (low, high) = (self.extract(base, 0), self.extract(base, 1));
        let (four, rest) = (self.u32(4), self.u32(28));
        let add_low = self.shl(offset, four);
        let add_high = self.shr(offset, rest);
        let (sum, carry) = self.add_carry(low, add_low);
        let high = self.iadd(high, add_high);
        let high = self.iadd(high, carry);
        self.words2(sum, high)
    }

    /// Entry `slot` of the table of addresses at `base`.
    fn table_entry(&mut self, base: Id, slot: Id) -> Id {
        let words2 = self.type_vector(St::U32, 2);
        let block = self.type_block(words2, 8);
        let at = self.element_pointer(Place::Address(base), block, words2, slot);
        self.load_raw(at, words2, 8)
    }

    fn binding_interface(&mut self, interface: &Interface) -> Buffers {
        let operands = (0u32..).zip(&interface.operands).map(|(i, operand)| self.bound(i, memory_form(operand)));
        let operands: Vec<BufferRef> = operands.collect();
        let n = operands.len() as u32;
        let symbols = interface.symbols.then(|| self.bound(n, MemoryForm::native(crate::dtype::DType::I32)));
        Buffers { operands, block_views: BTreeMap::new(), symbols }
    }

    fn bound(&mut self, binding: u32, form: MemoryForm) -> BufferRef {
        let mut buffer = self.buffer_at(Place::Variable(0), form);
        buffer.place = Place::Variable(self.bound_variable(binding, buffer.block));
        buffer
    }

    fn bound_variable(&mut self, binding: u32, block: Id) -> Id {
        let var = self.global_variable(StorageClass::StorageBuffer, block);
        self.decorate(var, Decoration::DescriptorSet, &[0]);
        self.decorate(var, Decoration::Binding, &[binding]);
        self.decorate(var, Decoration::Aliased, &[]);
        var
    }

    /// The operands of the first of so many copies stand for those of another, whose number is a word.
    ///
    /// # Panics
    /// Where operands are bindings.
    pub(crate) fn take_operands(&mut self, buffers: &mut Buffers, copy: Id, copies: u32) {
        let of_a_copy = buffers.operands.len() / copies as usize;
        let words = |asm: &mut Asm, place: Place| match place {
            Place::Address(address) => [0, 1].map(|half| asm.extract(address, half)),
            Place::Variable(_) => panic!("bindings are not chosen from"),
        };
        for first in 0..of_a_copy {
            let mut taken = words(self, buffers.operands[first].place);
            for k in 1..copies {
                let other = words(self, buffers.operands[first + k as usize * of_a_copy].place);
                let number = self.u32(k);
                let is_it = self.ieq(copy, number);
                taken = [0, 1].map(|half| self.select(is_it, other[half], taken[half]));
            }
            buffers.operands[first].place = Place::Address(self.words2(taken[0], taken[1]));
        }
    }

    fn buffer_at(&mut self, place: Place, form: MemoryForm) -> BufferRef {
        let element = self.type_scalar(form.st);
        let block = self.type_block(element, form.st.size_bytes());
        BufferRef { place, form, block, element }
    }

    /// Pointer to an element; made where it is used.
    fn element_pointer(&mut self, place: Place, block: Id, element: Id, index: Id) -> Id {
        let zero = self.u32(0);
        let (base, class) = match place {
            Place::Variable(var) => (var, StorageClass::StorageBuffer),
            Place::Address(address) => {
                let ptr = self.type_pointer(StorageClass::PhysicalStorageBuffer, block);
                let base = self.push(Op::Bitcast, ptr, vec![Operand::IdRef(address)]);
                (base, StorageClass::PhysicalStorageBuffer)
            }
        };
        let ptr = self.type_pointer(class, element);
        self.push(Op::AccessChain, ptr, vec![Operand::IdRef(base), Operand::IdRef(zero), Operand::IdRef(index)])
    }

    fn load_raw(&mut self, at: Id, ty: Id, align: u32) -> Id {
        let mut operands = vec![Operand::IdRef(at)];
        operands.extend(self.alignment(align));
        self.push(Op::Load, ty, operands)
    }

    /// `Aligned n`: demanded for addresses, left out for bindings.
    fn alignment(&self, align: u32) -> Vec<Operand> {
        match self.form {
            InterfaceForm::Bindings => vec![],
            InterfaceForm::Addresses => {
                vec![Operand::MemoryAccess(MemoryAccess::ALIGNED), Operand::LiteralBit32(align)]
            }
        }
    }

    /// Element `index` of an operand, in its register type.
    pub(crate) fn load(&mut self, buffers: &Buffers, operand: u16, index: Id) -> Id {
        self.load_buffer(buffers.operands[usize::from(operand)], index)
    }

    /// 16 bytes of an operand, as four words: block `index` from its start.
    pub(crate) fn load_operand_block(&mut self, buffers: &mut Buffers, operand: u16, index: Id) -> Id {
        self.load_operand_words(buffers, operand, index, 4)
    }

    /// As [`Asm::load_operand_block`], of blocks of two or four words.
    pub(crate) fn load_operand_words(&mut self, buffers: &mut Buffers, operand: u16, index: Id, n_words: u32) -> Id {
        let words = self.type_vector(St::U32, n_words);
        let at = self.operand_block(buffers, (operand, n_words), index);
        self.load_raw(at, words, 4 * n_words)
    }

    /// Writes a block of so many words of an operand.
    pub(crate) fn store_operand_words(
        &mut self,
        buffers: &mut Buffers,
        operand: u16,
        index: Id,
        (value, n_words): (Id, u32),
    ) {
        let at = self.operand_block(buffers, (operand, n_words), index);
        let mut operands = vec![Operand::IdRef(at), Operand::IdRef(value)];
        operands.extend(self.alignment(4 * n_words));
        self.push_void(Op::Store, operands);
    }

    /// The blocks of an operand from block `index` on.
    pub(crate) fn block_run(&mut self, buffers: &mut Buffers, operand: u16, index: Id) -> BlockRun {
        match buffers.operands[usize::from(operand)].place {
            Place::Address(address) => {
                let first = self.offset_address(address, index);
                let words = self.type_vector(St::U32, 4);
                let block = self.type_block(words, 16);
                let ptr = self.type_pointer(StorageClass::PhysicalStorageBuffer, block);
                BlockRun { base: self.push(Op::Bitcast, ptr, vec![Operand::IdRef(first)]), index: None }
            }
            Place::Variable(_) => BlockRun { base: operand.into(), index: Some(index) },
        }
    }

    /// Block `distance` of a run.
    pub(crate) fn load_run_block(&mut self, buffers: &mut Buffers, run: BlockRun, distance: u32) -> Id {
        let distance = self.u32(distance);
        if let Some(index) = run.index {
            let at = self.iadd(index, distance);
            return self.load_operand_block(buffers, run.base as u16, at);
        }
        let words = self.type_vector(St::U32, 4);
        let ptr = self.type_pointer(StorageClass::PhysicalStorageBuffer, words);
        let zero = self.u32(0);
        let at = [run.base, zero, distance].map(Operand::IdRef).to_vec();
        let at = self.push(Op::AccessChain, ptr, at);
        self.load_raw(at, words, 16)
    }

    fn operand_block(&mut self, buffers: &mut Buffers, (operand, n_words): (u16, u32), index: Id) -> Id {
        let words = self.type_vector(St::U32, n_words);
        let block = self.type_block(words, 4 * n_words);
        let place = match buffers.operands[usize::from(operand)].place {
            address @ Place::Address(_) => address,
            Place::Variable(_) => {
                let known = buffers.block_views.get(&(operand, n_words)).copied();
                let var = known.unwrap_or_else(|| self.bound_variable(operand.into(), block));
                buffers.block_views.insert((operand, n_words), var);
                Place::Variable(var)
            }
        };
        self.element_pointer(place, block, words, index)
    }

    fn load_buffer(&mut self, buffer: BufferRef, index: Id) -> Id {
        let at = self.element_pointer(buffer.place, buffer.block, buffer.element, index);
        let raw = self.load_raw(at, buffer.element, buffer.form.st.size_bytes());
        self.load_form(buffer.form, raw)
    }

    /// Writes element `index` of an operand.
    pub(crate) fn store(&mut self, buffers: &Buffers, operand: u16, index: Id, value: Id) {
        let buffer = buffers.operands[usize::from(operand)];
        let raw = self.store_form(buffer.form, value);
        let at = self.element_pointer(buffer.place, buffer.block, buffer.element, index);
        let mut operands = vec![Operand::IdRef(at), Operand::IdRef(raw)];
        operands.extend(self.alignment(buffer.form.st.size_bytes()));
        self.push_void(Op::Store, operands);
    }

    /// Word `index` of the symbol table.
    pub(crate) fn symbol(&mut self, buffers: &Buffers, word: u16) -> Id {
        let table = buffers.symbols.expect("the interface says that symbols are read");
        let index = self.u32(word.into());
        self.load_buffer(table, index)
    }

    /// Declares an array of `len` elements in workgroup memory.
    pub(crate) fn shared_array(&mut self, st: St, len: u32) -> Shared {
        // Truth values have no defined layout in memory: callers keep them as words.
        assert!(st.size_bytes() >= 4, "shared arrays hold 32-bit or 64-bit elements, not {st:?}");
        let element = self.type_scalar(st);
        let array = self.type_array(element, len);
        let var = self.global_variable(StorageClass::Workgroup, array);
        self.shared_bytes += len * st.size_bytes();
        Shared { var, element, st }
    }

    fn shared_pointer(&mut self, array: Shared, index: Id) -> Id {
        let ptr = self.type_pointer(StorageClass::Workgroup, array.element);
        self.push(Op::AccessChain, ptr, vec![Operand::IdRef(array.var), Operand::IdRef(index)])
    }

    /// Element of a workgroup array.
    pub(crate) fn load_shared(&mut self, array: Shared, index: Id) -> Id {
        let at = self.shared_pointer(array, index);
        self.push(Op::Load, array.element, vec![Operand::IdRef(at)])
    }

    /// Writes an element of a workgroup array.
    pub(crate) fn store_shared(&mut self, array: Shared, index: Id, value: Id) {
        debug_assert_eq!(self.st(value), array.st, "shared element type");
        let at = self.shared_pointer(array, index);
        self.push_void(Op::Store, vec![Operand::IdRef(at), Operand::IdRef(value)]);
    }

    /// Declares `len` blocks of four f32 of each invocation's own.
    pub(crate) fn own_blocks(&mut self, len: u32) -> OwnBlocks {
        let block = self.type_vector(St::F32, 4);
        let array = self.type_array(block, len);
        let ptr = self.type_pointer(StorageClass::Function, array);
        let var = self.fresh(St::Other, ptr);
        let class = vec![Operand::StorageClass(StorageClass::Function)];
        self.blocks[0].instructions.insert(0, Instruction::new(Op::Variable, Some(ptr), Some(var), class));
        OwnBlocks { var }
    }

    fn own_pointer(&mut self, blocks: OwnBlocks, index: Id) -> Id {
        let block = self.type_vector(St::F32, 4);
        let ptr = self.type_pointer(StorageClass::Function, block);
        self.push(Op::AccessChain, ptr, vec![Operand::IdRef(blocks.var), Operand::IdRef(index)])
    }

    /// A block of the invocation's array.
    pub(crate) fn load_own(&mut self, blocks: OwnBlocks, index: Id) -> [Id; 4] {
        let at = self.own_pointer(blocks, index);
        let ty = self.type_vector(St::F32, 4);
        let block = self.push(Op::Load, ty, vec![Operand::IdRef(at)]);
        let scalar = self.type_scalar(St::F32);
        [0, 1, 2, 3].map(|word| {
            self.push(Op::CompositeExtract, scalar, vec![Operand::IdRef(block), Operand::LiteralBit32(word)])
        })
    }

    /// Writes a block of the invocation's array.
    pub(crate) fn store_own(&mut self, blocks: OwnBlocks, index: Id, values: [Id; 4]) {
        let at = self.own_pointer(blocks, index);
        let ty = self.type_vector(St::F32, 4);
        let block = self.push(Op::CompositeConstruct, ty, values.map(Operand::IdRef).to_vec());
        self.push_void(Op::Store, vec![Operand::IdRef(at), Operand::IdRef(block)]);
    }

    /// Adds to a word of a workgroup array; what it was before. Between two barriers, the order of such additions is any.
    pub(crate) fn add_shared(&mut self, array: Shared, index: Id, value: Id) -> Id {
        let at = self.shared_pointer(array, index);
        let (scope, relaxed) = (self.u32(Scope::Workgroup as u32), self.u32(0));
        let operands = vec![
            Operand::IdRef(at),
            Operand::IdScope(scope),
            Operand::IdMemorySemantics(relaxed),
            Operand::IdRef(value),
        ];
        self.push(Op::AtomicIAdd, array.element, operands)
    }

    /// Switches to the Vulkan memory model, which cooperative matrices demand.
    pub(crate) fn use_vulkan_memory_model(&mut self) {
        self.vulkan_memory = true;
        self.require(Capability::VulkanMemoryModel);
    }
}

/// Type of an operand's elements in memory.
fn memory_form(operand: &SpecOperand) -> MemoryForm {
    match operand.storage {
        Storage::Native => MemoryForm::native(operand.dtype),
        Storage::Word => MemoryForm::word(operand.dtype),
    }
}
