//! Edges from flows.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize as _;
use serde_json::Value;
use tortie_model::{Cidr, Protocol, Update};
use twox_hash::XxHash3_64;

use crate::inventory::Inventory;
use crate::labels::{LabelMap, is_plain};
use crate::line::{EndLine, EvidenceLine, Line};
use crate::owner::Owner;
use crate::record::{EdgeKey, EdgePort, End, Evidence, Record};

/// Number of UDP flows that are compared with each other.
const TUPLES: usize = 100_000;

/// Seconds after the last packet of a UDP flow in which a flow of the opposite direction is its
/// late reply.
const LATE: u64 = 600;

/// Least packets from the client and from the server that show that a TCP connection was accepted.
const ACCEPTED: (u64, u64) = (3, 2);

/// Reader of flows, which makes a [`Record`] of them.
///
/// Flows are those of `tortie flows -o json`, and the lines of a file of flows. A line that is
/// neither is counted.
///
/// ```
/// use tortie_suggest::Learner;
///
/// let mut learner = Learner::new(&[]);
/// let flow = r#"{"time": "2026-01-05T10:00:01Z", "started": "2026-01-05T10:00:00Z",
///     "stage": "ended", "verdict": "allow", "protocol": "TCP", "packets": 9, "reply_packets": 7,
///     "source": {"kind": "workload", "name": "shop/web"},
///     "destination": {"kind": "outside", "address": "192.0.2.7", "port": 443}}"#;
/// learner.read(&flow.replace('\n', ""));
/// learner.read("{}");
/// assert_eq!((learner.flows(), learner.unreadable()), (1, 1));
/// assert_eq!(learner.finish().edges().len(), 1);
/// ```
#[derive(Debug)]
pub struct Learner {
    inventory: Inventory,
    record: Record,
    /// UDP flows by their addresses, ports and begin.
    udp: BTreeMap<(Tuple, u64), UdpFlow>,
    flows: u64,
    unreadable: u64,
}

/// Addresses and ports of a flow.
type Tuple = (IpAddr, u16, IpAddr, u16);

#[derive(Debug)]
struct UdpFlow {
    key: EdgeKey,
    last: u64,
    has_replies: bool,
    is_counted: bool,
}

impl Learner {
    /// Returns a reader of flows of a cluster with these objects.
    #[must_use]
    pub fn new(cluster: &[Update]) -> Self {
        Self {
            inventory: Inventory::new(cluster),
            record: Record::default(),
            udp: BTreeMap::new(),
            flows: 0,
            unreadable: 0,
        }
    }

    /// Reads flows: a line for each, or the answer of `tortie flows -o json` as a whole.
    pub fn read(&mut self, text: &str) {
        if let Ok(Value::Object(whole)) = serde_json::from_str(text)
            && let Some(Value::Array(flows)) = whole.get("flows")
        {
            flows.iter().for_each(|flow| self.read_flow(flow));
            return;
        }
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str(line) {
                Ok(flow) => self.read_flow(&flow),
                Err(_) => self.unreadable += 1,
            }
        }
    }

    /// Reads one flow.
    pub fn read_flow(&mut self, flow: &Value) {
        let read = Line::deserialize(flow).ok().and_then(|line| self.take(&line));
        match read {
            Some(()) => self.flows += 1,
            None => self.unreadable += 1,
        }
    }

    /// Returns the number of flows that were read.
    #[must_use]
    pub fn flows(&self) -> u64 {
        self.flows
    }

    /// Returns the number of lines that are no flows.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// Returns the record of all flows.
    #[must_use]
    pub fn finish(mut self) -> Record {
        for ((tuple, began), flow) in &self.udp {
            let (source, source_port, destination, port) = *tuple;
            let asked = (destination, port, source, source_port);
            let mut earlier = self.udp.range((asked, 0)..(asked, *began));
            if earlier.any(|(_, question)| began.saturating_sub(question.last) <= LATE) {
                self.record.not_recorded.late_replies += 1;
                continue;
            }
            let evidence = Evidence::Learned { replies: flow.has_replies, counted: flow.is_counted };
            self.record.observe(&flow.key, evidence, *began, identity(&(tuple, Protocol::UDP.number())));
        }
        self.record
    }

    /// Takes a flow; `None` if it is unreadable.
    fn take(&mut self, line: &Line) -> Option<()> {
        let (began, last) = line.span()?;
        let protocol = line.protocol_number()?;
        let (sources, destinations) = (self.ends(&line.source)?, self.ends(&line.destination)?);
        if line.is_at_host() || self.is_of_own_node(line) || is_within_a_pod(line) {
            return Some(());
        }
        for source in &sources {
            for destination in &destinations {
                if !matches!((source, destination), (End::Owner(_), _) | (_, End::Owner(_))) {
                    continue;
                }
                let key = EdgeKey {
                    source: source.clone(),
                    destination: destination.clone(),
                    protocol,
                    port: port(line, protocol),
                };
                self.observe(line, key, began, last);
            }
        }
        self.see_pods(line);
        Some(())
    }

    fn observe(&mut self, line: &Line, key: EdgeKey, began: u64, last: u64) {
        let tuple = tuple(line);
        if line.stage.is_none() {
            for (evidence, identity) in of_aggregate(line, &key) {
                self.record.observe(&key, evidence, began, identity);
            }
            return;
        }
        let evidence = of_connection(line, key.protocol);
        if let (Some(tuple), Evidence::Learned { replies, counted }) = (tuple, evidence)
            && key.protocol == Protocol::UDP.number()
        {
            if self.udp.len() < TUPLES || self.udp.contains_key(&(tuple, began)) {
                let new = || UdpFlow { key, last, has_replies: false, is_counted: false };
                let flow = self.udp.entry((tuple, began)).or_insert_with(new);
                flow.last = flow.last.max(last);
                flow.has_replies |= replies;
                flow.is_counted |= counted;
                return;
            }
            self.record.not_recorded.untracked += 1;
        }
        let identity = tuple.map_or_else(|| identity(&key), |tuple| identity(&(tuple, key.protocol)));
        self.record.observe(&key, evidence, began, identity);
    }

    /// Reports whether a pod's own node sent the packets, which policy does not filter.
    fn is_of_own_node(&mut self, line: &Line) -> bool {
        if line.source.kind != "node" || line.destination.kind != "workload" {
            return false;
        }
        let (namespace, name) = pod_name(&line.destination);
        let is_own = match self.inventory.pod(namespace, name) {
            Some(pod) => *pod.node == *line.source.name,
            None => !line.is_judged_at_destination(),
        };
        self.record.not_recorded.own_node += u64::from(is_own);
        is_own
    }

    /// Returns the ends that an end of a line stands for; `None` if it is unreadable.
    fn ends(&self, end: &EndLine) -> Option<Vec<End>> {
        let addresses = || end.address.iter().chain(&end.addresses).map(|address| End::Network(Cidr::host(*address)));
        let or = |unknown: End, many: End| match (addresses().next(), end.more_addresses) {
            (None, _) => Some(vec![unknown]),
            (Some(_), true) => Some(vec![many]),
            (Some(_), false) => Some(addresses().collect()),
        };
        match &*end.kind {
            "workload" if !is_named(end) => None,
            "workload" => Some(vec![End::Owner(self.owner(end))]),
            "node" => Some(vec![End::Node(end.name.as_str().into())]),
            "network set" => {
                let set = End::NetworkSet(end.name.as_str().into());
                or(set.clone(), set)
            }
            "outside" => Some(vec![addresses().next()?]),
            "private" => or(End::UnknownPrivate, End::Private),
            "public" => or(End::UnknownPublic, End::Public),
            _ => None,
        }
    }

    fn owner(&self, end: &EndLine) -> Owner {
        let (namespace, name) = pod_name(end);
        if let Some(prefix) = name.strip_suffix('*') {
            let known = self.inventory.owner_by_prefix(namespace, prefix);
            return known
                .cloned()
                .unwrap_or_else(|| Owner::of_pod(namespace, prefix.trim_end_matches('-'), &end.labels, Some(prefix)));
        }
        if let Some(pod) = self.inventory.pod(namespace, name) {
            return pod.owner.clone();
        }
        if end.labels.is_empty() {
            let former = self.inventory.former_owner(namespace, name).cloned();
            return former.unwrap_or_else(|| Owner::of_pod(namespace, name, &LabelMap::new(), None));
        }
        let prefix = name.rsplit_once('-').map(|(prefix, _)| format!("{prefix}-"));
        let is_of_template = end.labels.contains_key("pod-template-hash");
        Owner::of_pod(namespace, name, &end.labels, prefix.as_deref().filter(|_| is_of_template))
    }

    fn see_pods(&mut self, line: &Line) {
        for end in [&line.source, &line.destination] {
            if end.kind != "workload" {
                continue;
            }
            let owner = self.owner(end);
            let labels = (!end.labels.is_empty()).then_some(&end.labels);
            self.record.see_pod(&owner, pod_name(end).1, labels);
        }
    }
}

/// Returns namespace and name of the pods of an end.
fn pod_name(end: &EndLine) -> (&str, &str) {
    match &end.namespace {
        Some(namespace) => (namespace, &end.name),
        None => end.name.split_once('/').unwrap_or(("", &end.name)),
    }
}

/// Reports whether the names of an end are those of pods; others could change the meaning of a
/// policy.
fn is_named(end: &EndLine) -> bool {
    let (namespace, name) = pod_name(end);
    let name = name.strip_suffix('*').unwrap_or(name);
    !namespace.is_empty() && !name.is_empty() && is_plain(namespace) && is_plain(name)
}

/// Reports whether a pod sent the packets to itself: they do not leave it.
fn is_within_a_pod(line: &Line) -> bool {
    let is_pod = |end: &EndLine| end.kind == "workload" && !end.name.ends_with('*');
    is_pod(&line.source) && is_pod(&line.destination) && pod_name(&line.source) == pod_name(&line.destination)
}

fn port(line: &Line, protocol: u8) -> EdgePort {
    match line.destination.port.or(line.port) {
        _ if protocol == Protocol::ICMP.number() || protocol == Protocol::ICMPV6.number() => {
            line.icmp_type.map_or(EdgePort::None, |icmp_type| EdgePort::Icmp(icmp_type, None))
        }
        Some(port) => EdgePort::Port(port),
        None => EdgePort::None,
    }
}

fn tuple(line: &Line) -> Option<Tuple> {
    let (source, destination) = (&line.source, &line.destination);
    Some((source.address?, source.port?, destination.address?, destination.port?))
}

/// Returns the evidence of a single connection.
fn of_connection(line: &Line, protocol: u8) -> Evidence {
    let is_counted = line.packets > 0 || line.reply_packets > 0;
    if line.verdict != "allow" {
        return Evidence::Denied;
    }
    if protocol != Protocol::TCP.number() {
        return Evidence::Learned { replies: line.reply_packets > 0, counted: is_counted };
    }
    let is_pods = line.source.kind == "workload" && line.destination.kind == "workload";
    let is_accepted = line.packets >= ACCEPTED.0 && line.reply_packets >= ACCEPTED.1;
    if is_accepted || is_pods && line.is_unjudged() {
        // A connection that no rule has decided about is older than the agent.
        return Evidence::Learned { replies: true, counted: is_counted };
    }
    match line.stage.as_deref() {
        Some("ended") if is_counted => Evidence::Attempt,
        Some("ended") => Evidence::Learned { replies: true, counted: false },
        _ => Evidence::Open,
    }
}

/// Returns the evidence of an aggregate, each with identities of its connections. Without numbers
/// by evidence, the average connection counts.
fn of_aggregate(line: &Line, key: &EdgeKey) -> Vec<(Evidence, u64)> {
    let live = line.connections_live.max(1);
    let mut found = Vec::new();
    let mut add = |evidence, number: u64| {
        let first = identity(&(key, "aggregate"));
        found.extend((0..number.min(2)).map(|more| (evidence, first.wrapping_add(more))));
    };
    if line.verdict != "allow" {
        add(Evidence::Denied, live);
        return found;
    }
    if let Some(EvidenceLine { learned, one_way, uncounted, attempts }) = line.evidence {
        add(Evidence::Learned { replies: true, counted: true }, learned);
        add(Evidence::Learned { replies: false, counted: true }, one_way);
        add(Evidence::Learned { replies: true, counted: false }, uncounted);
        add(Evidence::Attempt, attempts);
        return found;
    }
    let is_counted = line.packets > 0 || line.reply_packets > 0;
    let is_tcp = key.protocol == Protocol::TCP.number();
    let is_accepted = line.packets >= ACCEPTED.0 * live && line.reply_packets >= ACCEPTED.1 * live;
    if is_tcp && is_counted && !is_accepted {
        add(Evidence::Attempt, live);
    } else {
        let replies = is_tcp || line.reply_packets > 0;
        add(Evidence::Learned { replies, counted: is_counted }, live);
    }
    found
}

/// Returns a number that is the same for equal values in each run.
fn identity(value: &impl std::fmt::Debug) -> u64 {
    XxHash3_64::oneshot(format!("{value:?}").as_bytes())
}

#[cfg(test)]
mod tests;
