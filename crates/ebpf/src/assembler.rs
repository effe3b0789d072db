//! Writing programs.

use std::fmt;

use crate::check::{Flaw, check};
use crate::instruction::{
    Base, Helper, Instruction, KernelFunction, Label, MapId, Operand, Operation, Register, Size, Slot, Test, Width,
    halves,
};

/// Writes a program from its beginning to its end.
///
/// It begins with its context in `r1`. Jumps lead forwards only, so that every program ends, and the verifier looks at each
/// path once.
#[derive(Clone, Debug, Default)]
pub struct Assembler {
    instructions: Vec<Instruction>,
    /// For each label how many instructions are before it.
    labels: Vec<Option<usize>>,
    placed_twice: Option<Label>,
}

/// Why something is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AssembleError {
    /// A label is placed nowhere.
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
    /// The verifier would not take an instruction.
    #[error("instruction {instruction}: {flaw}")]
    Flaw {
        /// The instruction.
        instruction: usize,
        /// What is wrong with it.
        flaw: Flaw,
    },
}

impl Assembler {
    /// An empty program.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new label, to be placed once, behind all jumps to it.
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

    /// `to = value`, of all 64 bits.
    pub fn set_wide(&mut self, to: Register, value: u64) -> &mut Self {
        self.push(Instruction::Constant { to, value })
    }

    /// `to = address of the map`
    pub fn set_map(&mut self, to: Register, map: MapId) -> &mut Self {
        self.push(Instruction::MapAddress { to, map })
    }

    /// `to = address of the first value of the map`, an array that has one alone.
    pub fn set_first_value(&mut self, to: Register, map: MapId) -> &mut Self {
        self.push(Instruction::FirstValue { to, map })
    }

    /// `to = address on the stack`, which is so many bytes below its end.
    pub fn set_stack(&mut self, to: Register, below: u16) -> &mut Self {
        self.push(Instruction::FramePointer { to });
        self.compute(Operation::Add, to, -i32::from(below))
    }

    /// `to = to operation by`
    pub fn compute(&mut self, operation: Operation, to: Register, by: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::Compute { operation, width: Width::Full, to, by: by.into() })
    }

    /// The same with 32 bits; the others are 0 then.
    pub fn compute_half(&mut self, operation: Operation, to: Register, by: impl Into<Operand>) -> &mut Self {
        self.push(Instruction::Compute { operation, width: Width::Half, to, by: by.into() })
    }

    /// Turns the lowest bytes from the machine's order into that of the network, or back; the others are 0 then.
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

    /// `memory at base + offset += value`, of 64 bits that others may add to at the same time.
    pub fn add_atomically(&mut self, base: impl Into<Base>, offset: i16, value: Register) -> &mut Self {
        self.push(Instruction::AddAtomically { base: base.into(), offset, value })
    }

    /// Goes on at a label.
    pub fn jump(&mut self, target: Label) -> &mut Self {
        self.push(Instruction::Jump { target })
    }

    /// Goes on at a label if a test holds, of all 64 bits.
    pub fn jump_if(&mut self, left: Register, test: Test, right: impl Into<Operand>, target: Label) -> &mut Self {
        self.push(Instruction::JumpIf { test, width: Width::Full, left, right: right.into(), target })
    }

    /// Goes on at a label if a test holds, of the lower 32 bits.
    pub fn jump_if_half(&mut self, left: Register, test: Test, right: impl Into<Operand>, target: Label) -> &mut Self {
        self.push(Instruction::JumpIf { test, width: Width::Half, left, right: right.into(), target })
    }

    /// Calls a function of the kernel with `r1` and what follows as arguments.
    pub fn call(&mut self, helper: Helper) -> &mut Self {
        self.push(Instruction::Call(helper))
    }

    /// Calls a function of the kernel by its number among the kernel's types.
    pub fn call_kernel(&mut self, function: KernelFunction) -> &mut Self {
        self.push(Instruction::CallKernel(function))
    }

    /// Ends the program with the result `r0`.
    pub fn exit(&mut self) -> &mut Self {
        self.push(Instruction::Exit)
    }

    /// The whole program.
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

/// A program that may be loaded as soon as its maps are there.
///
/// As text it is what the kernel's verifier would show of it: a line for each instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Each instruction, the slot at which it begins, and the one to which it jumps.
    lines: Vec<(Instruction, usize, usize)>,
    slots: Vec<Slot>,
    /// The slots in which maps are named.
    maps: Vec<(usize, MapId)>,
}

impl Program {
    /// How many slots of 8 bytes it has: what the kernel counts as instructions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Whether it has none, which cannot be: each has an end.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// The maps that it refers to, ascending.
    #[must_use]
    pub fn maps(&self) -> Vec<MapId> {
        let mut maps: Vec<MapId> = self.maps.iter().map(|(_, map)| *map).collect();
        maps.sort_unstable();
        maps.dedup();
        maps
    }

    /// What bpf(2) takes, with the file descriptor of each map.
    #[must_use]
    #[expect(clippy::expect_used, reason = "the assembler notes the slots that it makes")]
    pub fn bytes(&self, descriptor: impl Fn(MapId) -> i32) -> Vec<u8> {
        let mut slots = self.slots.clone();
        for (at, map) in &self.maps {
            slots.get_mut(*at).expect("a map is named in a slot").number = descriptor(*map);
        }
        slots.into_iter().flat_map(Slot::bytes).collect()
    }

    /// What an interpreter takes that knows nothing of maps: with the address of each one's first value, or of what the interpreter
    /// takes for the map.
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
