//! Getting at what the kernel has in its own structures.

use super::frame::{BUFFER, DYNPTR, KEY, LENGTH, SKB, STATE, Side, at};
use super::kernel::{Access, NAME};
use super::{Attachment, Code};
use crate::instruction::{Base, Helper, Label, Operation, Register, Size, Test};

/// The bit of a route that is not counted as a user of it.
const NOT_COUNTED: i32 = 1;
/// Where a program that is given a packet has its length (`struct __sk_buff`).
const LENGTH_OF_CONTEXT: i16 = 0;

impl Code<'_> {
    /// Keeps what the program is given, and how long the packet is. Where structures are read in place, `r2` holds the packet then.
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

    /// Leaves in a register what a structure has there whose address another one holds. `r1` to `r5` may be lost.
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

    /// The same of the packet, of its eight bytes there.
    pub(super) fn read_packet(&mut self, to: Register, member: i16) {
        self.asm.load(Size::U64, Register::R3, Base::Frame, at(SKB));
        self.read_member(Size::U64, to, Register::R3, member);
    }

    /// The same right behind [`Code::keep_context`], while a register still holds the packet.
    pub(super) fn read_packet_at_begin(&mut self, to: Register, member: i16) {
        match self.kernel.access {
            Access::Direct(_) => {
                self.asm.load(Size::U64, to, Register::R2, member);
            }
            Access::Copied { .. } => self.read_packet(to, member),
        }
    }

    /// Has so many bytes copied to the stack from the address in `r3`. What cannot be read is not known.
    fn copy_from_kernel(&mut self, to: i16, bytes: i16) {
        let unknown = self.unknown;
        self.asm
            .set_stack(Register::R1, at(to).unsigned_abs())
            .set(Register::R2, i32::from(bytes))
            .call(Helper::ProbeReadKernel)
            .jump_if(Register::R0, Test::NotEqual, 0, unknown);
    }

    /// Leaves the device of a side in `r3`: 0 if there is none. By the route if that is asked for, or where nothing else tells it.
    pub(super) fn find_device(&mut self, side: Side, of_route: bool) {
        let (told, found) = (self.asm.label(), self.asm.label());
        let by_route = of_route || (side == Side::Out && self.kernel.attachment() == Attachment::Rule);
        if by_route {
            // What the hook was told may have changed with the destination.
            self.read_packet(Register::R1, self.kernel.skb_route);
            self.asm.compute(Operation::And, Register::R1, !NOT_COUNTED).jump_if(Register::R1, Test::Equal, 0, told);
            self.read_route();
            self.asm.jump(found).place(told);
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
            // Until a packet leaves it has the device by which it came. What goes through a bridge has no route.
            Access::Copied { skb_device } => self.read_packet(Register::R3, *skb_device),
        }
        if by_route {
            self.asm.place(found);
        }
    }

    /// Leaves the device in `r3` of the route whose address `r1` holds.
    fn read_route(&mut self) {
        if let Access::Direct(direct) = &self.kernel.access {
            self.asm
                .set(Register::R2, direct.route.cast_signed())
                .call_kernel(direct.cast)
                .set(Register::R1, Register::R0);
        }
        self.read_member(Size::U64, Register::R3, Register::R1, self.kernel.route_device);
    }

    /// Where the name of the device is whose address `r3` holds, of [`NAME`] bytes.
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

    /// Leaves in `r0` where the packet begins, as numbers of 8 bytes, if so many of them are in one piece; where bytes must be copied,
    /// has them copied to the stack instead.
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

    /// Has so many bytes of the packet copied, from as far from its beginning as `offset` holds, wherever the kernel has them.
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

    /// Has so many bytes of the packet copied to the stack, from as far from its beginning as `r2` holds.
    fn load_bytes(&mut self, bytes: i16, to: i16, otherwise: Label) {
        self.asm
            .load(Size::U64, Register::R1, Base::Frame, at(SKB))
            .set_stack(Register::R3, at(to).unsigned_abs())
            .set(Register::R4, i32::from(bytes))
            .call(Helper::SkbLoadBytes)
            .jump_if(Register::R0, Test::NotEqual, 0, otherwise);
    }
}

/// Where the name of a device is.
#[derive(Clone, Copy)]
pub(super) struct Name {
    pub(super) base: Base,
    pub(super) begin: i16,
}

/// Where the first bytes of a packet are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bytes {
    /// As numbers from the address in `r0` on.
    InPlace,
    /// On the stack.
    Copied,
}
