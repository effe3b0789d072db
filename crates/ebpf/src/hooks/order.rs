//! Order of policy evaluation at each hook.

use tortie_classes::evaluate::EndpointToHost;
use tortie_model::{Cidr, Direction};

use super::failsafe::Replies;
use super::frame::{ALL_INTERFACES, PICKED, PacketView, Side, at, blocks_place, interface};
use super::policy::{Counted, GroupEvaluation, Outcomes, host};
use super::{Code, Hook};
use crate::instruction::{Base, Label, Register, Size, Test};
use crate::layout::{EndpointKind, endpoint};
use crate::walk::Walk;

/// Messages that the host must receive to act as an IPv6 router: multicast listener query, report
/// and done, router solicitation, neighbour solicitation and advertisement (RFC 2710, RFC 4861).
const ROUTER_ICMPV6: [i32; 6] = [130, 131, 132, 133, 135, 136];
const ICMPV6: i32 = 58;

const INGRESS: Direction = Direction::Ingress;
const EGRESS: Direction = Direction::Egress;

impl Code<'_> {
    pub(super) fn prerouting(&mut self) {
        let accept = self.accept;
        self.read_interfaces(Hook::Prerouting);
        let (of_host, of_workload, pre_dnat) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.if_kind(Side::In, interface::WORKLOAD, of_workload);
        self.if_kind(Side::In, interface::NO_ENDPOINT, of_workload);
        self.asm.jump(of_host).place(of_workload);
        self.read_headers();
        self.drop_spoofed(pre_dnat);

        self.asm.place(of_host);
        let (evaluation, tracked) = (self.asm.label(), self.asm.label());
        self.if_evaluated(Side::In.host(), &[(host::UNTRACKED, INGRESS)], evaluation);
        self.if_known(accept);
        self.if_any_evaluated(&[], evaluation);
        self.asm.jump(accept).place(evaluation);
        self.read_headers();
        self.if_untracked(tracked);
        self.if_failsafe(PacketView::Current, INGRESS, Replies::Yes, tracked);
        let untracked = GroupEvaluation::host(Side::In.own(), host::UNTRACKED, INGRESS, PacketView::Current);
        self.evaluate(untracked, Counted::Yes, Outcomes { allow: accept, deny: self.drop, undecided: tracked });
        self.asm.place(tracked);

        self.asm.place(pre_dnat);
        self.if_known(accept);
        self.pick_pre_dnat(accept);
        self.drop_invalid();
        self.if_failsafe(PacketView::Current, INGRESS, Replies::No, accept);
        let evaluation = GroupEvaluation::host(PICKED, host::PRE_DNAT, INGRESS, PacketView::Current);
        self.evaluate(evaluation, Counted::Yes, Outcomes { allow: accept, deny: self.drop, undecided: accept });
    }

    pub(super) fn input(&mut self) {
        let accept = self.accept;
        self.read_interfaces(Hook::Input);
        let (of_workload, unknown_interface, of_host) = (self.asm.label(), self.asm.label(), self.asm.label());
        self.if_kind(Side::In, interface::WORKLOAD, of_workload);
        self.if_kind(Side::In, interface::NO_ENDPOINT, of_workload);
        self.asm.jump(of_host);

        self.asm.place(of_workload);
        let unless_known = self.asm.label();
        self.if_kind(Side::In, interface::NO_ENDPOINT, unless_known);
        self.if_known(accept);
        self.asm.place(unless_known);
        self.read_headers();
        if self.is_v6() {
            self.accept_router_messages();
        }
        let unknown = self.unknown;
        self.if_kind(Side::In, interface::NO_ENDPOINT, unknown_interface);
        let to_host = match self.settings.policy.endpoint_to_host {
            EndpointToHost::Deny => unknown,
            EndpointToHost::Allow | EndpointToHost::Undecided => accept,
        };
        self.workload(Side::In, to_host);

        self.asm.place(unknown_interface).jump(unknown);

        self.asm.place(of_host);
        self.if_known(accept);
        let evaluation = self.asm.label();
        self.if_any_evaluated(&[(host::NORMAL, INGRESS), (host::UNTRACKED, INGRESS)], evaluation);
        self.asm.jump(accept).place(evaluation);
        self.read_headers();
        let undecided = self.asm.label();
        self.if_accepted_before(accept, undecided);
        self.asm.place(undecided);
        self.unless_evaluated(
            GroupEvaluation::host(Side::In.host(), host::NORMAL, INGRESS, PacketView::Current),
            accept,
        );
        self.normal(Side::In);
    }

    pub(super) fn forward(&mut self) {
        let (accept, unknown) = (self.accept, self.unknown);
        self.read_interfaces(Hook::Forward);
        for side in [Side::In, Side::Out] {
            self.if_kind(side, interface::NO_ENDPOINT, unknown);
        }
        self.if_known(accept);
        let evaluation = self.asm.label();
        for side in [Side::In, Side::Out] {
            self.if_kind(side, interface::WORKLOAD, evaluation);
            self.if_host_endpoint(side, evaluation);
        }
        self.asm.jump(accept).place(evaluation);
        self.read_headers();

        let (undecided, from_workload) = (self.asm.label(), self.asm.label());
        self.if_accepted_before(from_workload, undecided);
        self.asm.place(undecided);
        self.forwarded(Side::In, from_workload);

        self.asm.place(from_workload);
        let to_workload = self.asm.label();
        let is_from = self.asm.label();
        self.if_kind(Side::In, interface::WORKLOAD, is_from);
        self.asm.jump(to_workload).place(is_from);
        self.workload(Side::In, to_workload);

        self.asm.place(to_workload);
        let (to_host, is_to) = (self.asm.label(), self.asm.label());
        self.if_kind(Side::Out, interface::WORKLOAD, is_to);
        self.asm.jump(to_host).place(is_to);
        self.workload(Side::Out, to_host);

        self.asm.place(to_host);
        self.forwarded(Side::Out, accept);
    }

    pub(super) fn output(&mut self) {
        let accept = self.accept;
        self.read_interfaces(Hook::Output);
        // The host can always reach its workloads: an attacker who controls the host controls this
        // program as well.
        self.if_kind(Side::Out, interface::WORKLOAD, accept);
        self.if_kind(Side::Out, interface::NO_ENDPOINT, accept);
        let (own, tracked) = (self.asm.label(), self.asm.label());
        let (rest, normal_policy) = (self.asm.label(), self.asm.label());
        let untracked = GroupEvaluation::host(Side::Out.own(), host::UNTRACKED, EGRESS, PacketView::PreNat);
        self.if_kind(Side::Out, interface::HOST_ENDPOINT, own);
        self.asm.jump(rest).place(own);
        self.unless_evaluated(untracked, rest);
        self.read_headers();
        self.read_first();
        self.if_failsafe(PacketView::PreNat, EGRESS, Replies::Yes, tracked);
        self.evaluate(untracked, Counted::Yes, Outcomes { allow: accept, deny: self.drop, undecided: tracked });
        self.asm.place(tracked);
        self.if_known(accept);
        let normal = GroupEvaluation::host(Side::Out.host(), host::NORMAL, EGRESS, PacketView::Current);
        self.unless_evaluated(normal, accept);
        self.asm.jump(normal_policy);

        self.asm.place(rest);
        self.if_known(accept);
        self.unless_evaluated(normal, accept);
        self.read_headers();
        self.asm.place(normal_policy);
        self.normal(Side::Out);
    }

    /// Drops packets of workloads with foreign source addresses; all others jump to `rest`. Sources
    /// that the kernel's reverse path filter accepts without a route are accepted here as well.
    #[expect(clippy::expect_used, reason = "the networks are constants")]
    fn drop_spoofed(&mut self, rest: Label) {
        let unknown = self.unknown;
        let super::frame::FieldOffsets { source, destination, .. } = PacketView::Current.offsets(self.family);
        let nets: &[(&str, &[&str])] = if self.is_v6() {
            &[("::/128", &[]), ("fe80::/64", &[])]
        } else {
            // A host without an address requests one by broadcast or multicast.
            &[("0.0.0.0/8", &["255.255.255.255/32", "224.0.0.0/24"])]
        };
        let parse = |net: &str| net.parse::<Cidr>().expect("the text is a network");
        for (from, to) in nets {
            let other = self.asm.label();
            self.compare_net(source, parse(from), other);
            if to.is_empty() {
                self.asm.jump(rest);
            }
            for to in *to {
                let not_there = self.asm.label();
                self.compare_net(destination, parse(to), not_there);
                self.asm.jump(rest).place(not_there);
            }
            self.asm.place(other);
        }
        self.if_kind(Side::In, interface::NO_ENDPOINT, unknown);
        let [v4, v6] = endpoint::SOURCES;
        let (sources, bytes) = if self.is_v6() { (v6, 16) } else { (v4, 4) };
        let walk = Walk {
            blocks: blocks_place(self.sizes.blocks),
            cell: Register::R9,
            key: Base::Frame,
            offset: at(source),
            bytes,
        };
        self.asm
            .load(Size::U64, Register::R6, Base::Frame, at(Side::In.own()))
            .load(Size::U32, Register::R9, Register::R6, sources)
            .find_blocks(walk.blocks)
            .walk(&walk, unknown)
            .jump_if(Register::R9, Test::Equal, 1, rest)
            .jump(unknown);
    }

    pub(super) fn accept_router_messages(&mut self) {
        let (packet, accept, next) = (PacketView::Current.offsets(self.family), self.accept, self.asm.label());
        self.asm
            .load(Size::U8, Register::R1, Base::Frame, at(packet.protocol))
            .jump_if(Register::R1, Test::NotEqual, ICMPV6, next)
            .load(Size::U8, Register::R1, Base::Frame, at(packet.has_detail))
            .jump_if(Register::R1, Test::Equal, 0, next)
            .load(Size::U8, Register::R1, Base::Frame, at(packet.detail));
        for message in ROUTER_ICMPV6 {
            self.asm.jump_if(Register::R1, Test::Equal, message, accept);
        }
        self.asm.place(next);
    }

    /// Jumps to `tracked` unless the endpoint of the incoming interface has untracked policy. The
    /// endpoint of all interfaces cannot have any.
    fn if_untracked(&mut self, tracked: Label) {
        let own = self.asm.label();
        self.if_kind(Side::In, interface::HOST_ENDPOINT, own);
        self.asm.jump(tracked).place(own);
        self.unless_evaluated(
            GroupEvaluation::host(Side::In.own(), host::UNTRACKED, INGRESS, PacketView::Current),
            tracked,
        );
    }

    /// Repeats the evaluation at PREROUTING, where denied packets were dropped. Jumps to `accepted`
    /// if policy allowed the packet there, else to `otherwise`.
    fn if_accepted_before(&mut self, accepted: Label, otherwise: Label) {
        let deny = self.drop;
        let (evaluation, pre_dnat) = (self.asm.label(), self.asm.label());
        self.if_any_evaluated(&[(host::UNTRACKED, INGRESS)], evaluation);
        self.asm.jump(otherwise).place(evaluation);
        self.read_first();
        self.if_untracked(pre_dnat);
        self.if_failsafe(PacketView::PreNat, INGRESS, Replies::Yes, pre_dnat);
        let evaluation = GroupEvaluation::host(Side::In.own(), host::UNTRACKED, INGRESS, PacketView::PreNat);
        self.evaluate(evaluation, Counted::Before, Outcomes { allow: accepted, deny, undecided: pre_dnat });
        self.asm.place(pre_dnat);
        self.pick_pre_dnat(otherwise);
        self.if_failsafe(PacketView::PreNat, INGRESS, Replies::No, otherwise);
        let evaluation = GroupEvaluation::host(PICKED, host::PRE_DNAT, INGRESS, PacketView::PreNat);
        self.evaluate(evaluation, Counted::Before, Outcomes { allow: accepted, deny, undecided: otherwise });
    }

    /// Finds the endpoint whose pre-DNAT policy is evaluated: that of the interface if it has any,
    /// else that of all interfaces, which include workload interfaces. Jumps to `none` if there is
    /// none.
    fn pick_pre_dnat(&mut self, none: Label) {
        let picked = self.asm.label();
        for record in [Side::In.host(), ALL_INTERFACES] {
            self.asm
                .load(Size::U64, Register::R6, Base::Frame, at(record))
                .store(Size::U64, Base::Frame, at(PICKED), Register::R6)
                .load(Size::U32, Register::R1, Register::R6, endpoint::EVALUATED)
                .jump_if(Register::R1, Test::Common, 1 << host::PRE_DNAT, picked);
        }
        self.asm.jump(none).place(picked);
    }

    /// Evaluates a workload's policy for a packet from it or to it; jumps to `allowed` if the
    /// packet is not denied.
    fn workload(&mut self, side: Side, allowed: Label) {
        self.drop_invalid();
        if side == Side::In {
            self.drop_tunnels();
        }
        let drop = self.drop;
        self.evaluate(
            GroupEvaluation::workload(side),
            Counted::Yes,
            Outcomes { allow: allowed, deny: drop, undecided: drop },
        );
    }

    /// Evaluates a host endpoint's normal policy for a packet to the host or from it.
    fn normal(&mut self, side: Side) {
        let (accept, drop) = (self.accept, self.drop);
        let direction = if side == Side::In { INGRESS } else { EGRESS };
        let evaluation = GroupEvaluation::host(side.host(), host::NORMAL, direction, PacketView::Current);
        self.drop_invalid();
        self.if_failsafe(PacketView::Current, direction, Replies::No, accept);
        self.evaluate(evaluation, Counted::Yes, Outcomes { allow: accept, deny: drop, undecided: drop });
    }

    /// Evaluates a host endpoint's policy for a forwarded packet; jumps to `allowed` if the packet
    /// is not denied.
    fn forwarded(&mut self, side: Side, allowed: Label) {
        let is_endpoint = self.asm.label();
        self.if_host_endpoint(side, is_endpoint);
        self.asm.jump(allowed).place(is_endpoint);
        self.drop_invalid();
        let direction = if side == Side::In { INGRESS } else { EGRESS };
        let evaluation = GroupEvaluation::host(side.host(), host::FORWARD, direction, PacketView::Current);
        self.unless_evaluated(evaluation, allowed);
        let drop = self.drop;
        self.evaluate(evaluation, Counted::Yes, Outcomes { allow: allowed, deny: drop, undecided: allowed });
    }

    /// Jumps to `label` if a host endpoint applies to the interface.
    fn if_host_endpoint(&mut self, side: Side, label: Label) {
        self.asm
            .load(Size::U64, Register::R6, Base::Frame, at(side.host()))
            .load(Size::U32, Register::R1, Register::R6, endpoint::KIND)
            .jump_if(Register::R1, Test::Equal, EndpointKind::Host as i32, label);
    }

    /// Jumps to `label` if the endpoint of the incoming interface, or that of all interfaces, has
    /// pre-DNAT policy, or if the former has policy in one of these layers.
    fn if_any_evaluated(&mut self, layers: &[(usize, Direction)], label: Label) {
        let pre_dnat = (host::PRE_DNAT, INGRESS);
        self.if_evaluated(Side::In.host(), &[layers, &[pre_dnat]].concat(), label);
        self.if_evaluated(ALL_INTERFACES, &[pre_dnat], label);
    }
}
