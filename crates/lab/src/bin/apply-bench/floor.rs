//! The same work by the bare tools: `iptables-restore` and `ipset`, or `nft -f`.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tortie_lab::netns::Namespace;

use crate::Result;
use crate::backend::Backend;
use crate::node::Node;

const FAMILIES: [&str; 2] = ["iptables", "ip6tables"];

/// A command line and its input.
type Write = (Vec<String>, String);

/// Writes the kernel's complete state into an empty namespace, both IP versions in parallel.
/// Returns the elapsed time; `None` for eBPF, which no tool writes.
pub(crate) fn restore_all(node: &Node) -> Result<Option<Duration>> {
    let folder = node.folder.path().display();
    let (save, restore) = match node.backend.iptables() {
        Some(kind) => (
            format!(
                "ipset save >{folder}/sets\n\
                 iptables-{kind}-save >{folder}/v4\n\
                 ip6tables-{kind}-save >{folder}/v6"
            ),
            format!(
                "ipset restore <{folder}/sets\n\
                 iptables-{kind}-restore --noflush --wait <{folder}/v4 & v4=$!\n\
                 ip6tables-{kind}-restore --noflush --wait <{folder}/v6\n\
                 wait $v4"
            ),
        ),
        None if node.backend == Backend::Nftables => {
            (format!("nft list ruleset >{folder}/all"), format!("nft -f {folder}/all"))
        }
        None => return Ok(None),
    };
    let lock = format!("export XTABLES_LOCKFILE={folder}/xtables.lock\n");
    node.namespace.shell(&format!("{lock}{save}"))?;
    let empty = Namespace::new()?;
    let begin = Instant::now();
    empty.shell(&format!("{lock}{restore}"))?;
    Ok(Some(begin.elapsed()))
}

/// Writes the same change as an edit of the policy that allows this port, repeatedly, with both IP
/// versions at once. Returns the duration of each write; none for eBPF.
pub(crate) fn edits(node: &Node, port: usize, times: usize) -> Result<Vec<Duration>> {
    let word = port.to_string();
    let writes: Vec<Write> = match node.backend.iptables() {
        Some(kind) => FAMILIES.iter().map(|family| iptables_edit(node, family, kind, &word)).collect::<Result<_>>()?,
        None if node.backend == Backend::Nftables => {
            let input = nft_edit(&node.namespace.shell("nft list ruleset")?, &word);
            vec![(["nft", "-f", "-"].map(str::to_owned).to_vec(), input.ok_or(NOT_THERE)?)]
        }
        None => return Ok(Vec::new()),
    };
    let replace = |time: usize| {
        let other = (port + time).to_string();
        writes.iter().map(|(line, input)| (line.clone(), input.replace(&word, &other))).collect::<Vec<_>>()
    };
    (1..=times).map(|time| side_by_side(node, &replace(time))).collect()
}

const NOT_THERE: &str = "the last edit is not in the kernel";

fn iptables_edit(node: &Node, family: &str, kind: &str, word: &str) -> Result<Write> {
    let lock = node.path("xtables.lock");
    let saved =
        node.namespace.shell(&format!("export XTABLES_LOCKFILE={}\n{family}-{kind}-save -t filter", lock.display()))?;
    let line = saved.lines().find(|line| line.starts_with("-A") && line.split(' ').any(|part| part == word));
    let chain = line.and_then(|line| line.split(' ').nth(1)).ok_or(NOT_THERE)?;
    let rules: Vec<&str> = saved.lines().filter(|line| line.split(' ').take(2).eq(["-A", chain])).collect();
    let lines = if kind == "nft" {
        format!(":{chain} - -\n{}", rules.join("\n"))
    } else {
        let replaced = rules
            .iter()
            .enumerate()
            .filter(|(_, rule)| rule.contains(word))
            .map(|(at, rule)| rule.replacen(&format!("-A {chain}"), &format!("-R {chain} {}", at + 1), 1));
        replaced.collect::<Vec<_>>().join("\n")
    };
    let command = [&format!("{family}-{kind}-restore"), "--noflush", "--wait"].map(str::to_owned);
    Ok((command.to_vec(), format!("*filter\n{lines}\nCOMMIT\n")))
}

/// Returns the input of `nft` that replaces all chains with this word, in a listing.
fn nft_edit(listing: &str, word: &str) -> Option<String> {
    let (mut table, mut input) = ("", String::new());
    for block in listing.split("\n\t}") {
        let block = block.rsplit_once("\n}\n").map_or(block, |(_, next)| next);
        if let Some(line) = block.lines().find_map(|line| line.strip_prefix("table ")) {
            table = line.trim_end_matches(" {");
        }
        let Some((_, chain)) = block.split_once("\tchain ") else { continue };
        let mut lines = chain.lines();
        let name = lines.next()?.trim_end_matches(" {");
        let rules: Vec<&str> = lines.map(str::trim).collect();
        if rules.iter().any(|rule| rule.split(' ').any(|part| part == word)) {
            input.push_str(&format!("flush chain {table} {name}\n"));
            rules.iter().for_each(|rule| input.push_str(&format!("add rule {table} {name} {rule}\n")));
        }
    }
    Some(input).filter(|input| !input.is_empty())
}

/// Runs the commands in parallel, and returns the elapsed time.
fn side_by_side(node: &Node, writes: &[Write]) -> Result<Duration> {
    std::thread::sleep(Duration::from_millis(100));
    let begin = Instant::now();
    let mut running = Vec::new();
    for (line, input) in writes {
        let [program, args @ ..] = &line[..] else { continue };
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::piped()).stderr(Stdio::null());
        command.env("XTABLES_LOCKFILE", node.path("xtables.lock"));
        let mut child = command.spawn()?;
        child.stdin.take().ok_or("no pipe")?.write_all(input.as_bytes())?;
        running.push((child, program));
    }
    for (mut child, program) in running {
        if !child.wait()?.success() {
            return Err(format!("{program} failed").into());
        }
    }
    Ok(begin.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_of_a_port_is_replaced_in_each_table() {
        let listing = "table ip calico {
\tset s {
\t\ttype ipv4_addr
\t}

\tchain one {
\t\ttcp dport 80 accept
\t}
}
table ip6 calico {
\tchain one {
\t\ttcp dport 80 accept
\t}

\tchain two {
\t\ttcp dport 22 accept comment \"x\"
\t\tdrop
\t}
}
";
        let two = "flush chain ip6 calico two\nadd rule ip6 calico two tcp dport 22 accept comment \"x\"\n\
                   add rule ip6 calico two drop\n";
        assert_eq!(nft_edit(listing, "22").as_deref(), Some(two));
        let one =
            |family| format!("flush chain {family} calico one\nadd rule {family} calico one tcp dport 80 accept\n");
        assert_eq!(nft_edit(listing, "80"), Some(one("ip") + &one("ip6")));
        assert_eq!(nft_edit(listing, "443"), None);
    }
}
