//! `WireGuard` devices of the fake kernel.

use super::FakeKernel;
use crate::kernel_error::KernelError;
use crate::wireguard_device::{DevicePeer, PeerChange, WireguardChange, WireguardDevice, WireguardKey};

impl FakeKernel {
    pub(super) fn read_wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError> {
        self.list()?;
        self.links.wireguards.get(&interface).cloned().ok_or(KernelError::NotFound)
    }

    pub(super) fn write_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError> {
        self.writes.peers += change.peers.len();
        self.writes.devices += 1;
        if self.links.wireguards_fail {
            return Err(KernelError::Failed("Operation not permitted".into()));
        }
        let device = self.links.wireguards.get_mut(&interface).ok_or(KernelError::NotFound)?;
        if change.new_key {
            let mut key = [0xfe; 32];
            if let Some(first) = key.first_chunk_mut() {
                *first = interface.to_be_bytes();
            }
            device.public_key = Some(WireguardKey(key));
        }
        device.port = change.port.unwrap_or(device.port);
        device.mark = change.mark.unwrap_or(device.mark);
        for peer in &change.peers {
            change_peer(device, peer);
        }
        Ok(())
    }
}

fn change_peer(device: &mut WireguardDevice, change: &PeerChange) {
    let (key, added) = match change {
        PeerChange::Remove(key) => {
            device.peers.remove(key);
            return;
        }
        PeerChange::Replace(key, peer) => {
            let old = device.peers.remove(key).unwrap_or_default();
            let endpoint = peer.endpoint.or(old.endpoint);
            device.peers.insert(*key, DevicePeer { endpoint, ..peer.clone() });
            (key, peer.allowed.iter().copied().collect())
        }
        PeerChange::Update { key, endpoint, keep_alive, added } => {
            let Some(peer) = device.peers.get_mut(key) else { return };
            peer.endpoint = endpoint.or(peer.endpoint);
            peer.keep_alive = *keep_alive;
            peer.allowed.extend(added);
            (key, added.clone())
        }
    };
    for (_, other) in device.peers.iter_mut().filter(|(other, _)| *other != key) {
        added.iter().for_each(|net| {
            other.allowed.remove(net);
        });
    }
}
