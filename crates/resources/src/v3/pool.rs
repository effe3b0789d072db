//! IP pools.

use tortie_model::{Cidr, EncapMode, Family, IpPool, Update};

use crate::object::{Contributions, Object};
use crate::scalar;
use crate::tree::{Map, Sink};

const FIELDS: [&str; 11] = [
    "cidr",
    "vxlanMode",
    "ipipMode",
    "natOutgoing",
    "disabled",
    "disableBGPExport",
    "blockSize",
    "nodeSelector",
    "namespaceSelector",
    "allowedUses",
    "assignmentMode",
];

/// Converts an `IPPool`.
pub(crate) fn ip_pool(object: &Object<'_, '_>, sink: &mut Sink) -> Option<Contributions> {
    let spec = object.required_spec(sink)?;
    // Other releases have other fields; none of them restricts anything.
    spec.expect_only(&FIELDS, sink);
    let Some(cidr_field) = spec.field("cidr") else {
        spec.missing("cidr", sink);
        return None;
    };
    let cidr = scalar::cidr(cidr_field, sink)?;
    if cidr != cidr.masked() {
        cidr_field.error(sink, format!("`{cidr}` has host bits; the network is {}", cidr.masked()));
    }
    let link_local = link_local(cidr.family());
    if link_local.contains(cidr.address()) || cidr.contains(link_local.address()) {
        cidr_field.error(sink, "overlaps the link-local addresses");
    }
    let (ipip_mode, vxlan_mode) = (mode(spec, "ipipMode", sink), mode(spec, "vxlanMode", sink));
    if ipip_mode != EncapMode::Never && vxlan_mode != EncapMode::Never {
        spec.error(sink, "cannot use both IP-in-IP and VXLAN");
    }
    if ipip_mode != EncapMode::Never && cidr.family() == Family::V6 {
        spec.error(sink, "IP-in-IP is for IPv4 only");
    }
    check_block_size(spec, cidr, sink);
    let uses = spec.list("allowedUses", sink, |word, sink| {
        let text = word.text(sink)?;
        if !matches!(text, "Workload" | "Tunnel" | "LoadBalancer") {
            word.error(sink, format!("`{text}` is none of Workload, Tunnel, LoadBalancer"));
        }
        Some(std::sync::Arc::<str>::from(text))
    });
    if uses.len() > 1 && uses.iter().any(|word| &**word == "LoadBalancer") {
        spec.error(sink, "allowedUses: LoadBalancer cannot be combined with other uses");
    }
    for name in ["nodeSelector", "namespaceSelector"] {
        if let Some(field) = spec.field(name) {
            scalar::selector(field, sink);
        }
    }
    spec.flag("disableBGPExport", sink);
    let pool = IpPool {
        cidr: cidr.masked(),
        ipip_mode,
        vxlan_mode,
        masquerade: spec.flag("natOutgoing", sink),
        disabled: spec.flag("disabled", sink),
        allowed_uses: uses.into(),
    };
    Some(vec![Update::IpPool(cidr.masked(), Some(pool.into()))])
}

fn check_block_size(spec: Map<'_, '_>, cidr: Cidr, sink: &mut Sink) {
    if let Some(field) = spec.field("blockSize") {
        let (min, max) = match cidr.family() {
            Family::V4 => (20, 32),
            Family::V6 => (116, 128),
        };
        let size: Option<u8> = field.int(min, max, sink);
        if size.is_some_and(|size| size < cidr.prefix_len()) {
            field.error(sink, format!("is larger than the pool {cidr}"));
        }
    }
}

fn mode(spec: Map<'_, '_>, name: &str, sink: &mut Sink) -> EncapMode {
    let Some(field) = spec.field(name) else { return EncapMode::Never };
    let mode = match field.text(sink) {
        Some("Always") => EncapMode::Always,
        Some("CrossSubnet") => EncapMode::CrossSubnet,
        Some("Never" | "") | None => EncapMode::Never,
        Some(other) => {
            field.error(sink, format!("`{other}` is none of Always, CrossSubnet, Never"));
            EncapMode::Never
        }
    };
    if mode != EncapMode::Never && name == "ipipMode" {
        field.warn(sink, "is done as Felix does it, but was never tested on a kernel that has IP-in-IP");
    }
    mode
}

#[expect(clippy::expect_used, reason = "the networks are constants")]
fn link_local(family: Family) -> Cidr {
    let net = match family {
        Family::V4 => "169.254.0.0/16",
        Family::V6 => "fe80::/10",
    };
    net.parse().expect("a network")
}
