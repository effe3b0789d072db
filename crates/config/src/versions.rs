//! Defaults that other versions of Calico have.
//!
//! A node that takes over from Calico must not write routes that BIRD writes, nor leave the packet
//! filter that Felix used. So a parameter without a value has the default of the cluster's version
//! of Calico, which `ClusterInformation` names (`spec.calicoVersion`).

/// Minor version of Calico, such as 3.33.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CalicoVersion(u32, u32);

impl CalicoVersion {
    /// Reads `v3.33.0`, also with a suffix such as `-0.dev-12`; `None` for other texts.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut numbers = text.trim().trim_start_matches('v').split('.');
        let major = numbers.next()?.parse().ok()?;
        let minor = numbers.next()?;
        let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
        Some(Self(major, minor.get(..digits)?.parse().ok()?))
    }
}

/// A default that Calico has changed.
pub(crate) struct FormerDefault {
    /// The parameter.
    pub(crate) name: &'static str,
    /// First version with the present default.
    changed_in: CalicoVersion,
    /// The default of earlier versions, or the behaviour of versions without the parameter.
    pub(crate) value: &'static str,
}

/// Parameter that decides whether BIRD or the agent programs routes to other nodes.
pub(crate) const CLUSTER_ROUTES: &str = "ProgramClusterRoutes";

/// Changes from 3.29 to 3.33 of parameters that have an effect here
/// (`felix/config/config_params.go`).
const FORMER_DEFAULTS: [FormerDefault; 4] = [
    FormerDefault { name: "EndpointStatusPathPrefix", changed_in: CalicoVersion(3, 30), value: "" },
    FormerDefault { name: "NFTablesMode", changed_in: CalicoVersion(3, 32), value: "Disabled" },
    FormerDefault { name: CLUSTER_ROUTES, changed_in: CalicoVersion(3, 33), value: "Disabled" },
    FormerDefault {
        name: "PrometheusMetricsClientAuth",
        changed_in: CalicoVersion(3, 33),
        value: "RequireAndVerifyClientCert",
    },
];

/// Basis for the defaults of parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Baseline {
    /// The cluster's version of Calico.
    Version(CalicoVersion),
    /// The version is unknown, and BIRD programs routes to other nodes.
    UnknownWithBird,
    /// The version is unknown.
    Unknown,
}

impl Baseline {
    /// Returns the defaults that hold in place of the present ones.
    pub(crate) fn former_defaults(self) -> impl Iterator<Item = &'static FormerDefault> {
        FORMER_DEFAULTS.iter().filter(move |default| match self {
            Self::Version(version) => version < default.changed_in,
            Self::UnknownWithBird => default.name == CLUSTER_ROUTES,
            Self::Unknown => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_with_and_without_suffix() {
        assert_eq!(CalicoVersion::read("v3.29.7"), Some(CalicoVersion(3, 29)));
        assert_eq!(CalicoVersion::read("3.33.0-0.dev-12-gabc"), Some(CalicoVersion(3, 33)));
        assert_eq!(CalicoVersion::read("v3.34-rc1"), Some(CalicoVersion(3, 34)));
        for text in ["", "master", "v3", "v3.", "latest.1", "v3.x"] {
            assert_eq!(CalicoVersion::read(text), None, "{text}");
        }
    }

    /// Defaults per version, as `felix/config/config_params.go` of each release has them. Versions
    /// without a parameter behave as listed: they program no routes between nodes by IP-in-IP, and
    /// do not serve metrics over TLS.
    #[test]
    fn each_version_has_the_defaults_of_its_release() {
        const FILES: &str = "/var/run/calico";
        const TABLE: [(&str, [&str; 6]); 4] = [
            ("EndpointStatusPathPrefix", ["", FILES, FILES, FILES, FILES, FILES]),
            ("NFTablesMode", ["Disabled", "Disabled", "Disabled", "Auto", "Auto", "Auto"]),
            (
                "ProgramClusterRoutes",
                ["Disabled", "Disabled", "Disabled", "Disabled", "EnabledIPIPOnly", "EnabledIPIPOnly"],
            ),
            (
                "PrometheusMetricsClientAuth",
                [
                    "RequireAndVerifyClientCert",
                    "RequireAndVerifyClientCert",
                    "RequireAndVerifyClientCert",
                    "RequireAndVerifyClientCert",
                    "NoClientCert",
                    "NoClientCert",
                ],
            ),
        ];
        for (name, values) in TABLE {
            for (minor, value) in (29..).zip(values) {
                let former =
                    Baseline::Version(CalicoVersion(3, minor)).former_defaults().find(|default| default.name == name);
                let present = tortie_parameters::find(name).expect("a parameter of Felix").default;
                assert_eq!(former.map_or(present, |former| former.value), value, "{name} of 3.{minor}");
            }
        }
    }

    #[test]
    fn the_documentation_has_the_defaults_of_each_version() {
        let cell = |value: &str| if value.is_empty() { " none |".to_owned() } else { format!(" `{value}` |") };
        let rows = FORMER_DEFAULTS.iter().map(|FormerDefault { name, .. }| {
            let present = tortie_parameters::find(name).expect("a parameter of Felix").default;
            let of_version = |minor| {
                let former =
                    Baseline::Version(CalicoVersion(3, minor)).former_defaults().find(|default| default.name == *name);
                cell(former.map_or(present, |former| former.value))
            };
            format!("| `{name}` |{}\n", (29..=34).map(of_version).collect::<String>())
        });
        let table = format!(
            "| Parameter | 3.29 | 3.30 | 3.31 | 3.32 | 3.33 | 3.34 |\n|---|---|---|---|---|---|---|\n{}",
            rows.collect::<String>()
        );
        let documented = include_str!("../../../docs/book/src/reference/differences.md");
        assert!(documented.contains(&table), "differences.md lacks this table:\n{table}");
    }
}
