//! The policy of the receiving pod.

use std::fmt::{self, Write as _};
use std::net::Ipv4Addr;

use clap::ValueEnum;

/// Address of the pod.
pub(crate) const POD: Ipv4Addr = Ipv4Addr::new(10, 65, 0, 2);
/// Source address that no rule allows.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 199, 0, 1);
/// Port that the first rule allows.
const FIRST_PORT: u16 = 10_000;
/// Members of the IP set of a rule.
const MEMBERS: u32 = 10;

/// Matches of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peers {
    /// One address per rule.
    Networks,
    /// A network of 256 addresses per rule; a /64 with IPv6.
    Subnets,
    /// An IP set per rule.
    Sets,
    /// An IP set per rule; the same port in all rules.
    SetsOnePort,
    /// An IP set and a range of two ports per rule, so that no port map leads to the rule.
    SetsPortRange,
}

impl fmt::Display for Peers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Networks => "networks",
            Self::Subnets => "subnets",
            Self::Sets => "sets",
            Self::SetsOnePort => "sets, one port",
            Self::SetsPortRange => "sets, a range of ports",
        })
    }
}

/// A number of rules with distinct peers, and with distinct ports unless `peers` says otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) peers: Peers,
    pub(crate) rules: u16,
    /// Each rule is a separate policy.
    pub(crate) are_policies: bool,
}

impl Policy {
    /// Returns a source address and the port that a rule, counted from 0, allows.
    pub(crate) fn admitted(self, rule: u16) -> (Ipv4Addr, u16) {
        let port = if self.peers == Peers::SetsOnePort { 0 } else { rule };
        let address = if self.peers == Peers::Subnets { in_subnet(rule) } else { member(rule, 0) };
        (address, FIRST_PORT + port)
    }

    /// Returns the prefix length of a rule without IP set.
    pub(crate) fn prefix(self) -> u8 {
        if self.peers == Peers::Subnets { 24 } else { 32 }
    }

    /// Returns all members of the IP set of a rule.
    pub(crate) fn members(self, rule: u16) -> impl Iterator<Item = Ipv4Addr> {
        (0..MEMBERS).map(move |number| member(rule, number))
    }

    /// Returns the manifests for the agent.
    pub(crate) fn manifests(self) -> String {
        let mut text = format!(
            "apiVersion: v1
kind: Namespace
metadata: {{name: bench}}
---
apiVersion: v1
kind: Pod
metadata: {{name: server, namespace: bench}}
spec: {{nodeName: n1, containers: [{{name: c, image: i}}]}}
status: {{phase: Running, podIPs: [{{ip: {POD}}}]}}
"
        );
        for rule in 0..self.rules {
            if rule == 0 || self.are_policies {
                let _ = write!(
                    text,
                    "---
apiVersion: projectcalico.org/v3
kind: NetworkPolicy
metadata: {{name: policy-{rule:05}, namespace: bench}}
spec:
  types: [Ingress]
  ingress:
"
                );
            }
            let (address, port) = self.admitted(rule);
            let source = match self.peers {
                Peers::Networks | Peers::Subnets => format!("nets: [{address}/{}]", self.prefix()),
                Peers::Sets | Peers::SetsOnePort | Peers::SetsPortRange => {
                    format!("selector: rule == 'r{rule}', namespaceSelector: global()")
                }
            };
            let ports = match self.peers {
                Peers::SetsPortRange => format!("'{port}:{}'", port + 1),
                Peers::Networks | Peers::Subnets | Peers::Sets | Peers::SetsOnePort => port.to_string(),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "  - {{action: Allow, protocol: UDP, source: {{{source}}}, destination: {{ports: [{ports}]}}}}"
            );
        }
        if !matches!(self.peers, Peers::Networks | Peers::Subnets) {
            for rule in 0..self.rules {
                let nets: Vec<String> = self.members(rule).map(|member| format!("{member}/32")).collect();
                let _ = writeln!(
                    text,
                    "---\napiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\n\
                     metadata: {{name: r{rule}, labels: {{rule: r{rule}}}}}\nspec: {{nets: [{}]}}",
                    nets.join(", ")
                );
            }
        }
        text
    }
}

/// Returns a member. The members of two rules are not adjacent.
fn member(rule: u16, number: u32) -> Ipv4Addr {
    let index = u32::from(rule) + 20_000 * number;
    // The factor is odd, so that each index has a distinct address.
    Ipv4Addr::from_bits(0x1400_0000 | (index.wrapping_mul(0x9e_3779) & 0x00ff_ffff))
}

/// Returns an address in a network that no other rule has.
fn in_subnet(rule: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x1400_0001 | u32::from(rule.wrapping_mul(0x3779)) << 8)
}
