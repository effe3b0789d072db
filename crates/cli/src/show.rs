mod pods;
mod text;

use clap::Subcommand;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::Failure;
use super::agent_socket::AskArgs;
use tortie_node::engine::inspect::{DecisionCounters, Endpoint, IpSet, Policy};
use tortie_node::local_api::LearnedDomains;

/// Show policies, IP sets and endpoints in force, and pods by selector.
///
/// Example: tortie show policies shop/db
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(subcommand)]
    command: ShowCommand,
}

#[derive(Debug, Subcommand)]
enum ShowCommand {
    /// List the policies of an endpoint of this node in order of evaluation
    ///
    /// Example: tortie show policies shop/db
    Policies {
        #[command(flatten)]
        ask: AskArgs,
        /// A pod as NAMESPACE/NAME, or a host endpoint, interface or address; all policies of the
        /// node if not given
        #[arg(value_name = "ENDPOINT")]
        endpoint: Option<String>,
    },
    /// Show a policy, its endpoints on this node, and its packet counts
    ///
    /// Example: tortie show policy shop/db-clients
    Policy {
        #[command(flatten)]
        ask: AskArgs,
        /// KIND/NAMESPACE/NAME, NAMESPACE/NAME or NAME
        name: String,
    },
    /// Show the kernel's packet counts of each rule
    ///
    /// If eBPF programs enforce policy, shows each rule of a policy or profile, and each end of a
    /// tier, with direction and verdict. These counts are of packets that begin a connection, or
    /// belong to none, since the programs were attached. A rule is missing if other rules decide
    /// all its packets. Otherwise shows the rules of the policies' chains, with counts since these
    /// were written. With nftables, also shows the policy rules of each count, as several may share
    /// one.
    ///
    /// Example: tortie show counters
    Counters {
        #[command(flatten)]
        ask: AskArgs,
    },
    /// List the endpoints of this node
    Endpoints {
        #[command(flatten)]
        ask: AskArgs,
    },
    /// List the IP sets of this node's policies, or show one with its members
    Sets {
        #[command(flatten)]
        ask: AskArgs,
        /// Id of an IP set
        id: Option<String>,
    },
    /// List domain names that endpoints of this node have resolved
    ///
    /// Only endpoints with egress rules by domain name have names. A name that no rule matches is
    /// listed as well. It is marked if a rule would match it without its last labels, such as a
    /// search suffix of the resolver.
    ///
    /// Example: tortie show domains shop/api
    Domains {
        #[command(flatten)]
        ask: AskArgs,
        /// A pod as NAMESPACE/NAME, or a host endpoint, interface or address; all endpoints of the
        /// node if not given
        #[arg(value_name = "ENDPOINT")]
        endpoint: Option<String>,
    },
    Pods(Box<pods::Args>),
}

#[derive(Deserialize, Serialize)]
struct Endpoints {
    endpoints: Vec<Endpoint>,
}

#[derive(Deserialize, Serialize)]
struct Policies {
    policies: Vec<Policy>,
}

#[derive(Deserialize, Serialize)]
struct Counters {
    decisions: Option<Vec<DecisionCounters>>,
    policies: Vec<Policy>,
}

#[derive(Deserialize, Serialize)]
struct IpSets {
    ip_sets: Vec<IpSet>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    match &args.command {
        ShowCommand::Policies { ask, endpoint: Some(name) } => {
            let found: Endpoints = ask.ask("Endpoints", &[("name", json!(name))])?;
            some(&found.endpoints, || format!("this node has no endpoint `{name}`"))?;
            ask.print(&found, || found.endpoints.iter().map(text::policies_of).collect())
        }
        ShowCommand::Policies { ask, endpoint: None } => {
            let found: Policies = ask.ask("Policies", &[])?;
            ask.print(&found, || text::policies(&found.policies))
        }
        ShowCommand::Policy { ask, name } => {
            let found: Policies = ask.ask("Policies", &[("name", json!(name)), ("counters", json!(true))])?;
            some(&found.policies, || format!("no policy `{name}` applies to endpoints of this node"))?;
            ask.print(&found, || found.policies.iter().map(text::policy).collect())
        }
        ShowCommand::Counters { ask } => {
            let found: Counters = ask.ask("Counters", &[])?;
            ask.print(&found, || match &found.decisions {
                Some(decisions) => text::decisions(decisions),
                None => text::counters(&found.policies),
            })
        }
        ShowCommand::Endpoints { ask } => {
            let found: Endpoints = ask.ask("Endpoints", &[])?;
            ask.print(&found, || text::endpoints(&found.endpoints))
        }
        ShowCommand::Sets { ask, id: Some(id) } => {
            let found: IpSets = ask.ask("IpSets", &[("id", json!(id))])?;
            some(&found.ip_sets, || format!("no policy of this node needs an IP set `{id}`"))?;
            ask.print(&found, || found.ip_sets.iter().map(text::set).collect())
        }
        ShowCommand::Sets { ask, id: None } => {
            let found: IpSets = ask.ask("IpSets", &[])?;
            ask.print(&found, || text::sets(&found.ip_sets))
        }
        ShowCommand::Domains { ask, endpoint } => {
            let found: LearnedDomains = ask.ask("Domains", &[("name", json!(endpoint))])?;
            if let Some(name) = endpoint {
                some(&found.endpoints, || format!("this node has no endpoint `{name}` with rules by domain name"))?;
            }
            ask.print(&found, || text::domains(&found))
        }
        ShowCommand::Pods(args) => pods::run(args),
    }
}

fn some<T>(found: &[T], otherwise: impl FnOnce() -> String) -> Result<(), Failure> {
    if found.is_empty() { Err(Failure::failed(otherwise())) } else { Ok(()) }
}
