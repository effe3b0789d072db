//! Back ends: their parameters, and their counters of writes.

use clap::ValueEnum;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    #[value(alias = "iptables-nft")]
    Nft,
    #[value(alias = "iptables-legacy")]
    Legacy,
    Nftables,
    Ebpf,
}

impl Backend {
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Nft => "iptables-nft",
            Self::Legacy => "iptables-legacy",
            Self::Nftables => "nftables",
            Self::Ebpf => "eBPF",
        }
    }

    /// Returns the parameters for this back end.
    pub(crate) const fn parameters(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Nft => &[("FELIX_IPTABLESBACKEND", "nft")],
            Self::Legacy => &[("FELIX_IPTABLESBACKEND", "legacy")],
            Self::Nftables => &[("FELIX_NFTABLESMODE", "Enabled")],
            Self::Ebpf => &[("FELIX_BPFENABLED", "true")],
        }
    }

    /// Returns the word in the names of the iptables programs.
    pub(crate) const fn iptables(self) -> Option<&'static str> {
        match self {
            Self::Nft => Some("nft"),
            Self::Legacy => Some("legacy"),
            Self::Nftables | Self::Ebpf => None,
        }
    }

    /// Returns the metrics that count writes to the kernel.
    pub(crate) const fn write_counters(self) -> &'static [&'static str] {
        match self {
            Self::Nft | Self::Legacy => &["felix_iptables_restore_calls", "felix_ipset_lines_executed"],
            Self::Nftables => &["felix_nft_calls"],
            Self::Ebpf => &["tortie_bpf_map_writes", "tortie_bpf_generations_built"],
        }
    }
}
