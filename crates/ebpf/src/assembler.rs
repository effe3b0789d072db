//! Assembly of programs.

use std::fmt;

use crate::check::{Flaw, check};
use crate::instruction::{
    Base, Helper, Instruction, KernelFunction, Label, MapId, Operand, Operation, Register, Size, Slot, Test, Width,
    halves,
};

/// Assembler that writes a program from its begin to its end.
///
/// A program begins with its context in `r1`. Jumps lead forwards only, so every program
/// terminates, and the verifier visits each path once.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// Number of instructions before each label.
    labels: Vec<Option<usize>>,
    placed_twice: Option<Label>,
}

/// Reason why a program cannot be assembled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// A label is not placed.
    #[error("instruction {instruction} jumps to a label that is placed nowhere")]
    NotPlaced {
        /// The jump, counted from 0.
        instruction: usize,
    },
    /// A label is placed more than once.
    #[error("a label is placed twice")]
    PlacedTwice,
    /// A jump leads further than 32,767 slots.
    #[error("instruction {instruction} jumps too far")]
    TooFar {
        /// The jump.
        instruction: usize,
    },
    /// The verifier would refuse an instruction.
    #[error("instruction {instruction}: {flaw}")]
    Flaw {
        /// The instruction.
        instruction: usize,
        /// The flaw.
        flaw: Flaw,
    },
}

impl Assembler {
    /// Returns an empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a new label, to be placed once, behind all jumps to it.
    #[must_use]
    #[expect(clippy::expect_used, reason = "2^32 labels are more than any program has")]
    pub fn label(&mut self) -> Label {
        let number = u32::try_from(self.labels.len()).expect("there are fewer than 2^32 labels");
        self.labels.push(None);
        Label(number)
    }

    /// Places a label before the next instruction.
    pub fn place(&mut self, label: Label) -> &mut Self {
        let here = self.instructions.len();
        match self.labels.get_mut(label.0 as usize) {
            Some(place @ None) => *place = Some(here),
            _ => self.placed_twice = Some(label),
        }
        self
    }

    fn push(&mut self, instruction: Instruction) -> &mut Self {
        self.instructions.push(instruction);
        self
    }

    /// `to = value`
    pub fn set(&mut self, to: Register, value: impl Into<Operand>) -> &mut Self {
        self.compute(Operation::Move, to, value)
    }

    /// `to = value`, with 64 bits.
    pub fn set_wide(&mut self, to: Register, value: u64) -> &mut Self {
        self.push(Instruction::Constant { to, value })
    }

    /// `to = address of the map`
    pub fn set_map(&mut self, to: Register, map: MapId) -> &mut Self {
        self.push(Instruction::MapAddress { to, map })
    }

    /// `to = address of the first value of the map`, an array with a single value.
    pub fn set_first_value(&mut self, to: Register, map: MapId) -> &mut Self {
        self.push(Instruction::FirstValue { to, map })
    }

    /// `to = address on the stack`, `below` bytes below its end.
    pub fn set_stack(&mut self, to: Register, below: u16) -> &mut Self {
        self.push(Instruction::FramePointer { to });
        self.compute(Operation::Add, to, -i32::from(below))
    }

    /// `to = to operation by`
    pub fn compute(&mut self, operation: Operation, to: Register, by: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::Compute { operation, width: Width::Full, to, by: by.into() })
    }

    /// Like [`compute`](Self::compute), with 32 bits; the upper 32 bits become 0.
    pub fn compute_half(&mut self, operation: Operation, to: Register, by: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::Compute { operation, width: Width::Half, to, by: by.into() })
    }

    /// Converts the lowest bytes from native to network byte order, or back; the others become 0.
    pub fn to_big_endian(&mut self, size: Size, register: Register) -> &mut Self {
        self.push(Instruction::ToBigEndian { size, register })
    }

    /// `to = memory at base + offset`
    pub fn load(&mut self, size: Size, to: Register, base: impl Into<Base>, offset: i16) -> &mut Self {
        self.push(Instruction::Load { size, to, base: base.into(), offset })
    }

    /// `memory at base + offset = value`
    pub fn store(&mut self, size: Size, base: impl Into<Base>, offset: i16, value: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::Store { size, base: base.into(), offset, value: value.into() })
    }

    /// `memory at base + offset += value`, atomically, with 64 bits.
    pub fn add_atomically(&mut self, base: impl Into<Base>, offset: i16, value: Register) -> &mut Self {
        self.push(Instruction::AddAtomically { base: base.into(), offset, value })
    }

    /// Jumps to a label.
    pub fn jump(&mut self, target: Label) -> &mut Self {
        self.push(Instruction::Jump { target })
    }

    /// Jumps to a label if a comparison of 64 bits is true.
    pub fn jump_if(&mut self, left: Register, test: Test, right: impl Into<Operand>, target: Label) -> &mut Self {
        self.push(Instruction::JumpIf { test, width: Width::Full, left, right: right.into(), target })
    }

    /// Jumps to a label if a comparison of the lower 32 bits is true.
    pub fn jump_if_half(&mut self, left: Register, test: Test, right: impl Into<Operand>, target: Label) -> &mut Self {
        self.push(Instruction::JumpIf { test, width: Width::Half, left, right: right.into(), target })
    }

    /// Calls a kernel helper function, with arguments from `r1` on.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(Instruction::Call(helper))
    }

    /// Calls a kernel function by its number among the kernel's types.
    pub fn call_kernel(&mut self, function: KernelFunction) -> &mut Self {
        self.push(Instruction::CallKernel(function))
    }

    /// Ends the program with the result `r0`.
    pub fn exit(&mut self) -> &mut Self {
        self.push(Instruction::Exit)
    }

    /// Returns the whole program.
    ///
    /// # Errors
    /// [`AssembleError`].
    #[expect(clippy::expect_used, reason = "the check refuses jumps to the end of the program")]
    pub fn assemble(self) -> Result<Program, AssembleError> {
        if self.placed_twice.is_some() {
            return Err(AssembleError::PlacedTwice);
        }
        let mut targets = Vec::with_capacity(self.instructions.len());
        for (at, instruction) in self.instructions.iter().enumerate() {
            targets.push(match instruction.target() {
                None => None,
                Some(label) => match self.labels.get(label.0 as usize) {
                    Some(Some(target)) => Some(*target),
                    _ => return Err(AssembleError::NotPlaced { instruction: at }),
                },
            });
        }
        check(&self.instructions, &targets).map_err(|(instruction, flaw)| AssembleError::Flaw { instruction, flaw })?;
        let mut starts = Vec::with_capacity(self.instructions.len());
        let mut slots = 0;
        for instruction in &self.instructions {
            starts.push(slots);
            slots += instruction.slots();
        }
        let mut program = Program { lines: Vec::new(), slots: Vec::with_capacity(slots), maps: Vec::new() };
        for (at, (instruction, target)) in self.instructions.iter().zip(targets).enumerate() {
            let next = program.slots.len() + instruction.slots();
            let start = |target: usize| *starts.get(target).expect("a checked jump leads to an instruction");
            let target = target.map_or(next, start);
            let distance = i16::try_from(target - next).map_err(|_| AssembleError::TooFar { instruction: at })?;
            if let Instruction::MapAddress { map, .. } | Instruction::FirstValue { map, .. } = instruction {
                program.maps.push((program.slots.len(), *map));
            }
            program.lines.push((*instruction, program.slots.len(), target));
            instruction.encode(distance, &mut program.slots);
        }
        Ok(program)
    }
}

/// A program, which can be loaded once its maps exist.
///
/// Its text form is that of the kernel's verifier: one line for each instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Each instruction, its first slot, and the slot to which it jumps.
    lines: Vec<(Instruction, usize, usize)>,
    slots: Vec<Slot>,
    /// Slots that refer to maps.
    maps: Vec<(usize, MapId)>,
}

impl Program {
    /// Returns the number of slots of 8 bytes, which the kernel counts as instructions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Reports whether it has no slots; always false, since each program has an end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the maps that it refers to, ascending.
    #[must_use]
    pub fn maps(&self) -> Vec<MapId> {
        let mut maps: Vec<MapId> = self.maps.iter().map(|(_, map)| *map).collect();
        maps.sort_unstable();
        maps.dedup();
        maps
    }

    /// Returns the program for bpf(2), with the file descriptor of each map.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the assembler notes the slots that it makes")]
    pub fn bytes(&self, descriptor: impl Fn(MapId) -> i32) -> Vec<u8> {
        let mut slots = self.slots.clone();
        for (at, map) in &self.maps {
            slots.get_mut(*at).expect("a map is named in a slot").number = descriptor(*map);
        }
        slots.into_iter().flat_map(Slot::bytes).collect()
    }

    /// Returns the program for an interpreter without maps: with the address of each map's first
    /// value, or of the interpreter's substitute for the map.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the assembler notes the slots that it makes")]
    pub fn bytes_with_addresses(&self, address: impl Fn(MapId) -> u64) -> Vec<u8> {
        let mut slots = self.slots.clone();
        for (at, map) in &self.maps {
            let wide = slots.get_mut(*at..*at + 2).expect("a map is named in two slots");
            wide.iter_mut().zip(halves(address(*map))).for_each(|(slot, half)| slot.set_half(half));
        }
        slots.into_iter().flat_map(Slot::bytes).collect()
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (instruction, slot, target) in &self.lines {
            write!(f, "{slot}: ")?;
            instruction.write(f, *target)?;
            writeln!(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
