use serde_json::Value;
use tortie_datastore::store::apply::{LabelChange, LabelError, change_labels};

use super::confirming::ConfirmingArgs;
use super::names::{self, KindOrOne};
use super::pending_write::PendingWrite;
use super::selected::SelectArgs;
use super::store::StoreArgs;
use super::{Failure, with_causes};

/// Change labels of resources in etcd or Kubernetes, as kubectl does.
///
/// KEY=VALUE sets a label, KEY- removes it. A label that has another value already is changed with
/// --overwrite only. Resources are given by name, or selected in the namespace with --all or -l.
///
/// Examples: tortie label hep node-1-eth0 role=edge team-
///           tortie label np -n shop -l team=web tier=front
#[derive(Debug, clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// The kind, in any case, as a plural or by a short name, such as np, gnp, hep; or KIND/NAME.
    #[arg(value_parser = names::KindParser(str::parse::<KindOrOne>), hide_possible_values = true)]
    kind: KindOrOne,
    /// The names, unless --all or -l selects resources; then KEY=VALUE or KEY- for each label.
    #[arg(value_name = "NAME|KEY=VALUE|KEY-", required = true)]
    words: Vec<String>,
    /// The namespace.
    #[arg(short, long, value_name = "NAME", default_value = "default", value_parser = names::namespace)]
    namespace: String,
    #[command(flatten)]
    select: SelectArgs,
    /// Also change labels with another value.
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    confirming: ConfirmingArgs,
}

pub(super) fn run(args: &Args) -> Result<(), Failure> {
    let (names, change) = sorted_out(&args.words).map_err(Failure::usage)?;
    args.confirming.needs_datastore()?;
    let (keys, opened) = if args.select.is_given()? {
        names::kept(args.kind.kind, args.store.keeps())?;
        let opened = args.store.open()?;
        let found = args.select.find(&args.kind, &names, &args.namespace, &*opened)?;
        (found.into_iter().map(|(key, _)| key).collect(), opened)
    } else {
        let keys = names::wanted(&args.kind, &names, &args.namespace, args.store.keeps())?;
        (keys, args.store.open()?)
    };
    let word = if change.values().any(Option::is_some) { "labeled" } else { "unlabeled" };
    let changed = |object: &mut Value| change_labels(object, &change, args.overwrite).map_err(NotOverwritten);
    let pending: Vec<PendingWrite<'_>> = keys.iter().map(|key| PendingWrite::edit(key, word, changed)).collect();
    args.confirming.write_to(&*opened, &args.store, &pending, false)
}

#[derive(Debug, thiserror::Error)]
#[error("{}; --overwrite makes it `{wanted}`", with_causes(.0), wanted = .0.wanted)]
struct NotOverwritten(LabelError);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum WordError {
    #[error("`{0}` is neither KEY=VALUE nor KEY-; names come before labels")]
    Form(String),
    #[error("`{0}`: the key is missing")]
    NoKey(String),
    #[error("the label {0} is given twice")]
    Twice(String),
    #[error("no label is given: KEY=VALUE sets one, KEY- takes it away")]
    NoLabel,
}

fn sorted_out(words: &[String]) -> Result<(Vec<String>, LabelChange), WordError> {
    let (mut names, mut change) = (Vec::new(), LabelChange::new());
    for word in words {
        let (label, value) = match (word.split_once('='), word.strip_suffix('-')) {
            (Some((label, value)), _) => (label, Some(value.to_owned())),
            (None, Some(label)) => (label, None),
            (None, None) if change.is_empty() => {
                names.push(word.clone());
                continue;
            }
            (None, None) => return Err(WordError::Form(word.clone())),
        };
        if label.is_empty() {
            return Err(WordError::NoKey(word.clone()));
        }
        if change.insert(label.to_owned(), value).is_some() {
            return Err(WordError::Twice(label.to_owned()));
        }
    }
    if change.is_empty() {
        return Err(WordError::NoLabel);
    }
    Ok((names, change))
}

#[cfg(test)]
mod tests;
