//! Evaluation of the groups of endpoints.

use tortie_model::{Direction, Protocol};

use super::Code;
use super::frame::{FLAGS, KEY, LENGTH, PacketView, Side, at};
use super::headers::in_network_order;
use crate::instruction::{Base, Helper, Label, Operation, Register, Size, Test};
use crate::layout::{ALLOW, DENY, EndpointRecord, MapKind, UNDECIDED, VERDICT_BITS, endpoint, roots};
use crate::log::LogRecord;

/// Indices of a host endpoint's groups.
pub(super) mod host {
    pub(crate) const NORMAL: usize = 0;
    pub(crate) const FORWARD: usize = 2;
    pub(crate) const UNTRACKED: usize = 4;
    pub(crate) const PRE_DNAT: usize = 6;
}

/// A group to evaluate.
#[derive(Clone, Copy)]
pub(super) struct GroupEvaluation {
    /// Stack offset of the address of the endpoint's record.
    pub(super) record: i16,
    /// Index of the group in the record.
    pub(super) group: usize,
    /// Direction: to the endpoint or from it.
    pub(super) direction: Direction,
    /// View of the packet.
    pub(super) view: PacketView,
}

impl GroupEvaluation {
    /// Returns the group of a host endpoint's layer.
    pub(super) fn host(record: i16, layer: usize, direction: Direction, view: PacketView) -> Self {
        Self { record, group: layer + usize::from(direction == Direction::Egress), direction, view }
    }

    /// Returns the group of a workload.
    pub(super) fn workload(side: Side) -> Self {
        let (group, direction) = match side {
            Side::In => (EndpointRecord::WORKLOAD_EGRESS, Direction::Egress),
            Side::Out => (EndpointRecord::WORKLOAD_INGRESS, Direction::Ingress),
        };
        Self { record: side.own(), group, direction, view: PacketView::Current }
    }

    /// Reports whether the policy may have rules by domain name: normal egress policy.
    fn may_learn(&self) -> bool {
        const { assert!(host::NORMAL + 1 == EndpointRecord::WORKLOAD_EGRESS) };
        self.group == EndpointRecord::WORKLOAD_EGRESS && self.direction == Direction::Egress
    }
}

/// Whether a decision is counted and logged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Counted {
    Yes,
    /// It was counted when it was made first.
    Before,
}

/// Jump targets for each verdict.
#[derive(Clone, Copy)]
pub(super) struct Outcomes {
    pub(super) allow: Label,
    pub(super) deny: Label,
    pub(super) undecided: Label,
}

impl Code<'_> {
    /// Jumps to `label` if a host endpoint has policy in one of these layers.
    pub(super) fn if_evaluated(&mut self, record: i16, layers: &[(usize, Direction)], label: Label) {
        let bits = layers.iter().map(|(layer, direction)| {
            1 << GroupEvaluation::host(record, *layer, *direction, PacketView::Current).group
        });
        self.asm
            .load(Size::U64, Register::R6, Base::Frame, at(record))
            .load(Size::U32, Register::R1, Register::R6, endpoint::EVALUATED)
            .jump_if(Register::R1, Test::Common, bits.fold(0, |all, bit| all | bit), label);
    }

    /// Jumps to `label` unless the group has policy.
    pub(super) fn unless_evaluated(&mut self, evaluation: GroupEvaluation, label: Label) {
        self.asm
            .load(Size::U64, Register::R6, Base::Frame, at(evaluation.record))
            .load(Size::U32, Register::R1, Register::R6, endpoint::EVALUATED)
            .compute(Operation::And, Register::R1, 1 << evaluation.group)
            .jump_if(Register::R1, Test::Equal, 0, label);
    }

    /// Evaluates a group. A missing record or block denies.
    #[expect(clippy::expect_used, reason = "layers are constants")]
    pub(super) fn evaluate(&mut self, evaluation: GroupEvaluation, counted: Counted, outcomes: Outcomes) {
        let (missing, decided) = (self.asm.label(), self.asm.label());
        let group = endpoint::GROUPS + 4 * i16::try_from(evaluation.group).expect("a record has eight groups");
        self.asm.load(Size::U64, Register::R6, Base::Frame, at(evaluation.record)).load(
            Size::U32,
            Register::R1,
            Register::R6,
            group,
        );
        self.find(MapKind::Groups, self.sizes.groups, Register::R1, missing);
        self.asm.set(Register::R6, Register::R0);
        let learner = evaluation.may_learn().then_some(evaluation.record);
        let question = evaluation.view.question(self.family, evaluation.direction, self.sizes, learner);
        self.asm.decide(&question, missing).jump(decided).place(missing).set(Register::R9, 0).place(decided);
        if counted == Counted::Yes {
            self.count();
            self.log(evaluation.view);
        }
        let Outcomes { allow, deny, undecided } = outcomes;
        self.asm
            .compute(Operation::And, Register::R9, (1 << VERDICT_BITS) - 1)
            .jump_if(Register::R9, Test::Equal, ALLOW.cast_signed(), allow)
            .jump_if(Register::R9, Test::Equal, UNDECIDED.cast_signed(), undecided)
            .jump(deny);
        const { assert!(DENY == 0) };
    }

    /// Counts the packet for the decision in `r9`.
    pub(super) fn count(&mut self) {
        let end = self.asm.label();
        self.asm
            .set(Register::R1, Register::R9)
            .compute_half(Operation::ShiftRight, Register::R1, VERDICT_BITS.cast_signed())
            .store(Size::U32, Base::Frame, at(KEY), Register::R1);
        self.look_up(MapKind::Counters, end);
        self.asm
            // Programs for packets of the host itself may be interrupted by programs for other
            // packets.
            .set(Register::R1, 1)
            .add_atomically(Register::R0, 0, Register::R1)
            .load(Size::U32, Register::R1, Base::Frame, at(LENGTH))
            .add_atomically(Register::R0, 8, Register::R1)
            .place(end);
    }

    /// Writes a log record for the decision in `r9` about a packet.
    fn log(&mut self, view: PacketView) {
        let end = self.asm.label();
        let head = view.offsets(self.family).log;
        let [v4, v6] = LogRecord::SIZES;
        let size = if self.is_v6() { v6 } else { v4 };
        self.asm
            .load(Size::U32, Register::R1, Base::Frame, at(FLAGS))
            .compute(Operation::And, Register::R1, roots::LOG)
            .jump_if(Register::R1, Test::Equal, 0, end)
            .store(Size::U32, Base::Frame, at(head), Register::R9)
            .load(Size::U32, Register::R1, Base::Frame, at(LENGTH))
            .store(Size::U32, Base::Frame, at(head + LogRecord::LENGTH), Register::R1)
            .set_map(Register::R1, MapKind::Log.id())
            .set_stack(Register::R2, at(head).unsigned_abs())
            .set(Register::R3, i32::from(size))
            .set(Register::R4, 0)
            .call(Helper::RingbufOutput)
            .jump_if(Register::R0, Test::Equal, 0, end)
            .set_first_value(Register::R1, MapKind::Lost.id())
            .set(Register::R2, 1)
            .add_atomically(Register::R1, 0, Register::R2)
            .place(end);
    }

    /// Drops tunnel packets, by which a workload could bypass policy.
    pub(super) fn drop_tunnels(&mut self) {
        const IPIP: i32 = 4;
        let (packet, unknown) = (PacketView::Current.offsets(self.family), self.unknown);
        let policy = &self.settings.policy;
        self.asm.load(Size::U8, Register::R1, Base::Frame, at(packet.protocol));
        if !policy.ipip_from_workloads {
            self.asm.jump_if(Register::R1, Test::Equal, IPIP, unknown);
        }
        if !policy.vxlan_from_workloads {
            let next = self.asm.label();
            self.asm
                .jump_if(Register::R1, Test::NotEqual, i32::from(Protocol::UDP.number()), next)
                .load(Size::U8, Register::R1, Base::Frame, at(packet.has_source_port))
                .jump_if(Register::R1, Test::Equal, 0, next)
                .load(Size::U16, Register::R1, Base::Frame, at(packet.detail))
                .jump_if(Register::R1, Test::Equal, in_network_order(policy.vxlan_port), unknown)
                .place(next);
        }
    }
}
