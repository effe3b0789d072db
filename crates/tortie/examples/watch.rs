//! Prints what changes for a node while somebody edits a directory of manifests:
//! `cargo run --package tortie --example watch -- examples/demo demo-node`.

use std::error::Error;

use tortie::datastore::DirSource;
use tortie::{Change, Node};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (Some(directory), Some(name)) = (args.next(), args.next()) else {
        return Err("usage: watch DIRECTORY NODE".into());
    };
    let node = Node::new(name.as_str());
    let source = DirSource::new(directory, node.manifest_options.clone());
    for change in node.watch(source)? {
        match change {
            Change::Desired(updates) => updates.iter().for_each(|update| println!("{update:?}")),
            Change::Problems(problems) => problems.iter().for_each(|problem| eprintln!("{problem}")),
            Change::Unavailable { why, .. } => eprintln!("{why}"),
            _ => {}
        }
    }
    Ok(())
}
