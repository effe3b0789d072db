//! The policy of the pod that packets are sent to.

use std::fmt::{self, Write as _};
use std::net::Ipv4Addr;

use clap::ValueEnum;

/// Where the pod is.
pub(crate) const POD: Ipv4Addr = Ipv4Addr::new(10, 65, 0, 2);
/// Sends what no rule admits.
pub(crate) const STRANGER: Ipv4Addr = Ipv4Addr::new(10, 199, 0, 1);
/// The port that the first rule admits.
const FIRST_PORT: u16 = 10_000;
/// How many members the set of a rule has.
const MEMBERS: u32 = 10;

/// What rules ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peers {
    /// An address each.
    Networks,
    /// A network of 256 addresses each, a /64 with IPv6.
    Subnets,
    /// An IP set each.
    Sets,
    /// An IP set each, and all of them the same port.
    SetsOnePort,
    /// An IP set each, and two ports, by which no map of ports leads to them.
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

/// So many rules, each with its own peers, and its own port where these say nothing else.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    pub(crate) peers: Peers,
    pub(crate) rules: u16,
    /// Each rule is a policy by itself.
    pub(crate) are_policies: bool,
}

impl Policy {
    /// Who is admitted by a rule, counted from 0, and to which port.
    pub(crate) fn admitted(self, rule: u16) -> (Ipv4Addr, u16) {
        let port = if self.peers == Peers::SetsOnePort { 0 } else { rule };
        let address = if self.peers == Peers::Subnets { in_subnet(rule) } else { member(rule, 0) };
        (address, FIRST_PORT + port)
    }

    /// How many bits of the address that a rule admits it asks for, if it asks for no set.
    pub(crate) fn prefix(self) -> u8 {
        if self.peers == Peers::Subnets { 24 } else { 32 }
    }

    /// Everybody in the set of a rule.
    pub(crate) fn members(self, rule: u16) -> impl Iterator<Item = Ipv4Addr> {
        (0..MEMBERS).map(move |number| member(rule, number))
    }

    /// All that the agent reads.
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

/// Scattered, so that no two rules' members are neighbours.
fn member(rule: u16, number: u32) -> Ipv4Addr {
    let index = u32::from(rule) + 20_000 * number;
    // Odd, so that every index has an address of its own.
    Ipv4Addr::from_bits(0x1400_0000 | (index.wrapping_mul(0x9e_3779) & 0x00ff_ffff))
}

/// Of each rule in a network of its own.
fn in_subnet(rule: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x1400_0001 | u32::from(rule.wrapping_mul(0x3779)) << 8)
}
