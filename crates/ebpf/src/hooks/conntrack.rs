//! State of a packet in connection tracking.

use super::Code;
use super::frame::{BUFFER, PacketView, TRACKED, at, tracked};
use super::kernel::TUPLE;
use crate::instruction::{Base, Helper, Operation, Register, Size, Test};

/// Bits beside the address of a connection (`enum ip_conntrack_info`).
const INFO: i32 = 7;
const ESTABLISHED: i32 = 0;
const RELATED: i32 = 1;
const NEW: i32 = 2;
const UNTRACKED: i32 = 7;
/// First value for replies.
const REPLY: i32 = 3;

/// Two-bit meaning of each of these values. Replies to new connections are new as well.
const MEANINGS: i32 = {
    let mut meanings = 0;
    let mut info = 0;
    while info <= INFO {
        let meaning = match info {
            ESTABLISHED | RELATED => tracked::KNOWN,
            NEW => tracked::NEW,
            _ if info == ESTABLISHED + REPLY || info == RELATED + REPLY => tracked::KNOWN,
            _ if info == NEW + REPLY => tracked::NEW,
            _ => tracked::INVALID,
        };
        meanings |= meaning << (2 * info);
        info += 1;
    }
    meanings
};

impl Code<'_> {
    /// Determines, at the begin of the program, whether the packet belongs to a known connection.
    pub(super) fn read_conntrack(&mut self) {
        let (end, none) = (self.asm.label(), self.asm.label());
        self.read_packet_at_begin(Register::R1, self.kernel.skb_conntrack);
        self.asm
            .set(Register::R2, Register::R1)
            .compute(Operation::And, Register::R2, INFO)
            .compute(Operation::And, Register::R1, !INFO)
            .jump_if(Register::R1, Test::Equal, 0, none)
            .compute(Operation::ShiftLeft, Register::R2, 1)
            .set(Register::R3, MEANINGS)
            .compute(Operation::ShiftRight, Register::R3, Register::R2)
            .compute(Operation::And, Register::R3, 3)
            .jump(end)
            .place(none);
        // Each untracked packet counts as the begin of a connection.
        self.asm
            .set(Register::R3, tracked::NEW)
            .jump_if(Register::R2, Test::Equal, UNTRACKED, end)
            .set(Register::R3, tracked::INVALID)
            .place(end)
            .store(Size::U32, Base::Frame, at(TRACKED), Register::R3);
    }

    /// Jumps to `label` if the packet belongs to a known connection.
    pub(super) fn if_known(&mut self, label: crate::Label) {
        self.asm.load(Size::U32, Register::R1, Base::Frame, at(TRACKED)).jump_if(
            Register::R1,
            Test::Equal,
            tracked::KNOWN,
            label,
        );
    }

    /// Drops packets that connection tracking considers invalid, if configured.
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

    /// Determines the addresses and ports of the packet before NAT: those of the packet as it is,
    /// if it cannot have been translated.
    pub(super) fn read_first(&mut self) {
        let (now, first) = (PacketView::Current.offsets(self.family), PacketView::PreNat.offsets(self.family));
        let (begun, end, unknown) = (self.asm.label(), self.asm.label(), self.unknown);
        let words = if self.family == tortie_model::Family::V6 { 4 } else { 1 };
        self.copy(now.source, first.source, words);
        self.copy(now.destination, first.destination, words);
        self.copy(now.source_port, first.source_port, 1);
        for (size, from, to) in
            [(Size::U8, now.protocol, first.protocol), (Size::U16, now.has_detail, first.has_detail)]
        {
            self.asm.load(size, Register::R1, Base::Frame, at(from)).store(size, Base::Frame, at(to), Register::R1);
        }
        let tuple = &self.kernel.tuple;
        self.read_packet(Register::R3, self.kernel.skb_conntrack);
        self.asm
            .set(Register::R2, Register::R3)
            .compute(Operation::And, Register::R2, INFO)
            .compute(Operation::And, Register::R3, !INFO)
            .jump_if(Register::R3, Test::Equal, 0, end)
            // A packet of the same direction as the first one had the addresses of the first.
            .jump_if(Register::R2, Test::Equal, ESTABLISHED, begun)
            .jump_if(Register::R2, Test::NotEqual, NEW, end)
            .place(begun)
            .compute(Operation::Add, Register::R3, tuple.begin)
            .set_stack(Register::R1, at(BUFFER).unsigned_abs())
            .set(Register::R2, i32::from(TUPLE))
            .call(Helper::ProbeReadKernel)
            .jump_if(Register::R0, Test::NotEqual, 0, unknown);
        self.copy(BUFFER + tuple.source, first.source, words);
        self.copy(BUFFER + tuple.destination, first.destination, words);
        // Connection tracking has no ports for protocols that it does not know. A packet without
        // ports now had none before.
        self.asm
            .load(Size::U8, Register::R1, Base::Frame, at(BUFFER + tuple.protocol))
            .store(Size::U8, Base::Frame, at(first.protocol), Register::R1)
            .load(Size::U8, Register::R1, Base::Frame, at(now.has_source_port))
            .jump_if(Register::R1, Test::Equal, 0, end);
        for (from, to) in [(tuple.source_port, first.source_port), (tuple.destination_port, first.detail)] {
            self.asm.load(Size::U16, Register::R1, Base::Frame, at(BUFFER + from)).store(
                Size::U16,
                Base::Frame,
                at(to),
                Register::R1,
            );
        }
        self.asm.place(end);
    }
}
