use std::fmt;

use tortie_datastore::{Fallback, InputProblem};
use tortie_resources::{FieldProblem, Position, Severity};

use super::super::origin::Origin;

/// Kind of warning: a valid object that is probably a mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lint {
    /// The selector of a policy matches no endpoint.
    SelectsNothing,
    /// The selector or service of a rule matches nothing among the manifests.
    RuleSelectsNothing,
    /// No packet can match a rule.
    RuleNeverMatches,
    /// Other policies decide all packets that a policy could decide.
    PolicyShadowed,
    /// Other rules decide all packets that a rule matches.
    RuleShadowed,
    /// The rules or networks of a policy exceed a bound of eBPF tables, or of layouts of
    /// `NFTablesLayout=Fast`.
    OverBudget,
    /// A rule names a service that is not among the manifests.
    ServiceAbsent,
    /// An endpoint names a profile that is not among the manifests: traffic that no policy decides
    /// is denied.
    ProfileAbsent,
    /// A policy is in a tier that is not among the manifests.
    TierAbsent,
    /// A host endpoint has no policy and no profile: traffic except that of failsafe ports is
    /// denied.
    HostEndpointWithoutPolicy,
    /// Another host endpoint, the first by name, has the same interface.
    HostEndpointOfSameInterface,
    /// Untracked policy selects a host endpoint of all interfaces, for which it is not enforced.
    UntrackedForAllInterfaces,
    /// An endpoint has rules by domain name, and may not reach a trusted DNS server.
    DnsServerUnreachable,
    /// An endpoint may send packets with the address of a trusted DNS server.
    DnsServerForgeable,
    /// A rule by domain name has the name of a Service, which has a cluster address.
    DomainOfService,
    /// A rule by domain name has all names of a top-level domain.
    DomainTopLevel,
    /// A rule allows DNS over TLS, whose answers open no address.
    EncryptedDns,
    /// A parameter has no effect beside another one.
    ParameterOverruled,
    /// A network has host bits set.
    HostBits,
    /// An object names no namespace and belongs to `default`.
    NamespaceOmitted,
    /// A value looks like the placeholder of a template.
    Template,
    /// A deprecated apiVersion.
    DeprecatedVersion,
    /// Objects of kinds for other programs, which are counted in one line.
    UnusedKind,
    /// A warning of a newer library.
    Other,
}

impl Lint {
    /// Returns the recommended action.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::SelectsNothing => {
                "Compare the selector with the labels of endpoints: `tortie show pods SELECTOR`. Remove the policy if it is no longer needed."
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
            Self::HostEndpointOfSameInterface => {
                "Remove one of the host endpoints, or merge their labels and profiles: only the first by name is enforced."
            }
            Self::UntrackedForAllInterfaces => {
                "Name the interface in a separate host endpoint, or write the policy without `doNotTrack`."
            }
            Self::DnsServerUnreachable => {
                "Allow UDP and TCP to the DNS servers of the endpoint in a rule of its egress policy, and name them in `DNSTrustedServers`."
            }
            Self::DnsServerForgeable => {
                "Shorten the list of `cni.projectcalico.org/allowedSourcePrefixes`, or remove the server from `DNSTrustedServers`."
            }
            Self::DomainOfService => "Select the pods of the Service, or name it in `destination.services`.",
            Self::DomainTopLevel => "Write the domains that are needed.",
            Self::EncryptedDns => "Have clients use DNS without encryption to a trusted server, and remove the port.",
            Self::ParameterOverruled => {
                "Remove the parameter, or the one that makes it ineffective: the warning names both."
            }
            Self::HostBits => {
                "Write the network by its first address: `10.0.0.0/8` for `10.0.0.1/8`, or `10.0.0.1/32` if one address is meant."
            }
            Self::NamespaceOmitted => "Write `metadata.namespace`.",
            Self::Template => "Render the template first, and check the result.",
            Self::DeprecatedVersion => "Write the `apiVersion` that the warning names.",
            Self::UnusedKind => "Nothing: Tortie has no use for the kind.",
            Self::Other => "See the text of the warning.",
        }
    }
}

impl fmt::Display for Lint {
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
            tortie_resources::Lint::UnusedKind => Self::UnusedKind,
            _ => Self::Other,
        }
    }
}

/// Returns `None` for an object that is neither in a file nor in the datastore: the substitute for
/// an invalid policy, or a built-in object.
pub(super) fn warn(
    lint: Lint,
    subject: String,
    origin: Option<Origin<'_>>,
    text: String,
) -> Option<(Lint, InputProblem)> {
    let origin = origin?;
    let position = if let Origin::InFile { position, .. } = origin { position } else { Position::default() };
    let problem = FieldProblem::new(Severity::Warning, position, "", text);
    let problem = InputProblem::new(subject, problem, Fallback::NotNeeded);
    Some((lint, if let Origin::InFile { file, .. } = origin { problem.in_file(file) } else { problem }))
}
