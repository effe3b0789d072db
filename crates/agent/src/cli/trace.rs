//! `tortie trace`.

mod answer;
mod batch;
mod group;
mod question;
mod text;
mod view;

use std::io;

use tortie_evaluate::Verdict;
use tortie_model::Hostname;

use super::Failure;
use super::cluster::ClusterArgs;
use super::output::Output;
use answer::Answer;
use group::GroupAnswer;
use question::{Question, QuestionArgs};
use view::{Meant, View};

/// The exit code for a connection that is denied.
const DENIED: u8 = 3;

/// Would a connection pass, and which rules say so?
///
/// The cluster is read from any datastore, and what the nodes at both ends have to enforce is calculated as they do it;
/// nothing is sent, and no privileges are needed. An end is a pod as NAMESPACE/NAME, a node as node:NAME, a host endpoint as
/// hostendpoint:NAME, or an address. Rules are counted from 0. A connection to a Service, as service:NAMESPACE/NAME or by its
/// cluster address, is asked about for each backend; one from or to a network set, as networkset:NAMESPACE/NAME or
/// networkset:NAME if it is global, for each of its networks and what policies name inside them. Ends with exit code 0 if the
/// connection passes, and with 3 if it is denied.
///
/// Example: tortie trace --datastore file:examples/demo --from shop/web --to shop/db --port 5432
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    question: QuestionArgs,
    /// Ask only for what this node enforces.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Say all that is looked at: each policy, each rule, and why it does not match.
    #[arg(short, long)]
    verbose: bool,
    /// How to answer.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Read JSON lines `{"from", "to", "port", "protocol", "family"}` from standard input and answer each with a line
    /// `{"verdict", "end", "tier", "policy", "rule", "position"}`, or `{"error"}`.
    #[arg(long, conflicts_with_all = ["from", "to", "port", "verbose", "output"])]
    batch: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let mut cluster = args.cluster.read()?;
    let origins = args.cluster.origins(&mut cluster)?;
    let mut view = View::new(cluster);
    let node = args.node.as_deref().map(Hostname::new);
    if args.batch {
        return batch::answer(&mut view, node.as_ref(), &origins, io::stdin().lock(), io::stdout().lock());
    }
    let question = Question::from_args(&args.question).map_err(Failure::Usage)?;
    if let Meant::Group(group, members) = view.meant(&question).map_err(Failure::Failed)? {
        let answer = GroupAnswer::ask(&mut view, group, &members, node.as_ref(), &origins);
        let answer = answer.map_err(Failure::Failed)?;
        args.output.print(|| answer.whole(), || answer.text(args.verbose))?;
        return exit(answer.verdict());
    }
    let connection = view.ask(&question, node.as_ref()).map_err(Failure::Failed)?;
    let answer = Answer { connection: &connection, origins: &origins, policies: &view };
    args.output.print(|| answer.whole(), || text::text(&answer, args.verbose))?;
    exit(connection.verdict())
}

fn exit(verdict: Verdict) -> Result<(), Failure> {
    match verdict {
        Verdict::Deny => Err(Failure::Reported(DENIED)),
        Verdict::Allow | Verdict::Undecided => Ok(()),
    }
}

#[cfg(test)]
mod tests;
