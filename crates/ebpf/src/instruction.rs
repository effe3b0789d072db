//! Instructions (RFC 9669), except those that only programs with loops need.

use std::fmt;

/// A register that a program may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "registers have no fixed meaning")]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Register {
    R0,
    R1,
    R2,
    R3,
    R4,
    R5,
    R6,
    R7,
    R8,
    R9,
}

impl Register {
    /// All registers.
    pub const ALL: [Self; 10] =
        [Self::R0, Self::R1, Self::R2, Self::R3, Self::R4, Self::R5, Self::R6, Self::R7, Self::R8, Self::R9];

    /// Returns its number.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }
}

impl fmt::Display for Register {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.number())
    }
}

/// Base of a memory address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Base {
    /// A pointer in a register.
    Register(Register),
    /// The end of the stack frame of 512 bytes; the stack is below. No program can write this
    /// register.
    Frame,
}

impl Base {
    const fn number(self) -> u8 {
        match self {
            Self::Register(register) => register.number(),
            Self::Frame => 10,
        }
    }
}

impl From<Register> for Base {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl fmt::Display for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.number())
    }
}

/// The second operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Operand {
    /// Content of a register.
    Register(Register),
    /// Constant, sign-extended to 64 bits.
    Number(i32),
}

impl From<Register> for Operand {
    fn from(register: Register) -> Self {
        Self::Register(register)
    }
}

impl From<i32> for Operand {
    fn from(number: i32) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Register(register) => register.fmt(f),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// Width of an operation on registers. Results of 32 bits are zero-extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Width {
    /// The lower half.
    Half,
    /// All 64 bits.
    Full,
}

/// Size of a memory access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no others")]
pub enum Size {
    /// A byte.
    U8,
    /// Two bytes, in native byte order like all larger sizes.
    U16,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
}

impl Size {
    /// Returns the size in bytes.
    #[must_use]
    pub const fn bytes(self) -> u16 {
        match self {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::U32 => 0x00,
            Self::U16 => 0x08,
            Self::U8 => 0x10,
            Self::U64 => 0x18,
        }
    }
}

/// Operation on a register. Division by zero gives 0, and its remainder is the dividend. Shifts use
/// the low bits of the second operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Or,
    And,
    ShiftLeft,
    /// Logical shift, filled with zeros.
    ShiftRight,
    Remainder,
    Xor,
    Move,
    /// Arithmetic shift, filled with the sign.
    ShiftRightSigned,
}

impl Operation {
    const fn code(self) -> u8 {
        match self {
            Self::Add => 0x00,
            Self::Subtract => 0x10,
            Self::Multiply => 0x20,
            Self::Divide => 0x30,
            Self::Or => 0x40,
            Self::And => 0x50,
            Self::ShiftLeft => 0x60,
            Self::ShiftRight => 0x70,
            Self::Remainder => 0x90,
            Self::Xor => 0xa0,
            Self::Move => 0xb0,
            Self::ShiftRightSigned => 0xc0,
        }
    }

    const fn sign(self) -> &'static str {
        match self {
            Self::Add => "+=",
            Self::Subtract => "-=",
            Self::Multiply => "*=",
            Self::Divide => "/=",
            Self::Or => "|=",
            Self::And => "&=",
            Self::ShiftLeft => "<<=",
            Self::ShiftRight => ">>=",
            Self::Remainder => "%=",
            Self::Xor => "^=",
            Self::Move => "=",
            Self::ShiftRightSigned => "s>>=",
        }
    }
}

/// Comparison of two operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Test {
    Equal,
    Greater,
    GreaterOrEqual,
    /// They have a bit in common.
    Common,
    NotEqual,
    GreaterSigned,
    GreaterOrEqualSigned,
    Less,
    LessOrEqual,
    LessSigned,
    LessOrEqualSigned,
}

impl Test {
    const fn code(self) -> u8 {
        match self {
            Self::Equal => 0x10,
            Self::Greater => 0x20,
            Self::GreaterOrEqual => 0x30,
            Self::Common => 0x40,
            Self::NotEqual => 0x50,
            Self::GreaterSigned => 0x60,
            Self::GreaterOrEqualSigned => 0x70,
            Self::Less => 0xa0,
            Self::LessOrEqual => 0xb0,
            Self::LessSigned => 0xc0,
            Self::LessOrEqualSigned => 0xd0,
        }
    }

    const fn sign(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Common => "&",
            Self::NotEqual => "!=",
            Self::GreaterSigned => "s>",
            Self::GreaterOrEqualSigned => "s>=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::LessSigned => "s<",
            Self::LessOrEqualSigned => "s<=",
        }
    }
}

/// Kernel helper function (`include/uapi/linux/bpf.h`). Its result is in `r0`; it clobbers `r1` to
/// `r5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Helper {
    /// `r1` map, `r2` key. Result: the address of the value, or 0.
    MapLookup,
    /// `r1` destination, `r2` size, `r3` address in kernel memory. Result: 0, or an error.
    ProbeReadKernel,
    /// `r1` packet, `r2` offset, `r3` destination, `r4` size. Result: 0, or an error.
    SkbLoadBytes,
    /// `r1` ring buffer, `r2` address, `r3` size, `r4` 0. Result: 0, or an error if there is no
    /// room.
    RingbufOutput,
    /// `r1` destination, `r2` size, `r3` source, `r4` offset, `r5` 0. Result: 0, or an error.
    DynptrRead,
}

impl Helper {
    /// Returns its number in the kernel.
    #[must_use]
    pub const fn number(self) -> i32 {
        match self {
            Self::MapLookup => 1,
            Self::SkbLoadBytes => 26,
            Self::ProbeReadKernel => 113,
            Self::RingbufOutput => 130,
            Self::DynptrRead => 201,
        }
    }

    /// Reports whether it writes memory at an address that it receives.
    pub(crate) const fn writes_memory(self) -> bool {
        match self {
            Self::MapLookup | Self::RingbufOutput => false,
            Self::ProbeReadKernel | Self::SkbLoadBytes | Self::DynptrRead => true,
        }
    }

    /// Returns the number of its arguments, from `r1` on.
    #[must_use]
    pub const fn arguments(self) -> u8 {
        match self {
            Self::MapLookup => 2,
            Self::ProbeReadKernel => 3,
            Self::SkbLoadBytes | Self::RingbufOutput => 4,
            Self::DynptrRead => 5,
        }
    }
}

/// Kernel function without a helper number, identified by its number among the kernel's types
/// ([`Btf::function`](crate::Btf::function)). Its result is in `r0`; it clobbers `r1` to `r5`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_structs, reason = "a call has no other properties")]
pub struct KernelFunction {
    /// Its number.
    pub number: u32,
    /// Number of its arguments, from `r1` on.
    pub arguments: u8,
}

/// Number by which a program refers to a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MapId(pub u32);

/// Target of jumps in a program, of the [`Assembler`](crate::Assembler) that issued it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Label(pub(crate) u32);

/// An instruction; jumps refer to labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instruction {
    Compute { operation: Operation, width: Width, to: Register, by: Operand },
    ToBigEndian { size: Size, register: Register },
    FramePointer { to: Register },
    Constant { to: Register, value: u64 },
    MapAddress { to: Register, map: MapId },
    FirstValue { to: Register, map: MapId },
    Load { size: Size, to: Register, base: Base, offset: i16 },
    Store { size: Size, base: Base, offset: i16, value: Operand },
    AddAtomically { base: Base, offset: i16, value: Register },
    Jump { target: Label },
    JumpIf { test: Test, width: Width, left: Register, right: Operand, target: Label },
    Call(Helper),
    CallKernel(KernelFunction),
    Exit,
}

impl Instruction {
    /// Returns the number of its slots of 8 bytes.
    pub(crate) const fn slots(&self) -> usize {
        match self {
            Self::Constant { .. } | Self::MapAddress { .. } | Self::FirstValue { .. } => 2,
            _ => 1,
        }
    }

    pub(crate) const fn target(&self) -> Option<Label> {
        match self {
            Self::Jump { target } | Self::JumpIf { target, .. } => Some(*target),
            _ => None,
        }
    }

    /// Reports whether the next instruction may run after it.
    pub(crate) const fn goes_on(&self) -> bool {
        !matches!(self, Self::Jump { .. } | Self::Exit)
    }

    /// Appends its slots, with this jump distance, and with map numbers for maps.
    pub(crate) fn encode(&self, distance: i16, out: &mut Vec<Slot>) {
        match *self {
            Self::Compute { operation, width, to, by } => {
                let class = if width == Width::Full { 0x07 } else { 0x04 };
                out.push(Slot::with_operand(operation.code() | class, to.number(), by, 0));
            }
            Self::ToBigEndian { size, register } => {
                let bits = i32::from(size.bytes()) * 8;
                out.push(Slot { code: 0xdc, to: register.number(), number: bits, ..Slot::default() });
            }
            Self::FramePointer { to } => {
                out.push(Slot { code: 0xbf, to: to.number(), from: Base::Frame.number(), ..Slot::default() });
            }
            Self::Constant { to, value } => out.extend(Slot::wide(to, 0, value)),
            // The number is replaced by the map's file descriptor once that is known.
            Self::MapAddress { to, map } => out.extend(Slot::wide(to, 1, map.0.into())),
            Self::FirstValue { to, map } => out.extend(Slot::wide(to, 2, map.0.into())),
            Self::Load { size, to, base, offset } => out.push(Slot {
                code: 0x61 | size.code(),
                to: to.number(),
                from: base.number(),
                offset,
                ..Slot::default()
            }),
            Self::Store { size, base, offset, value } => {
                let slot = match value {
                    Operand::Register(register) => {
                        Slot { code: 0x63 | size.code(), from: register.number(), ..Slot::default() }
                    }
                    Operand::Number(number) => Slot { code: 0x62 | size.code(), number, ..Slot::default() },
                };
                out.push(Slot { to: base.number(), offset, ..slot });
            }
            Self::AddAtomically { base, offset, value } => {
                out.push(Slot { code: 0xdb, to: base.number(), from: value.number(), offset, ..Slot::default() });
            }
            Self::Jump { .. } => out.push(Slot { code: 0x05, offset: distance, ..Slot::default() }),
            Self::JumpIf { test, width, left, right, .. } => {
                let class = if width == Width::Full { 0x05 } else { 0x06 };
                out.push(Slot::with_operand(test.code() | class, left.number(), right, distance));
            }
            Self::Call(helper) => out.push(Slot { code: 0x85, number: helper.number(), ..Slot::default() }),
            Self::CallKernel(function) => {
                out.push(Slot { code: 0x85, from: 2, number: function.number.cast_signed(), ..Slot::default() });
            }
            Self::Exit => out.push(Slot { code: 0x95, ..Slot::default() }),
        }
    }

    /// Writes it like the kernel's verifier, with the target slot of a jump.
    pub(crate) fn write(&self, f: &mut fmt::Formatter<'_>, target: usize) -> fmt::Result {
        let half = |width: Width| if width == Width::Half { "w" } else { "r" };
        let value = |width: Width, operand: Operand| match operand {
            Operand::Register(register) => format!("{}{}", half(width), register.number()),
            Operand::Number(number) => number.to_string(),
        };
        match *self {
            Self::Compute { operation, width, to, by } => {
                write!(f, "{}{} {} {}", half(width), to.number(), operation.sign(), value(width, by))
            }
            Self::ToBigEndian { size, register } => {
                write!(f, "{register} = be{} {register}", size.bytes() * 8)
            }
            Self::FramePointer { to } => write!(f, "{to} = {}", Base::Frame),
            Self::Constant { to, value } => write!(f, "{to} = {value:#x} ll"),
            Self::MapAddress { to, map } => write!(f, "{to} = map {} ll", map.0),
            Self::FirstValue { to, map } => write!(f, "{to} = first value of map {} ll", map.0),
            Self::Load { size, to, base, offset } => {
                write!(f, "{to} = *(u{} *)({base} {offset:+})", size.bytes() * 8)
            }
            Self::Store { size, base, offset, value } => {
                write!(f, "*(u{} *)({base} {offset:+}) = {value}", size.bytes() * 8)
            }
            Self::AddAtomically { base, offset, value } => {
                write!(f, "lock *(u64 *)({base} {offset:+}) += {value}")
            }
            Self::Jump { .. } => write!(f, "goto {target}"),
            Self::JumpIf { test, width, left, right, .. } => {
                let left = value(width, left.into());
                write!(f, "if {left} {} {} goto {target}", test.sign(), value(width, right))
            }
            Self::Call(helper) => write!(f, "call {helper:?}"),
            Self::CallKernel(function) => write!(f, "call kernel {}", function.number),
            Self::Exit => f.write_str("exit"),
        }
    }
}

/// Returns the lower and the upper half of a number.
#[expect(clippy::cast_possible_truncation, reason = "the two halves of a number")]
pub(crate) const fn halves(value: u64) -> [i32; 2] {
    [value as i32, (value >> 32) as i32]
}

/// An instruction, or half of a wide one, in the format of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Slot {
    code: u8,
    to: u8,
    from: u8,
    offset: i16,
    pub(crate) number: i32,
}

impl Slot {
    fn with_operand(code: u8, to: u8, operand: Operand, offset: i16) -> Self {
        match operand {
            Operand::Register(register) => Self { code: code | 0x08, to, from: register.number(), offset, number: 0 },
            Operand::Number(number) => Self { code, to, from: 0, offset, number },
        }
    }

    const fn wide(to: Register, from: u8, value: u64) -> [Self; 2] {
        let [low, high] = halves(value);
        [
            Self { code: 0x18, to: to.number(), from, offset: 0, number: low },
            Self { code: 0, to: 0, from: 0, offset: 0, number: high },
        ]
    }

    /// Makes it a half of a plain wide number, instead of one that refers to a map.
    pub(crate) const fn set_half(&mut self, half: i32) {
        (self.from, self.number) = (0, half);
    }

    /// Returns its bytes in native byte order, in the format of the kernel.
    pub(crate) fn bytes(self) -> [u8; 8] {
        let registers =
            if cfg!(target_endian = "little") { self.from << 4 | self.to } else { self.to << 4 | self.from };
        let ([o0, o1], [n0, n1, n2, n3]) = (self.offset.to_ne_bytes(), self.number.to_ne_bytes());
        [self.code, registers, o0, o1, n0, n1, n2, n3]
    }
}
