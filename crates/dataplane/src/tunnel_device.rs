//! Tunnel devices: desired and observed (`configureTunnelDevice` in
//! `felix/dataplane/linux/route_mgr.go`).

use std::net::IpAddr;
use std::time::Duration;

use tortie_model::{Cidr, Family, InterfaceName, Mac};

use crate::device::{Device, DeviceChange, DeviceKind};
use crate::kernel::Links;
use crate::kernel_error::KernelError;
use crate::report::{DataplaneProblem, DeviceProblem};

/// Interval between checks of a device without any event.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Desired state of a tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DesiredDevice {
    /// The desired state is unknown; the device stays as it is.
    Unknown(Option<DeviceProblem>),
    /// The device should not exist.
    Absent,
    /// The device should have no addresses, if it exists; the kernel does not allow its removal.
    Bare,
    /// The device should exist with these parameters.
    Present(DeviceSpec),
}

/// Desired parameters of a tunnel device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceSpec {
    pub(crate) kind: DeviceKind,
    pub(crate) mac: Option<Mac>,
    pub(crate) mtu: u32,
    /// Its only address, besides those that the kernel assigns itself.
    pub(crate) address: Option<IpAddr>,
    /// Whether checksums are computed before packets reach the device.
    pub(crate) no_checksum_offload: bool,
}

/// A tunnel device and its addresses of one family.
#[derive(Debug)]
pub(crate) struct TunnelDevice {
    name: InterfaceName,
    family: Family,
    /// Kind of device that may be removed; devices of the same name and another kind are left
    /// alone. `None` for any kind.
    kind: Option<DeviceKind>,
    desired: DesiredDevice,
    dirty: bool,
    checked: Option<Duration>,
    failure: Option<Failure>,
}

#[derive(Debug)]
struct Failure {
    problem: DeviceProblem,
    attempts: u32,
    retry_at: Duration,
}

impl TunnelDevice {
    pub(crate) fn new(name: InterfaceName, family: Family) -> Self {
        Self {
            name,
            family,
            kind: None,
            desired: DesiredDevice::Unknown(None),
            dirty: true,
            checked: None,
            failure: None,
        }
    }

    /// Limits changes to devices of this kind; devices of the same name and another kind are left
    /// alone.
    pub(crate) fn of_kind(self, kind: DeviceKind) -> Self {
        Self { kind: Some(kind), ..self }
    }

    pub(crate) const fn name(&self) -> InterfaceName {
        self.name
    }

    pub(crate) const fn is_desired(&self) -> bool {
        matches!(self.desired, DesiredDevice::Present(_))
    }

    /// Reports whether the device is desired, or would be if its parent were known.
    pub(crate) const fn is_desired_or_pending(&self) -> bool {
        self.is_desired() || matches!(self.desired, DesiredDevice::Unknown(Some(_)))
    }

    pub(crate) fn set(&mut self, desired: DesiredDevice) {
        if self.desired != desired {
            self.desired = desired;
            self.dirty = true;
        }
    }

    /// Notes that the device or its addresses changed.
    pub(crate) fn on_link(&mut self) {
        self.dirty = true;
    }

    /// Reports whether the kernel does not support this kind of device.
    pub(crate) fn is_unsupported(&self) -> bool {
        let problem = self.failure.as_ref().map(|failure| &failure.problem);
        matches!(problem, Some(DeviceProblem::Kernel { error: KernelError::Unsupported, .. }))
    }

    /// Returns the time until the next check or retry.
    pub(crate) fn next(&self, now: Duration) -> Option<Duration> {
        let check = self.checked.filter(|_| self.is_desired()).map(|at| at + CHECK_INTERVAL);
        let retry = self.failure.as_ref().map(|failure| failure.retry_at);
        check.into_iter().chain(retry).min().map(|at| at.saturating_sub(now))
    }

    /// Brings the device to its desired state, if it may deviate from it.
    pub(crate) fn apply(&mut self, kernel: &mut dyn Links, problems: &mut Vec<DataplaneProblem>) {
        let now = kernel.now();
        if (self.dirty || self.next(now).is_some_and(|wait| wait.is_zero())) && !kernel.is_stopping() {
            self.dirty = false;
            self.checked = Some(now);
            let attempts = self.failure.take().map_or(0, |failure| failure.attempts);
            if let Err(problem) = self.configure(kernel) {
                let pause = FIRST_RETRY.saturating_mul(2_u32.saturating_pow(attempts)).min(CHECK_INTERVAL);
                self.failure = Some(Failure { problem, attempts: attempts + 1, retry_at: now + pause });
            }
        }
        let failure = self.failure.as_ref().map(|failure| &failure.problem);
        let reason = match &self.desired {
            DesiredDevice::Unknown(problem) => problem.as_ref(),
            _ => None,
        };
        let found = failure.or(reason);
        problems.extend(found.map(|error| DataplaneProblem::Device { name: self.name, error: error.clone() }));
    }

    fn configure(&self, kernel: &mut dyn Links) -> Result<(), DeviceProblem> {
        let spec = match &self.desired {
            DesiredDevice::Unknown(_) => return Ok(()),
            DesiredDevice::Absent => {
                return match self.find(kernel)?.filter(|device| !self.is_foreign(device)) {
                    Some(device) => self.change(kernel, "it cannot be removed", &DeviceChange::Delete(device.index)),
                    None => Ok(()),
                };
            }
            DesiredDevice::Bare => {
                return match self.find(kernel)? {
                    Some(device) => self.set_address(kernel, &device, None),
                    None => Ok(()),
                };
            }
            DesiredDevice::Present(spec) => spec,
        };
        let device = match self.find(kernel)? {
            Some(device) if self.is_foreign(&device) => {
                return Err(DeviceProblem::Foreign);
            }
            Some(device) if is_compatible(spec, &device) => device,
            Some(device) => {
                tracing::warn!(device = %self.name, "device has wrong parameters; recreating it");
                self.change(kernel, "it cannot be removed", &DeviceChange::Delete(device.index))?;
                self.create(kernel, spec)?
            }
            None => self.create(kernel, spec)?,
        };
        // With another MTU the device is still usable, so an error must not stop the next steps.
        let mtu = if device.mtu == spec.mtu {
            Ok(())
        } else {
            self.change(kernel, "its MTU cannot be set", &DeviceChange::SetMtu(device.index, spec.mtu))
        };
        self.set_address(kernel, &device, spec.address)?;
        // The same holds for checksum offload.
        let checksums = if spec.no_checksum_offload {
            let result = kernel.disable_checksum_offload(device.index, self.name);
            result.map_err(problem("its checksum offload cannot be switched off"))
        } else {
            Ok(())
        };
        if !device.is_up {
            self.change(kernel, "it cannot be switched on", &DeviceChange::SetUp(device.index))?;
        }
        mtu.and(checksums)
    }

    fn is_foreign(&self, device: &Device) -> bool {
        self.kind.as_ref().is_some_and(|kind| *kind != device.kind)
    }

    fn find(&self, kernel: &mut dyn Links) -> Result<Option<Device>, DeviceProblem> {
        kernel.device(self.name.as_str()).map_err(problem("it cannot be read"))
    }

    fn change(
        &self,
        kernel: &mut dyn Links,
        operation: &'static str,
        change: &DeviceChange,
    ) -> Result<(), DeviceProblem> {
        match (kernel.change_device(change), change) {
            (Err(KernelError::NotFound), DeviceChange::Delete(_) | DeviceChange::DeleteAddress(..))
            | (Err(KernelError::Exists), DeviceChange::AddAddress(..)) => Ok(()),
            (Err(error), _) => Err(problem(operation)(error)),
            (Ok(()), _) => {
                tracing::debug!(device = %self.name, ?change, "device changed");
                Ok(())
            }
        }
    }

    fn create(&self, kernel: &mut dyn Links, spec: &DeviceSpec) -> Result<Device, DeviceProblem> {
        let operation = "it cannot be made";
        let (name, kind) = (self.name, spec.kind.clone());
        let result = kernel.change_device(&DeviceChange::Create { name, mac: spec.mac, kind });
        match (self.find(kernel)?, result) {
            // The kernel creates a device of this kind itself on first use, or another process may
            // have created it.
            (Some(device), Ok(()) | Err(KernelError::Exists)) if is_compatible(spec, &device) => Ok(device),
            (_, Err(error)) => Err(problem(operation)(error)),
            (_, Ok(())) => {
                Err(problem(operation)(KernelError::Failed("the created device has other parameters".into())))
            }
        }
    }

    /// Removes all addresses except this one, and adds it if it is missing.
    fn set_address(
        &self,
        kernel: &mut dyn Links,
        device: &Device,
        address: Option<IpAddr>,
    ) -> Result<(), DeviceProblem> {
        let desired = address.map(Cidr::host);
        let found = kernel.addresses(device.index, self.family).map_err(problem("its addresses cannot be read"))?;
        let is_kernels = |net: &Cidr| match net.address() {
            IpAddr::V4(_) => false,
            IpAddr::V6(address) => address.is_unicast_link_local(),
        };
        for other in found.iter().filter(|net| Some(**net) != desired && !is_kernels(net)) {
            let change = DeviceChange::DeleteAddress(device.index, *other);
            self.change(kernel, "an address cannot be removed", &change)?;
        }
        match desired.filter(|desired| !found.contains(desired)) {
            Some(desired) => {
                let change = DeviceChange::AddAddress(device.index, desired);
                self.change(kernel, "its address cannot be set", &change)
            }
            None => Ok(()),
        }
    }
}

/// Reports whether the device can be kept, rather than recreated.
fn is_compatible(spec: &DeviceSpec, device: &Device) -> bool {
    spec.kind == device.kind && (spec.mac.is_none() || spec.mac == device.mac)
}

fn problem(operation: &'static str) -> impl FnOnce(KernelError) -> DeviceProblem {
    move |error| DeviceProblem::Kernel { operation, error }
}
