//! What traced packets went through, put together from what the kernel tells.

use std::net::IpAddr;

use tortie_linux::netlink::nftrace::{Chain, Event, TraceMessage, Verdict};
use tortie_linux::netlink::{Flow, LoggedHeaders, Tuple};

use super::legacy::LegacyStep;

/// How much is kept of all packets together. A way through the chains of a large node takes some hundred steps.
const MOST_STEPS: usize = 8192;

/// Whether a packet goes as the question says, or comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Forth,
    Back,
}

/// Where packets of the flow come from; the port if it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    pub(super) address: IpAddr,
    pub(super) port: Option<u16>,
}

impl Source {
    /// `None` of other flows. Destinations change on the way; sources only where nothing is traced any more.
    fn way(self, tuple: &Tuple) -> Option<Way> {
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
            Some(Way::Forth)
        } else if is_to && tuple.destination == self.address {
            Some(Way::Back)
        } else {
            None
        }
    }
}

/// A rule, by how its implementation calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleName {
    /// By its handle in nftables.
    Handle(u64),
    /// By its place in its chain of iptables-legacy, from 1.
    Number(usize),
}

/// A chain of either implementation.
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

/// What happened to a packet in a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A rule matched; what it said is known of nftables.
    Rule(RuleName, Option<Verdict>),
    /// The chain's end leads back.
    Return,
    /// The policy of the chain counts; what it says is known of nftables.
    Policy(Option<Verdict>),
}

/// One thing that happened to a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) chain: ChainName,
    pub(super) what: What,
}

/// How a packet came out of all rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Out {
    /// To the node itself.
    Node,
    /// By an interface.
    Interface,
}

/// A packet on its way through the node.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) way: Way,
    /// As it came.
    pub(super) first: LoggedHeaders,
    /// As it was seen last.
    pub(super) last: LoggedHeaders,
    pub(super) tcp_flags: Option<u8>,
    pub(super) in_interface: Option<u32>,
    pub(super) out_interface: Option<u32>,
    /// What happened, in order.
    pub(super) steps: Vec<Step>,
    /// `None` if it was not seen behind all rules.
    pub(super) out: Option<Out>,
}

impl Packet {
    /// Whether it may be the first of its connection.
    pub(super) fn opens(&self) -> bool {
        const FIN_SYN_RST_ACK: u8 = 0x17;
        const SYN: u8 = 0x02;
        self.way == Way::Forth && self.tcp_flags.is_none_or(|flags| flags & FIN_SYN_RST_ACK == SYN)
    }

    /// Whether nftables has told what became of it.
    pub(super) fn is_over(&self) -> bool {
        self.out.is_some() || self.steps.iter().any(|step| step.verdict() == Some(&Verdict::Drop))
    }
}

/// Which packet is answered about: the first one that opens a connection, or else the first one.
pub(super) fn principal(packets: &[Packet]) -> Option<usize> {
    let opens = packets.iter().position(Packet::opens);
    opens.or_else(|| packets.iter().position(|packet| packet.way == Way::Forth))
}

impl Step {
    pub(super) fn verdict(&self) -> Option<&Verdict> {
        match &self.what {
            What::Rule(_, verdict) | What::Policy(verdict) => verdict.as_ref(),
            What::Return => None,
        }
    }

    /// When a packet comes to the chain, if the kernel itself leads there: by hook, then by table.
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

/// Takes what is told.
#[derive(Debug)]
pub(super) struct Recorder {
    /// The table that marks packets.
    own_table: String,
    source: Source,
    packets: Vec<(u32, Packet)>,
    legacy: Vec<(Way, Step)>,
    steps: usize,
    /// What could not be kept.
    pub(super) left_out: usize,
}

impl Recorder {
    pub(super) fn new(own_table: &str, source: Source) -> Self {
        let own_table = own_table.to_owned();
        Self { own_table, source, packets: Vec::new(), legacy: Vec::new(), steps: 0, left_out: 0 }
    }

    /// Takes what nftables tells.
    pub(super) fn take(&mut self, message: TraceMessage) {
        let is_own = message.chain.table == self.own_table;
        if is_own && !message.is_end() {
            // The first rule of all that a packet meets is the one that marks it.
            if let (Event::Rule { .. }, Some(headers)) = (&message.event, message.headers) {
                self.begin(&message, headers);
            }
            return;
        }
        let Some((_, packet)) = self.packets.iter_mut().rev().find(|(id, _)| *id == message.id) else { return };
        packet.last = message.headers.unwrap_or(packet.last);
        packet.out_interface = message.out_interface.or(packet.out_interface);
        if is_own {
            packet.out = Some(if message.out_interface.is_some() { Out::Interface } else { Out::Node });
            return;
        }
        let what = match message.event {
            Event::Rule { handle, verdict } => What::Rule(RuleName::Handle(handle), Some(verdict)),
            Event::Return => What::Return,
            Event::Policy(verdict) => What::Policy(Some(verdict)),
        };
        if self.steps >= MOST_STEPS {
            self.left_out += 1;
            return;
        }
        let chain = ChainName::Nft(message.chain);
        let is_policy = matches!(what, What::Policy(_));
        // Before the policy the end of the chain is told as well.
        if is_policy && packet.steps.last().is_some_and(|last| last.chain == chain && last.what == What::Return) {
            packet.steps.pop();
            self.steps -= 1;
        }
        self.steps += 1;
        packet.steps.push(Step { chain, what });
    }

    fn begin(&mut self, message: &TraceMessage, headers: LoggedHeaders) {
        let Some(way) = self.source.way(&headers.tuple) else { return };
        if self.steps >= MOST_STEPS {
            self.left_out += 1;
            return;
        }
        self.steps += 1;
        let packet = Packet {
            way,
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

    /// Takes what iptables-legacy logs of a packet.
    pub(super) fn take_legacy(&mut self, step: LegacyStep, tuple: &Tuple) {
        // Others may have packets traced as well.
        let Some(way) = self.source.way(tuple) else { return };
        if self.steps >= MOST_STEPS {
            self.left_out += 1;
            return;
        }
        self.steps += 1;
        let LegacyStep { table, chain, what } = step;
        self.legacy.push((way, Step { chain: ChainName::Legacy { table, chain }, what }));
    }

    /// How much was told of the flow so far.
    pub(super) fn told(&self) -> usize {
        self.steps + self.left_out + self.seen().filter(|packet| packet.out.is_some()).count()
    }

    /// The packets so far, of which iptables-legacy has not told yet.
    pub(super) fn seen(&self) -> impl Iterator<Item = &Packet> {
        self.packets.iter().map(|(_, packet)| packet)
    }

    /// All packets, in the order in which they came.
    pub(super) fn finish(self) -> Vec<Packet> {
        let mut packets: Vec<Packet> = self.packets.into_iter().map(|(_, packet)| packet).collect();
        for way in [Way::Forth, Way::Back] {
            let steps = self.legacy.iter().filter(|(of, _)| *of == way).map(|(_, step)| step.clone());
            let of_packets = split(steps);
            for (packet, steps) in packets.iter_mut().filter(|packet| packet.way == way).zip(of_packets) {
                let of_nft = std::mem::take(&mut packet.steps);
                packet.steps = merge(of_nft, steps);
            }
        }
        packets
    }
}

/// What iptables-legacy has logged of some packets, one after the other: a new one begins where the way does.
fn split(steps: impl Iterator<Item = Step>) -> Vec<Vec<Step>> {
    let mut packets: Vec<Vec<Step>> = Vec::new();
    let mut last: Option<((u8, u8), usize)> = None;
    for step in steps {
        if let Some(position) = step.position() {
            let number = match step.what {
                What::Rule(RuleName::Number(number), _) => number,
                What::Rule(RuleName::Handle(_), _) | What::Return | What::Policy(_) => usize::MAX,
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

/// Both in one order. What follows a chain that the kernel itself leads to belongs to it.
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
    // Those of one place keep their order, nftables first.
    all.sort_by_key(|(at, _)| *at);
    all.into_iter().map(|(_, step)| step).collect()
}

#[cfg(test)]
mod tests;
