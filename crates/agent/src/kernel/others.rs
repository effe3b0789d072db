//! What others on this machine do that is not taken into account.

use std::time::Duration;

use crate::exec::{self, Job, Runner};

/// How long `nft` may take to list tables.
const LIMIT: Duration = Duration::from_secs(5);

/// What there is to be said of others, a sentence each. What cannot be found out is left out.
#[must_use]
pub fn others(runner: &Runner) -> Vec<String> {
    tables(runner).iter().filter_map(|table| foreign_table(table)).collect()
}

/// The tables of nftables, as `nft` lists them; none without that program.
fn tables(runner: &Runner) -> Vec<String> {
    if !exec::is_installed("nft") {
        return Vec::new();
    }
    let job =
        Job { program: "nft".into(), args: vec!["list".into(), "tables".into()], input: Vec::new(), limit: LIMIT };
    match runner.run(&job) {
        Ok(done) if done.status.success() => String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

/// What is to be said of a table; those of Felix in its nftables mode keep enforcing what it left.
fn foreign_table(table: &str) -> Option<String> {
    let is_felix = matches!(table.split_whitespace().collect::<Vec<_>>()[..], ["table", "ip" | "ip6", "calico"]);
    is_felix.then(|| {
        format!(
            "nftables has `{}`, which Felix makes in its nftables mode: it is left alone, and what it denies stays denied; \
             `nft delete {}` removes it",
            table.trim(),
            table.trim()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::foreign_table;

    #[test]
    fn tables_of_felix_are_known_by_family_and_name() {
        for table in ["table ip calico", "table ip6 calico "] {
            let said = foreign_table(table).unwrap();
            assert!(said.contains(&format!("nft delete {}", table.trim())), "{said}");
        }
        for table in ["table ip filter", "table inet calico", "table ip calico-x", ""] {
            assert_eq!(foreign_table(table), None);
        }
    }
}
