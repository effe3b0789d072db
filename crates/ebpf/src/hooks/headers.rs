//! Parsing of packet headers.
//!
//! Unreadable packets, and IPv6 packets with more than eight extension headers, are dropped.

use tortie_model::Family;

use super::Code;
use super::access::Bytes;
use super::frame::{BUFFER, PacketView, at};
use crate::instruction::{Base, Label, Operation, Register, Size, Test};

const TCP: i32 = 6;
const UDP: i32 = 17;
const DCCP: i32 = 33;
const SCTP: i32 = 132;
const UDP_LITE: i32 = 136;
const ICMP: i32 = 1;
const ICMPV6: i32 = 58;

/// IPv6 extension headers.
const HOP_BY_HOP: i32 = 0;
const ROUTING: i32 = 43;
const FRAGMENT: i32 = 44;
const AUTHENTICATION: i32 = 51;
const DESTINATION_OPTIONS: i32 = 60;
/// Maximum number of extension headers.
const EXTENSIONS: usize = 8;

/// Length in bytes of an IPv4 header without options, and of an IPv6 header.
const V4_HEADER: i16 = 20;
const V6_HEADER: i16 = 40;
/// Length in bytes of ports, or of the begin of an ICMP message.
const BEHIND: i16 = 4;
/// Offset of the identifier in an ICMP message.
const ICMP_ID: i16 = 4;
/// First byte of an IPv4 header without options.
const V4_PLAIN: i32 = 0x45;
/// Bits of an IPv4 header with the fragment offset.
const FRAGMENT_OFFSET: u16 = 0x1fff;

/// Register with the offset of the next header.
const OFFSET: Register = Register::R8;
/// Register with the protocol number of the next header.
const NEXT: Register = Register::R9;

/// Returns the value of a two-byte load of this number in network byte order.
pub(super) fn in_network_order(number: u16) -> i32 {
    i32::from(u16::from_ne_bytes(number.to_be_bytes()))
}

impl Code<'_> {
    /// Reads the fields of the packet as it is.
    ///
    /// Nearly all packets have a header without options or extensions, followed by TCP or UDP, all
    /// contiguous. Their headers are read at once; those of all other packets through the kernel,
    /// one after the other.
    pub(super) fn read_headers(&mut self) {
        let packet = PacketView::Current.offsets(self.family);
        let (rare, bare, plain, end) = (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        if self.is_v6() {
            self.read_plain_v6(rare);
        } else {
            self.read_plain_v4(rare);
        }
        self.asm.jump_if(NEXT, Test::Equal, TCP, plain).jump_if(NEXT, Test::Equal, UDP, plain).place(rare);
        // No ports and no ICMP message until they are found.
        self.store_opaque(packet.source_port, 0);
        self.store_opaque(packet.rest, 0);
        if self.is_v6() {
            self.read_v6(bare);
        } else {
            self.read_v4(bare);
        }
        self.read_transport(bare);
        self.asm.place(bare).store(Size::U8, Base::Frame, at(packet.protocol), NEXT).jump(end).place(plain);
        self.has_ports();
        self.asm.place(end);
    }

    /// Marks the packet as having ports.
    fn has_ports(&mut self) {
        let packet = PacketView::Current.offsets(self.family);
        self.asm.store(Size::U16, Base::Frame, at(packet.has_detail), 0x0101);
    }

    /// Reads an IPv4 header without options, and the first four bytes behind it.
    fn read_plain_v4(&mut self, rare: Label) {
        let packet = PacketView::Current.offsets(Family::V4);
        if self.find_bytes(V4_HEADER + BEHIND, packet.begin, rare) == Bytes::InPlace {
            for (register, begin) in [Register::R1, Register::R2, Register::R3].into_iter().zip((0..).step_by(8)) {
                self.asm.load(Size::U64, register, Register::R0, begin).store(
                    Size::U64,
                    Base::Frame,
                    at(packet.begin + begin),
                    register,
                );
            }
        }
        self.asm
            .load(Size::U8, Register::R1, Base::Frame, at(packet.begin))
            .jump_if(Register::R1, Test::NotEqual, V4_PLAIN, rare)
            .load(Size::U16, Register::R1, Base::Frame, at(packet.begin + 6))
            .jump_if(Register::R1, Test::Common, in_network_order(FRAGMENT_OFFSET), rare)
            .load(Size::U8, NEXT, Base::Frame, at(packet.protocol));
    }

    /// Reads an IPv6 header, and the first four bytes behind it.
    fn read_plain_v6(&mut self, rare: Label) {
        let packet = PacketView::Current.offsets(Family::V6);
        if self.find_bytes(V6_HEADER + BEHIND, BUFFER, rare) == Bytes::Copied {
            self.copy(BUFFER + 8, packet.source, 8);
            self.copy(BUFFER + V6_HEADER, packet.source_port, 1);
            self.asm.load(Size::U8, NEXT, Base::Frame, at(BUFFER + 6)).store(
                Size::U8,
                Base::Frame,
                at(packet.protocol),
                NEXT,
            );
            return;
        }
        self.asm.load(Size::U8, NEXT, Register::R0, 6).store(Size::U8, Base::Frame, at(packet.protocol), NEXT);
        for begin in (0..32).step_by(8) {
            self.asm.load(Size::U64, Register::R1, Register::R0, 8 + begin).store(
                Size::U64,
                Base::Frame,
                at(packet.source + begin),
                Register::R1,
            );
        }
        self.asm.load(Size::U32, Register::R1, Register::R0, V6_HEADER).store(
            Size::U32,
            Base::Frame,
            at(packet.source_port),
            Register::R1,
        );
        const {
            assert!(
                PacketView::Current.offsets(Family::V6).destination
                    == PacketView::Current.offsets(Family::V6).source + 16
            );
        };
    }

    /// Reads bytes at [`OFFSET`] to the buffer, even if they are not contiguous in the kernel.
    fn collect(&mut self, bytes: i16) {
        self.try_collect(bytes, self.unknown);
    }

    /// Like `collect`, but jumps to `otherwise` if the packet is too short.
    fn try_collect(&mut self, bytes: i16, otherwise: Label) {
        self.collect_at(OFFSET, bytes, otherwise);
    }

    /// Copies two bytes.
    fn copy_half(&mut self, from: i16, to: i16) {
        self.asm.load(Size::U16, Register::R1, Base::Frame, at(from)).store(
            Size::U16,
            Base::Frame,
            at(to),
            Register::R1,
        );
    }

    /// Copies words of four bytes.
    pub(super) fn copy(&mut self, from: i16, to: i16, words: i16) {
        for word in 0..words {
            self.asm.load(Size::U32, Register::R1, Base::Frame, at(from + 4 * word)).store(
                Size::U32,
                Base::Frame,
                at(to + 4 * word),
                Register::R1,
            );
        }
    }

    /// Reads an IPv4 header. Fragments behind the first have no transport header: they jump to
    /// `bare`.
    fn read_v4(&mut self, bare: Label) {
        let (packet, unknown) = (PacketView::Current.offsets(Family::V4), self.unknown);
        self.asm.set(OFFSET, 0);
        self.collect(V4_HEADER);
        self.copy(BUFFER + 12, packet.source, 1);
        self.copy(BUFFER + 16, packet.destination, 1);
        self.asm
            .load(Size::U8, NEXT, Base::Frame, at(BUFFER + 9))
            .load(Size::U8, OFFSET, Base::Frame, at(BUFFER))
            .compute(Operation::And, OFFSET, 0xf)
            .compute(Operation::ShiftLeft, OFFSET, 2)
            .jump_if(OFFSET, Test::Less, i32::from(V4_HEADER), unknown)
            .load(Size::U16, Register::R1, Base::Frame, at(BUFFER + 6))
            .jump_if(Register::R1, Test::Common, in_network_order(FRAGMENT_OFFSET), bare);
    }

    fn read_v6(&mut self, bare: Label) {
        let (packet, unknown) = (PacketView::Current.offsets(Family::V6), self.unknown);
        self.asm.set(OFFSET, 0);
        self.collect(V6_HEADER);
        self.copy(BUFFER + 8, packet.source, 4);
        self.copy(BUFFER + 24, packet.destination, 4);
        self.asm.load(Size::U8, NEXT, Base::Frame, at(BUFFER + 6)).set(OFFSET, i32::from(V6_HEADER));
        let end = self.asm.label();
        for _ in 0..EXTENSIONS {
            self.pass_extension(end, bare);
        }
        // Another extension header exceeds the maximum.
        for header in [HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION_OPTIONS] {
            self.asm.jump_if(NEXT, Test::Equal, header, unknown);
        }
        self.asm.place(end);
    }

    /// Skips an extension header; jumps to `end` if there is none.
    fn pass_extension(&mut self, end: Label, bare: Label) {
        let unknown = self.unknown;
        let (fragment, authentication, options, next) =
            (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        self.asm.jump_if(NEXT, Test::Equal, FRAGMENT, fragment).jump_if(
            NEXT,
            Test::Equal,
            AUTHENTICATION,
            authentication,
        );
        for header in [HOP_BY_HOP, ROUTING, DESTINATION_OPTIONS] {
            self.asm.jump_if(NEXT, Test::Equal, header, options);
        }
        self.asm.jump(end);

        // The length is in units of 8 bytes, without the first.
        self.asm.place(options);
        self.collect(2);
        self.asm
            .load(Size::U8, NEXT, Base::Frame, at(BUFFER))
            .load(Size::U8, Register::R1, Base::Frame, at(BUFFER + 1))
            .compute(Operation::Add, Register::R1, 1)
            .compute(Operation::ShiftLeft, Register::R1, 3)
            .compute(Operation::Add, OFFSET, Register::R1)
            .jump(next);

        // The length is in units of 4 bytes, without the first two.
        self.asm.place(authentication);
        self.collect(2);
        self.asm
            .load(Size::U8, NEXT, Base::Frame, at(BUFFER))
            .load(Size::U8, Register::R1, Base::Frame, at(BUFFER + 1))
            .compute(Operation::Add, Register::R1, 2)
            .compute(Operation::ShiftLeft, Register::R1, 2)
            .compute(Operation::Add, OFFSET, Register::R1)
            .jump(next);

        self.asm.place(fragment);
        self.collect(4);
        self.asm
            .load(Size::U8, NEXT, Base::Frame, at(BUFFER))
            .compute(Operation::Add, OFFSET, 8)
            .load(Size::U16, Register::R1, Base::Frame, at(BUFFER + 2))
            .to_big_endian(Size::U16, Register::R1)
            .jump_if(Register::R1, Test::Less, 8, next);
        // Extension headers behind the fragment header are in the first fragment only.
        for header in [HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION_OPTIONS] {
            self.asm.jump_if(NEXT, Test::Equal, header, unknown);
        }
        self.asm.jump(bare);
        self.asm.place(next);
    }

    /// Reads ports or an ICMP message; protocols without either jump to `bare`.
    fn read_transport(&mut self, bare: Label) {
        let packet = PacketView::Current.offsets(self.family);
        let ports = self.asm.label();
        for protocol in [TCP, UDP, SCTP, DCCP, UDP_LITE] {
            self.asm.jump_if(NEXT, Test::Equal, protocol, ports);
        }
        let own_icmp = if self.is_v6() { ICMPV6 } else { ICMP };
        self.asm.jump_if(NEXT, Test::NotEqual, own_icmp, bare);

        self.collect(2);
        self.asm
            .load(Size::U16, Register::R1, Base::Frame, at(BUFFER))
            .store(Size::U16, Base::Frame, at(packet.detail), Register::R1)
            .store(Size::U8, Base::Frame, at(packet.has_detail), 1)
            // The identifier, by which the log distinguishes echoes. A message without one has
            // other bytes here; a shorter one has 0.
            .compute(Operation::Add, OFFSET, i32::from(ICMP_ID));
        self.try_collect(2, bare);
        self.copy_half(BUFFER, packet.source_port);
        self.asm.jump(bare);

        self.asm.place(ports);
        self.collect(BEHIND);
        self.copy(BUFFER, packet.source_port, 1);
        self.has_ports();
    }
}
