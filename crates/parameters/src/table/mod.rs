//! All parameters: those of Felix with type and default of its struct tags
//! (`felix/config/config_params.go`), and Tortie's own.

mod dns;
mod ebpf;
mod netfilter;
mod process;
mod routing;

use std::sync::LazyLock;

use crate::{FieldForm, Parameter, Treatment};

const AWS: &str = "settings of cloud machines are not changed";
const EBPF: &str = "eBPF programs enforce policy only, at netfilter hooks; services, connections, routes and reverse path checks \
                    are left to the kernel and kube-proxy";
const FLAGS: &str = "replaced by `--datastore` and `--dataplane`";
const TRACE: &str = "the flow collector has no debug trace";
const GATES: &str = "no gated feature exists";
const GO: &str = "no Go runtime";
const OPENSTACK: &str = "workloads have no metadata service";
const SOCKMAP: &str = "no acceleration of sidecars";
const USAGE: &str = "no usage reports are sent";
const WINDOWS: &str = "for Windows";
const XDP: &str = "no XDP";

static PARAMETERS: LazyLock<Vec<Parameter>> = LazyLock::new(|| {
    let mut all =
        [dns::PARAMETERS, ebpf::PARAMETERS, netfilter::PARAMETERS, process::PARAMETERS, routing::PARAMETERS].concat();
    all.sort_by_key(|parameter| parameter.name.to_ascii_lowercase());
    all
});

/// Returns all parameters, by name.
#[must_use]
pub fn parameters() -> &'static [Parameter] {
    &PARAMETERS
}

/// Returns the parameter of this name, in any case.
#[must_use]
pub fn find(name: &str) -> Option<&'static Parameter> {
    parameters().iter().find(|parameter| parameter.name.eq_ignore_ascii_case(name))
}

/// Returns the parameter that a field of `FelixConfiguration` sets, and the form of the field.
#[must_use]
pub fn of_field(name: &str) -> Option<(&'static Parameter, FieldForm)> {
    parameters().iter().find_map(|parameter| {
        let field = parameter.field.filter(|field| field.name == name)?;
        Some((parameter, field.form))
    })
}

/// Returns the table as the documentation has it.
#[must_use]
pub fn markdown() -> String {
    let mut text = String::from(HEADING);
    let mut notes = Footnotes::new();
    for Parameter { name, kind, default, field, treatment, .. } in parameters() {
        let cell = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) };
        let does = match treatment {
            Treatment::Used(does) | Treatment::Connection(does) | Treatment::OfNodes(does) => (*does).to_owned(),
            Treatment::Own(does) => format!("Tortie's own: {does}"),
            Treatment::Description => "describes the cluster".to_owned(),
            Treatment::NotUsed(why) => format!("no effect{}", notes.reference(why)),
        };
        let field = field.map_or("", |field| field.name);
        let variable = format!("`FELIX_{}`", name.to_ascii_uppercase());
        text += &format!("| {name} | {variable} | {} | {} | {} | {does} |\n", cell(field), cell(kind), cell(default));
    }
    text + &notes.text()
}

/// Reasons below the table, each once and with a number.
struct Footnotes {
    reasons: Vec<&'static str>,
}

impl Footnotes {
    const fn new() -> Self {
        Self { reasons: Vec::new() }
    }

    fn reference(&mut self, reason: &'static str) -> String {
        let index = self.reasons.iter().position(|known| *known == reason).unwrap_or_else(|| {
            self.reasons.push(reason);
            self.reasons.len() - 1
        });
        format!("[^{}]", index + 1)
    }

    fn text(&self) -> String {
        (1..).zip(&self.reasons).map(|(number, reason)| format!("\n[^{number}]: {reason}\n")).collect()
    }
}

const HEADING: &str = "\
# Parameters

Felix's parameters and their effect in Tortie. The first column is the name in a configuration file, the second the environment
variable, in any case. The third is the field of `FelixConfiguration`, empty if no field sets the parameter. Type and default are
in the notation of Felix's source; it lacks the parameters that are marked as Tortie's own. A warning names each parameter
without effect that is set to another value than its default, with the reason, which is a footnote here.

`cargo xtask parameters` writes this table from `crates/parameters/src/table`; `tortie parameters` prints it.

| parameter | variable | field | type | default | effect |
|---|---|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BadValue;

    #[test]
    fn each_parameter_and_each_field_is_listed_once() {
        assert_eq!(parameters().iter().filter(|one| !matches!(one.treatment, Treatment::Own(_))).count(), 227);
        assert!(parameters().is_sorted_by(|a, b| a.name.to_ascii_lowercase() < b.name.to_ascii_lowercase()));
        let mut fields: Vec<&str> = parameters().iter().filter_map(|one| Some(one.field?.name)).collect();
        assert_eq!(fields.len(), 219);
        fields.sort_unstable();
        assert!(fields.is_sorted_by(|a, b| a < b));
    }

    fn names(has: fn(&Parameter) -> bool) -> Vec<&'static str> {
        parameters().iter().filter(|one| has(one)).map(|one| one.name).collect()
    }

    /// As the flags `local`, `non-zero` and `die-on-fail` of Felix's struct tags say.
    #[test]
    fn flags_are_those_of_felix() {
        let local = "DatastoreType DebugBPFCgroupV2 EtcdAddr EtcdCaFile EtcdCertFile EtcdEndpoints EtcdKeyFile EtcdScheme \
                     FelixHostname TyphaAddr TyphaCAFile TyphaCertFile TyphaCN TyphaK8sNamespace TyphaK8sServiceName \
                     TyphaKeyFile TyphaReadTimeout TyphaURISAN TyphaWriteTimeout";
        assert_eq!(names(|one| one.is_local).join(" "), local);
        let fatal = "ChainInsertMode DataplaneDriver DatastoreType DefaultEndpointToHostAction ExternalNodesCIDRList \
                     FailsafeInboundHostPorts FailsafeOutboundHostPorts InterfacePrefix IptablesFilterAllowAction \
                     IptablesFilterDenyAction IptablesMangleAllowAction IptablesMarkMask LogFilePath MetadataAddr MetadataPort \
                     NftablesFilterAllowAction NftablesFilterDenyAction NftablesMangleAllowAction NftablesMarkMask \
                     OpenstackRegion RouteTableRange RouteTableRanges";
        assert_eq!(names(|one| one.bad_value == BadValue::Fatal).join(" "), fatal);
        let not_none = "AWSSrcDstCheck BPFAttachType BPFConnectTimeLoadBalancing BPFConntrackLogLevel BPFEnforceRPF \
                        BPFExportBufferSizeMB BPFExternalServiceMode BPFHostNetworkedNATWithoutCTLB BPFJITHardening \
                        BPFLogLevel BPFMapSizeConntrack BPFMapSizeConntrackCleanupQueue BPFMapSizeConntrackScaling \
                        BPFMapSizeIfState BPFMapSizeIPSets BPFMapSizeNATAffinity BPFMapSizeNATBackend \
                        BPFMapSizeNATFrontend BPFMapSizeRoute BPFOverlayHostSourceIP BPFProfiling BPFRedirectToPeer \
                        ChainInsertMode DataplaneDriver DatastoreType DefaultEndpointToHostAction FelixHostname \
                        InterfacePrefix IptablesFilterAllowAction IptablesFilterDenyAction IptablesMangleAllowAction \
                        IptablesMarkMask MaxIpsetSize NftablesFilterAllowAction NftablesFilterDenyAction \
                        NftablesMangleAllowAction NftablesMarkMask TyphaK8sNamespace WireguardInterfaceName \
                        WireguardInterfaceNameV6";
        let is_of_felix = |one: &Parameter| one.refuses_none && !matches!(one.treatment, Treatment::Own(_));
        assert_eq!(names(is_of_felix).join(" "), not_none);
    }

    #[test]
    fn effects_are_phrases_that_fit_a_table() {
        for parameter in parameters() {
            let (Treatment::Used(text)
            | Treatment::Own(text)
            | Treatment::Connection(text)
            | Treatment::OfNodes(text)
            | Treatment::NotUsed(text)) = parameter.treatment
            else {
                assert_eq!(parameter.treatment, Treatment::Description);
                continue;
            };
            assert!(!text.is_empty() && !text.ends_with('.') && !text.contains('|'), "{}", parameter.name);
        }
    }

    #[test]
    fn a_row_has_the_variable_and_the_field_or_an_empty_cell() {
        let table = markdown();
        for row in [
            "| HealthPort | `FELIX_HEALTHPORT` | `healthPort` | `int(0:65535)` | `9099` | ",
            "| CalicoVersion | `FELIX_CALICOVERSION` |  | `string` |  | ",
        ] {
            assert!(table.lines().any(|line| line.starts_with(row)), "{row}");
        }
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(rows.len(), parameters().len() + 2);
        assert!(rows.iter().all(|row| row.replace("\\|", "").matches('|').count() == 7));
    }

    #[test]
    fn the_documentation_has_this_table() {
        let documented = include_str!("../../../../docs/parameters.md");
        assert!(documented == markdown(), "docs/parameters.md is out of date: run `cargo xtask parameters`");
    }
}
