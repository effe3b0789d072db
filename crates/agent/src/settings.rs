//! From configuration parameters to the settings of the engine's parts.

use tortie_calc::{GraphConfig, Overlap, SourceSpoofing};
use tortie_model::Hostname;

use crate::config::{Config, NftablesMode, WorkloadSourceSpoofing};

/// The calculation's settings.
#[must_use]
pub fn graph(config: &Config, hostname: Hostname) -> GraphConfig {
    GraphConfig {
        // Felix suppresses overlaps unless nftables sets, which reject them, are out of the question.
        overlap: match config.nftables_mode {
            NftablesMode::Disabled => Overlap::Keep,
            NftablesMode::Auto | NftablesMode::Enabled => Overlap::Suppress,
        },
        source_spoofing: match config.workload_source_spoofing {
            WorkloadSourceSpoofing::Disabled => SourceSpoofing::Disabled,
            WorkloadSourceSpoofing::Any => SourceSpoofing::Any,
        },
        ..GraphConfig::new(hostname)
    }
}
