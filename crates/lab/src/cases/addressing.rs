//! Conversion of cases to other address families.
//!
//! Every IPv4 address and CIDR is mapped into one /96, which preserves containment and therefore
//! every expectation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use serde_json::Value;

use super::{Case, Cluster, Step};
use crate::pods::{Family, Flow};

/// Address families of the pods of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addressing {
    /// IPv4 only, as in the files.
    #[default]
    V4,
    /// IPv6 only.
    V6,
    /// Both: every flow is expected in both families, and policies list every CIDR in both.
    Dual,
}

impl Case {
    /// Returns the case with other addresses and the same meaning.
    #[must_use]
    pub fn readdressed(&self, addressing: Addressing) -> Self {
        let steps = self.steps.iter().map(|step| step.readdressed(addressing)).collect();
        Self { steps, ..self.clone() }
    }
}

impl Step {
    fn readdressed(&self, addressing: Addressing) -> Self {
        if addressing == Addressing::V4 {
            return self.clone();
        }
        let families: &[Family] = if addressing == Addressing::V6 { &[Family::V6] } else { &[Family::V4, Family::V6] };
        let in_families = |flow: &Flow| {
            let flow = flow.clone();
            families.iter().map(move |&family| Flow { family, ..flow.clone() })
        };
        let mut policies = self.policies.clone();
        policies.iter_mut().for_each(|policy| readdress_policy(policy, addressing));
        Self {
            actions: self.actions.clone(),
            cluster: readdress_cluster(&self.cluster, addressing),
            policies,
            expected: self
                .expected
                .iter()
                .flat_map(|(flow, verdict)| in_families(flow).map(|flow| (flow, *verdict)))
                .collect(),
            contested: self.contested.iter().flat_map(in_families).collect(),
        }
    }
}

fn readdress_cluster(cluster: &Cluster, addressing: Addressing) -> Cluster {
    let mut cluster = cluster.clone();
    for pod in &mut cluster.pods {
        let mapped: Vec<IpAddr> = pod
            .addresses
            .iter()
            .filter_map(|address| match address {
                IpAddr::V4(address) => Some(map(*address).into()),
                IpAddr::V6(_) => None,
            })
            .collect();
        if addressing == Addressing::V6 {
            pod.addresses = mapped;
        } else {
            pod.addresses.extend(mapped);
        }
    }
    cluster
}

/// Replacement for IPv6 blocks in the files. They contain no pod there, as all pods have IPv4
/// addresses; this block contains no pod with IPv6 either.
const NOWHERE: &str = "2001:db8:ffff::1/128";

fn is_ipv6(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<Ipv6Net>().is_ok())
}

fn move_ipv6_away(item: &mut Value) {
    if is_ipv6(item) {
        *item = NOWHERE.into();
    } else if let Some(block) = item.get_mut("ipBlock")
        && block.get("cidr").is_some_and(is_ipv6)
    {
        *block = serde_json::json!({ "cidr": NOWHERE });
    }
}

/// Rewrites `ipBlock` peers and `networks` lists at any depth.
fn readdress_policy(value: &mut Value, addressing: Addressing) {
    match value {
        Value::Array(items) => {
            items.iter_mut().for_each(move_ipv6_away);
            items.iter_mut().for_each(|item| readdress_policy(item, addressing));
            if items.iter().any(|item| item.get("ipBlock").is_some() || is_cidr(item)) {
                let mapped: Vec<Value> = items
                    .iter()
                    .filter(|item| item.get("ipBlock").is_some() || is_cidr(item))
                    .map(|item| map_cidrs(item.clone()))
                    .collect();
                if addressing == Addressing::V6 {
                    items.retain(|item| item.get("ipBlock").is_none() && !is_cidr(item));
                }
                items.extend(mapped);
            }
        }
        Value::Object(fields) => {
            for (name, field) in fields {
                // The exceptions of a block are rewritten with the block.
                if name != "ipBlock" {
                    readdress_policy(field, addressing);
                }
            }
        }
        _ => {}
    }
}

fn is_cidr(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.parse::<Ipv4Net>().is_ok())
}

fn map_cidrs(mut value: Value) -> Value {
    match &mut value {
        Value::String(text) => {
            if let Ok(IpNet::V4(net)) = text.parse()
                && let Ok(net) = Ipv6Net::new(map(net.addr()), 96 + net.prefix_len())
            {
                *text = net.to_string();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| *item = map_cidrs(item.take())),
        Value::Object(fields) => fields.values_mut().for_each(|field| *field = map_cidrs(field.take())),
        _ => {}
    }
    value
}

fn map(address: Ipv4Addr) -> Ipv6Addr {
    Ipv6Addr::from(u128::from(Ipv6Addr::new(0x2001, 0xdb8, 0x64, 0, 0, 0, 0, 0)) | u128::from(u32::from(address)))
}
