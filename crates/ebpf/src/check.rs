//! Checks for flaws that the kernel's verifier refuses, whatever the maps and packets contain.
//!
//! Jumps lead forwards only. So one pass in the order of the instructions determines for each of
//! them which registers and stack bytes have been written on every path to it.

use crate::instruction::{Base, Instruction, Operand, Register, Size};

/// Size of the stack in bytes.
const STACK: usize = 512;
const WORDS: usize = STACK / 64;

/// Flaw of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// It jumps backwards, or to itself.
    #[error("jumps backwards")]
    Backwards,
    /// No path leads to it.
    #[error("cannot be reached")]
    Unreachable,
    /// The program continues behind its last instruction.
    #[error("is followed by nothing")]
    NoEnd,
    /// It reads a register that is not written on every path to it.
    #[error("reads {0}, which need not have been written")]
    Unwritten(Register),
    /// It reads stack bytes that are not written on every path to it.
    #[error("reads the stack at {0}, which need not have been written")]
    UnwrittenStack(i16),
    /// It reads or writes outside the stack.
    #[error("is outside the stack at {0}")]
    OutsideStack(i16),
    /// It reads or writes the stack at an offset that is not a multiple of the size.
    #[error("is not aligned on the stack at {0}")]
    Unaligned(i16),
    /// It divides by the constant zero, or shifts by more than the number of bits.
    #[error("has an operand that cannot be")]
    BadOperand,
}

/// Registers and stack bytes that have been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Initialized {
    registers: u16,
    stack: [u64; WORDS],
}

impl Initialized {
    /// Returns the state at the begin of a program: the context is in `r1`.
    const fn at_begin() -> Self {
        Self { registers: 1 << Register::R1.number(), stack: [0; WORDS] }
    }

    fn and(&mut self, other: &Self) {
        self.registers &= other.registers;
        for (word, other) in self.stack.iter_mut().zip(&other.stack) {
            *word &= other;
        }
    }

    fn read(&self, register: Register) -> Result<(), Flaw> {
        if self.registers & 1 << register.number() == 0 { Err(Flaw::Unwritten(register)) } else { Ok(()) }
    }

    fn read_operand(&self, operand: Operand) -> Result<(), Flaw> {
        match operand {
            Operand::Register(register) => self.read(register),
            Operand::Number(_) => Ok(()),
        }
    }

    fn read_base(&self, base: Base) -> Result<(), Flaw> {
        match base {
            Base::Register(register) => self.read(register),
            Base::Frame => Ok(()),
        }
    }

    fn write(&mut self, register: Register) {
        self.registers |= 1 << register.number();
    }

    /// Returns the word of an offset on the stack, and the bits in it.
    fn place(size: Size, offset: i16) -> Result<(usize, u64), Flaw> {
        let bytes = usize::from(size.bytes());
        let start = usize::try_from(i32::from(offset) + 512).map_err(|_| Flaw::OutsideStack(offset))?;
        if start + bytes > STACK {
            return Err(Flaw::OutsideStack(offset));
        }
        if start % bytes != 0 {
            return Err(Flaw::Unaligned(offset));
        }
        Ok((start / 64, ((1 << bytes) - 1) << (start % 64)))
    }

    fn read_stack(&self, size: Size, offset: i16) -> Result<(), Flaw> {
        let (word, bits) = Self::place(size, offset)?;
        let is_written = self.stack.get(word).is_some_and(|written| written & bits == bits);
        if is_written { Ok(()) } else { Err(Flaw::UnwrittenStack(offset)) }
    }

    fn write_stack(&mut self, size: Size, offset: i16) -> Result<(), Flaw> {
        let (word, bits) = Self::place(size, offset)?;
        if let Some(written) = self.stack.get_mut(word) {
            *written |= bits;
        }
        Ok(())
    }

    fn call(&mut self, arguments: u8, writes_memory: bool) -> Result<(), Flaw> {
        for argument in Register::ALL.iter().skip(1).take(usize::from(arguments)) {
            self.read(*argument)?;
        }
        self.registers &= !0b11_1110;
        self.write(Register::R0);
        if writes_memory {
            // The function writes to memory that its arguments point to, and the verifier treats
            // that memory as written.
            self.stack = [u64::MAX; WORDS];
        }
        Ok(())
    }

    /// Returns the state after an instruction.
    fn after(mut self, instruction: &Instruction) -> Result<Self, Flaw> {
        use crate::instruction::Operation;
        match *instruction {
            Instruction::Compute { operation, width, to, by } => {
                self.read_operand(by)?;
                if operation != Operation::Move {
                    self.read(to)?;
                }
                let bits = if width == crate::Width::Full { 64 } else { 32 };
                let is_bad = |number: i32| match operation {
                    Operation::Divide | Operation::Remainder => number == 0,
                    Operation::ShiftLeft | Operation::ShiftRight | Operation::ShiftRightSigned => {
                        !(0..bits).contains(&number)
                    }
                    _ => false,
                };
                if matches!(by, Operand::Number(number) if is_bad(number)) {
                    return Err(Flaw::BadOperand);
                }
                self.write(to);
            }
            Instruction::ToBigEndian { size, register } => {
                self.read(register)?;
                if size == Size::U8 {
                    return Err(Flaw::BadOperand);
                }
            }
            Instruction::FramePointer { to }
            | Instruction::Constant { to, .. }
            | Instruction::MapAddress { to, .. }
            | Instruction::FirstValue { to, .. } => {
                self.write(to);
            }
            Instruction::Load { size, to, base, offset } => {
                self.read_base(base)?;
                if base == Base::Frame {
                    self.read_stack(size, offset)?;
                }
                self.write(to);
            }
            Instruction::Store { size, base, offset, value } => {
                self.read_base(base)?;
                self.read_operand(value)?;
                if base == Base::Frame {
                    self.write_stack(size, offset)?;
                }
            }
            Instruction::AddAtomically { base, offset, value } => {
                self.read_base(base)?;
                self.read(value)?;
                if base == Base::Frame {
                    self.read_stack(Size::U64, offset)?;
                }
            }
            Instruction::Jump { .. } => {}
            Instruction::JumpIf { left, right, .. } => {
                self.read(left)?;
                self.read_operand(right)?;
            }
            Instruction::Call(helper) => self.call(helper.arguments(), helper.writes_memory())?,
            Instruction::CallKernel(function) => self.call(function.arguments, true)?,
            Instruction::Exit => self.read(Register::R0)?,
        }
        Ok(self)
    }
}

/// Finds the first instruction that the verifier would refuse. `targets` are the targets of jumps,
/// as instruction numbers.
pub(crate) fn check(instructions: &[Instruction], targets: &[Option<usize>]) -> Result<(), (usize, Flaw)> {
    let last = instructions.len().saturating_sub(1);
    // State before each instruction, from those that lead to it.
    let mut known: Vec<Option<Initialized>> = vec![None; instructions.len()];
    let Some(first) = known.first_mut() else { return Err((0, Flaw::NoEnd)) };
    *first = Some(Initialized::at_begin());
    for (at, (instruction, target)) in instructions.iter().zip(targets).enumerate() {
        let written = known.get(at).copied().flatten().ok_or((at, Flaw::Unreachable))?;
        let after = written.after(instruction).map_err(|flaw| (at, flaw))?;
        let next = instruction.goes_on().then_some(at + 1);
        for follower in [next, *target].into_iter().flatten() {
            if follower <= at {
                return Err((at, Flaw::Backwards));
            }
            match known.get_mut(follower) {
                None => return Err((at.min(last), Flaw::NoEnd)),
                Some(Some(before)) => before.and(&after),
                Some(none) => *none = Some(after),
            }
        }
    }
    Ok(())
}
