use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Map, Value, json};
use tortie_linux::netlink::nftrace::TraceVerdict;
use tortie_linux::netlink::{Flow, LoggedHeaders};
use tortie_linux::probe::ProbeAnswer;
use tortie_model::Hostname;

use super::flow::{TracedFlow, protocol_name};
use super::listing::Rules;
use super::owners::{Owner, Owners};
use super::programs::Programs;
use super::steps::{ChainEvent, ChainName, Exit, FlowDirection, Packet, RuleName, Step, principal};
use super::verdict::{Agreement, Decision, PacketOutcome, describe};

pub(in super::super) struct LiveAnswer {
    pub(super) node: Hostname,
    pub(super) flow: TracedFlow,
    pub(super) probe: Option<ProbeAnswer>,
    pub(super) packets: Vec<Packet>,
    pub(super) rules: Rules,
    pub(super) owners: Owners,
    pub(super) interfaces: BTreeMap<u32, String>,
    pub(in super::super) agreement: Agreement,
    pub(super) programs: Option<Programs>,
    pub(super) lost: u64,
    pub(super) unreadable: u64,
    pub(super) left_out: usize,
    pub(super) notes: Vec<String>,
}

impl LiveAnswer {
    fn shown(&self) -> impl Iterator<Item = &Packet> {
        let rest = principal(&self.packets).and_then(|first| self.packets.get(first..)).unwrap_or_default();
        rest.first().into_iter().chain(rest.iter().find(|packet| packet.direction == FlowDirection::Reply))
    }

    pub(in super::super) fn whole(&self) -> Value {
        let packets: Vec<Value> = self.packets.iter().map(|packet| self.packet(packet)).collect();
        let (agreement, why) = match &self.agreement {
            Agreement::Agree => ("agree", None),
            Agreement::Disagree(why) => ("disagree", Some(why)),
            Agreement::NotCompared(why) => ("not compared", Some(why)),
        };
        json!({
            "node": self.node.to_string(),
            "flow": self.flow.to_string(),
            "probe": self.probe.as_ref().map(probe),
            "packets": packets,
            "agreement": agreement,
            "why": why,
            "programs": self.programs.as_ref().map(Programs::whole),
            "lost": self.lost,
            "unreadable": self.unreadable,
            "left_out": self.left_out,
            "notes": self.notes,
        })
    }

    fn packet(&self, packet: &Packet) -> Value {
        let outcome = PacketOutcome::of(packet, &self.rules);
        let verdict = match outcome {
            PacketOutcome::Passed(_) => "allow",
            PacketOutcome::Dropped(_) => "deny",
            PacketOutcome::Vanished => "vanished",
        };
        let interface = |index: Option<u32>| index.map(|index| self.interface(index));
        let steps: Vec<Value> = packet.steps.iter().map(|step| self.step(step)).collect();
        json!({
            "answer": packet.direction == FlowDirection::Reply,
            "packet": tuple(&packet.first),
            "at_last": tuple(&packet.last),
            "tcp_flags": packet.tcp_flags.map(tcp_flags),
            "in_interface": interface(packet.in_interface),
            "out_interface": interface(packet.out_interface),
            "verdict": verdict,
            "ended_in_step": match outcome { PacketOutcome::Dropped(step) => Some(step), PacketOutcome::Passed(_) | PacketOutcome::Vanished => None },
            "steps": steps,
        })
    }

    fn step(&self, step: &Step) -> Value {
        let mut value = Map::new();
        let backend = match &step.chain {
            ChainName::Nft(_) => "nft",
            ChainName::Legacy { .. } => "legacy",
        };
        value.insert("backend".into(), backend.into());
        value.insert("table".into(), step.chain.table().into());
        value.insert("chain".into(), step.chain.chain().into());
        let event = match &step.event {
            ChainEvent::Rule(..) => "rule",
            ChainEvent::Return => "return",
            ChainEvent::Policy(_) => "policy",
        };
        value.insert("event".into(), event.into());
        if let Some(verdict) = step.verdict() {
            value.insert("verdict".into(), verdict_word(verdict).into());
        }
        if let ChainEvent::Rule(name, _) = step.event {
            if let RuleName::Handle(handle) = name {
                value.insert("handle".into(), handle.into());
            }
            if let Some((index, text)) = self.rules.rule(step) {
                value.insert("number".into(), (index + 1).into());
                value.insert("rule".into(), text.map(|rule| rule.text.clone()).into());
                let counters = text.and_then(|rule| rule.counters);
                value.insert("packets".into(), counters.map(|counters| counters.0).into());
                value.insert("bytes".into(), counters.map(|counters| counters.1).into());
            }
        }
        if let Some(decision) = self.belongs(step) {
            value.insert("belongs_to".into(), describe(&decision).into());
        }
        value.into()
    }

    fn belongs(&self, step: &Step) -> Option<Decision> {
        let chain = self.owners.of(step.chain.chain())?;
        let rule = self.rules.rule(step).zip(self.rules.length(&step.chain));
        let rule = rule.and_then(|((index, _), length)| self.owners.rule(chain, index, length));
        Some(Decision { direction: chain.direction, owner: chain.owner.clone(), rule })
    }

    fn interface(&self, index: u32) -> String {
        self.interfaces.get(&index).cloned().unwrap_or_else(|| format!("interface {index}"))
    }

    pub(in super::super) fn text(&self) -> String {
        let mut out = format!("in the kernel of {}: {}\n", self.node, self.flow);
        if let Some(answer) = &self.probe {
            let _ = writeln!(out, "  probe: {}", probe(answer));
        }
        for packet in self.shown() {
            self.packet_text(&mut out, packet);
        }
        let more = self.packets.len() - self.shown().count();
        if more > 0 {
            let _ = writeln!(out, "  {more} more packets of the flow are in the answer with -o json");
        }
        if self.lost + self.unreadable > 0 || self.left_out > 0 {
            let (lost, unreadable, left_out) = (self.lost, self.unreadable, self.left_out);
            let _ =
                writeln!(out, "  not shown: {lost} messages lost, {unreadable} not understood, {left_out} left out");
        }
        for line in self.programs.iter().flat_map(Programs::lines) {
            let _ = writeln!(out, "  {line}");
        }
        for note in &self.notes {
            let _ = writeln!(out, "  {note}");
        }
        out += &match &self.agreement {
            Agreement::Agree => "kernel and calculation agree\n".to_owned(),
            Agreement::Disagree(why) => format!("kernel and calculation DISAGREE: {why}\n"),
            Agreement::NotCompared(why) => format!("kernel and calculation are not compared: {why}\n"),
        };
        out
    }

    fn packet_text(&self, out: &mut String, packet: &Packet) {
        let outcome = PacketOutcome::of(packet, &self.rules);
        let description = match (packet.direction, packet.tcp_flags) {
            (FlowDirection::Original, Some(flags)) => tcp_flags(flags),
            (FlowDirection::Original, None) => "first packet".to_owned(),
            (FlowDirection::Reply, Some(flags)) => format!("answer, {}", tcp_flags(flags)),
            (FlowDirection::Reply, None) => "answer".to_owned(),
        };
        let _ = write!(out, "  {description}");
        if let Some(index) = packet.in_interface {
            let _ = write!(out, ", by {}", self.interface(index));
        }
        let end = match (outcome, packet.out_interface) {
            (PacketOutcome::Passed(Exit::Node), _) => "passed to the node".to_owned(),
            (PacketOutcome::Passed(Exit::Interface), Some(index)) => {
                format!("passed to {}", self.interface(index))
            }
            (PacketOutcome::Passed(Exit::Interface), None) => "passed".to_owned(),
            (PacketOutcome::Dropped(_), _) => "dropped".to_owned(),
            (PacketOutcome::Vanished, _) if self.programs.is_some() => {
                "gone where eBPF programs enforce policy".to_owned()
            }
            (PacketOutcome::Vanished, _) => "not dropped by a rule, and gone".to_owned(),
        };
        let _ = write!(out, ": {end}");
        if packet.first.tuple != packet.last.tuple {
            let _ = write!(out, ", as {}", tuple(&packet.last));
        }
        out.push('\n');
        let mut chain: Option<&ChainName> = None;
        let says_something = |step: &Step| step.event != ChainEvent::Return && !self.rules.is_idle(step);
        for (index, step) in packet.steps.iter().enumerate().filter(|(_, step)| says_something(step)) {
            if chain != Some(&step.chain) {
                let backend = if matches!(step.chain, ChainName::Legacy { .. }) { " (legacy)" } else { "" };
                let _ = writeln!(out, "    {} {}{backend}", step.chain.table(), step.chain.chain());
                chain = Some(&step.chain);
            }
            let end = if outcome == PacketOutcome::Dropped(index) { " <- it ends here" } else { "" };
            let _ = writeln!(out, "      {}{end}", self.step_text(step));
        }
    }

    fn step_text(&self, step: &Step) -> String {
        let mut text = match &step.event {
            ChainEvent::Return => "end of the chain: back".to_owned(),
            ChainEvent::Policy(Some(verdict)) => format!("policy: {}", verdict_word(verdict)),
            ChainEvent::Policy(None) => {
                format!("policy: {}", self.rules.policy(&step.chain).unwrap_or("?").to_lowercase())
            }
            ChainEvent::Rule(name, _) => match (self.rules.rule(step), name) {
                (Some((index, Some(rule))), _) => match rule.counters {
                    Some((packets, bytes)) => format!("{} [{packets}:{bytes}] {}", index + 1, without_hash(&rule.text)),
                    None => format!("{} {}", index + 1, rule.text),
                },
                (Some((index, None)), _) => format!("{} (not listed as it was when the packet met it)", index + 1),
                (None, RuleName::Handle(handle)) => format!("rule with handle {handle}, which no longer exists"),
                (None, RuleName::Number(number)) => format!("{number} (no longer exists)"),
            },
        };
        if matches!(step.event, ChainEvent::Rule(..))
            && let Some(decision) = self.belongs(step)
            && !matches!(decision.owner, Owner::Workload(_))
        {
            let _ = write!(text, " ({})", describe(&decision));
        }
        text
    }
}

fn without_hash(rule: &str) -> String {
    const BEGIN: &str = "-m comment --comment \"cali:";
    let Some((before, rest)) = rule.split_once(BEGIN) else { return rule.to_owned() };
    let after = rest.split_once('"').map_or("", |(_, after)| after);
    format!("{before}{}", after.trim_start())
}

fn probe(answer: &ProbeAnswer) -> String {
    match answer {
        ProbeAnswer::Answered => "answered".to_owned(),
        ProbeAnswer::Refused(why) => format!("refused: {why}"),
        ProbeAnswer::Silent => "no answer".to_owned(),
    }
}

fn verdict_word(verdict: &TraceVerdict) -> String {
    match verdict {
        TraceVerdict::Accept => "accept".to_owned(),
        TraceVerdict::Drop => "drop".to_owned(),
        TraceVerdict::Continue => "continue".to_owned(),
        TraceVerdict::Return => "return".to_owned(),
        TraceVerdict::Goto(chain) => format!("to {chain}"),
        TraceVerdict::Other(code) => format!("verdict {code}"),
    }
}

fn tcp_flags(flags: u8) -> String {
    let names = ["FIN", "SYN", "RST", "PSH", "ACK", "URG"];
    let set = names.into_iter().enumerate().filter(|(bit, _)| flags & (1 << bit) != 0).map(|(_, name)| name);
    set.collect::<Vec<_>>().join(" ")
}

/// `TCP 10.0.0.1:50000 -> 10.0.0.2:80`
fn tuple(headers: &LoggedHeaders) -> String {
    let tuple = &headers.tuple;
    let protocol = protocol_name(tuple.protocol);
    match tuple.flow {
        Flow::Ports { source, destination } => {
            let ends = [(tuple.source, source), (tuple.destination, destination)].map(std::net::SocketAddr::from);
            format!("{protocol} {} -> {}", ends[0], ends[1])
        }
        Flow::Icmp { icmp_type, code, .. } => {
            format!("{protocol} type {icmp_type} code {code} {} -> {}", tuple.source, tuple.destination)
        }
        Flow::Other => format!("{protocol} {} -> {}", tuple.source, tuple.destination),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_shown_without_their_hashes() {
        let rule = "-i cali+ -m comment --comment \"cali:tAzwBLPaV-j53OOZ\" -m comment --comment \"Policy x\" -j DROP";
        assert_eq!(without_hash(rule), "-i cali+ -m comment --comment \"Policy x\" -j DROP");
        assert_eq!(without_hash("-j DROP"), "-j DROP");
        assert_eq!(without_hash("-m comment --comment \"cali:x"), "");
    }

    #[test]
    fn flags_have_their_names() {
        assert_eq!(
            (tcp_flags(2), tcp_flags(0x12), tcp_flags(0x14)),
            ("SYN".into(), "SYN ACK".into(), "RST ACK".into())
        );
    }
}
