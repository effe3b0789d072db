//! What the kernel's verifier refuses whatever the maps are and the packets say.
//!
//! Jumps lead forwards, so one pass in the order of the instructions knows for each which registers and which bytes of the
//! stack have been written on every way to it.

use crate::instruction::{Base, Instruction, Operand, Register, Size};

/// The bytes of the stack.
const STACK: usize = 512;
const WORDS: usize = STACK / 64;

/// What is wrong with an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Flaw {
    /// It jumps backwards, or to itself.
    #[error("jumps backwards")]
    Backwards,
    /// No way leads to it.
    #[error("cannot be reached")]
    Unreachable,
    /// The program goes on behind its last instruction.
    #[error("is followed by nothing")]
    NoEnd,
    /// It reads a register that is not written on every way to it.
    #[error("reads {0}, which need not have been written")]
    Unwritten(Register),
    /// It reads bytes of the stack that are not written on every way to it.
    #[error("reads the stack at {0}, which need not have been written")]
    UnwrittenStack(i16),
    /// It reads or writes outside the stack.
    #[error("is outside the stack at {0}")]
    OutsideStack(i16),
    /// It reads or writes the stack at a place that is no multiple of the size.
    #[error("is not aligned on the stack at {0}")]
    Unaligned(i16),
    /// It divides by the number zero, or shifts by more than there are bits.
    #[error("has an operand that cannot be")]
    BadOperand,
}

/// What has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    registers: u16,
    stack: [u64; WORDS],
}

impl Written {
    /// What a program begins with: the context in `r1`.
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

    /// The word and the bits in it of a place on the stack.
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
            // They write where they are told to, and the verifier takes that for written.
            self.stack = [u64::MAX; WORDS];
        }
        Ok(())
    }

    /// What holds behind an instruction.
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

/// Finds the first instruction that the verifier would refuse. `targets` are those of jumps, as numbers of instructions.
pub(crate) fn check(instructions: &[Instruction], targets: &[Option<usize>]) -> Result<(), (usize, Flaw)> {
    let last = instructions.len().saturating_sub(1);
    // What is known of each instruction from those before it.
    let mut known: Vec<Option<Written>> = vec![None; instructions.len()];
    let Some(first) = known.first_mut() else { return Err((0, Flaw::NoEnd)) };
    *first = Some(Written::at_begin());
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
