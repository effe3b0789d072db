mod data;
mod page;

use std::io::Write as _;

use tortie_analysis::map::{Map, Options};
use tortie_analysis::plan::classes::evaluate::DecidedBy;
use tortie_config::settings;
use tortie_model::{Direction, Family, Hostname, Protocol};

use super::Failure;
use super::cluster::{ClusterArgs, Parameters, WholeCluster};
use super::origin::Origins;
use super::terminal::parsed_selector;

/// Draw the allowed connections of the cluster.
///
/// Pods of a namespace that no policy distinguishes are one node, and so are networks that no rule
/// distinguishes. A line shows exactly the packets that policies allow, with the deciding rules.
/// Packets that a pod allows with any peer are shown on the pod itself. The page has a switch for
/// each tier, a search and, for the clicked element, the deciding rules at both ends. It is one
/// file that needs no network. The cluster is read from any datastore; no privileges are needed.
///
/// Example: tortie map --datastore file:examples/demo > map.html
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Only pods of this namespace, and their peers in both directions.
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Vec<String>,
    /// Only pods that match, and their peers in both directions.
    #[arg(long, value_name = "SELECTOR")]
    selector: Option<String>,
    /// Only packets to this port, such as 443 or 53/udp.
    #[arg(long, value_name = "PORT[/PROTOCOL]", value_parser = port)]
    port: Vec<(Protocol, u16)>,
    /// Use IPv6 addresses. A page shows both families.
    #[arg(long)]
    ipv6: bool,
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    /// A web page in one file.
    #[default]
    Html,
    /// Only the picture.
    Svg,
    /// A graph for Graphviz.
    Dot,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum PortError {
    #[error("{0} is not tcp, udp or sctp, which have ports")]
    Protocol(String),
    #[error("{0} is not a port number from 0 to 65535")]
    Number(String),
}

/// `443`, `53/udp`.
fn port(text: &str) -> Result<(Protocol, u16), PortError> {
    let (port, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let protocol = match &*protocol.to_ascii_lowercase() {
        "tcp" => Protocol::TCP,
        "udp" => Protocol::UDP,
        "sctp" => Protocol::SCTP,
        _ => return Err(PortError::Protocol(protocol.to_owned())),
    };
    let port = port.parse().map_err(|_| PortError::Number(port.to_owned()))?;
    Ok((protocol, port))
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let selector = args.selector.as_deref().map(parsed_selector).transpose()?;
    let mut cluster = args.cluster.read()?;
    let origins = args.cluster.origins(&mut cluster)?;
    let WholeCluster { sources, local, updates, .. } = cluster;
    let parameters = Parameters::new(&sources, &local, updates.iter())?;
    let mut options = Options::new(settings::graph(&parameters.config, Hostname::new("")), parameters.settings);
    options.node_settings = parameters.nodes;
    options.namespaces.clone_from(&args.namespace);
    options.selector = selector;
    options.ports.clone_from(&args.port);

    let families = if args.output == Output::Html {
        Family::ALL.to_vec()
    } else {
        vec![if args.ipv6 { Family::V6 } else { Family::V4 }]
    };
    let mut maps: Vec<Map> = Vec::new();
    for family in families {
        options.family = family;
        maps.push(tortie_analysis::map::map(&updates, &options).map_err(Failure::failed)?);
    }
    let has_pods = |map: &Map| map.nodes.iter().any(|node| node.is_wanted);
    let is_asked_for_some = !args.namespace.is_empty() || args.selector.is_some();
    if is_asked_for_some && !maps.iter().any(has_pods) {
        return Err(Failure::failed("there are no such pods"));
    }
    if maps.len() > 1 {
        maps.sort_by_key(|map| !has_pods(map));
        maps.dedup_by(|map, _| !has_pods(map));
    }
    let describe = |by: &DecidedBy, direction| describe(&origins, by, direction);
    let text = match (args.output, &maps[..]) {
        (Output::Html, maps) => page::page(maps, &describe),
        (Output::Svg, [map, ..]) => tortie_analysis::map::svg(map, &tortie_analysis::map::layout(map), &describe),
        (Output::Dot, [map, ..]) => tortie_analysis::map::dot(map, &describe),
        (_, []) => String::new(),
    };
    if args.output != Output::Html {
        maps.iter().flat_map(Map::remarks).for_each(|remark| eprintln!("{remark}"));
    }
    super::terminal::stdout().write_all(text.as_bytes()).map_err(Failure::io("standard output"))
}

fn describe(origins: &Origins, by: &DecidedBy, direction: Direction) -> String {
    let text = by.in_words(direction);
    let origin = match by {
        DecidedBy::PolicyRule { policy, index, .. } => origins.rule(policy, direction, *index),
        _ => None,
    };
    let text = match by {
        DecidedBy::PolicyRule { tier, .. } => format!("{text}, tier {tier}"),
        _ => text,
    };
    origin.map_or_else(|| text.clone(), |origin| format!("{text}: {origin}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_of_protocols_that_have_them() {
        assert_eq!(port("443"), Ok((Protocol::TCP, 443)));
        assert_eq!(port("53/UDP"), Ok((Protocol::UDP, 53)));
        assert!(port("53/icmp").unwrap_err().to_string().contains("icmp"));
        assert!(port("65536").unwrap_err().to_string().contains("65536"));
        assert!(port("").is_err());
    }
}
