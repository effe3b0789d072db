//! State of the node's kernel.

use std::{os::unix::fs::MetadataExt, path::PathBuf};

use tortie_bpf::NetfilterLink;

use super::{Stage, StageError, StageResult};
use crate::Backend;

impl Stage {
    /// Returns all tables, sets, routes to pods and pinned links, without volatile values.
    pub(crate) fn kernel_state(&self) -> Result<Vec<String>, StageError> {
        let mut state = self.tables(self.backend)?;
        state.extend(self.nftables()?);
        // Sets are listed in the order of their creation, which does not matter.
        let sets = self.shell("ipset save")?;
        let mut sets: Vec<String> =
            sets.lines().map(|line| line.split(" hashsize").next().unwrap_or(line).to_owned()).collect();
        sets.sort_unstable();
        state.extend(sets);
        state.extend(self.routes()?);
        state.extend(self.overlay()?);
        state.extend(self.links().iter().filter_map(|link| Some(format!("link {}", link.file_name()?.display()))));
        Ok(state)
    }

    /// Returns tunnel devices with their FDB and neighbour entries, routes through them, and
    /// blackhole routes.
    pub(crate) fn overlay(&self) -> Result<Vec<String>, StageError> {
        let lines =
            "ip -o -d addr show type vxlan | sed 's/^[0-9]*: //; s/valid_lft.*//'; bridge fdb | grep vxlan || true
             ip -4 neigh show nud permanent | grep vxlan || true; ip -6 neigh show nud permanent | grep vxlan || true
             ip -4 route; ip -6 route";
        let found = self.shell(lines)?;
        let is_of_overlay = |line: &&str| line.contains("vxlan") || line.starts_with("blackhole");
        // The kernel itself adds entries for link-local addresses.
        let mut found: Vec<String> = found
            .lines()
            .filter(is_of_overlay)
            .filter(|line| !line.contains("fe80::") && !line.contains("ff02:"))
            .map(|line| line.trim().to_owned())
            .collect();
        found.sort_unstable();
        Ok(found)
    }

    /// Returns all tables of an implementation of iptables.
    pub(crate) fn tables(&self, backend: Backend) -> Result<Vec<String>, StageError> {
        let mut state = Vec::new();
        let backend = backend.name();
        for program in ["iptables", "ip6tables"] {
            for table in ["raw", "mangle", "nat", "filter"] {
                let saved = self.shell(&format!("{program}-{backend}-save -t {table}"))?;
                let rules = saved.lines().filter(|line| !line.starts_with('#'));
                state.extend(rules.map(|line| format!("{program} {}", line.split(" [").next().unwrap_or(line))));
            }
        }
        Ok(state)
    }

    /// Returns the agent's nftables tables, without volatile values and independent of the creation
    /// order of chains, sets and elements.
    pub(crate) fn nftables(&self) -> Result<Vec<String>, StageError> {
        let mut state = Vec::new();
        for family in ["ip", "ip6"] {
            let listed = self.shell(&format!("nft -s list table {family} calico 2>/dev/null || true"))?;
            let mut blocks: Vec<String> = Vec::new();
            for line in listed.lines().map(str::trim_end).filter(|line| !line.is_empty() && *line != "}") {
                match blocks.last_mut() {
                    Some(block) if !line.starts_with("\t") || line.starts_with("\t\t") || line == "\t}" => {
                        let mut words: Vec<&str> =
                            line.split([',', ' ', '\t']).filter(|word| !word.is_empty()).collect();
                        if block.starts_with("\tset ") || block.starts_with("\tmap ") {
                            words.sort_unstable();
                        }
                        block.push_str(&words.join(" "));
                        block.push('\n');
                    }
                    _ => blocks.push(format!("{line}\n")),
                }
            }
            // Elements continue on further lines.
            for block in blocks.iter_mut().filter(|it| it.starts_with("\tset ") || it.starts_with("\tmap ")) {
                let mut words: Vec<&str> = block.split_whitespace().collect();
                words.sort_unstable();
                *block = words.join(" ");
            }
            blocks.sort_unstable();
            state.extend(blocks.into_iter().map(|block| format!("{family} {block}")));
        }
        Ok(state)
    }

    /// Returns the routes to pods.
    pub(crate) fn routes(&self) -> Result<Vec<String>, StageError> {
        let routes = self.shell("ip -4 route show; ip -6 route show")?;
        let to_pods = routes.lines().filter(|line| line.contains("dev cali") && !line.starts_with("fe80"));
        Ok(to_pods.map(|line| line.trim().to_owned()).collect())
    }

    /// Returns the directory of the node's pinned eBPF objects.
    pub(crate) fn pins(&self) -> PathBuf {
        let namespace = std::fs::metadata(self.lab.node().path()).map_or(0, |namespace| namespace.ino());
        PathBuf::from(format!("/sys/fs/bpf/tortie/{namespace}"))
    }

    /// Returns the pinned links of all generations.
    pub(crate) fn links(&self) -> Vec<PathBuf> {
        let in_folder = |folder: &PathBuf| -> Vec<PathBuf> {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).collect()
        };
        let mut links: Vec<PathBuf> = in_folder(&self.pins()).iter().flat_map(in_folder).collect();
        // Other pins are maps, programs, and the inputs of their generation.
        let hooks = ["prerouting-", "input-", "forward-", "output-"];
        let is_link = |name: &str| hooks.iter().any(|hook| name.starts_with(hook));
        links.retain(|link| link.file_name().and_then(|name| name.to_str()).is_some_and(is_link));
        links.sort_unstable();
        links
    }

    /// Detaches all eBPF programs, as another process with root may.
    pub(crate) fn detach_programs(&self) -> StageResult {
        for link in self.links() {
            // With attachment by rule, the pinned object is the program.
            if let Ok(link) = NetfilterLink::open(&link) {
                link.detach()?;
            }
        }
        self.shell(
            "nft list tables | { grep tortie-bpf- || true; } | while read -r table; do nft delete $table; done",
        )?;
        Ok(())
    }

    /// Returns state that cleanup should have removed.
    pub(crate) fn left_over(&self) -> Result<Vec<String>, StageError> {
        let mut left = self.routes()?;
        left.extend(self.overlay()?);
        for backend in Backend::IPTABLES {
            left.extend(self.tables(backend)?.into_iter().filter(|line| line.contains("cali")));
        }
        let sets = self.shell("ipset list -n")?;
        left.extend(sets.lines().filter(|name| name.starts_with("cali")).map(str::to_owned));
        let tables = self.shell("nft list tables")?;
        left.extend(
            tables.lines().filter(|line| line.contains("tortie") || line.contains("calico")).map(str::to_owned),
        );
        left.extend(Some(self.pins()).filter(|pins| pins.exists()).map(|pins| pins.display().to_string()));
        Ok(left)
    }
}
