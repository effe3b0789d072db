use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::{Value, json};
use tortie_datastore::{DirAccess, manifest_texts};
use tortie_model::Interner;
use tortie_resources::manifest::{self, Format, Options, Outcome};

use super::ChangeReport;
use crate::Failure;
use crate::agent_socket::AskArgs;
use tortie_node::host_changes::{ConfirmedChanges, HeldChanges};
use tortie_node::local_api::Status;

const NAME: &str = "host_changes";

/// Returns the held changes; `None` if there are none, or no agent runs.
pub(super) fn held_back(ask: &AskArgs) -> Result<Option<ChangeReport>, Failure> {
    let Some(status) = ask.ask_if_there::<Status>("Status")? else { return Ok(None) };
    let held = status.engine.and_then(|engine| engine.held_changes);
    Ok(held.map(|held| {
        let places = places(&status.datastore);
        let places: BTreeMap<&str, &String> =
            held.objects.iter().filter_map(|object| Some((object.as_str(), places.get(object)?))).collect();
        let text = format!("held back since {}: {}\n{}", held.since, held.reason(), list(&held, &places));
        let mut whole = json!(held);
        if let Value::Object(fields) = &mut whole {
            fields.insert("places".into(), json!(places));
        }
        ChangeReport { name: Some(NAME), whole, text, is_good: true }
    }))
}

pub(super) fn confirm_held(ask: &AskArgs) -> Result<Option<ChangeReport>, Failure> {
    let Some(answer) = ask.ask_if_there::<ConfirmedChanges>("ConfirmHostChanges")? else { return Ok(None) };
    let whole = json!(answer);
    let ConfirmedChanges { confirmed: Some(held), not_kept } = answer else { return Ok(None) };
    let mut text =
        format!("put in force the changes held back since {}:\n{}", held.since, list(&held, &BTreeMap::new()));
    if let Some(why) = not_kept {
        let _ = writeln!(
            text,
            "a restart of the agent may hold them back again, as the confirmation cannot be stored: {why}"
        );
    }
    Ok(Some(ChangeReport { name: Some(NAME), whole, text, is_good: true }))
}

/// Returns the list of held changes.
fn list(held: &HeldChanges, places: &BTreeMap<&str, &String>) -> String {
    let mut out = String::new();
    for object in &held.objects {
        let place = places.get(object.as_str()).map(|place| format!(" ({place})")).unwrap_or_default();
        let open = if held.unprotected.contains(object) { ", which does not protect the host meanwhile" } else { "" };
        let _ = writeln!(out, "  {object}{place}{open}");
    }
    out
}

/// `file:line:column` of the objects of a directory; empty for any other datastore.
fn places(datastore: &str) -> BTreeMap<String, String> {
    let mut places = BTreeMap::new();
    let texts =
        datastore.strip_prefix("file:").and_then(|root| manifest_texts(Path::new(root), DirAccess::default()).ok());
    let mut interner = Interner::new();
    for (file, text) in texts.unwrap_or_default() {
        for resource in manifest::read(&text, Format::of(&file), &Options::default(), &mut interner).resources {
            let (Outcome::Valid(updates) | Outcome::Invalid { substitute: Some(updates) }) = resource.outcome else {
                continue;
            };
            for update in updates {
                let place = || format!("{}:{}", file.display(), resource.position);
                places.entry(update.key().to_string()).or_insert_with(place);
            }
        }
    }
    places
}

#[cfg(test)]
mod tests;
