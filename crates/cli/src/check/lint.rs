//! What is valid and seldom meant.

use std::fmt;

/// Something that is valid and that few people mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lint {
    /// The selector of a policy matches no endpoint.
    SelectsNothing,
    /// The selector or service of a rule matches nothing that there is.
    RuleSelectsNothing,
    /// No packet can match a rule.
    RuleNeverMatches,
    /// Other policies decide about all that a policy is about.
    PolicyShadowed,
    /// Other rules decide about all that a rule matches.
    RuleShadowed,
    /// The rules or networks of a policy exceed a bound of eBPF tables, or that of layouts of `NFTablesLayout=Fast`.
    OverBudget,
    /// A rule names a service that is not there.
    ServiceAbsent,
    /// An endpoint names a profile that is not there: its traffic is denied.
    ProfileAbsent,
    /// A policy is in a tier that is not there.
    TierAbsent,
    /// No policy and no profile is for a host endpoint: all but failsafe ports is denied.
    HostEndpointWithoutPolicy,
    /// Another parameter leaves one nothing to do.
    ParameterOverruled,
    /// A network has bits set behind its prefix.
    HostBits,
    /// An object names no namespace and belongs to `default`.
    NamespaceOmitted,
    /// A value looks like the placeholder of a template.
    Template,
    /// An apiVersion that people should not write any more.
    DeprecatedVersion,
    /// Something that was found by a newer library.
    Other,
}

impl Lint {
    /// What to do about it.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::SelectsNothing => {
                "Compare the selector with the labels of endpoints: `tortie show pods SELECTOR`. Remove the policy if what it was for is gone."
            }
            Self::RuleSelectsNothing => {
                "Correct the selector or the name of the service. A rule that allows opens nothing as it is, one that denies closes nothing."
            }
            Self::RuleNeverMatches => {
                "Look for conditions that exclude each other, such as networks of IPv4 and `ipVersion: 6`."
            }
            Self::PolicyShadowed => "Give the policy a lower order or an earlier tier, or remove it.",
            Self::RuleShadowed => "Move the rule before those that decide, or remove it.",
            Self::OverBudget => {
                "Split or merge rules, or raise the parameter of the bound: `PolicyTableGroupMemoryMB` or `PolicyTableNodeMemoryMB` for bytes, `BPFMaxBlocks` for blocks."
            }
            Self::ServiceAbsent => {
                "Correct the name, or apply the Service as well; until then the rule matches nothing."
            }
            Self::ProfileAbsent => "Apply the profile, or the namespace or service account that it stands for.",
            Self::TierAbsent => "Apply the tier as well; until then the policy is not in force.",
            Self::HostEndpointWithoutPolicy => {
                "Apply a policy that selects the host endpoint, with rules for both directions, before it."
            }
            Self::ParameterOverruled => {
                "Remove the parameter, or the one that leaves it nothing to do: the warning names both."
            }
            Self::HostBits => {
                "Write the network by its first address: `10.0.0.0/8` for `10.0.0.1/8`, or `10.0.0.1/32` if one address is meant."
            }
            Self::NamespaceOmitted => "Write `metadata.namespace`.",
            Self::Template => "Render the template before, and check what comes of it.",
            Self::DeprecatedVersion => "Write the `apiVersion` that the warning names.",
            Self::Other => "See what the warning says.",
        }
    }
}

impl fmt::Display for Lint {
    /// As `--allow` takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = clap::ValueEnum::to_possible_value(self);
        f.write_str(value.as_ref().map_or("other", |value| value.get_name()))
    }
}

impl From<tortie_resources::Lint> for Lint {
    fn from(lint: tortie_resources::Lint) -> Self {
        match lint {
            tortie_resources::Lint::HostBits => Self::HostBits,
            tortie_resources::Lint::NamespaceOmitted => Self::NamespaceOmitted,
            tortie_resources::Lint::Template => Self::Template,
            tortie_resources::Lint::DeprecatedVersion => Self::DeprecatedVersion,
            _ => Self::Other,
        }
    }
}
