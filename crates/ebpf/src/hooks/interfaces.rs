//! Endpoints of a packet's interfaces.

use tortie_model::Direction;

use super::failsafe::Replies;
use super::frame::{
    ADDRESSES, ALL_INTERFACES, DEVICE, EXACT_SHIFT, FLAGS, KEY, LENGTH, NETWORKS, PacketView, Side, TRACKED, at,
    blocks_place, interface, tracked,
};
use super::kernel::NAME;
use super::{Code, Hook};
use crate::instruction::{Base, Helper, Label, Operation, Register, Size, Test};
use crate::layout::{MapKind, endpoint, roots};
use crate::walk::NumberWalk;

impl Hook {
    /// Returns the interfaces that the hook knows.
    const fn sides(self) -> &'static [Side] {
        match self {
            Self::Prerouting | Self::Input => &[Side::In],
            Self::Forward => &[Side::In, Side::Out],
            Self::Output => &[Side::Out],
        }
    }
}

impl Code<'_> {
    /// Saves the context, and reads the state in connection tracking.
    pub(super) fn begin(&mut self) {
        self.keep_context();
        self.read_conntrack();
    }

    /// Stores a small number on the stack such that the verifier does not know it: it would verify
    /// the rest of the program once for each known number. Clobbers `r4` and `r5`.
    pub(super) fn store_opaque(&mut self, place: i16, number: i32) {
        self.asm
            .load(Size::U32, Register::R4, Base::Frame, at(LENGTH))
            .set(Register::R5, Register::R4)
            .compute(Operation::Subtract, Register::R4, Register::R5)
            .compute(Operation::Add, Register::R4, number)
            .store(Size::U32, Base::Frame, at(place), Register::R4);
    }

    /// Leaves the address of the value with the number at [`KEY`] in `r0`.
    pub(super) fn look_up(&mut self, map: MapKind, missing: Label) {
        self.asm
            .set_map(Register::R1, map.id())
            .set_stack(Register::R2, at(KEY).unsigned_abs())
            .call(Helper::MapLookup)
            .jump_if(Register::R0, Test::Equal, 0, missing);
    }

    /// Like `look_up`, with the number in a register, in a joined map of `count` values: without a
    /// call of the kernel. Clobbers the number.
    pub(super) fn find(&mut self, map: MapKind, count: u32, number: Register, missing: Label) {
        let shift = map.value_size().trailing_zeros().cast_signed();
        debug_assert!(map.is_joined() && map.value_size().is_power_of_two());
        self.asm
            .jump_if(number, Test::GreaterOrEqual, count.cast_signed(), missing)
            .compute(Operation::ShiftLeft, number, shift)
            .set_first_value(Register::R0, map.id())
            .compute(Operation::Add, Register::R0, number);
    }

    /// Accepts packets of known connections with the fewest reads that prove that no policy applies
    /// to them; continues with all others.
    ///
    /// A packet of an interface without a workload prefix is neither spoofed nor from an unknown
    /// workload. Known connections are subject to untracked policy only, at PREROUTING and OUTPUT.
    /// At OUTPUT, the host may reach all interfaces.
    pub(super) fn accept_known(&mut self, hook: Hook) {
        let (accept, slow) = (self.accept, self.asm.label());
        self.asm.load(Size::U32, Register::R1, Base::Frame, at(TRACKED)).jump_if(
            Register::R1,
            Test::NotEqual,
            tracked::KNOWN,
            slow,
        );
        for side in hook.sides() {
            // The host's own packets leave by the device of their route, which is not needed here.
            if hook != Hook::Output {
                self.read_device(*side, false);
                self.compare_name(slow);
            }
        }
        if matches!(hook, Hook::Prerouting | Hook::Output) {
            self.look_up_roots(slow);
            self.asm.load(Size::U32, Register::R1, Register::R0, roots::FLAGS).compute(
                Operation::And,
                Register::R1,
                roots::IN_FORCE | roots::NO_UNTRACKED,
            );
            self.asm.jump_if(Register::R1, Test::NotEqual, roots::IN_FORCE | roots::NO_UNTRACKED, slow);
        }
        self.asm.jump(accept).place(slow);
    }

    /// Leaves the address of the current roots in `r0`.
    fn look_up_roots(&mut self, missing: Label) {
        self.asm.set_first_value(Register::R1, MapKind::Current.id()).load(Size::U64, Register::R1, Register::R1, 0);
        self.find(MapKind::Roots, crate::layout::ROOTS, Register::R1, missing);
    }

    /// Determines the kinds and endpoints of the hook's interfaces. Jumps to
    /// [`Code::without_records`] if a record is missing.
    pub(super) fn read_interfaces(&mut self, hook: Hook) {
        let closed = self.closed;
        self.look_up_roots(closed);
        self.asm
            .load(Size::U32, Register::R1, Register::R0, roots::FLAGS)
            .store(Size::U32, Base::Frame, at(FLAGS), Register::R1)
            .compute(Operation::And, Register::R1, roots::IN_FORCE)
            .jump_if(Register::R1, Test::Equal, 0, closed)
            .set(Register::R6, Register::R0);
        let [v4, v6] = roots::ADDRESSES;
        let needed: &[(i16, i16)] = if self.is_v6() {
            &[(v6, ADDRESSES), (roots::EXACT_SHIFT, EXACT_SHIFT), (roots::NETWORKS, NETWORKS)]
        } else {
            &[(v4, ADDRESSES)]
        };
        for (from, to) in needed {
            self.asm.load(Size::U32, Register::R1, Register::R6, *from).store(
                Size::U32,
                Base::Frame,
                at(*to),
                Register::R1,
            );
        }
        self.asm.load(Size::U32, Register::R1, Register::R6, roots::ALL_INTERFACES);
        self.find(MapKind::Endpoints, self.sizes.endpoints, Register::R1, closed);
        self.asm.store(Size::U64, Base::Frame, at(ALL_INTERFACES), Register::R0);
        for side in hook.sides() {
            self.read_device(*side, hook == Hook::Output);
            self.read_endpoint(*side);
        }
    }

    /// Handles packets if a record is missing that identifies the endpoints of their interfaces.
    /// Policy could then deny any packet that it applies to.
    pub(super) fn without_records(&mut self, hook: Hook) {
        let (accept, unknown, closed) = (self.accept, self.unknown, self.closed);
        self.asm.place(closed);
        for side in hook.sides() {
            self.read_device(*side, hook == Hook::Output);
            let (looks, next) = (self.asm.label(), self.asm.label());
            self.compare_name(looks);
            self.asm.jump(next).place(looks).jump(unknown).place(next);
        }
        let direction = match hook {
            // A later hook decides whether the packet is for the host.
            Hook::Prerouting => {
                self.asm.jump(accept);
                return;
            }
            Hook::Forward => {
                self.if_known(accept);
                self.asm.jump(unknown);
                return;
            }
            Hook::Input => Direction::Ingress,
            Hook::Output => Direction::Egress,
        };
        self.if_known(accept);
        self.read_headers();
        if self.is_v6() {
            self.accept_router_messages();
        }
        self.drop_invalid();
        self.if_failsafe(PacketView::Current, direction, Replies::No, accept);
        self.asm.jump(unknown);
    }

    /// Finds the device, saves its address, and leaves it in `r3`.
    fn read_device(&mut self, side: Side, of_route: bool) {
        let unknown = self.unknown;
        self.find_device(side, of_route);
        self.asm.store(Size::U64, Base::Frame, at(DEVICE), Register::R3).jump_if(Register::R3, Test::Equal, 0, unknown);
    }

    /// Finds the endpoint of the interface whose device is at `r3`. `r6` holds the roots.
    fn read_endpoint(&mut self, side: Side) {
        let closed = self.closed;
        let (none, host, looks, last, end) =
            (self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label(), self.asm.label());
        let blocks = blocks_place(self.sizes.blocks);
        let walk = |first, last| NumberWalk { blocks, cell: Register::R9, number: Register::R2, first, last };
        self.read_member(Size::U32, Register::R2, Register::R3, self.kernel.device_index);
        self.asm
            .find_blocks(blocks)
            .load(Size::U64, Register::R8, Base::Frame, at(ALL_INTERFACES))
            .store(Size::U64, Base::Frame, at(side.host()), Register::R8)
            .load(Size::U32, Register::R9, Register::R6, roots::NEAR_INTERFACES)
            .jump_if(Register::R2, Test::LessOrEqual, i32::from(u16::MAX), last)
            .load(Size::U32, Register::R9, Register::R6, roots::INTERFACES)
            .walk_number(&walk(3, 2))
            .place(last)
            .walk_number(&walk(1, 0))
            .end_walk(Register::R9, closed)
            .compute_half(Operation::And, Register::R9, i32::MAX)
            .jump_if(Register::R9, Test::Equal, 0, none);

        self.find(MapKind::Endpoints, self.sizes.endpoints, Register::R9, closed);
        self.asm
            .load(Size::U32, Register::R1, Register::R0, endpoint::KIND)
            .store(Size::U64, Base::Frame, at(side.own()), Register::R0)
            .store(Size::U32, Base::Frame, at(side.kind()), Register::R1)
            .jump_if(Register::R1, Test::Equal, interface::HOST_ENDPOINT, host)
            // A kind that no valid record has.
            .jump_if(Register::R1, Test::Greater, interface::HOST_ENDPOINT, looks)
            .jump(end)
            .place(host)
            .store(Size::U64, Base::Frame, at(side.host()), Register::R0)
            .jump(end)
            .place(none)
            .store(Size::U64, Base::Frame, at(side.own()), Register::R8);
        self.compare_name(looks);
        self.asm.store(Size::U32, Base::Frame, at(side.kind()), interface::HOST).jump(end).place(looks);
        self.store_opaque(side.kind(), interface::NO_ENDPOINT);
        self.asm.place(end);
    }

    /// Jumps to `looks` if the name of the device at [`DEVICE`] has a workload prefix.
    fn compare_name(&mut self, looks: Label) {
        self.asm.load(Size::U64, Register::R3, Base::Frame, at(DEVICE));
        if self.settings.workload_prefixes.is_empty() {
            // Never true, but keeps the code at `looks` reachable, which the assembler requires.
            self.asm.jump_if(Register::R3, Test::Equal, 0, looks);
        }
        let name = self.find_name();
        for prefix in &self.settings.workload_prefixes {
            let other = self.asm.label();
            // A prefix that is too long for a device name never matches, because the last byte of a
            // name is 0.
            for (place, byte) in (0..NAME).zip(prefix.bytes()) {
                self.asm.load(Size::U8, Register::R1, name.base, name.begin + place).jump_if(
                    Register::R1,
                    Test::NotEqual,
                    i32::from(byte),
                    other,
                );
            }
            // Always true, but conditional, so that the code behind an empty prefix, which every
            // name has, stays reachable.
            self.asm.set(Register::R1, 0).jump_if(Register::R1, Test::Equal, 0, looks).place(other);
        }
    }

    /// Jumps to `label` if the interface is of this kind.
    pub(super) fn if_kind(&mut self, side: Side, kind: i32, label: Label) {
        self.asm.load(Size::U32, Register::R1, Base::Frame, at(side.kind())).jump_if(
            Register::R1,
            Test::Equal,
            kind,
            label,
        );
    }
}
