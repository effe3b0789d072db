//! All parameters: those of Felix with type and default of its struct tags (`felix/config/config_params.go`), and Tortie's own.

mod ebpf;
mod netfilter;
mod process;
mod routing;

use std::sync::LazyLock;

use crate::{FieldForm, Parameter, Treatment};

const AWS: &str = "settings of cloud machines are left to their owner";
const EBPF: &str = "eBPF programs decide by policy and do nothing else, at hooks of netfilter; services, connections, routes and \
                    checks of reverse paths are the kernel's and kube-proxy's";
const FLAGS: &str = "`--datastore` and `--dataplane` say it";
const TRACE: &str = "there is no log of each step of the collector";
const GATES: &str = "none of the features behind gates is there";
const GO: &str = "there is no Go runtime";
const OPENSTACK: &str = "there is no metadata service to let workloads reach";
const SOCKMAP: &str = "there is no acceleration of sidecars";
const USAGE: &str = "nothing that is known of a cluster is sent to anybody outside of it";
const WINDOWS: &str = "for Windows";
const XDP: &str = "there is no XDP";

static PARAMETERS: LazyLock<Vec<Parameter>> = LazyLock::new(|| {
    let mut all = [ebpf::PARAMETERS, netfilter::PARAMETERS, process::PARAMETERS, routing::PARAMETERS].concat();
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
    for Parameter { name, kind, default, treatment, .. } in parameters() {
        let cell = |text: &str| if text.is_empty() { String::new() } else { format!("`{}`", text.replace('|', "\\|")) };
        let does = match treatment {
            Treatment::Used(does) | Treatment::Connection(does) | Treatment::OfNodes(does) => (*does).to_owned(),
            Treatment::Own(does) => format!("Tortie's own: {does}"),
            Treatment::Description => "describes the cluster".to_owned(),
            Treatment::NotUsed(why) => format!("nothing: {why}"),
        };
        text += &format!("| {name} | {} | {} | {does} |\n", cell(kind), cell(default));
    }
    text
}

const HEADING: &str = "\
# Parameters

Felix's parameters, and what each does here. The first column is the name in a configuration file; `FELIX_` before it makes the
name of an environment variable. Type and default are written as in the original's source, which does not have those that are
said to be Tortie's own. A parameter that does nothing is
named in a warning with the reason, when it is set to something other than its default that asks for something.

This table is written by `cargo xtask parameters` from `crates/parameters/src/table`; `tortie parameters` prints it.

| parameter | type | default | what it does |
|---|---|---|---|
";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BadValue;

    #[test]
    fn each_parameter_and_each_field_is_there_once() {
        assert_eq!(parameters().iter().filter(|one| !matches!(one.treatment, Treatment::Own(_))).count(), 218);
        assert!(parameters().is_sorted_by(|a, b| a.name.to_ascii_lowercase() < b.name.to_ascii_lowercase()));
        let mut fields: Vec<&str> = parameters().iter().filter_map(|one| Some(one.field?.name)).collect();
        assert_eq!(fields.len(), 193);
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
    fn the_documentation_has_this_table() {
        let documented = include_str!("../../../../docs/parameters.md");
        assert!(documented == markdown(), "docs/parameters.md is out of date: run `cargo xtask parameters`");
    }
}
