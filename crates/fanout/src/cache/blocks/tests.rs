use std::sync::Arc;

use tortie_model::{HostConfigKey, IpPool, ScopedConfig, Wireguard};

use super::*;

fn pool(ipip_mode: EncapMode, vxlan_mode: EncapMode) -> bool {
    let cidr = "10.0.0.0/8".parse().unwrap();
    let pool = IpPool { cidr, ipip_mode, vxlan_mode, masquerade: true, allowed_uses: Box::default() };
    needs_blocks(&Key::IpPool(cidr), &Value::IpPool(Arc::new(pool)))
}

#[test]
fn pools_with_tunnels() {
    assert!(!pool(EncapMode::Never, EncapMode::Never));
    for mode in [EncapMode::Always, EncapMode::CrossSubnet] {
        assert!(pool(mode, EncapMode::Never));
        assert!(pool(EncapMode::Never, mode));
    }
}

#[test]
fn keys_of_wireguard() {
    let key = |wireguard| needs_blocks(&Key::Wireguard("n".into()), &Value::Wireguard(Arc::new(wireguard)));
    assert!(!key(Wireguard::default()));
    assert!(key(Wireguard { public_key: "k".into(), ..Wireguard::default() }));
    assert!(key(Wireguard { public_key_v6: "k".into(), ..Wireguard::default() }));
}

#[test]
fn parameters() {
    for (name, text, needs) in [
        ("BPFEnabled", "true", true),
        ("BPFEnabled", "false", false),
        ("WireguardEnabledV6", "1", true),
        ("IpInIpEnabled", "False", false),
        ("VXLANEnabled", "yes", true),
        ("ProgramClusterRoutes", "Enabled", true),
        ("ProgramClusterRoutes", "EnabledNoEncapOnly", true),
        ("ProgramClusterRoutes", "EnabledIPIPOnly", false),
        ("ProgramClusterRoutes", "Disabled", false),
        ("LogSeverityScreen", "true", false),
    ] {
        let text: Arc<str> = text.into();
        let value = Value::Config(Arc::clone(&text));
        assert_eq!(needs_blocks(&Key::GlobalConfig(name.into()), &value), needs, "{name}={text}");
        let key = HostConfigKey { host: "n".into(), name: name.into() };
        assert_eq!(needs_blocks(&Key::HostConfig(key), &value), needs, "{name}={text}");
        let scoped = ScopedConfig {
            selector: "all()".parse().unwrap(),
            created: 0,
            parameters: Box::new([("FloatingIPs".into(), "x".into()), (name.into(), text)]),
        };
        assert_eq!(needs_blocks(&Key::ScopedConfig("c".into()), &Value::ScopedConfig(Arc::new(scoped))), needs);
    }
}
