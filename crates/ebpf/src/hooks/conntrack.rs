//! What connection tracking says of a packet.

use super::Code;
use super::frame::{BUFFER, CONNECTION, SKB, Seen, TRACKED, at, packet, tracked};
use super::kernel::TUPLE;
use crate::instruction::{Base, Helper, Operation, Register, Size, Test};

/// The bits beside the address of a connection (`enum ip_conntrack_info`).
const INFO: i32 = 7;
const ESTABLISHED: i32 = 0;
const NEW: i32 = 2;
const UNTRACKED: i32 = 7;
/// Those of replies begin here.
const REPLY: i32 = 3;

impl Code<'_> {
    /// Finds out whether the packet belongs to a known connection.
    pub(super) fn read_conntrack(&mut self) {
        let (end, invalid, begun, connection) =
            (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        self.store_opaque(TRACKED, tracked::NEW);
        self.asm
            .load(Size::U64, Register::R1, Base::Frame, at(SKB))
            .load(Size::U64, Register::R1, Register::R1, self.kernel.skb_conntrack)
            .set(Register::R2, Register::R1)
            .compute(Operation::And, Register::R2, INFO)
            .compute(Operation::And, Register::R1, !INFO)
            .store(Size::U64, Base::Frame, at(CONNECTION), 0)
            .jump_if(Register::R1, Test::NotEqual, 0, connection)
            .jump_if(Register::R2, Test::NotEqual, UNTRACKED, invalid)
            .jump(end)
            .place(connection)
            // Replies to what is new are new as well.
            .jump_if(Register::R2, Test::Equal, NEW + REPLY, end)
            .jump_if(Register::R2, Test::Greater, NEW + REPLY, invalid)
            .jump_if(Register::R2, Test::Equal, NEW, begun);
        self.store_opaque(TRACKED, tracked::KNOWN);
        self.asm
            .jump_if(Register::R2, Test::NotEqual, ESTABLISHED, end)
            // Packets of the direction of the first one: their addresses were those of the first.
            .place(begun)
            .store(Size::U64, Base::Frame, at(CONNECTION), Register::R1)
            .jump(end)
            .place(invalid);
        self.store_opaque(TRACKED, tracked::INVALID);
        self.asm.place(end);
    }

    /// Goes on there if the packet belongs to a known connection.
    pub(super) fn if_known(&mut self, label: crate::Label) {
        self.asm.load(Size::U32, Register::R1, Base::Frame, at(TRACKED)).jump_if(
            Register::R1,
            Test::Equal,
            tracked::KNOWN,
            label,
        );
    }

    /// Drops what belongs to no connection although it should.
    pub(super) fn drop_invalid(&mut self) {
        if self.settings.deny_invalid_conntrack {
            let unknown = self.unknown;
            self.asm.load(Size::U32, Register::R1, Base::Frame, at(TRACKED)).jump_if(
                Register::R1,
                Test::Equal,
                tracked::INVALID,
                unknown,
            );
        }
    }

    /// Finds out what the packet was before its addresses were translated: as it is, if nobody can have done that.
    pub(super) fn read_first(&mut self) {
        use packet::{DESTINATION, DETAIL, HAS_SOURCE_PORT, PROTOCOL, SOURCE, SOURCE_PORT};
        let (now, first) = (Seen::Now.begin(), Seen::First.begin());
        let (end, unknown) = (self.asm.label(), self.unknown);
        for word in 0..packet::SIZE / 8 {
            self.asm.load(Size::U64, Register::R1, Base::Frame, at(now + 8 * word)).store(
                Size::U64,
                Base::Frame,
                at(first + 8 * word),
                Register::R1,
            );
        }
        let tuple = &self.kernel.tuple;
        self.asm
            .load(Size::U64, Register::R3, Base::Frame, at(CONNECTION))
            .jump_if(Register::R3, Test::Equal, 0, end)
            .compute(Operation::Add, Register::R3, tuple.begin)
            .set_stack(Register::R1, at(BUFFER).unsigned_abs())
            .set(Register::R2, i32::from(TUPLE))
            .call(Helper::ProbeReadKernel)
            .jump_if(Register::R0, Test::NotEqual, 0, unknown);
        let words = if self.family == tortie_model::Family::V6 { 4 } else { 1 };
        for (from, to) in [(tuple.source, SOURCE), (tuple.destination, DESTINATION)] {
            for word in 0..words {
                self.asm.load(Size::U32, Register::R1, Base::Frame, at(BUFFER + from + 4 * word)).store(
                    Size::U32,
                    Base::Frame,
                    at(first + to + 4 * word),
                    Register::R1,
                );
            }
        }
        // Of protocols that it does not know it has no ports; what has none as it is had none before.
        self.asm
            .load(Size::U8, Register::R1, Base::Frame, at(BUFFER + tuple.protocol))
            .store(Size::U8, Base::Frame, at(first + PROTOCOL), Register::R1)
            .load(Size::U8, Register::R1, Base::Frame, at(now + HAS_SOURCE_PORT))
            .jump_if(Register::R1, Test::Equal, 0, end);
        for (from, to) in [(tuple.source_port, SOURCE_PORT), (tuple.destination_port, DETAIL)] {
            self.asm.load(Size::U16, Register::R1, Base::Frame, at(BUFFER + from)).store(
                Size::U16,
                Base::Frame,
                at(first + to),
                Register::R1,
            );
        }
        self.asm.place(end);
    }
}
