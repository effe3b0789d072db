//! Reference of error messages, from the source of the error types: texts and doc comments.

use std::fmt::Write as _;

use xtask::files::{below, read};

use crate::shell::root;

/// Files, and a type in each.
type Sources = &'static [(&'static str, &'static str)];

/// Headings with general advice, and the types whose messages they cover, in their files.
const TYPES: &[(&str, &str, Sources)] = &[
    (
        "Objects that the kernel refuses",
        "`tortie status`, `/readiness` and the log (`out of sync`) show these, with the policy or endpoint in front and the kernel's words at the \
         end. Everything else is in force, a replacement of the object denies, and the agent retries: the object is in force within 30 seconds \
         once the kernel accepts it. If the message persists, correct the named object, or find the program on the node that holds it. \
         `tortie_dataplane_problems` counts these objects.",
        &[
            ("crates/dataplane/src/report.rs", "DataplaneProblem"),
            ("crates/dataplane/src/report.rs", "EndpointProblem"),
            ("crates/netfilter/src/problem.rs", "ChainProblem"),
            ("crates/dataplane/src/report.rs", "DeviceProblem"),
            ("crates/dataplane/src/report.rs", "BandwidthProblem"),
            ("crates/dataplane/src/kernel_error.rs", "KernelError"),
        ],
    ),
    (
        "The agent does not start, or ends",
        "The last line of the log. Policy stays in force. Correct the named cause and start the agent again.",
        &[
            ("crates/linux/src/kernel/detect.rs", "DetectError"),
            ("crates/node/src/agent/error.rs", "AgentError"),
            ("crates/node/src/engine/session/error.rs", "SessionError"),
            ("crates/node/src/driver/mod.rs", "DriverError"),
            ("crates/fanout/src/server/mod.rs", "StartError"),
            ("crates/fanout/src/tls/mod.rs", "TlsError"),
        ],
    ),
    (
        "Datastores",
        "Policy stays in force while a datastore cannot be read, and the agent retries. A refusal lasts until an operator changes addresses, \
         certificates or rights.",
        &[
            ("crates/datastore/src/read.rs", "ReadError"),
            ("crates/revisions/src/last_good/record.rs", "RecordError"),
            ("crates/datastore/src/kubernetes/error.rs", "KubeConfigError"),
            ("crates/datastore/src/kubernetes/error.rs", "ApiError"),
            ("crates/datastore/src/store/etcd/config.rs", "EtcdConfigError"),
        ],
    ),
    (
        "Commands that write",
        "Printed by the command, which has written nothing unless the message states it.",
        &[
            ("crates/datastore/src/store/contract.rs", "StoreError"),
            ("crates/datastore/src/store/apply.rs", "ApplyError"),
            ("crates/datastore/src/store/pending/steps.rs", "CarryOutError"),
            ("crates/datastore/src/store/pending/steps.rs", "ConfirmError"),
            ("crates/revisions/src/journal.rs", "JournalError"),
            ("crates/revisions/src/history/store.rs", "HistoryError"),
            ("crates/revisions/src/history/rollback.rs", "RollbackError"),
        ],
    ),
    (
        "Commands that query",
        "Printed by the command; nothing was changed.",
        &[
            ("crates/node/src/local_api/client.rs", "ClientError"),
            ("crates/analysis/src/trace/error.rs", "TraceError"),
            ("crates/analysis/src/trace/service.rs", "ServiceError"),
            ("crates/suggest/src/proof.rs", "ProofError"),
        ],
    ),
];

/// Types whose messages only programs read, or that are parts of other messages.
const INNER: &[&str] = &["ClusterProblem", "DomainProblem", "Problem"];

/// The end of a message that the reporter adds causes to.
const CAUSE: &str = ": …";

/// Returns the generated part of the page of messages.
pub(super) fn page() -> Result<String, String> {
    let mut text = String::new();
    for (heading, advice, types) in TYPES {
        // Writing to a string cannot fail, here and below.
        let _ = write!(text, "\n## {heading}\n\n{advice}\n\n| message | meaning |\n|---|---|\n");
        for (file, name) in *types {
            let source = read(&root().join(file))?;
            let variants =
                variants(&source, name).ok_or_else(|| format!("{file}: there is no enum {name} with messages"))?;
            for Variant { message, about } in variants {
                let _ = writeln!(text, "| {} | {} |", cell(&format!("`{message}`")), cell(&about));
            }
        }
    }
    complete()?;
    Ok(text)
}

/// Checks that all problems that the libraries report are on the page.
fn complete() -> Result<(), String> {
    let crates = root().join("crates");
    for path in below(&crates)?.into_iter().map(|path| crates.join(path)) {
        if path.extension().is_none_or(|end| end != "rs") || !path.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        for line in read(&path)?.lines() {
            let name =
                line.strip_prefix("pub enum ").and_then(|rest| rest.split([' ', '<']).next()).unwrap_or_default();
            let is_there = TYPES.iter().any(|(_, _, types)| types.iter().any(|(_, listed)| *listed == name));
            if name.ends_with("Problem") && !is_there && !INNER.contains(&name) {
                return Err(format!(
                    "{}: {name} is not among the messages of xtask/src/site/messages.rs",
                    path.display()
                ));
            }
        }
    }
    Ok(())
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('<', "&lt;")
}

#[derive(Debug, PartialEq, Eq)]
struct Variant {
    /// With names in capitals, or `…`, for variable parts.
    message: String,
    about: String,
}

/// Returns the variants of an enum with error messages by `thiserror`, in a source formatted by
/// rustfmt. Variants that only display another error are omitted.
fn variants(source: &str, name: &str) -> Option<Vec<Variant>> {
    let (_, body) = source.split_once(&format!("\npub enum {name}"))?;
    let (body, _) = body.split_once('{')?.1.split_once("\n}")?;
    let (mut found, mut about, mut attribute) = (Vec::<Variant>::new(), String::new(), String::new());
    let mut is_listed = false;
    for line in body.lines() {
        let cause = if line.contains("#[source]") || line.contains("#[from]") { CAUSE } else { "" };
        let Some(inner) = line.strip_prefix("    ").filter(|inner| !inner.starts_with("    ") || !attribute.is_empty())
        else {
            found.last_mut().filter(|_| is_listed).into_iter().for_each(|variant| variant.message += cause);
            continue;
        };
        if let Some(doc) = inner.strip_prefix("///") {
            about += doc;
        } else if inner.starts_with("#[error") || (!attribute.is_empty() && !attribute.ends_with(")]")) {
            attribute += inner.trim();
        } else if inner.starts_with(char::is_uppercase) {
            let message = message(&attribute);
            is_listed = message.is_some();
            found.extend(message.map(|message| Variant { message: message + cause, about: about.trim().to_owned() }));
            about.clear();
            attribute.clear();
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Returns the text in `#[error("text {placeholder}", …)]`.
fn message(attribute: &str) -> Option<String> {
    let text = attribute.strip_prefix("#[error(")?.strip_prefix('"')?;
    let (mut message, mut characters) = (String::new(), text.chars());
    while let Some(character) = characters.next() {
        match character {
            '"' => break,
            '\\' => message.extend(characters.next().filter(|escaped| *escaped != 'n')),
            '{' => {
                let name: String = characters.by_ref().take_while(|inner| *inner != '}').collect();
                let name = name.split(':').next().unwrap_or_default().to_uppercase();
                message += if name.starts_with(|first: char| first.is_ascii_uppercase()) { &name } else { "…" };
            }
            // A Markdown code span cannot contain one.
            '`' => message.push('\''),
            other => message.push(other),
        }
    }
    (!message.trim_matches(['…', ':', ' ']).is_empty()).then_some(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_and_their_docs_are_read() {
        let source = "\npub enum Wrong {\n    /// It is\n    /// so.\n    #[error(\"{0}: `it` is {}\", .1)]\n    It(u8, #[source] Error),\n    \
                      #[error(transparent)]\n    Other(Error),\n    /// There.\n    #[error(\n        \"there is {what}\"\n    )]\n    There {\n        \
                      /// Its kind.\n        what: u8,\n        #[source]\n        why: Error,\n
                      /// },\n}\n";
        let variant = |message: &str, about: &str| Variant { message: message.to_owned(), about: about.to_owned() };
        assert_eq!(
            variants(source, "Wrong"),
            Some(vec![variant("…: 'it' is …: …", "It is so."), variant("there is WHAT: …", "There.")])
        );
        assert_eq!(variants(source, "Right"), None);
    }

    #[test]
    fn all_types_have_messages_and_no_problem_is_missing() {
        let page = page().unwrap();
        assert!(page.contains("| `interface INTERFACE belongs to OTHER` | Another endpoint has the same interface; this one waits until the other is removed. |"), "{page}");
        assert!(page.lines().count() > 100);
    }
}
