use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use tortie_model::{Labels, ProfileName, Update, WorkloadEndpoint, WorkloadEndpointKey};
use tortie_selector::Selector;

use super::super::Failure;
use super::super::cluster::ClusterArgs;
use super::super::columns::table;
use super::super::output::Output;
use super::super::terminal::parsed_selector;

/// List the pods of a selector, with the labels that they inherit
///
/// The cluster is read from the datastore; no privileges are needed.
///
/// Example: tortie show pods "role == 'db'" --datastore file:examples/demo
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The selector, such as `app == 'web'`
    #[arg(allow_hyphen_values = true)]
    selector: String,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Pod {
    name: String,
    node: String,
    addresses: Vec<String>,
    labels: BTreeMap<String, String>,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let selector = parsed_selector(&args.selector)?;
    let cluster = args.cluster.read()?;
    let pods = matching(&selector, &cluster.updates);
    args.output.print(|| json!({ "pods": pods }), || for_people(&pods))
}

fn matching(selector: &Selector, updates: &[Update]) -> Vec<Pod> {
    let mut profiles: BTreeMap<&ProfileName, &Labels> = BTreeMap::new();
    for update in updates {
        if let Update::Profile(name, Some(profile)) = update {
            profiles.insert(name, &profile.labels);
        }
    }
    let mut pods: Vec<Pod> = updates
        .iter()
        .filter_map(|update| match update {
            Update::WorkloadEndpoint(key, Some(endpoint)) => Some(pod(key, endpoint, &profiles)),
            _ => None,
        })
        .filter(|pod| selector.matches(&pod.labels))
        .collect();
    pods.sort_by(|a, b| (&a.name, &a.node).cmp(&(&b.name, &b.node)));
    pods
}

fn pod(key: &WorkloadEndpointKey, endpoint: &WorkloadEndpoint, profiles: &BTreeMap<&ProfileName, &Labels>) -> Pod {
    let mut labels = BTreeMap::new();
    // Later labels override: the first profile's those of the other profiles, the endpoint's own
    // all.
    let inherited = endpoint.profiles.iter().rev().filter_map(|name| profiles.get(name).copied());
    for (name, value) in inherited.chain([&endpoint.labels]).flat_map(Labels::iter) {
        labels.insert(name.to_owned(), value.to_owned());
    }
    Pod {
        name: key.workload().to_owned(),
        node: key.host().to_owned(),
        addresses: endpoint.nets().map(|net| net.address().to_string()).collect(),
        labels,
    }
}

fn for_people(pods: &[Pod]) -> String {
    let labels =
        |pod: &Pod| pod.labels.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(",");
    let rows = pods.iter().map(|pod| vec![pod.name.clone(), pod.node.clone(), pod.addresses.join(","), labels(pod)]);
    table(&["POD", "NODE", "ADDRESSES", "LABELS"], rows)
}
