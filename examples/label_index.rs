//! Follows pods that start or stop matching selectors:
//! `cargo run --package tortie --example label_index`.

use std::error::Error;

use tortie::labelindex::{MatchEvent, MatchIndex};
use tortie::model::Labels;
use tortie::selector::Selector;

/// Prints the result of each round of changes.
pub fn main() -> Result<(), Box<dyn Error>> {
    let mut index = MatchIndex::new();
    index.set_selector(&"policy databases", &Selector::parse("role == 'db'")?);
    index.set_selector(&"policy everybody", &Selector::parse("has(role)")?);
    for (round, role) in [Some("web"), Some("db"), None].into_iter().enumerate() {
        match role {
            // The pod has no profiles from which it inherits labels.
            Some(role) => index.set_item(&"pod-1", &Labels::from_pairs([("role", role)])?),
            None => index.remove_item(&"pod-1"),
        }
        for event in index.flush_events() {
            match event {
                MatchEvent::Started { item, selector } => println!("{round}: {item} enters {selector}"),
                MatchEvent::Stopped { item, selector } => println!("{round}: {item} leaves {selector}"),
            }
        }
    }
    Ok(())
}
