use std::collections::{BTreeMap, HashMap, HashSet};

use tortie_analysis::plan::{Cluster, Finding};
use tortie_config::{AddressClaims, Config, Notice, Sources, settings};
use tortie_datastore::{Fallback, InputProblem};
use tortie_model::desired::{ConfigSource, DesiredUpdate};
use tortie_model::{
    Direction, HostConfigKey, HostEndpointKey, HostEndpointName, Hostname, Key, NamespacedName, Policy, PolicyId,
    ProfileName, TierName, Update,
};
use tortie_resources::stored::built_in_tier;
use tortie_resources::{FieldProblem, Position, Severity};

use super::super::Failure;
use super::super::node_bounds;
use super::super::origin::{Origin, Origins};
use super::input::Input;
use super::lint::{Lint, warn};
use super::{domains, host_endpoints};

pub(super) fn lints(input: &Input) -> Result<Vec<(Lint, InputProblem)>, Failure> {
    let origins = input.origins();
    let names = Names::of(&input.updates, input.place());
    let mut found: Vec<_> = input.updates.iter().flat_map(|update| names.absent(update, &origins)).collect();
    found.extend(parameters(&input.updates, &origins));
    found.extend(host_endpoints::of_one_interface(&input.updates, &origins));
    found.extend(domains::of_objects(&input.updates, &global_config(&input.updates), &origins));
    // Without any endpoint no policy selects anything, and warnings would be useless.
    if names.has_endpoints {
        found.extend(effects(&input.updates, &origins, input.place())?);
    }
    Ok(found)
}

/// Returns the parameters that the manifests set for all nodes; the defaults if these are invalid.
fn global_config(updates: &[Update]) -> Config {
    let parameters = updates.iter().filter_map(|update| match update {
        Update::GlobalConfig(name, Some(value)) => Some((name.to_string(), value.to_string())),
        _ => None,
    });
    let mut sources = Sources::default();
    sources.set(ConfigSource::DatastoreGlobal, parameters.collect());
    sources.resolve().map(|resolved| resolved.config).unwrap_or_default()
}

/// Returns the ignored claims to addresses and interfaces, unless the manifests set that all claims
/// count.
pub(super) fn contested(input: &Input) -> Vec<InputProblem> {
    if global_config(&input.updates).address_claims == AddressClaims::Any {
        return Vec::new();
    }
    let origins = input.origins();
    let all = tortie_calc::claim_problems(&input.updates);
    let found = all.into_iter().map(|problem| {
        let (file, position) = match origins.object(&problem.key) {
            Some(Origin::InFile { file, position }) => (Some(file), position),
            _ => (None, Position::default()),
        };
        let text = FieldProblem::new(Severity::Error, position, "", problem.reason.to_string());
        let found = InputProblem::new(problem.key.to_string(), text, Fallback::NotNeeded);
        file.map_or(found.clone(), |file| found.in_file(file))
    });
    found.collect()
}

struct Names<'u> {
    tiers: HashSet<&'u TierName>,
    profiles: HashSet<&'u ProfileName>,
    services: HashSet<&'u NamespacedName>,
    has_endpoints: bool,
    /// Place of the objects, for messages.
    place: &'static str,
}

impl<'u> Names<'u> {
    fn of(updates: &'u [Update], place: &'static str) -> Self {
        let (tiers, profiles, services) = Default::default();
        let mut names = Self { tiers, profiles, services, has_endpoints: false, place };
        for update in updates {
            match update {
                Update::Tier(name, Some(_)) => drop(names.tiers.insert(name)),
                Update::ProfileRules(name, Some(_)) => drop(names.profiles.insert(name)),
                Update::Service(name, Some(_)) => drop(names.services.insert(name)),
                Update::WorkloadEndpoint(_, Some(_)) | Update::HostEndpoint(_, Some(_)) => names.has_endpoints = true,
                _ => {}
            }
        }
        names
    }

    fn absent(&self, update: &Update, origins: &Origins) -> Vec<(Lint, InputProblem)> {
        match update {
            Update::Policy(id, Some(policy)) => self.absent_of_policy(id, policy, origins),
            Update::WorkloadEndpoint(_, Some(endpoint)) => self.absent_profiles(update, &endpoint.profiles, origins),
            Update::HostEndpoint(_, Some(endpoint)) => self.absent_profiles(update, &endpoint.profiles, origins),
            _ => Vec::new(),
        }
    }

    fn absent_of_policy(&self, id: &PolicyId, policy: &Policy, origins: &Origins) -> Vec<(Lint, InputProblem)> {
        let mut found = Vec::new();
        let tier = &policy.tier;
        if built_in_tier(tier.as_str()).is_none() && !self.tiers.contains(tier) {
            let text = format!("is in tier `{tier}`, which is not {}", self.place);
            found.extend(warn(Lint::TierAbsent, id.to_string(), origins.policy(id), text));
        }
        for (direction, rules) in [(Direction::Ingress, &policy.inbound), (Direction::Egress, &policy.outbound)] {
            for (index, rule) in rules.iter().enumerate() {
                let named =
                    [&rule.source, &rule.destination].into_iter().filter_map(|side| side.extras.service.as_ref());
                for service in named.filter(|service| !self.services.contains(&***service)) {
                    let text = format!("service `{service}` is not {}: the rule matches nothing", self.place);
                    found.extend(warn(Lint::ServiceAbsent, id.to_string(), origins.rule(id, direction, index), text));
                }
            }
        }
        found
    }

    fn absent_profiles(&self, of: &Update, named: &[ProfileName], origins: &Origins) -> Vec<(Lint, InputProblem)> {
        let key = of.key();
        let absent = named.iter().filter(|profile| !self.profiles.contains(profile));
        absent
            .filter_map(|profile| {
                let place = self.place;
                let text = format!("profile `{profile}` is not {place}: traffic that no policy decides is denied");
                warn(Lint::ProfileAbsent, key.to_string(), origins.object(&key), text)
            })
            .collect()
    }
}

/// Parameters that a selector gives to some nodes are not checked.
fn parameters(updates: &[Update], origins: &Origins) -> Vec<(Lint, InputProblem)> {
    let (mut global, mut of_hosts): (BTreeMap<_, _>, BTreeMap<&Hostname, BTreeMap<_, _>>) = Default::default();
    for update in updates {
        match update {
            Update::GlobalConfig(name, Some(value)) => drop(global.insert(name.to_string(), value.to_string())),
            Update::HostConfig(HostConfigKey { host, name }, Some(value)) => {
                of_hosts.entry(host).or_default().insert(name.to_string(), value.to_string());
            }
            _ => {}
        }
    }
    let mut found = BTreeMap::new();
    for (host, own) in
        std::iter::once((None, BTreeMap::new())).chain(of_hosts.into_iter().map(|(at, own)| (Some(at), own)))
    {
        let mut sources = Sources::default();
        sources.set(ConfigSource::DatastoreGlobal, global.clone());
        sources.set(ConfigSource::DatastorePerHost, own);
        let notices = sources.resolve().map(|resolved| resolved.notices).unwrap_or_default();
        for notice in notices {
            let Notice::Overruled { name, source, by, why } = notice else { continue };
            let key = match (host, source) {
                (Some(host), ConfigSource::DatastorePerHost) => {
                    Key::HostConfig(HostConfigKey { host: host.clone(), name: name.into() })
                }
                _ => Key::GlobalConfig(name.into()),
            };
            found.entry(key).or_insert_with(|| format!("has no effect beside {by}: {why}"));
        }
    }
    let warn = |(key, text): (Key, String)| warn(Lint::ParameterOverruled, key.to_string(), origins.object(&key), text);
    found.into_iter().filter_map(warn).collect()
}

/// Returns the warnings about a cluster of exactly these objects.
fn effects(updates: &[Update], origins: &Origins, place: &str) -> Result<Vec<(Lint, InputProblem)>, Failure> {
    let global = global_config(updates);
    let config = Config {
        dns_trusted_servers: global.dns_trusted_servers.clone(),
        workload_source_spoofing: global.workload_source_spoofing,
        ..Config::default()
    };
    let rules = settings::rules(&config).map_err(Failure::failed)?;
    let mut cluster = Cluster::new(&settings::graph(&config, Hostname::new("")), settings::evaluation(&rules));
    cluster.set_budget(settings::table_budget(&global));
    cluster.distinguish_names(updates.iter());
    let desired = cluster.apply(updates.iter().cloned()).map_err(Failure::failed)?;
    let idle = cluster.without_effect(updates.iter());
    let refused = node_bounds::refused(&Sources::default(), &config, updates)?;
    let mut found: Vec<_> =
        idle.iter().chain(&refused).filter_map(|finding| of_finding(finding, origins, place)).collect();
    found.extend(host_endpoints::untracked_for_all(&desired, origins));
    found.extend(domains::of_endpoints(updates, &desired, &config, origins)?);
    let hosts: HashMap<&HostEndpointName, &HostEndpointKey> = updates
        .iter()
        .filter_map(|update| match update {
            Update::HostEndpoint(key, Some(_)) => Some((&key.name, key)),
            _ => None,
        })
        .collect();
    for update in &desired {
        let DesiredUpdate::HostEndpoint(id, state) = update else { continue };
        let tiers = [&state.tiers, &state.untracked_tiers, &state.pre_dnat_tiers, &state.forward_tiers];
        if tiers.iter().any(|tiers| !tiers.is_empty()) || !state.endpoint.profiles.is_empty() {
            continue;
        }
        let key = hosts.get(id).map(|key| Key::HostEndpoint((*key).clone()));
        let origin = key.as_ref().and_then(|key| origins.object(key));
        let text = "no policy is for it, nor a profile: all but failsafe ports is denied".to_owned();
        found.extend(warn(Lint::HostEndpointWithoutPolicy, format!("HostEndpoint/{id}"), origin, text));
    }
    Ok(found)
}

fn of_finding(finding: &Finding, origins: &Origins, place: &str) -> Option<(Lint, InputProblem)> {
    let owned;
    let (lint, text) = match finding {
        Finding::OverBudget { limit, .. } => {
            owned = format!(
                "endpoints that it selects are denied by eBPF programs: their rules exceed the table budget of {limit} bytes"
            );
            (Lint::OverBudget, owned.as_str())
        }
        Finding::LayoutOverBudget { limit, .. } => {
            owned = format!(
                "NFTablesLayout=Fast evaluates its rules one after the other: the layout of its chains exceeds the table \
                 budget of {limit} bytes"
            );
            (Lint::OverBudget, owned.as_str())
        }
        Finding::DeniedByPrograms { object, why } => {
            let endpoints = if finding.policy().is_some() { "endpoints that it selects are" } else { "it is" };
            owned = format!("{endpoints} denied by eBPF programs: {why}");
            if finding.policy().is_none() {
                return warn(Lint::OverBudget, object.to_string(), origins.object(object), owned);
            }
            (Lint::OverBudget, owned.as_str())
        }
        Finding::SelectsNothing { .. } => {
            owned = format!("selects no endpoint {place}");
            (Lint::SelectsNothing, owned.as_str())
        }
        Finding::Shadowed { .. } => (Lint::PolicyShadowed, "has no effect: others decide before its rules"),
        Finding::RuleSelectsNothing { .. } => {
            owned = format!("selects nothing {place}");
            (Lint::RuleSelectsNothing, owned.as_str())
        }
        Finding::RuleNeverMatches { .. } => (Lint::RuleNeverMatches, "can match no packet"),
        Finding::RuleShadowed { .. } => (Lint::RuleShadowed, "has no effect: others decide before it"),
        // The other findings are about a change of the cluster.
        _ => return None,
    };
    let policy = finding.policy()?;
    let (text, origin) = match finding.rule() {
        Some((direction, index)) => {
            let list = match direction {
                Direction::Ingress => "ingress",
                Direction::Egress => "egress",
            };
            let origin = origins.rule(policy, direction, index).or_else(|| origins.policy(policy));
            (format!("{list} rule {}: {text}", index + 1), origin)
        }
        None => (text.to_owned(), origins.policy(policy)),
    };
    warn(lint, policy.to_string(), origin, text)
}
