use std::net::IpAddr;

use tortie_linux::netlink::nftrace::{Chain, Event, TraceMessage, TraceVerdict};
use tortie_linux::netlink::{Flow, LoggedHeaders, Tuple};

use super::legacy::LegacyStep;

/// Maximum number of steps of all packets together. A path through the chains of a large node has
/// some hundred steps.
const MOST_STEPS: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FlowDirection {
    Original,
    Reply,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) address: IpAddr,
    pub(super) port: Option<u16>,
}

impl Source {
    /// `None` for other flows. NAT may change destinations on the way; it changes sources only
    /// after the traced part.
    fn direction(self, tuple: &Tuple) -> Option<FlowDirection> {
        let is_port = |of: u16| self.port.is_none_or(|port| port == of);
        let (is_from, is_to) = match tuple.flow {
            Flow::Ports { source, destination } => (is_port(source), is_port(destination)),
            Flow::Icmp { icmp_type, .. } => {
                let is_answer = matches!(icmp_type, 0 | 14 | 16 | 18 | 129);
                (!is_answer, is_answer)
            }
            Flow::Other => (true, true),
        };
        if is_from && tuple.source == self.address {
            Some(FlowDirection::Original)
        } else if is_to && tuple.destination == self.address {
            Some(FlowDirection::Reply)
        } else {
            None
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleName {
    Handle(u64),
    /// Position in its iptables-legacy chain, from 1.
    Number(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChainName {
    Nft(Chain),
    Legacy { table: String, chain: String },
}

impl ChainName {
    pub(super) fn table(&self) -> &str {
        match self {
            Self::Nft(chain) => &chain.table,
            Self::Legacy { table, .. } => table,
        }
    }

    pub(super) fn chain(&self) -> &str {
        match self {
            Self::Nft(chain) => &chain.name,
            Self::Legacy { chain, .. } => chain,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChainEvent {
    /// A rule matched. Its verdict is known for nftables only.
    Rule(RuleName, Option<TraceVerdict>),
    Return,
    Policy(Option<TraceVerdict>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) chain: ChainName,
    pub(super) event: ChainEvent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exit {
    Node,
    Interface,
}

#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) direction: FlowDirection,
    pub(super) first: LoggedHeaders,
    pub(super) last: LoggedHeaders,
    pub(super) tcp_flags: Option<u8>,
    pub(super) in_interface: Option<u32>,
    pub(super) out_interface: Option<u32>,
    pub(super) steps: Vec<Step>,
    /// `None` if the packet was not seen after all rules.
    pub(super) out: Option<Exit>,
}

impl Packet {
    /// Reports whether the packet may be the first of its connection.
    pub(super) fn opens(&self) -> bool {
        const FIN_SYN_RST_ACK: u8 = 0x17;
        const SYN: u8 = 0x02;
        self.direction == FlowDirection::Original && self.tcp_flags.is_none_or(|flags| flags & FIN_SYN_RST_ACK == SYN)
    }

    pub(super) fn is_over(&self) -> bool {
        self.out.is_some() || self.steps.iter().any(|step| step.verdict() == Some(&TraceVerdict::Drop))
    }
}

/// The first packet that opens a connection, or else the first one in the direction of the
/// question.
pub(super) fn principal(packets: &[Packet]) -> Option<usize> {
    let opens = packets.iter().position(Packet::opens);
    opens.or_else(|| packets.iter().position(|packet| packet.direction == FlowDirection::Original))
}

impl Step {
    pub(super) fn verdict(&self) -> Option<&TraceVerdict> {
        match &self.event {
            ChainEvent::Rule(_, verdict) | ChainEvent::Policy(verdict) => verdict.as_ref(),
            ChainEvent::Return => None,
        }
    }

    /// Returns the position of a base chain in the packet path: by hook, then by table.
    fn position(&self) -> Option<(u8, u8)> {
        let hook = match self.chain.chain() {
            "PREROUTING" | "OUTPUT" => 0,
            "INPUT" | "FORWARD" => 1,
            "POSTROUTING" => 2,
            _ => return None,
        };
        let table = match (self.chain.table(), self.chain.chain()) {
            ("raw", _) => 0,
            ("mangle", _) => 1,
            ("nat", "PREROUTING" | "OUTPUT") => 2,
            ("filter", _) => 3,
            ("security", _) => 4,
            ("nat", _) => 5,
            _ => return None,
        };
        Some((hook, table))
    }
}

#[derive(Debug)]
pub(super) struct Recorder {
    own_table: String,
    source: Source,
    packets: Vec<(u32, Packet)>,
    legacy: Vec<(FlowDirection, Step)>,
    steps: usize,
    pub(super) left_out: usize,
}

impl Recorder {
    pub(super) fn new(own_table: &str, source: Source) -> Self {
        let own_table = own_table.to_owned();
        Self { own_table, source, packets: Vec::new(), legacy: Vec::new(), steps: 0, left_out: 0 }
    }

    pub(super) fn take(&mut self, message: TraceMessage) {
        let is_own = message.chain.table == self.own_table;
        if is_own && !message.is_end() {
            // A packet's first message is of the rule that marks it.
            if let (Event::Rule { .. }, Some(headers)) = (&message.event, message.headers) {
                self.begin(&message, headers);
            }
            return;
        }
        let Some((_, packet)) = self.packets.iter_mut().rev().find(|(id, _)| *id == message.id) else { return };
        packet.last = message.headers.unwrap_or(packet.last);
        packet.out_interface = message.out_interface.or(packet.out_interface);
        if is_own {
            packet.out = Some(if message.out_interface.is_some() { Exit::Interface } else { Exit::Node });
            return;
        }
        let event = match message.event {
            Event::Rule { handle, verdict } => ChainEvent::Rule(RuleName::Handle(handle), Some(verdict)),
            Event::Return => ChainEvent::Return,
            Event::Policy(verdict) => ChainEvent::Policy(Some(verdict)),
        };
        if self.steps >= MOST_STEPS {
            self.left_out += 1;
            return;
        }
        let chain = ChainName::Nft(message.chain);
        let is_policy = matches!(event, ChainEvent::Policy(_));
        // Before the policy, the kernel also reports the end of the chain.
        if is_policy && packet.steps.last().is_some_and(|last| last.chain == chain && last.event == ChainEvent::Return)
        {
            packet.steps.pop();
            self.steps -= 1;
        }
        self.steps += 1;
        packet.steps.push(Step { chain, event });
    }

    fn begin(&mut self, message: &TraceMessage, headers: LoggedHeaders) {
        let Some(direction) = self.source.direction(&headers.tuple) else { return };
        if self.steps >= MOST_STEPS {
            self.left_out += 1;
            return;
        }
        self.steps += 1;
        let packet = Packet {
            direction,
            first: headers,
            last: headers,
            tcp_flags: message.tcp_flags,
            in_interface: message.in_interface,
            out_interface: message.out_interface,
            steps: Vec::new(),
            out: None,
        };
        self.packets.push((message.id, packet));
    }

    pub(super) fn take_legacy(&mut self, step: LegacyStep, tuple: &Tuple) {
        // Other programs may trace packets as well.
        let Some(direction) = self.source.direction(tuple) else { return };
        if self.steps >= MOST_STEPS {
            self.left_out += 1;
            return;
        }
        self.steps += 1;
        let LegacyStep { table, chain, event } = step;
        self.legacy.push((direction, Step { chain: ChainName::Legacy { table, chain }, event }));
    }

    pub(super) fn progress(&self) -> usize {
        self.steps + self.left_out + self.seen().filter(|packet| packet.out.is_some()).count()
    }

    pub(super) fn seen(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().map(|(_, packet)| packet)
    }

    pub(super) fn finish(self) -> Vec<Packet> {
        let mut packets: Vec<Packet> = self.packets.into_iter().map(|(_, packet)| packet).collect();
        for direction in [FlowDirection::Original, FlowDirection::Reply] {
            let steps = self.legacy.iter().filter(|(of, _)| *of == direction).map(|(_, step)| step.clone());
            let of_packets = split(steps);
            for (packet, steps) in packets.iter_mut().filter(|packet| packet.direction == direction).zip(of_packets) {
                let of_nft = std::mem::take(&mut packet.steps);
                packet.steps = merge(of_nft, steps);
            }
        }
        packets
    }
}

/// Splits the log into packets, which follow each other: a new one begins where the path starts
/// again.
fn split(steps: impl Iterator<Item = Step>) -> Vec<Vec<Step>> {
    let mut packets: Vec<Vec<Step>> = Vec::new();
    let mut last: Option<((u8, u8), usize)> = None;
    for step in steps {
        if let Some(position) = step.position() {
            let number = match step.event {
                ChainEvent::Rule(RuleName::Number(number), _) => number,
                ChainEvent::Rule(RuleName::Handle(_), _) | ChainEvent::Return | ChainEvent::Policy(_) => usize::MAX,
            };
            if last.is_none_or(|last| (position, number) <= last) {
                packets.push(Vec::new());
            }
            last = Some((position, number));
        }
        match packets.last_mut() {
            Some(packet) => packet.push(step),
            None => packets.push(vec![step]),
        }
    }
    packets
}

/// Merges both lists into one order. Steps after one in a base chain belong to that chain.
fn merge(nft: Vec<Step>, legacy: Vec<Step>) -> Vec<Step> {
    if nft.is_empty() {
        return legacy;
    }
    let placed = |steps: Vec<Step>| {
        let mut at = (0, 0);
        steps.into_iter().map(move |step| {
            at = step.position().unwrap_or(at);
            (at, step)
        })
    };
    let mut all: Vec<((u8, u8), Step)> = placed(nft).chain(placed(legacy)).collect();
    // Steps with the same position keep their order, nftables first.
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, step)| step).collect()
}

#[cfg(test)]
mod tests;
