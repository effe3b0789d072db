mod filter;
mod text;

use std::io::{self, IsTerminal as _, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Map, json};
use tortie_resources::to_yaml;

use super::Failure;
use super::color::ColorChoice;
use super::output::Output;
use filter::Filter;
use text::Text;
use tortie_node::flows::FlowRecord;
use tortie_node::local_api::{Client, DEFAULT_SOCKET};
use tortie_telemetry::escape;

/// Show connections of this node, with the deciding rules.
///
/// Asks the running agent, which collects flows if FlowLogsLocalReporter or FlowLogsFile enables
/// it: each connection of a pod or host endpoint of this node at its start and at its end, and each
/// attempt that policy denied. Without --follow, shows the latest flows, at most 10,000.
///
/// With --follow, flows that come faster than they are read are left out, and their number is
/// printed on standard error. On a terminal the output has colours unless NO_COLOR is set.
///
/// Example: tortie flows --denied --to shop/db --follow
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    filter: Filter,
    /// Show flows from now on, as they happen
    #[arg(short, long)]
    follow: bool,
    /// Socket of the agent; see `tortie run --socket`
    #[arg(long, value_name = "FILE", env = "TORTIE_SOCKET", default_value = DEFAULT_SOCKET)]
    socket: PathBuf,
    /// Output format; with --follow, json is a line for each flow, and yaml a document
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Use of colours
    #[arg(long, value_enum, default_value_t, value_name = "WHEN")]
    color: ColorChoice,
}

#[derive(Debug, Default, Deserialize, Serialize)]
struct Flows {
    flows: Vec<FlowRecord>,
    /// Number of flows before these that the agent left out, since this reader was too slow.
    #[serde(default, skip_serializing)]
    lost: u64,
}

/// Writes lines whose texts were escaped before they were coloured.
fn painted(out: &mut impl Write, lines: &str) -> io::Result<()> {
    out.write_all(escape::coloured(lines).as_bytes())
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut client = Client::connect(&args.socket).map_err(Failure::failed)?;
    let coloured = args.color.wanted(io::stdout().is_terminal());
    let text = Text { coloured, staged: args.filter.staged() };
    if !args.follow {
        let mut found: Flows = client.call("Flows", Map::new()).map_err(Failure::failed)?;
        found.flows.retain(|flow| args.filter.matches(flow));
        if coloured && args.output == Output::Table {
            return painted(&mut io::stdout(), &text.table(&found.flows)).map_err(Failure::io("standard output"));
        }
        return args.output.print(|| json!(found), || text.table(&found.flows));
    }
    let end = client.follow("Flows", |found: Flows| {
        if found.lost > 0 {
            eprintln!("{} flows are not shown: they came faster than they were read", found.lost);
        }
        let mut out = super::terminal::stdout();
        for flow in found.flows.iter().filter(|flow| args.filter.matches(flow)) {
            let line = match args.output {
                Output::Table => text.line(flow),
                Output::Json => format!("{}\n", json!(flow)),
                Output::Yaml => format!("---\n{}", to_yaml(&json!(flow))),
            };
            let is_painted = coloured && args.output == Output::Table;
            let done = if is_painted { painted(out.inner(), &line) } else { out.write_all(line.as_bytes()) };
            if let Err(error) = done {
                return ControlFlow::Break(error);
            }
        }
        out.flush().map_or_else(ControlFlow::Break, ControlFlow::Continue)
    });
    match end.map_err(Failure::failed)? {
        // The reader of the output has closed it.
        Some(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Some(error) => Err(Failure::io("standard output")(error)),
        None => Err(Failure::failed("the agent does not collect flows any more")),
    }
}
