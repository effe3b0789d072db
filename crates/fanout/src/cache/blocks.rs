//! What makes Felix program routes from blocks of addresses.

use tortie_model::{EncapMode, Key, Value};

/// How Felix writes "no" (`felix/config/param_types.go`).
const NO: [&str; 6] = ["", "false", "0", "no", "n", "f"];

/// Whether, where there is such an object, Felix programs routes between nodes from blocks of addresses
/// (`felix/calc/encapsulation_resolver.go`, `felix/calc/l3_route_resolver.go`): for tunnels, for `WireGuard`, in the eBPF
/// dataplane, and when it does the work of BGP.
pub(super) fn needs_blocks(key: &Key, value: &Value) -> bool {
    match (key, value) {
        (_, Value::IpPool(pool)) => [pool.ipip_mode, pool.vxlan_mode].iter().any(|mode| *mode != EncapMode::Never),
        (_, Value::Wireguard(wireguard)) => !(wireguard.public_key.is_empty() && wireguard.public_key_v6.is_empty()),
        (Key::GlobalConfig(name), Value::Config(text)) => parameter_needs_blocks(name.as_str(), text),
        (Key::HostConfig(key), Value::Config(text)) => parameter_needs_blocks(key.name.as_str(), text),
        (_, Value::ScopedConfig(config)) => {
            config.parameters.iter().any(|(name, text)| parameter_needs_blocks(name.as_str(), text))
        }
        _ => false,
    }
}

fn parameter_needs_blocks(name: &str, text: &str) -> bool {
    let text = text.trim().to_ascii_lowercase();
    match name.to_ascii_lowercase().as_str() {
        "ipinipenabled" | "vxlanenabled" | "wireguardenabled" | "wireguardenabledv6" | "bpfenabled" => {
            !NO.contains(&&*text)
        }
        "programclusterroutes" => matches!(&*text, "enabled" | "enablednoencaponly"),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
