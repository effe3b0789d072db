use tortie_model::desired::Encapsulation;
use tortie_model::{Cidr, EncapMode, Hostname, IpPool};

use super::EncapsulationResolver;
use crate::GraphConfig;
use crate::sequencer::Sequencer;

fn pool(cidr: &str, ipip_mode: EncapMode, vxlan_mode: EncapMode) -> (Cidr, IpPool) {
    let cidr: Cidr = cidr.parse().unwrap();
    (cidr, IpPool { cidr, ipip_mode, vxlan_mode, masquerade: false, disabled: false, allowed_uses: [].into() })
}

#[test]
fn families_are_distinguished_and_overrides_win() {
    let config = GraphConfig { ipip_enabled: Some(true), ..GraphConfig::new(Hostname::new("node")) };
    let mut resolver = EncapsulationResolver::new(&config);
    let mut sequencer = Sequencer::default();
    let (cidr, v6) = pool("fd00::/64", EncapMode::Never, EncapMode::CrossSubnet);
    resolver.on_pool(cidr, Some(&v6));
    resolver.flush(&mut sequencer);
    let expected = Encapsulation { ipip: true, vxlan: false, vxlan_v6: true, no_encap: false };
    assert_eq!(sequencer.encapsulation.take(), Some(expected));
    resolver.flush(&mut sequencer);
    assert_eq!(sequencer.encapsulation.take(), None);
    resolver.on_pool(cidr, None);
    assert!(resolver.is_empty());
    resolver.flush(&mut sequencer);
    assert_eq!(sequencer.encapsulation.take(), Some(Encapsulation { ipip: true, ..Encapsulation::default() }));
}
