//! Warnings about rules by domain name.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use tortie_calc::service_set_id;
use tortie_config::{Config, DnsServer, WorkloadSourceSpoofing, settings};
use tortie_datastore::InputProblem;
use tortie_evaluate::{Evaluator, Packet, Verdict};
use tortie_model::desired::{DesiredUpdate, IpSetUpdate, Members, PortProtocol, Rules, WorkloadEndpointState};
use tortie_model::{
    Cidr, Direction, DomainName, DomainPattern, Key, Policy, PolicyId, PortSpec, Protocol, RuleAction, Update,
    WorkloadEndpoint, WorkloadEndpointId,
};

use super::super::Failure;
use super::super::origin::Origins;
use super::lint::{Lint, warn};

type Found = Vec<(Lint, InputProblem)>;
/// Address, protocol and port of a DNS server.
type Server = (IpAddr, PortProtocol, u16);

/// DNS over TLS.
const DNS_OVER_TLS: u16 = 853;
/// The default of Kubernetes.
const CLUSTER_DOMAIN: &str = "cluster.local";
/// Source port of a query.
const CLIENT_PORT: u16 = 50_000;

/// Returns the warnings that need no endpoints.
pub(super) fn of_objects(updates: &[Update], config: &Config, origins: &Origins) -> Found {
    let services = services_domain(config);
    let policies = || {
        updates.iter().filter_map(|update| match update {
            Update::Policy(id, Some(policy)) => Some((id, &**policy)),
            _ => None,
        })
    };
    let of_rules =
        policies().any(|(_, policy)| policy.outbound.iter().any(|rule| !rule.destination.extras.domains.is_empty()));
    let of_sets =
        updates.iter().any(|update| matches!(update, Update::NetworkSet(_, Some(set)) if !set.domains.is_empty()));
    if !of_rules && !of_sets {
        return Found::new();
    }
    let mut found = Found::new();
    for (id, policy) in policies() {
        found.extend(of_policy(id, policy, services.as_ref(), origins));
    }
    for update in updates {
        if let Update::NetworkSet(_, Some(set)) = update {
            let key = update.key();
            let texts = set.domains.iter().filter_map(|pattern| doubt(pattern, services.as_ref()));
            found.extend(texts.filter_map(|(lint, text)| warn(lint, key.to_string(), origins.object(&key), text)));
        }
    }
    found
}

fn of_policy(id: &PolicyId, policy: &Policy, services: Option<&DomainName>, origins: &Origins) -> Found {
    let mut found = Found::new();
    for (index, rule) in policy.outbound.iter().enumerate() {
        let mut add = |(lint, text)| {
            let text = format!("egress rule {}: {text}", index + 1);
            found.extend(warn(lint, id.to_string(), origins.rule(id, Direction::Egress, index), text));
        };
        rule.destination.extras.domains.iter().filter_map(|pattern| doubt(pattern, services)).for_each(&mut add);
        let is_port = |port: &PortSpec| *port == PortSpec::single(DNS_OVER_TLS);
        if rule.action == RuleAction::Allow && rule.destination.ports.iter().any(is_port) {
            let text = "port 853 is that of DNS over TLS, whose answers cannot be read and open no address".to_owned();
            add((Lint::EncryptedDns, text));
        }
    }
    found
}

/// Returns a warning about a pattern that is probably a mistake.
fn doubt(pattern: &DomainPattern, services: Option<&DomainName>) -> Option<(Lint, String)> {
    let text = pattern.as_str();
    let below_star = pattern.around_star().map_or(text, |(_, after)| after.trim_start_matches('.'));
    if text.strip_prefix("*.").is_some_and(|rest| !rest.contains('.')) {
        return Some((Lint::DomainTopLevel, format!("`{text}` is every name of a top-level domain")));
    }
    let (name, services) = (below_star.parse::<DomainName>().ok()?, services?);
    (name == *services || name.is_below(services)).then(|| {
        let text = format!(
            "`{text}`: a Service is reached at its pods, so that the name of its cluster address opens nothing; select \
             its pods, unless it is headless"
        );
        (Lint::DomainOfService, text)
    })
}

/// Returns the domain of all Services; `None` if the cluster's domain is too long for one.
fn services_domain(config: &Config) -> Option<DomainName> {
    let domain = config.dns_cluster_domain.as_ref().map_or(CLUSTER_DOMAIN, DomainName::as_str);
    format!("svc.{domain}").parse().ok()
}

fn forgeable(key: &Key, endpoint: &WorkloadEndpoint, servers: &BTreeSet<Server>, origins: &Origins) -> Found {
    let prefixes = endpoint.extras.iter().flat_map(|extras| &*extras.allowed_source_prefixes);
    let covered =
        prefixes.filter_map(|prefix| Some((prefix, servers.iter().find(|(server, ..)| prefix.contains(*server))?)));
    let warning = |(prefix, (server, ..)): (&Cidr, &Server)| {
        let text = format!(
            "may send from {prefix}, which contains the trusted DNS server {server}: it can forge answers that open addresses \
             for other endpoints"
        );
        warn(Lint::DnsServerForgeable, key.to_string(), origins.object(key), text)
    };
    covered.filter_map(warning).collect()
}

/// Returns the warnings about endpoints. Servers of services are known if the endpoints of these
/// are.
pub(super) fn of_endpoints(
    updates: &[Update],
    desired: &[DesiredUpdate],
    config: &Config,
    origins: &Origins,
) -> Result<Found, Failure> {
    let by_name: Vec<(&PolicyId, usize)> = desired
        .iter()
        .filter_map(|update| match update {
            DesiredUpdate::Policy(id, policy) => Some((id, first_by_name(&policy.outbound)?)),
            _ => None,
        })
        .collect();
    if by_name.is_empty() {
        return Ok(Found::new());
    }
    let (servers, are_known) = servers(desired, config);
    let mut found = Found::new();
    let may_forge = config.workload_source_spoofing == WorkloadSourceSpoofing::Any;
    for update in updates.iter().filter(|_| may_forge) {
        if let Update::WorkloadEndpoint(_, Some(endpoint)) = update {
            found.extend(forgeable(&update.key(), endpoint, &servers, origins));
        }
    }
    if are_known {
        found.extend(unreachable_servers(by_name, desired, &servers, (config, origins))?);
    }
    Ok(found)
}

/// Returns a warning for each policy with rules by name, of which an endpoint may send no query to
/// any trusted server.
fn unreachable_servers(
    mut by_name: Vec<(&PolicyId, usize)>,
    desired: &[DesiredUpdate],
    servers: &BTreeSet<Server>,
    (config, origins): (&Config, &Origins),
) -> Result<Found, Failure> {
    let rules = settings::rules(config).map_err(Failure::failed)?;
    let mut evaluator = Evaluator::new(settings::evaluation(&rules));
    desired.iter().try_for_each(|update| evaluator.apply(update)).map_err(Failure::failed)?;
    let mut found = Found::new();
    let mut seen = HashSet::new();
    for update in desired {
        let DesiredUpdate::WorkloadEndpoint(id, state) = update else { continue };
        // Endpoints with the same policies have the same answers, but for rules by their addresses.
        if by_name.is_empty() || !seen.insert((&state.tiers, &state.endpoint.profiles)) {
            continue;
        }
        let governs = |policy: &PolicyId| state.tiers.iter().any(|tier| tier.egress.contains(policy));
        if !by_name.iter().any(|(policy, _)| governs(policy)) || reaches(&evaluator, (id, state), servers) {
            continue;
        }
        by_name.retain(|(policy, index)| {
            let is_affected = governs(policy);
            if is_affected {
                let text = format!(
                    "egress rule {}: {} may not send queries to any trusted DNS server (DNSTrustedServers), so that names \
                     open nothing for it",
                    index + 1,
                    id.workload
                );
                let origin = origins.rule(policy, Direction::Egress, *index).or_else(|| origins.policy(policy));
                found.extend(warn(Lint::DnsServerUnreachable, policy.to_string(), origin, text));
            }
            !is_affected
        });
    }
    Ok(found)
}

fn first_by_name(rules: &Rules) -> Option<usize> {
    rules.iter().position(|rule| !rule.sets.dst_domains.is_empty())
}

/// Returns the known trusted servers, and whether these are all.
fn servers(desired: &[DesiredUpdate], config: &Config) -> (BTreeSet<Server>, bool) {
    let (mut servers, mut are_all) = (BTreeSet::new(), true);
    for server in &config.dns_trusted_servers {
        match server {
            DnsServer::Address(address) => {
                servers.extend([PortProtocol::Udp, PortProtocol::Tcp].map(|with| (address.ip(), with, address.port())));
            }
            DnsServer::Service { name, .. } => {
                let id = service_set_id(name);
                let members = desired.iter().find_map(|update| match update {
                    DesiredUpdate::IpSet(IpSetUpdate { id: of, members: Members::IpPorts(members), .. })
                        if *of == id =>
                    {
                        Some(members)
                    }
                    _ => None,
                });
                are_all &= members.is_some_and(|members| !members.is_empty());
                servers.extend(
                    members.into_iter().flatten().map(|member| (member.address(), member.protocol(), member.port())),
                );
            }
        }
    }
    (servers, are_all)
}

/// Reports whether an endpoint may send queries to a server. An endpoint without an address of a
/// server's family is taken to reach it.
fn reaches(
    evaluator: &Evaluator,
    (id, state): (&WorkloadEndpointId, &WorkloadEndpointState),
    servers: &BTreeSet<Server>,
) -> bool {
    let own: Vec<IpAddr> = state.endpoint.nets().map(Cidr::address).collect();
    let mut packets = servers
        .iter()
        .filter_map(|(address, protocol, port)| {
            let source = own.iter().find(|own| own.is_ipv4() == address.is_ipv4())?;
            let protocol = Protocol::Named((*protocol).into());
            Packet::with_ports(protocol, (*source, CLIENT_PORT), (*address, *port)).ok()
        })
        .peekable();
    if packets.peek().is_none() {
        return true;
    }
    // An answer that is missing is one of another problem.
    packets.any(|packet| {
        evaluator.workload(id, Direction::Egress, &packet).is_ok_and(|answer| answer.verdict == Verdict::Allow)
    })
}
