//! What is valid and seldom meant.

use std::fmt;

/// Something that is valid and that few people mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Lint {
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
