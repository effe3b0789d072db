use std::collections::BTreeSet;

use rustix::io::Errno;
use tortie_dataplane::Links;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::*;
use crate::kernel::LinuxKernel;
use crate::netlink::Netlink;
use crate::netlink::wire;

const TIMEOUT: Duration = Duration::from_secs(10);
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_A_FEATURES_ACTIVE: u16 = 4;
const ETHTOOL_A_BITSET_BIT_VALUE: u16 = 3;

/// The values of all attributes of a kind.
fn all(attributes: &[u8], wanted: u16) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    wire::for_each_attribute("features", attributes, |kind, value| {
        if kind == wanted {
            found.push(value.to_vec());
        }
        Some(())
    })
    .unwrap();
    found
}

/// Returns the active features of a device.
fn active(interface: u32) -> BTreeSet<String> {
    let mut socket = Socket::open_generic(TIMEOUT).unwrap();
    let id = family(&mut socket, b"ethtool\0").unwrap();
    let device = attribute(ETHTOOL_A_HEADER_DEV_INDEX, &interface.to_ne_bytes());
    let request = [header(ETHTOOL_MSG_FEATURES_GET), nested(ETHTOOL_A_FEATURES_HEADER, &device)].concat();
    let answer =
        socket.query(id, &request, "features", |kind, payload| Ok((kind == id).then(|| payload.to_vec()))).unwrap();
    let set = all(&answer[GENL_HEADER_LEN..], ETHTOOL_A_FEATURES_ACTIVE).remove(0);
    let bits = all(&all(&set, ETHTOOL_A_BITSET_BITS).remove(0), ETHTOOL_A_BITSET_BITS_BIT);
    // A list without a mask has only the bits that are set.
    let is_on = |bit: &Vec<u8>| all(&set, 1).len() == 1 || !all(bit, ETHTOOL_A_BITSET_BIT_VALUE).is_empty();
    bits.iter().filter(|bit| is_on(bit)).map(|bit| wire::text(&all(bit, ETHTOOL_A_BITSET_BIT_NAME)[0])).collect()
}

kernel_test! {
    fn checksum_offload_of_tunnels_is_switched_off_and_stays_off() {
        let namespace = Namespace::new().unwrap();
        namespace
            .ip([
                "link add w0 type veth peer name w1",
                "link add vxlan.calico type vxlan id 4096 dstport 4789 dev w0",
                "link add vxlan-v6.calico type vxlan id 4096 dstport 4790 dev w0",
            ])
            .unwrap();
        namespace
            .run(|| {
                let mut netlink = Netlink::open(TIMEOUT).unwrap();
                let mut kernel = LinuxKernel::new(TIMEOUT);
                for name in ["vxlan.calico", "vxlan-v6.calico"] {
                    let index = netlink.device(name).unwrap().unwrap().index;
                    let checksums = |features: &BTreeSet<String>| {
                        features.iter().filter(|name| name.starts_with("tx-checksum")).cloned().collect::<Vec<_>>()
                    };
                    let before = active(index);
                    assert_ne!(checksums(&before), [""; 0], "{before:?}");
                    for _ in 0..2 {
                        kernel.disable_checksum_offload(index, name.parse().unwrap()).unwrap();
                        let after = active(index);
                        assert_eq!(checksums(&after), [""; 0], "{after:?}");
                        // The features for received packets do not change.
                        let rest = |features: &BTreeSet<String>| features.contains("rx-gro");
                        assert_eq!(rest(&before), rest(&after));
                    }
                }
                let gone = disable_checksum_offload(4_000_000, TIMEOUT).unwrap_err();
                assert_eq!(gone.errno(), Some(Errno::NODEV), "{gone}");
            })
            .unwrap();
    }
}
