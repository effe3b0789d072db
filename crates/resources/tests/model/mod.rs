//! Evaluation of converted objects by exhaustive search.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use tortie_model::{
    EntityMatch, Interner, Policy, PortSpec, Profile, ProfileName, Protocol, RuleAction, Update, WorkloadEndpoint,
};
use tortie_resources::manifest::{self, Format, Options, Outcome};

type Labels = BTreeMap<String, String>;

#[derive(Default)]
pub(crate) struct Model {
    endpoints: Vec<Arc<WorkloadEndpoint>>,
    policies: Vec<Arc<Policy>>,
    /// For each used selector, whether it selects each endpoint.
    selected: HashMap<String, Vec<bool>>,
}

impl Model {
    pub(crate) fn read(text: &str) -> Self {
        let mut model = Self::default();
        let mut profiles: BTreeMap<ProfileName, Profile> = BTreeMap::new();
        let manifest = manifest::read(text, Format::Json, &Options::default(), &mut Interner::new());
        for resource in manifest.resources {
            let Outcome::Valid(contributions) = resource.outcome else { panic!("{:?}", resource.problems) };
            for update in contributions {
                match update {
                    Update::WorkloadEndpoint(_, Some(endpoint)) => model.endpoints.push(endpoint.into_arc()),
                    Update::Profile(name, Some(profile)) => {
                        profiles.insert(name, Profile::clone(&profile));
                    }
                    Update::Policy(_, Some(policy)) => model.policies.push(policy.into_arc()),
                    _ => {}
                }
            }
        }
        let labels: Vec<Labels> = model.endpoints.iter().map(|endpoint| inherited(endpoint, &profiles)).collect();
        for policy in &model.policies {
            let rules = policy.inbound.iter().chain(&*policy.outbound);
            let sides =
                rules.flat_map(|rule| [&rule.source, &rule.destination]).filter_map(|side| side.selector.as_ref());
            for selector in sides.chain([&policy.selector]) {
                model
                    .selected
                    .insert(selector.text().into(), labels.iter().map(|labels| selector.matches(labels)).collect());
            }
        }
        model
    }

    fn endpoint(&self, address: IpAddr) -> Option<usize> {
        self.endpoints.iter().position(|endpoint| endpoint.nets().any(|net| net.contains(address)))
    }

    fn side_matches(
        &self,
        side: &EntityMatch,
        (address, endpoint): (IpAddr, Option<usize>),
        protocol: Protocol,
        port: u16,
    ) -> bool {
        let selected = side
            .selector
            .as_ref()
            .is_none_or(|selector| endpoint.is_some_and(|endpoint| self.selected[selector.text()][endpoint]));
        let port_matches = |spec: &PortSpec| match spec {
            PortSpec::Range { first, last } => (*first..=*last).contains(&port),
            PortSpec::Named(name) => endpoint.is_some_and(|endpoint| {
                let ports = &self.endpoints[endpoint].ports;
                ports.iter().any(|p| p.name == *name && p.protocol == protocol && p.port == port)
            }),
        };
        selected
            && (side.nets.is_empty() || side.nets.iter().any(|net| net.contains(address)))
            && !side.extras.not_nets.iter().any(|net| net.contains(address))
            && (side.ports.is_empty() || side.ports.iter().any(port_matches))
    }

    /// Reports whether the source's egress and the destination's ingress allow a connection.
    pub(crate) fn allows(&self, from: IpAddr, to: IpAddr, protocol: Protocol, port: u16) -> (bool, bool) {
        let (from, to) = ((from, self.endpoint(from)), (to, self.endpoint(to)));
        let direction = |own: Option<usize>, ingress: bool| {
            let Some(endpoint) = own else { return true };
            // No case has both kinds of administrators' policies.
            for (tiers, decides) in [
                (&["kube-admin", "adminnetworkpolicy"][..], false),
                (&["default"], true),
                (&["kube-baseline", "baselineadminnetworkpolicy"], false),
            ] {
                let mut policies: Vec<&Policy> = self
                    .policies
                    .iter()
                    .map(|policy| &**policy)
                    .filter(|policy| tiers.contains(&policy.tier.as_str()))
                    .filter(|policy| if ingress { policy.types.ingress } else { policy.types.egress })
                    .filter(|policy| self.selected[policy.selector.text()][endpoint])
                    .collect();
                policies.sort_by_key(|policy| policy.order);
                let mut rules =
                    policies.iter().flat_map(|policy| if ingress { &*policy.inbound } else { &*policy.outbound });
                let decision = rules.find(|rule| {
                    rule.protocol.is_none_or(|of| of == protocol)
                        && self.side_matches(&rule.source, from, protocol, 40_000)
                        && self.side_matches(&rule.destination, to, protocol, port)
                });
                match decision.map(|rule| rule.action) {
                    Some(RuleAction::Allow) => return true,
                    Some(RuleAction::Deny) => return false,
                    None if decides && !policies.is_empty() => return false,
                    // The result is pass, or no rule matched.
                    Some(_) | None => {}
                }
            }
            true
        };
        (direction(from.1, false), direction(to.1, true))
    }
}

/// Returns an endpoint's labels merged over those of its profiles.
fn inherited(endpoint: &WorkloadEndpoint, profiles: &BTreeMap<ProfileName, Profile>) -> Labels {
    let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
    let mut labels: Labels = BTreeMap::new();
    for profile in endpoint.profiles.iter().filter_map(|name| profiles.get(name)) {
        labels.extend(profile.labels.iter().map(owned));
    }
    labels.extend(endpoint.labels.iter().map(owned));
    labels
}
