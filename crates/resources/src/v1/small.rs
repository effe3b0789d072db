//! IP pools and `WireGuard` keys.

use tortie_model::{Cidr, EncapMode, Family, IpPool, Wireguard};

use crate::scalar;
use crate::tree::{Map, Sink};

pub(super) fn ip_pool(key: Cidr, map: Map<'_, '_>, sink: &mut Sink) -> IpPool {
    let mut mode = |name: &str| {
        let Some(field) = map.field(name) else { return EncapMode::Never };
        match field.text(sink) {
            Some("always") => EncapMode::Always,
            Some("cross-subnet") => EncapMode::CrossSubnet,
            Some("") | None => EncapMode::Never,
            Some(other) => {
                field.error(sink, format!("`{other}` is neither always nor cross-subnet"));
                EncapMode::Never
            }
        }
    };
    IpPool {
        ipip_mode: mode("ipip_mode"),
        vxlan_mode: mode("vxlan_mode"),
        cidr: map.field("cidr").and_then(|cidr| scalar::cidr(cidr, sink)).unwrap_or(key),
        masquerade: map.flag("masquerade", sink),
        disabled: map.flag("disabled", sink),
        allowed_uses: scalar::shared_texts(map, "allowed_uses", sink),
    }
}

pub(super) fn wireguard(map: Map<'_, '_>, sink: &mut Sink) -> Wireguard {
    let address = |family, name: &str, sink: &mut Sink| {
        let field = map.field(name)?;
        scalar::address_of(family, field, sink)
    };
    Wireguard {
        ipv4_address: address(Family::V4, "interfaceIPv4Addr", sink),
        ipv6_address: address(Family::V6, "interfaceIPv6Addr", sink),
        public_key: map.text_or_empty("publicKey", sink).into(),
        public_key_v6: map.text_or_empty("publicKeyV6", sink).into(),
    }
}
