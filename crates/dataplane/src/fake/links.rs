//! Devices of the fake kernel.

use std::collections::{BTreeMap, BTreeSet};

use tortie_model::{Cidr, Family, InterfaceName};

use super::FakeKernel;
use crate::device::{Device, DeviceChange, DeviceKind};
use crate::kernel::Links;
use crate::kernel_error::KernelError;
use crate::qdisc::{Qdisc, QdiscChange, QdiscKind};
use crate::wireguard_device::{WireguardChange, WireguardDevice};

/// Devices and their queueing disciplines.
#[derive(Clone, Debug, Default)]
pub struct FakeLinks {
    /// Devices by name, with their addresses; devices that only appear in events are left out.
    pub devices: BTreeMap<String, (Device, BTreeSet<Cidr>)>,
    /// `WireGuard` devices, by their index.
    pub wireguards: BTreeMap<u32, WireguardDevice>,
    /// Whether changes of `WireGuard` devices fail.
    pub wireguards_fail: bool,
    /// Whether the kernel lacks `WireGuard`.
    pub lacks_wireguard: bool,
    /// Whether threaded NAPI is enabled, by the name of the device.
    pub threaded: BTreeMap<String, bool>,
    /// Devices that cannot be created or changed, by name.
    pub broken_devices: BTreeSet<String>,
    /// Whether changes of checksum offload fail.
    pub broken_offload: bool,
    /// Devices without checksum offload, by their name.
    pub without_checksum_offload: BTreeSet<String>,
    /// Queueing disciplines, except the kernel's defaults.
    pub qdiscs: Vec<Qdisc>,
    /// Targets of ingress filters that redirect packets, by the index of the interface; `None` for
    /// other filters.
    pub redirections: BTreeMap<u32, Vec<Option<u32>>>,
    pub(super) removed: BTreeSet<u32>,
    pub(super) next_index: u32,
}

impl Links for FakeKernel {
    fn device(&mut self, name: &str) -> Result<Option<Device>, KernelError> {
        Ok(self.links.devices.get(name).map(|(device, _)| device.clone()))
    }

    fn addresses(&mut self, interface: u32, family: Family) -> Result<Vec<Cidr>, KernelError> {
        self.list()?;
        let device = self.links.devices.values().find(|(device, _)| device.index == interface);
        let addresses = device.into_iter().flat_map(|(_, addresses)| addresses);
        Ok(addresses.copied().filter(|address| address.family() == family).collect())
    }

    fn change_device(&mut self, change: &DeviceChange) -> Result<(), KernelError> {
        self.writes.devices += 1;
        let index = match change {
            DeviceChange::Create { name, mac, kind } => {
                if self.links.devices.contains_key(name.as_str()) {
                    return Err(KernelError::Exists);
                }
                if self.links.broken_devices.contains(name.as_str()) {
                    return Err(KernelError::Failed("Operation not supported".into()));
                }
                let is_wireguard = *kind == DeviceKind::Other("wireguard".to_owned());
                if is_wireguard && self.links.lacks_wireguard {
                    return Err(KernelError::Unsupported);
                }
                self.links.next_index += 1;
                let index = self.links.next_index;
                if is_wireguard {
                    self.links.wireguards.insert(index, WireguardDevice::default());
                }
                let device = Device { index, mac: *mac, mtu: 1500, is_up: false, kind: kind.clone() };
                self.links.devices.insert(name.as_str().to_owned(), (device, BTreeSet::new()));
                return Ok(());
            }
            DeviceChange::Delete(index) => return self.remove_device(*index).ok_or(KernelError::NotFound),
            DeviceChange::SetMtu(index, _)
            | DeviceChange::SetUp(index)
            | DeviceChange::AddAddress(index, _)
            | DeviceChange::AddLinkAddress(index, _)
            | DeviceChange::DeleteAddress(index, _) => *index,
        };
        let found = self.links.devices.iter_mut().find(|(_, (device, _))| device.index == index);
        let Some((name, (device, addresses))) = found else { return Err(KernelError::NotFound) };
        if self.links.broken_devices.contains(name) {
            return Err(KernelError::Failed("Operation not supported".into()));
        }
        let is_done = match change {
            DeviceChange::SetMtu(_, mtu) => {
                device.mtu = *mtu;
                true
            }
            DeviceChange::SetUp(_) => {
                device.is_up = true;
                true
            }
            DeviceChange::AddAddress(_, address) | DeviceChange::AddLinkAddress(_, address) => {
                if !addresses.insert(*address) {
                    return Err(KernelError::Exists);
                }
                true
            }
            DeviceChange::DeleteAddress(_, address) => addresses.remove(address),
            DeviceChange::Create { .. } | DeviceChange::Delete(_) => true,
        };
        if is_done { Ok(()) } else { Err(KernelError::NotFound) }
    }

    fn disable_checksum_offload(&mut self, interface: u32, name: InterfaceName) -> Result<(), KernelError> {
        match self.links.devices.get(name.as_str()) {
            Some((device, _)) if device.index == interface && !self.links.broken_offload => {
                self.links.without_checksum_offload.insert(name.as_str().to_owned());
                Ok(())
            }
            Some(_) => Err(KernelError::Failed("No such file or directory".into())),
            None => Err(KernelError::NotFound),
        }
    }

    fn set_threaded(&mut self, device: InterfaceName, is_threaded: bool) -> Result<(), KernelError> {
        if !self.links.devices.contains_key(device.as_str()) {
            return Err(KernelError::NotFound);
        }
        self.writes.devices += usize::from(self.links.threaded.get(device.as_str()) != Some(&is_threaded));
        self.links.threaded.insert(device.as_str().to_owned(), is_threaded);
        Ok(())
    }

    fn qdiscs(&mut self) -> Result<Vec<Qdisc>, KernelError> {
        Ok(self.links.qdiscs.clone())
    }

    fn change_qdisc(&mut self, change: &QdiscChange) -> Result<(), KernelError> {
        let is_of =
            |index: u32, is_root: bool| move |qdisc: &Qdisc| qdisc.interface == index && qdisc.is_root == is_root;
        let (index, is_root, new) = match *change {
            QdiscChange::SetBucket(index, bucket) => (index, true, Some(QdiscKind::Bucket(bucket))),
            QdiscChange::DeleteRoot(index) => (index, true, None),
            QdiscChange::AddIngress(index) => (index, false, Some(QdiscKind::Ingress)),
            QdiscChange::DeleteIngress(index) => {
                self.links.redirections.remove(&index);
                (index, false, None)
            }
            QdiscChange::Redirect { from, to } => {
                self.links.redirections.entry(from).or_default().push(Some(to));
                return Ok(());
            }
        };
        let found = self.links.qdiscs.iter().any(is_of(index, is_root));
        self.links.qdiscs.retain(|qdisc| !is_of(index, is_root)(qdisc));
        match new {
            Some(kind) => self.links.qdiscs.push(Qdisc { interface: index, is_root, kind }),
            None if !found => return Err(KernelError::NotFound),
            None => {}
        }
        Ok(())
    }

    fn redirections(&mut self, interface: u32) -> Result<Vec<Option<u32>>, KernelError> {
        Ok(self.links.redirections.get(&interface).cloned().unwrap_or_default())
    }

    fn wireguard(&mut self, interface: u32) -> Result<WireguardDevice, KernelError> {
        self.read_wireguard(interface)
    }

    fn change_wireguard(&mut self, interface: u32, change: &WireguardChange) -> Result<(), KernelError> {
        self.write_wireguard(interface, change)
    }
}
