use tortie_node::flows::{EndRecord, FlowRecord, StagedRecord};

/// Filter of flows. A flow must match all given options.
#[derive(Clone, Debug, Default, clap::Args)]
pub(super) struct Filter {
    /// Only flows that policy denied
    #[arg(long)]
    denied: bool,
    /// Only flows from this source: NAMESPACE/POD, NAMESPACE/, a node, a network set, or an address
    #[arg(long, value_name = "PLACE")]
    from: Option<String>,
    /// Only flows to this destination
    #[arg(long, value_name = "PLACE")]
    to: Option<String>,
    /// Only flows to this port
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Only flows that a rule of this policy decided: KIND/NAMESPACE/NAME, NAMESPACE/NAME or NAME
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// Only allowed flows that this staged policy would deny if it were in force:
    /// KIND/NAMESPACE/NAME, NAMESPACE/NAME or NAME
    #[arg(long, value_name = "POLICY", conflicts_with = "denied")]
    staged: Option<String>,
}

impl Filter {
    pub(super) fn staged(&self) -> bool {
        self.staged.is_some()
    }

    pub(super) fn matches(&self, flow: &FlowRecord) -> bool {
        let Self { denied, from, to, port, policy, staged } = self;
        let hits = || [&flow.egress, &flow.ingress, &flow.host].into_iter().flatten();
        let would_deny = |staged: &StagedRecord, name: &str| staged.verdict == "deny" && is_named(&staged.policy, name);
        (!denied || flow.verdict == "deny")
            && from.as_ref().is_none_or(|place| is_at(&flow.source, place))
            && to.as_ref().is_none_or(|place| is_at(&flow.destination, place))
            && port.is_none_or(|port| flow.destination.port == Some(port))
            && policy
                .as_ref()
                .is_none_or(|name| hits().filter_map(|hit| hit.policy.as_ref()).any(|id| is_named(id, name)))
            && staged
                .as_ref()
                .is_none_or(|name| flow.verdict == "allow" && flow.staged.iter().any(|staged| would_deny(staged, name)))
    }
}

fn is_at(end: &EndRecord, place: &str) -> bool {
    end.name == place || end.address == place || place.ends_with('/') && end.name.starts_with(place)
}

/// Reports whether a name is an id or the end of one.
fn is_named(id: &str, name: &str) -> bool {
    id.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('/'))
}

#[cfg(test)]
mod tests;
