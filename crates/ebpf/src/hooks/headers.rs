//! Reading headers.
//!
//! Whatever cannot be read, and IPv6 packets with more than eight extension headers, are dropped.

use super::Code;
use super::frame::{BUFFER, DYNPTR, LENGTH, SKB, Seen, at, packet};
use crate::instruction::{Base, Helper, Operation, Register, Size, Test};

const TCP: i32 = 6;
const UDP: i32 = 17;
const DCCP: i32 = 33;
const SCTP: i32 = 132;
const UDP_LITE: i32 = 136;
const ICMP: i32 = 1;
const ICMPV6: i32 = 58;

/// Extension headers of IPv6.
const HOP_BY_HOP: i32 = 0;
const ROUTING: i32 = 43;
const FRAGMENT: i32 = 44;
const AUTHENTICATION: i32 = 51;
const DESTINATION_OPTIONS: i32 = 60;
/// How many of them are passed over.
const EXTENSIONS: usize = 8;

/// The bytes of an IPv4 header without options.
const V4_HEADER: i16 = 20;
/// With what comes behind it: ports, or an ICMP message.
const WITH_PORTS: i16 = V4_HEADER + 4;

/// Holds how far the next header is from the beginning.
const OFFSET: Register = Register::R8;
/// Holds the number of the next header.
const NEXT: Register = Register::R9;

impl Code<'_> {
    /// Reads what is known of the packet as it is.
    pub(super) fn read_headers(&mut self) {
        let begin = Seen::Now.begin();
        // No ports and no message until there are some.
        self.store_opaque(begin + packet::TRANSPORT, 0);
        self.store_opaque(begin + packet::TRANSPORT + 4, 0);
        let bare = self.asm.label();
        if self.is_v6() {
            self.read_v6(bare);
        } else {
            self.read_v4(bare);
        }
        self.read_transport(bare);
        self.asm.place(bare).store(Size::U8, Base::Frame, at(begin + packet::PROTOCOL), NEXT);
    }

    /// Reads so many bytes at [`OFFSET`] to the buffer, an even number. What is not in one piece with the beginning of the packet,
    /// the kernel collects.
    fn read(&mut self, bytes: i16) {
        let (scattered, end) = (self.asm.label(), self.asm.label());
        // Lengths are read anew each time: what the verifier knows of them from before would make it look at more ways.
        self.asm
            .load(Size::U64, Register::R1, Base::Frame, at(SKB))
            .load(Size::U32, Register::R2, Register::R1, self.kernel.skb_length)
            .load(Size::U32, Register::R3, Register::R1, self.kernel.skb_length_of_rest)
            .compute(Operation::Subtract, Register::R2, Register::R3)
            .set(Register::R3, OFFSET)
            .compute(Operation::Add, Register::R3, i32::from(bytes))
            .jump_if(Register::R3, Test::GreaterSigned, Register::R2, scattered);
        for begin in (0..bytes).step_by(16) {
            self.asm
                .load(Size::U64, Register::R1, Base::Frame, at(SKB))
                .load(Size::U64, Register::R1, Register::R1, self.kernel.skb_data)
                .compute(Operation::Add, Register::R1, OFFSET)
                .compute(Operation::Add, Register::R1, i32::from(begin))
                .set(Register::R2, self.kernel.numbers.cast_signed())
                .call_kernel(self.kernel.cast);
            let mut from = 0;
            while from < (bytes - begin).min(16) {
                let size = match bytes - begin - from {
                    8.. => Size::U64,
                    4.. => Size::U32,
                    _ => Size::U16,
                };
                self.asm.load(size, Register::R1, Register::R0, from).store(
                    size,
                    Base::Frame,
                    at(BUFFER + begin + from),
                    Register::R1,
                );
                from += size.bytes().cast_signed();
            }
        }
        self.asm.jump(end).place(scattered);
        self.collect(bytes);
        self.asm.place(end);
    }

    /// The same for headers that few packets have, by the kernel alone.
    fn collect(&mut self, bytes: i16) {
        let unknown = self.unknown;
        self.asm
            .load(Size::U64, Register::R1, Base::Frame, at(SKB))
            .set(Register::R2, 0)
            .set_stack(Register::R3, at(DYNPTR).unsigned_abs())
            .call_kernel(self.kernel.dynptr_from_skb)
            .set_stack(Register::R1, at(BUFFER).unsigned_abs())
            .set(Register::R2, i32::from(bytes))
            .set_stack(Register::R3, at(DYNPTR).unsigned_abs())
            .set(Register::R4, OFFSET)
            .set(Register::R5, 0)
            .call(Helper::DynptrRead)
            .jump_if(Register::R0, Test::NotEqual, 0, unknown)
            // The verifier is to see the same on both ways.
            .store(Size::U64, Base::Frame, at(DYNPTR), 0)
            .store(Size::U64, Base::Frame, at(DYNPTR + 8), 0);
    }

    fn copy(&mut self, from: i16, to: i16, words: i16) {
        for word in 0..words {
            self.asm.load(Size::U32, Register::R1, Base::Frame, at(from + 4 * word)).store(
                Size::U32,
                Base::Frame,
                at(to + 4 * word),
                Register::R1,
            );
        }
    }

    /// Fragments behind the first have no transport header: they go on at `bare`.
    fn read_v4(&mut self, bare: crate::Label) {
        let (begin, unknown) = (Seen::Now.begin(), self.unknown);
        let (short, is_read) = (self.asm.label(), self.asm.label());
        self.asm.set(OFFSET, 0).load(Size::U32, Register::R1, Base::Frame, at(LENGTH)).jump_if(
            Register::R1,
            Test::Less,
            i32::from(WITH_PORTS),
            short,
        );
        self.read(WITH_PORTS);
        self.asm.jump(is_read).place(short);
        self.read(V4_HEADER);
        self.store_opaque(BUFFER + V4_HEADER, 0);
        self.asm.place(is_read);
        self.copy(BUFFER + 12, begin + packet::SOURCE, 1);
        self.copy(BUFFER + 16, begin + packet::DESTINATION, 1);
        self.asm
            .load(Size::U8, NEXT, Base::Frame, at(BUFFER + 9))
            .load(Size::U8, OFFSET, Base::Frame, at(BUFFER))
            .compute(Operation::And, OFFSET, 0xf)
            .compute(Operation::ShiftLeft, OFFSET, 2)
            .jump_if(OFFSET, Test::Less, i32::from(V4_HEADER), unknown)
            .load(Size::U16, Register::R1, Base::Frame, at(BUFFER + 6))
            .to_big_endian(Size::U16, Register::R1)
            .jump_if(Register::R1, Test::Common, 0x1fff, bare);
    }

    fn read_v6(&mut self, bare: crate::Label) {
        let (begin, unknown) = (Seen::Now.begin(), self.unknown);
        self.asm.set(OFFSET, 0);
        self.read(40);
        self.copy(BUFFER + 8, begin + packet::SOURCE, 4);
        self.copy(BUFFER + 24, begin + packet::DESTINATION, 4);
        self.asm.load(Size::U8, NEXT, Base::Frame, at(BUFFER + 6)).set(OFFSET, 40);
        let end = self.asm.label();
        for _ in 0..EXTENSIONS {
            self.pass_extension(end, bare);
        }
        // One more is too many.
        for header in [HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION_OPTIONS] {
            self.asm.jump_if(NEXT, Test::Equal, header, unknown);
        }
        self.asm.place(end);
    }

    /// Passes over an extension header; goes on at `end` if there is none.
    fn pass_extension(&mut self, end: crate::Label, bare: crate::Label) {
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

        // Its length in units of 8 bytes, without the first.
        self.asm.place(options);
        self.collect(2);
        self.asm
            .load(Size::U8, NEXT, Base::Frame, at(BUFFER))
            .load(Size::U8, Register::R1, Base::Frame, at(BUFFER + 1))
            .compute(Operation::Add, Register::R1, 1)
            .compute(Operation::ShiftLeft, Register::R1, 3)
            .compute(Operation::Add, OFFSET, Register::R1)
            .jump(next);

        // Its length in units of 4 bytes, without the first two.
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
        // What comes before the transport is in the first fragment only.
        for header in [HOP_BY_HOP, ROUTING, FRAGMENT, AUTHENTICATION, DESTINATION_OPTIONS] {
            self.asm.jump_if(NEXT, Test::Equal, header, unknown);
        }
        self.asm.jump(bare);
        self.asm.place(next);
    }

    /// Reads ports or an ICMP message; protocols without either go on at `bare`.
    fn read_transport(&mut self, bare: crate::Label) {
        let begin = Seen::Now.begin();
        let ports = self.asm.label();
        for protocol in [TCP, UDP, SCTP, DCCP, UDP_LITE] {
            self.asm.jump_if(NEXT, Test::Equal, protocol, ports);
        }
        let own_icmp = if self.is_v6() { ICMPV6 } else { ICMP };
        self.asm.jump_if(NEXT, Test::NotEqual, own_icmp, bare);

        self.read_behind(2);
        self.asm
            .load(Size::U16, Register::R1, Base::Frame, at(BUFFER))
            .store(Size::U16, Base::Frame, at(begin + packet::DETAIL), Register::R1)
            .store(Size::U8, Base::Frame, at(begin + packet::HAS_DETAIL), 1)
            .jump(bare);

        self.asm.place(ports);
        self.read_behind(4);
        self.asm
            .load(Size::U16, Register::R1, Base::Frame, at(BUFFER))
            .store(Size::U16, Base::Frame, at(begin + packet::SOURCE_PORT), Register::R1)
            .load(Size::U16, Register::R1, Base::Frame, at(BUFFER + 2))
            .store(Size::U16, Base::Frame, at(begin + packet::DETAIL), Register::R1)
            .store(Size::U8, Base::Frame, at(begin + packet::HAS_DETAIL), 1)
            .store(Size::U8, Base::Frame, at(begin + packet::HAS_SOURCE_PORT), 1);
    }

    /// Has so many bytes in the buffer that are behind the headers: those of an IPv4 header without options have been read with it.
    fn read_behind(&mut self, bytes: i16) {
        let is_read = self.asm.label();
        if !self.is_v6() {
            let apart = self.asm.label();
            self.asm
                .jump_if(OFFSET, Test::NotEqual, i32::from(V4_HEADER), apart)
                .load(Size::U32, Register::R1, Base::Frame, at(LENGTH))
                .jump_if(Register::R1, Test::Less, i32::from(WITH_PORTS), apart)
                .load(Size::U32, Register::R1, Base::Frame, at(BUFFER + V4_HEADER))
                .store(Size::U32, Base::Frame, at(BUFFER), Register::R1)
                .jump(is_read)
                .place(apart);
        }
        self.read(bytes);
        self.asm.place(is_read);
    }
}
