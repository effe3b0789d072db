use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};

use serde_json::{Map, Value as Json, json};
use tortie_calc::{Graph, GraphConfig};
use tortie_config::{Raw, Sources, canonical_name, from_environment, settings, source_name};
use tortie_datastore::recording::{self, Line, NotALine};
use tortie_model::desired::{ConfigSource, DesiredUpdate};
use tortie_model::{Hostname, Interner};
use tortie_protocol::to_json;

use super::Failure;
use tortie_node::engine::describe_ignored;

/// Calculate a recording and print the messages to the dataplane.
///
/// The recording holds JSON lines. `{"key": "/calico/v1/…", "value": …}` sets an object as Calico
/// stores it; null deletes it. `{"update": …}` sets an object as Tortie's library `tortie-model`
/// writes it. `{"status": "in-sync"}` sets the progress of reading the datastore
/// (`wait-for-datastore`, `resync`, `in-sync`). `{"flush": true}` prints the messages that are due,
/// as does the end of the recording. Each message is a line: a `felix.ToDataplane` message in
/// protobuf JSON. Parameters come from FELIX_* variables. A stored value that is not valid counts
/// as a deletion and is reported on standard error; an invalid update ends the replay.
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The recording; `-` reads standard input.
    file: String,
    /// The node to calculate for.
    #[arg(long, value_name = "NAME")]
    node: String,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let out = BufWriter::new(super::terminal::stdout());
    let environment = from_environment(std::env::vars());
    if args.file == "-" {
        return replay(io::stdin().lock(), out, &args.node, environment);
    }
    let file = File::open(&args.file).map_err(Failure::io(&args.file))?;
    replay(BufReader::new(file), out, &args.node, environment)
}

fn replay(input: impl BufRead, out: impl Write, node: &str, environment: Raw) -> Result<(), Failure> {
    let mut sources = Sources::default();
    sources.set(ConfigSource::Environment, environment.clone());
    let resolved = sources.resolve().map_err(Failure::failed)?;
    let config: GraphConfig = settings::graph(&resolved.config, Hostname::new(node));
    let mut replay = Replay {
        graph: Graph::new(&config),
        labels: Interner::new(),
        pending: Vec::new(),
        sequence_number: 0,
        environment,
        out,
    };
    for (number, line) in input.lines().enumerate() {
        let line = line.map_err(Failure::io("the recording"))?;
        replay.line(&line, number + 1)?;
    }
    replay.flush()?;
    replay.out.flush().map_err(Failure::io("standard output"))
}

#[derive(Debug, thiserror::Error)]
#[error("line {number} of the recording")]
struct BadLine {
    number: usize,
    #[source]
    error: NotALine,
}

struct Replay<W> {
    graph: Graph,
    labels: Interner,
    pending: Vec<DesiredUpdate>,
    sequence_number: u64,
    environment: Raw,
    out: W,
}

impl<W: Write> Replay<W> {
    fn line(&mut self, line: &str, number: usize) -> Result<(), Failure> {
        let line =
            recording::read_line(line, &mut self.labels).map_err(|error| Failure::failed(BadLine { number, error }))?;
        match line {
            Line::Update(update) => self.graph.on_update(update),
            Line::Invalid(error) => {
                eprintln!("line {number}: {error}; treated as a deletion");
                self.graph.on_update(error.deletion());
            }
            Line::Status(status) => self.graph.on_status(status),
            Line::Flush => self.flush()?,
            Line::Nothing => {}
        }
        for problem in self.graph.take_new_problems() {
            let is_deleted = matches!(problem.reason, tortie_calc::Reason::SpoofingDisabled);
            let consequence = if is_deleted { "; treated as a deletion" } else { "" };
            eprintln!("line {number}: {}{consequence}", describe_ignored(&problem));
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.graph.flush(&mut self.pending);
        for update in self.pending.drain(..) {
            // An update for this agent alone, that a datastore is not ready, has no message.
            let Some(mut message) = to_json(&update, self.sequence_number) else { continue };
            self.sequence_number += 1;
            if let Some(config) = message.get_mut("config_update").and_then(Json::as_object_mut) {
                add_environment(config, &self.environment);
            }
            writeln!(self.out, "{message}").map_err(Failure::io("standard output"))?;
        }
        Ok(())
    }
}

/// Adds the environment's parameters, which override those of the datastore. The graph has only the
/// latter.
fn add_environment(config: &mut Map<String, Json>, environment: &Raw) {
    if environment.is_empty() {
        return;
    }
    let named: Map<String, Json> =
        environment.iter().map(|(name, value)| (canonical_name(name).to_owned(), value.as_str().into())).collect();
    let source = json!({ "config": named, "source": source_name(ConfigSource::Environment) });
    for (field, addition) in [
        ("config", named),
        ("source_to_raw_config", Map::from_iter([((ConfigSource::Environment as u8).to_string(), source)])),
    ] {
        let field = config.entry(field).or_insert_with(|| Json::Object(Map::new()));
        if let Some(field) = field.as_object_mut() {
            field.extend(addition);
        }
    }
}

#[cfg(test)]
mod tests;
