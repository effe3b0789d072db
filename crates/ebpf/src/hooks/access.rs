//! Access to kernel structures.

use super::frame::{BUFFER, DYNPTR, KEY, LENGTH, SKB, STATE, Side, at};
use super::kernel::{Access, NAME};
use super::{Attachment, Code};
use crate::instruction::{Base, Helper, Label, Operation, Register, Size, Test};

/// Bit of a route reference that is not counted.
const NOT_COUNTED: i32 = 1;
/// Offset of the packet length in the context of a socket filter (`struct __sk_buff`).
const LENGTH_OF_CONTEXT: i16 = 0;

impl Code<'_> {
    /// Saves the context and the packet length on the stack. With access in place, `r2` holds the
    /// packet afterwards.
    pub(super) fn keep_context(&mut self) {
        match &self.kernel.access {
            Access::Direct(direct) => self
                .asm
                .load(Size::U64, Register::R2, Register::R1, 8)
                .store(Size::U64, Base::Frame, at(SKB), Register::R2)
                .load(Size::U64, Register::R1, Register::R1, 0)
                .store(Size::U64, Base::Frame, at(STATE), Register::R1)
                .load(Size::U32, Register::R1, Register::R2, direct.skb_length),
            Access::Copied { .. } => self.asm.store(Size::U64, Base::Frame, at(SKB), Register::R1).load(
                Size::U32,
                Register::R1,
                Register::R1,
                LENGTH_OF_CONTEXT,
            ),
        };
        self.asm.store(Size::U32, Base::Frame, at(LENGTH), Register::R1);
    }

    /// Loads a member of the structure whose address is in `structure`. Clobbers `r1` to `r5`.
    pub(super) fn read_member(&mut self, size: Size, to: Register, structure: Register, member: i16) {
        match self.kernel.access {
            Access::Direct(_) => {
                self.asm.load(size, to, structure, member);
            }
            Access::Copied { .. } => {
                self.asm.set(Register::R3, structure).compute(Operation::Add, Register::R3, i32::from(member));
                self.copy_from_kernel(KEY, size.bytes().cast_signed());
                self.asm.load(size, to, Base::Frame, at(KEY));
            }
        }
    }

    /// Loads eight bytes of the packet structure, like `read_member`.
    pub(super) fn read_packet(&mut self, to: Register, member: i16) {
        self.asm.load(Size::U64, Register::R3, Base::Frame, at(SKB));
        self.read_member(Size::U64, to, Register::R3, member);
    }

    /// Like `read_packet`, right behind [`Code::keep_context`], while a register still holds the
    /// packet.
    pub(super) fn read_packet_at_begin(&mut self, to: Register, member: i16) {
        match self.kernel.access {
            Access::Direct(_) => {
                self.asm.load(Size::U64, to, Register::R2, member);
            }
            Access::Copied { .. } => self.read_packet(to, member),
        }
    }

    /// Copies bytes from the kernel address in `r3` to the stack. A packet for which that fails is
    /// treated as unknown.
    fn copy_from_kernel(&mut self, to: i16, bytes: i16) {
        let unknown = self.unknown;
        self.asm
            .set_stack(Register::R1, at(to).unsigned_abs())
            .set(Register::R2, i32::from(bytes))
            .call(Helper::ProbeReadKernel)
            .jump_if(Register::R0, Test::NotEqual, 0, unknown);
    }

    /// Leaves the device of a side in `r3`; 0 if it has none. Uses the route's device if `of_route`
    /// is set, or if there is no other source.
    pub(super) fn find_device(&mut self, side: Side, of_route: bool) {
        let (by_device, found) = (self.asm.label(), self.asm.label());
        let by_route = of_route || (side == Side::Out && self.kernel.attachment() == Attachment::Rule);
        if by_route {
            // The device that the hook received may be outdated after a translation of the
            // destination.
            self.read_packet(Register::R1, self.kernel.skb_route);
            self.asm.compute(Operation::And, Register::R1, !NOT_COUNTED).jump_if(
                Register::R1,
                Test::Equal,
                0,
                by_device,
            );
            self.read_route();
            self.asm.jump(found).place(by_device);
        }
        match &self.kernel.access {
            Access::Direct(direct) => {
                let member = if side == Side::In { direct.state_in } else { direct.state_out };
                self.asm.load(Size::U64, Register::R1, Base::Frame, at(STATE)).load(
                    Size::U64,
                    Register::R3,
                    Register::R1,
                    member,
                );
            }
            // Until it leaves, a packet has its incoming device. A bridged packet has no route.
            Access::Copied { skb_device } => self.read_packet(Register::R3, *skb_device),
        }
        if by_route {
            self.asm.place(found);
        }
    }

    /// Leaves the device of the route at `r1` in `r3`.
    fn read_route(&mut self) {
        if let Access::Direct(direct) = &self.kernel.access {
            self.asm
                .set(Register::R2, direct.route.cast_signed())
                .call_kernel(direct.cast)
                .set(Register::R1, Register::R0);
        }
        self.read_member(Size::U64, Register::R3, Register::R1, self.kernel.route_device);
    }

    /// Returns the location of the name, of [`NAME`] bytes, of the device at `r3`.
    pub(super) fn find_name(&mut self) -> Name {
        match self.kernel.access {
            Access::Direct(_) => Name { base: Base::Register(Register::R3), begin: self.kernel.device_name },
            Access::Copied { .. } => {
                self.asm.compute(Operation::Add, Register::R3, i32::from(self.kernel.device_name));
                self.copy_from_kernel(BUFFER, NAME);
                Name { base: Base::Frame, begin: at(BUFFER) }
            }
        }
    }

    /// Leaves the address of the packet's bytes in `r0`, as 8-byte numbers, if its first `bytes`
    /// are contiguous. If bytes must be copied, copies them to the stack instead.
    pub(super) fn find_bytes(&mut self, bytes: i16, copied: i16, otherwise: Label) -> Bytes {
        match &self.kernel.access {
            Access::Direct(direct) => {
                self.asm
                    .load(Size::U64, Register::R1, Base::Frame, at(SKB))
                    .load(Size::U32, Register::R2, Base::Frame, at(LENGTH))
                    .load(Size::U32, Register::R3, Register::R1, direct.skb_length_of_rest)
                    .compute(Operation::Subtract, Register::R2, Register::R3)
                    .jump_if(Register::R2, Test::LessSigned, i32::from(bytes), otherwise)
                    .load(Size::U64, Register::R1, Register::R1, direct.skb_data)
                    .set(Register::R2, direct.numbers.cast_signed())
                    .call_kernel(direct.cast);
                Bytes::InPlace
            }
            Access::Copied { .. } => {
                self.asm.set(Register::R2, 0);
                self.load_bytes(bytes, copied, otherwise);
                Bytes::Copied
            }
        }
    }

    /// Copies bytes of the packet to the buffer, from the offset in `offset`, even if they are not
    /// contiguous in the kernel.
    pub(super) fn collect_at(&mut self, offset: Register, bytes: i16, otherwise: Label) {
        match &self.kernel.access {
            Access::Direct(direct) => {
                self.asm
                    .load(Size::U64, Register::R1, Base::Frame, at(SKB))
                    .set(Register::R2, 0)
                    .set_stack(Register::R3, at(DYNPTR).unsigned_abs())
                    .call_kernel(direct.dynptr_from_skb)
                    .set_stack(Register::R1, at(BUFFER).unsigned_abs())
                    .set(Register::R2, i32::from(bytes))
                    .set_stack(Register::R3, at(DYNPTR).unsigned_abs())
                    .set(Register::R4, offset)
                    .set(Register::R5, 0)
                    .call(Helper::DynptrRead)
                    .jump_if(Register::R0, Test::NotEqual, 0, otherwise);
            }
            Access::Copied { .. } => {
                self.asm.set(Register::R2, offset);
                self.load_bytes(bytes, BUFFER, otherwise);
            }
        }
    }

    /// Copies bytes of the packet to the stack, from the offset in `r2`.
    fn load_bytes(&mut self, bytes: i16, to: i16, otherwise: Label) {
        self.asm
            .load(Size::U64, Register::R1, Base::Frame, at(SKB))
            .set_stack(Register::R3, at(to).unsigned_abs())
            .set(Register::R4, i32::from(bytes))
            .call(Helper::SkbLoadBytes)
            .jump_if(Register::R0, Test::NotEqual, 0, otherwise);
    }
}

/// Location of a device name.
#[derive(Clone, Copy)]
pub(super) struct Name {
    pub(super) base: Base,
    pub(super) begin: i16,
}

/// Location of the first bytes of a packet.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bytes {
    /// In place, as numbers at the address in `r0`.
    InPlace,
    /// On the stack.
    Copied,
}
