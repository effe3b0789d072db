//! Failsafe ports, which stay open whatever the policy is.

use tortie_classes::evaluate::FailsafePort;
use tortie_model::{Cidr, Direction};

use super::Code;
use super::frame::{PacketView, at};
use crate::instruction::{Base, Label, Operation, Register, Size, Test};

/// Failsafe ports that are compared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Replies {
    /// The packet's destination port.
    No,
    /// Also its source port, for replies: the connection is not known yet.
    Yes,
}

impl Code<'_> {
    /// Jumps to `label` if the packet is for a failsafe port.
    pub(super) fn if_failsafe(&mut self, view: PacketView, direction: Direction, replies: Replies, label: Label) {
        let policy = &self.settings.policy;
        let packet = view.offsets(self.family);
        let (ours, answered, peer) = match direction {
            Direction::Ingress => (&policy.failsafe_inbound, &policy.failsafe_outbound, packet.source),
            Direction::Egress => (&policy.failsafe_outbound, &policy.failsafe_inbound, packet.destination),
        };
        let answered = answered.iter().filter(|_| replies == Replies::Yes);
        let ports = ours.iter().map(|port| (port, Register::R3)).chain(answered.map(|port| (port, Register::R4)));
        let family = self.family;
        let ports: Vec<(&FailsafePort, Register)> =
            ports.filter(|(port, _)| port.net.is_none_or(|net| net.family() == family)).collect();
        if ports.is_empty() {
            return;
        }
        let none = self.asm.label();
        self.asm
            .load(Size::U8, Register::R1, Base::Frame, at(packet.has_source_port))
            .jump_if(Register::R1, Test::Equal, 0, none)
            .load(Size::U8, Register::R2, Base::Frame, at(packet.protocol))
            .load(Size::U16, Register::R3, Base::Frame, at(packet.detail))
            .load(Size::U16, Register::R4, Base::Frame, at(packet.source_port))
            .to_big_endian(Size::U16, Register::R3)
            .to_big_endian(Size::U16, Register::R4);
        for (port, register) in ports {
            let other = self.asm.label();
            let (protocol, number) = (i32::from(port.protocol.number()), i32::from(port.port));
            self.asm.jump_if(Register::R2, Test::NotEqual, protocol, other).jump_if(
                register,
                Test::NotEqual,
                number,
                other,
            );
            if let Some(net) = port.net {
                self.compare_net(peer, net, other);
            }
            self.asm.jump(label).place(other);
        }
        self.asm.place(none);
    }

    /// Jumps to `other` if an address is not in a network. Clobbers `r1`.
    pub(super) fn compare_net(&mut self, address: i16, net: Cidr, other: Label) {
        let (bytes, bits) = match net.masked().address() {
            std::net::IpAddr::V4(address) => (address.octets().to_vec(), net.prefix_len()),
            std::net::IpAddr::V6(address) => (address.octets().to_vec(), net.prefix_len()),
        };
        let (words, _) = bytes.as_chunks::<4>();
        for ((word, place), begin) in words.iter().zip(0..).zip((0..).step_by(32)) {
            let counting = u32::from(bits).saturating_sub(begin).min(32);
            if counting == 0 {
                break;
            }
            let mask = u32::MAX << (32 - counting);
            // In the byte order of memory.
            let (word, mask) = (i32::from_ne_bytes(*word), i32::from_ne_bytes(mask.to_be_bytes()));
            self.asm.load(Size::U32, Register::R1, Base::Frame, at(address + 4 * place));
            if counting < 32 {
                self.asm.compute_half(Operation::And, Register::R1, mask);
            }
            self.asm.jump_if_half(Register::R1, Test::NotEqual, word, other);
        }
    }
}
