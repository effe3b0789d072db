mod agent_names;
mod answer;
mod batch;
mod expansion;
mod group;
mod live;
mod question;
mod tables;
mod text;
mod view;

use std::io;

use serde_json::Value;
use tortie_evaluate::Verdict;
use tortie_model::Hostname;

use super::Failure;
use super::cluster::ClusterArgs;
use super::origin::Origins;
use super::output::Output;
use answer::Answer;
use expansion::{Expansion, Group, Member};
use group::GroupAnswer;
use live::{Agreement, Calculated, LiveArgs};
use question::{Question, QuestionArgs};
use tables::{NodeTables, all_agree};
use view::View;

const DENIED: u8 = 3;
/// Exit code if the kernel or a table disagrees with the calculation.
const DISAGREE: u8 = 4;
/// Exit code if the verdict depends on the names or the address of the destination.
const DEPENDS: u8 = 5;

/// Show whether a connection would pass, with the deciding rules.
///
/// Reads the cluster from any datastore, and calculates the state of the nodes at both ends as
/// these nodes do. Sends nothing, and needs no privileges. An end is a pod as NAMESPACE/NAME, a
/// node as node:NAME, a host endpoint as hostendpoint:NAME, or an address. Rules are counted
/// from 0. A connection to a Service is evaluated for each backend. The Service is
/// service:NAMESPACE/NAME or its address: a cluster address, an external one, one of a load
/// balancer, or one of a node with a node port. Behind a node port, backends on other nodes see the
/// node's address, unless externalTrafficPolicy is Local. A connection from or
/// to a network set, as networkset:NAMESPACE/NAME or networkset:NAME if it is global, is evaluated
/// for each of its networks, and for networks of policies inside them. Exits with 0 if the
/// connection passes, and with 3 if it is denied.
///
/// Egress rules by domain name match an address if the source has resolved one of their names to
/// it. The running agent on the source's node knows. Without it, a verdict that depends on this is
/// shown for both cases, and the exit code is 5. A connection to domain:NAME is evaluated by rules
/// that match the name; those that match by address need --address, and if the verdict depends on
/// one of them, the exit code is 5 as well.
///
/// With --live, as root on the node of one of the ends, the kernel is queried as well: the command
/// sends a probe from the pod, or waits for the real flow, and shows each chain and rule that it
/// passes. eBPF programs leave no trace; where they enforce policy, the agent reports their
/// counters instead. Exits with 4 if the kernel disagrees with the calculation.
///
/// Example: tortie trace --datastore file:examples/demo --from shop/web --to shop/db --port 5432
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    question: QuestionArgs,
    #[command(flatten)]
    live: LiveArgs,
    /// Only evaluate the policy that this node enforces; with --live, the name of this node.
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Show each evaluated policy and rule, and the reason why a rule does not match.
    #[arg(short, long)]
    verbose: bool,
    /// Also look up the answer in the eBPF tables (`tortie render --backend ebpf` prints them):
    /// classes of the addresses, row, column and cell. If a table disagrees, that is an error, and
    /// the exit code is 4.
    #[arg(long)]
    tables: bool,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    /// Read questions from standard input, a line of JSON each, and answer each with a line. Exits
    /// with 0 once all are answered, whatever the answers.
    ///
    /// A question is `{"from", "to", "address", "port", "protocol", "family", "source_port",
    /// "icmp_type", "icmp_code"}`; only the first two are needed, `port` for protocols with ports,
    /// and `address` is that of a domain. An answer is `{"verdict", "end", "tier", "policy",
    /// "profile", "rule", "position", "reason"}`, null where there is none, or `{"error"}`. If the
    /// verdict depends on names or an address that are not known, it is `depends`, with
    /// `"dependsOn"`, and the other answer in `"alternative"`. For a Service or network set, the
    /// verdict is `deny` if one connection is denied, and the answer is that of the first
    /// connection with this verdict. Added to it are `"service"` and `"backends"`, `"networkSet"`
    /// and `"networks"`, or `"service"`, `"networkSet"` and `"pairs"`: the names and the number of
    /// connections; and `"denied"`: the number of denied ones.
    #[arg(long, conflicts_with_all = ["from", "to", "port", "verbose", "tables", "output"])]
    batch: bool,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    if args.live.live {
        live::require_privileges()?;
    }
    let mut cluster = args.cluster.read()?;
    let origins = args.cluster.origins(&mut cluster)?;
    let mut view = View::new(cluster, args.cluster.host_network_pods()?, args.live.agent_names());
    let node = args.node.as_deref().map(Hostname::new);
    if args.batch {
        return batch::answer(&mut view, node.as_ref(), &origins, io::stdin().lock(), super::terminal::stdout());
    }
    let mut question = Question::from_args(&args.question).map_err(Failure::usage)?;
    if args.live.live && args.question.source_port.is_none() {
        question = question.with_source_port(live::source_port());
    }
    for note in view.host_network_notes(&question) {
        eprintln!("{note}");
    }
    let inquiry = Inquiry { args, question, node, origins };
    match view.expand(&inquiry.question).map_err(Failure::failed)? {
        Expansion::Group(group, members) => inquiry.group(&mut view, group, &members),
        Expansion::Connection => inquiry.connection(&mut view),
    }
}

struct Inquiry<'a> {
    args: &'a Args,
    question: Question,
    node: Option<Hostname>,
    origins: Origins,
}

impl Inquiry<'_> {
    /// With `--live`, all nodes are calculated: there `--node` is the node whose kernel is traced.
    fn only_node(&self) -> Option<&Hostname> {
        self.node.as_ref().filter(|_| !self.args.live.live)
    }

    fn group(&self, view: &mut View, group: Group, members: &[(Member, Question)]) -> Result<(), Failure> {
        let args = self.args;
        if args.live.live && !matches!(group, Group::Service { .. }) {
            return Err(Failure::usage("--live traces one connection: use an address of the network set"));
        }
        let tables = args.tables.then(NodeTables::default);
        let answer = GroupAnswer::ask(view, group, members, self.only_node(), &self.origins, tables);
        let answer = answer.map_err(Failure::failed)?;
        let outcome =
            Outcome { verdict: answer.verdict(), depends: answer.depends(), tables_agree: answer.tables_agree() };
        self.answer(&Calculated::Group(&answer), outcome, || answer.whole(), || answer.text(args.verbose))
    }

    fn connection(&self, view: &mut View) -> Result<(), Failure> {
        let connection = view.ask(&self.question, self.only_node()).map_err(Failure::failed)?;
        let tables = if self.args.tables {
            NodeTables::default().look_up(view, &connection).map_err(Failure::failed)?
        } else {
            Vec::new()
        };
        let pending = view.pending(&self.question, self.only_node()).map_err(Failure::failed)?;
        let answer = Answer {
            connection: &connection,
            pending: pending.as_ref(),
            origins: &self.origins,
            policies: view,
            tables: &tables,
        };
        let depends = connection.depends_at().is_some();
        let outcome = Outcome { verdict: connection.verdict(), depends, tables_agree: all_agree(&tables) };
        let calculated = Calculated::Connection(&connection, view);
        self.answer(&calculated, outcome, || answer.whole(), || text::text(&answer, self.args.verbose))
    }

    /// With `--live`, a table shows the calculated answer before the trace; other formats print
    /// everything at the end.
    fn answer(
        &self,
        calculated: &Calculated<'_>,
        outcome: Outcome,
        whole: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        let args = self.args;
        if !args.live.live {
            args.output.print(whole, text)?;
            return outcome.exit();
        }
        let node = calculated.view().this_node(self.node.as_ref()).map_err(Failure::failed)?;
        if args.output == Output::Table {
            args.output.print(|| Value::Null, text)?;
        }
        let datastore = args.cluster.datastore.place();
        let live = live::ask(&args.live, &args.question, &datastore, &self.question, calculated, &node)?;
        let with_live = || {
            let mut whole = whole();
            if let Some(whole) = whole.as_object_mut() {
                whole.insert("live".into(), live.whole());
            }
            whole
        };
        args.output.print(with_live, || live.text())?;
        match live.agreement {
            Agreement::Disagree(_) => Err(Failure::Reported(DISAGREE)),
            Agreement::Agree | Agreement::NotCompared(_) => outcome.exit(),
        }
    }
}

#[derive(Clone, Copy)]
struct Outcome {
    verdict: Verdict,
    /// Whether the verdict depends on an unknown property of the destination.
    depends: bool,
    tables_agree: bool,
}

impl Outcome {
    fn exit(self) -> Result<(), Failure> {
        match self.verdict {
            _ if !self.tables_agree => Err(Failure::Reported(DISAGREE)),
            _ if self.depends => Err(Failure::Reported(DEPENDS)),
            Verdict::Deny => Err(Failure::Reported(DENIED)),
            Verdict::Allow | Verdict::Undecided => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
