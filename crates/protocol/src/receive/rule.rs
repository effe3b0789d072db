//! Rules.

use std::mem::take;
use std::str::FromStr;
use std::sync::Arc;

use tortie_model::desired::{RuleSets, Rules, SetIds};
use tortie_model::{
    EntityExtras, EntityMatch, Family, HttpMatch, HttpPath, IpSetId, List, NamedProtocol, NamespacedName,
    OriginalMatch, PortSpec, Protocol, Rule, RuleAction, RuleExtras, ServiceAccountMatch,
};

use super::flaw::{Flaw, all, bad, number, parsed, required};
use super::{felix, texts};

/// Converts the rules of one direction; returns them without and with their IP sets.
pub(super) fn rules(messages: Vec<felix::Rule>) -> Result<(Arc<[Rule]>, Rules), Flaw> {
    let both: Vec<(Rule, RuleSets)> = messages.into_iter().map(rule).collect::<Result<_, _>>()?;
    let (rules, sets): (Vec<_>, Vec<_>) = both.into_iter().unzip();
    let rules: Arc<[Rule]> = rules.into();
    let joined = Rules::new(Arc::clone(&rules), sets.into()).map_err(|error| bad("rules", error))?;
    Ok((rules, joined))
}

fn rule(mut message: felix::Rule) -> Result<(Rule, RuleSets), Flaw> {
    let (icmp_type, icmp_code) = match message.icmp.take() {
        None => (None, None),
        Some(felix::rule::Icmp::IcmpType(icmp_type)) => (Some(number("icmp_type", icmp_type)?), None),
        Some(felix::rule::Icmp::IcmpTypeCode(both)) => {
            (Some(number("icmp_type_code", both.r#type)?), Some(number("icmp_type_code", both.code)?))
        }
    };
    let (not_icmp_type, not_icmp_code) = match message.not_icmp.take() {
        None => (None, None),
        Some(felix::rule::NotIcmp::NotIcmpType(icmp_type)) => (Some(number("not_icmp_type", icmp_type)?), None),
        Some(felix::rule::NotIcmp::NotIcmpTypeCode(both)) => {
            (Some(number("not_icmp_type_code", both.r#type)?), Some(number("not_icmp_type_code", both.code)?))
        }
    };
    let (source, destination) = (source(&mut message)?, destination(&mut message)?);
    let annotations = message.metadata.take().unwrap_or_default().annotations;
    let rule = Rule {
        action: action(&message.action)?,
        ip_version: ip_version(message.ip_version)?,
        protocol: message.protocol.take().map(|p| protocol("protocol", p)).transpose()?,
        source,
        destination,
        extras: RuleExtras {
            not_protocol: message.not_protocol.take().map(|p| protocol("not_protocol", p)).transpose()?,
            icmp_type,
            icmp_code,
            not_icmp_type,
            not_icmp_code,
            http: message.http_match.take().map(http).transpose()?.map(Box::new),
            annotations: annotations.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
        }
        .into(),
    };
    Ok((rule, sets(message)))
}

fn source(message: &mut felix::Rule) -> Result<EntityMatch, Flaw> {
    let (name, namespace) = (&mut message.original_src_service, &mut message.original_src_service_namespace);
    Ok(EntityMatch {
        nets: all("src_net", &message.src_net)?,
        ports: ports("src_ports", &message.src_ports)?,
        extras: EntityExtras {
            not_nets: all("not_src_net", &message.not_src_net)?,
            not_ports: ports("not_src_ports", &message.not_src_ports)?,
            service: service(take(name), take(namespace)),
            original: OriginalMatch {
                selector: selector("original_src_selector", &message.original_src_selector)?,
                namespace_selector: selector(
                    "original_src_namespace_selector",
                    &message.original_src_namespace_selector,
                )?,
                not_selector: selector("original_not_src_selector", &message.original_not_src_selector)?,
                service_accounts: service_accounts(message.src_service_account_match.take())?,
            },
            ..EntityExtras::default()
        }
        .into(),
        ..EntityMatch::default()
    })
}

fn destination(message: &mut felix::Rule) -> Result<EntityMatch, Flaw> {
    let (name, namespace) = (&mut message.original_dst_service, &mut message.original_dst_service_namespace);
    Ok(EntityMatch {
        nets: all("dst_net", &message.dst_net)?,
        ports: ports("dst_ports", &message.dst_ports)?,
        extras: EntityExtras {
            not_nets: all("not_dst_net", &message.not_dst_net)?,
            not_ports: ports("not_dst_ports", &message.not_dst_ports)?,
            service: service(take(name), take(namespace)),
            original: OriginalMatch {
                selector: selector("original_dst_selector", &message.original_dst_selector)?,
                namespace_selector: selector(
                    "original_dst_namespace_selector",
                    &message.original_dst_namespace_selector,
                )?,
                not_selector: selector("original_not_dst_selector", &message.original_not_dst_selector)?,
                service_accounts: service_accounts(message.dst_service_account_match.take())?,
            },
            ..EntityExtras::default()
        }
        .into(),
        ..EntityMatch::default()
    })
}

fn sets(message: felix::Rule) -> RuleSets {
    RuleSets {
        src: set_ids(message.src_ip_set_ids),
        src_named_ports: set_ids(message.src_named_port_ip_set_ids),
        not_src: set_ids(message.not_src_ip_set_ids),
        not_src_named_ports: set_ids(message.not_src_named_port_ip_set_ids),
        dst: set_ids(message.dst_ip_set_ids),
        dst_named_ports: set_ids(message.dst_named_port_ip_set_ids),
        dst_ip_ports: set_ids(message.dst_ip_port_set_ids),
        not_dst: set_ids(message.not_dst_ip_set_ids),
        not_dst_named_ports: set_ids(message.not_dst_named_port_ip_set_ids),
        dst_domains: SetIds::new(),
    }
}

/// Converts an action. The accepted words are those of Felix's rule renderer
/// (`felix/rules/policy.go`).
fn action(text: &str) -> Result<RuleAction, Flaw> {
    Ok(match text {
        "" => RuleAction::Unspecified,
        "allow" => RuleAction::Allow,
        "deny" => RuleAction::Deny,
        "log" => RuleAction::Log,
        "next-tier" | "pass" => RuleAction::NextTier,
        other => return Err(bad("action", other)),
    })
}

fn ip_version(version: i32) -> Result<Option<Family>, Flaw> {
    match felix::IpVersion::try_from(version) {
        Ok(felix::IpVersion::Any) => Ok(None),
        Ok(felix::IpVersion::Ipv4) => Ok(Some(Family::V4)),
        Ok(felix::IpVersion::Ipv6) => Ok(Some(Family::V6)),
        Err(_) => Err(bad("ip_version", version)),
    }
}

fn protocol(field: &'static str, message: felix::Protocol) -> Result<Protocol, Flaw> {
    match required(field, message.number_or_name)? {
        felix::protocol::NumberOrName::Number(protocol) => Ok(Protocol::Number(number(field, protocol)?)),
        felix::protocol::NumberOrName::Name(name) => {
            NamedProtocol::from_name(&name).map(Protocol::Named).ok_or_else(|| bad(field, name))
        }
    }
}

fn ports(field: &'static str, ranges: &[felix::PortRange]) -> Result<List<PortSpec>, Flaw> {
    let port = |range: &felix::PortRange| {
        let (first, last) = (number(field, range.first)?, number(field, range.last)?);
        if first > last {
            return Err(bad(field, format_args!("{first}:{last}")));
        }
        Ok(PortSpec::Range { first, last })
    };
    ranges.iter().map(port).collect()
}

fn set_ids(ids: Vec<String>) -> SetIds {
    ids.into_iter().map(IpSetId::new).collect()
}

fn service(name: String, namespace: String) -> Option<Box<NamespacedName>> {
    (!name.is_empty() || !namespace.is_empty()).then(|| NamespacedName::new(namespace, name).into())
}

/// Parses a selector in its original spelling; `None` for an empty text.
fn selector<S: FromStr>(field: &'static str, text: &str) -> Result<Option<S>, Flaw> {
    if text.is_empty() { Ok(None) } else { parsed(field, text).map(Some) }
}

fn service_accounts(message: Option<felix::ServiceAccountMatch>) -> Result<ServiceAccountMatch, Flaw> {
    let message = message.unwrap_or_default();
    Ok(ServiceAccountMatch {
        names: texts(message.names).into_iter().collect(),
        selector: selector("service_account_match", &message.selector)?,
    })
}

fn http(message: felix::HttpMatch) -> Result<HttpMatch, Flaw> {
    let path = |message: felix::http_match::PathMatch| {
        Ok(match required("http_match.paths", message.path_match)? {
            felix::http_match::path_match::PathMatch::Exact(path) => HttpPath::Exact(path.into()),
            felix::http_match::path_match::PathMatch::Prefix(path) => HttpPath::Prefix(path.into()),
        })
    };
    let paths = message.paths.into_iter().map(path).collect::<Result<_, Flaw>>()?;
    Ok(HttpMatch { methods: texts(message.methods), paths })
}
