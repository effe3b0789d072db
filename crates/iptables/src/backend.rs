//! Detection of the iptables implementation in use on a machine, and the names of its programs.

use std::fmt;

use crate::Family;

/// One of the two implementations of iptables.
///
/// Both may be installed, and the kernel evaluates the rules of both. Rules must be written to the
/// implementation that the other programs use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Backend {
    /// The older implementation, with `x_tables` in the kernel.
    Legacy,
    /// The same command line on top of nftables.
    Nft,
}

impl Backend {
    /// The name in program names and in the `IptablesBackend` parameter.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Legacy => "legacy",
            Self::Nft => "nft",
        }
    }

    /// Returns the implementation in a version text such as `iptables v1.8.9 (nf_tables)`. Before
    /// 1.8, which had only the legacy implementation, the text does not name it.
    #[must_use]
    pub fn of_version(text: &str) -> Option<Self> {
        if text.contains("(nf_tables)") { Some(Self::Nft) } else { text.contains("(legacy)").then_some(Self::Legacy) }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Output of the `iptables-save` programs for [`detect_backend`]. The output of a program that
/// could not run is empty.
///
/// Listing the legacy tables loads the legacy modules into the kernel. If
/// `/proc/net/ip_tables_names` (`ip6_tables_names` for IPv6) does not exist, they are not loaded
/// and there are no legacy tables; the legacy fields of that family stay empty then.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendProbe<'a> {
    /// `iptables-nft-save -t mangle` and `ip6tables-nft-save -t mangle`.
    pub nft_mangle: [&'a [u8]; 2],
    /// `iptables-legacy-save -t mangle` and `ip6tables-legacy-save -t mangle`.
    pub legacy_mangle: [&'a [u8]; 2],
    /// `iptables-nft-save` and `ip6tables-nft-save`.
    pub nft_all: [&'a [u8]; 2],
    /// `iptables-legacy-save` and `ip6tables-legacy-save`.
    pub legacy_all: [&'a [u8]; 2],
    /// Implementation of the machine's `iptables` ([`Backend::of_version`]), if known.
    pub installed: Option<Backend>,
}

/// Returns the implementation in use: the one with the hint of the kubelet, else the one with
/// more rules, legacy if both have as many.
///
/// This is the method of `kubernetes-sigs/iptables-wrappers`, as in
/// `felix/environment/feature_detect_linux.go`, except on a machine without any rules. There it is
/// the implementation of the plain `iptables`, which other programs will use; legacy if it is
/// unknown.
#[must_use]
pub fn detect_backend(probe: &BackendProbe<'_>) -> Backend {
    if probe.nft_mangle.iter().any(|output| has_kubelet_hint(output)) {
        return Backend::Nft;
    }
    if probe.legacy_mangle.iter().any(|output| has_kubelet_hint(output)) {
        return Backend::Legacy;
    }
    let rules = |outputs: &[&[u8]; 2]| outputs.iter().map(|output| count_rules(output)).sum::<usize>();
    match (rules(&probe.legacy_all), rules(&probe.nft_all)) {
        (0, 0) => probe.installed.unwrap_or(Backend::Legacy),
        (legacy, nft) if legacy >= nft => Backend::Legacy,
        _ => Backend::Nft,
    }
}

fn has_kubelet_hint(output: &[u8]) -> bool {
    let hints: [&[u8]; 2] = [b"KUBE-IPTABLES-HINT", b"KUBE-KUBELET-CANARY"];
    hints.iter().any(|hint| output.windows(hint.len()).any(|window| window == *hint))
}

fn count_rules(output: &[u8]) -> usize {
    output.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"-")).count()
}

/// The names of the two programs that read and write the tables of a family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Programs {
    /// For instance `iptables-nft-save`.
    pub save: String,
    /// For instance `iptables-nft-restore`.
    pub restore: String,
}

/// Neither the program of the chosen implementation nor the general one is installed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("neither {specific} nor {general} is installed")]
#[non_exhaustive]
pub struct MissingProgram {
    /// For instance `iptables-nft-save`.
    pub specific: String,
    /// For instance `iptables-save`.
    pub general: String,
}

impl Programs {
    /// Returns the programs made for `backend`, whether they are installed or not.
    #[must_use]
    pub fn specific(backend: Backend, family: Family) -> Self {
        let name = |verb| format!("{}-{backend}-{verb}", base_name(family));
        Self { save: name("save"), restore: name("restore") }
    }

    /// Returns the programs to use: those made for `backend`, or else the general ones.
    ///
    /// `is_installed` reports whether a program is in the search path.
    ///
    /// # Errors
    /// If neither is installed.
    pub fn find(backend: Backend, family: Family, is_installed: impl Fn(&str) -> bool) -> Result<Self, MissingProgram> {
        let pick = |specific: String, verb: &str| {
            let general = format!("{}-{verb}", base_name(family));
            [&specific, &general]
                .into_iter()
                .find(|name| is_installed(name))
                .cloned()
                .ok_or_else(|| MissingProgram { specific: specific.clone(), general: general.clone() })
        };
        let Self { save, restore } = Self::specific(backend, family);
        Ok(Self { save: pick(save, "save")?, restore: pick(restore, "restore")? })
    }
}

const fn base_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "iptables",
        Family::V6 => "ip6tables",
    }
}

/// Facts about a machine that decide whether the other implementation is swept for old rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepFacts {
    /// Both [`Programs::specific`] of the legacy implementation are installed.
    pub legacy_programs: bool,
    /// Both [`Programs::specific`] of the nft implementation are installed.
    pub nft_programs: bool,
    /// `/proc/net/ip_tables_names` (IPv6: `ip6_tables_names`) exists.
    pub legacy_modules_loaded: bool,
}

/// Returns the implementation to sweep for rules of an earlier run with another `IptablesBackend`,
/// while `active` is in use.
///
/// Without the specific programs, a sweep would fall back to the general ones and change the tables
/// in use. Listing legacy tables must not load their modules (`legacyIPTablesCleanupTables` in
/// `felix/dataplane/linux/int_dataplane.go`).
#[must_use]
pub fn backend_to_sweep(active: Backend, facts: SweepFacts) -> Option<Backend> {
    if !(facts.legacy_programs && facts.nft_programs) {
        return None;
    }
    match active {
        Backend::Nft => facts.legacy_modules_loaded.then_some(Backend::Legacy),
        Backend::Legacy => Some(Backend::Nft),
    }
}

#[cfg(test)]
mod tests;
