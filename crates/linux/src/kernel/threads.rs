//! Threads that process the received packets of a device.

use std::fs;
use std::io;
use std::path::Path;

use tortie_dataplane::KernelError;
use tortie_model::{Cause, InterfaceName};

/// Enables or disables the threads of a device; `devices` is the directory of all devices in sysfs.
pub(super) fn set(devices: &Path, device: InterfaceName, is_threaded: bool) -> Result<(), KernelError> {
    let name = device.as_str();
    if matches!(name, "." | "..") {
        return Err(KernelError::NotFound);
    }
    let path = devices.join(name).join("threaded");
    // A missing file is not created.
    let file = fs::OpenOptions::new().write(true).open(path);
    let value = if is_threaded { "1" } else { "0" };
    match file.and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes())) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(KernelError::NotFound),
        Err(error) => Err(KernelError::Failed(Cause::new(error))),
        Ok(()) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_switched_where_there_are_any() {
        let devices = tempfile::tempdir().unwrap();
        let device = InterfaceName::from_static("wireguard.cali");
        assert_eq!(set(devices.path(), device, true), Err(KernelError::NotFound));
        let file = devices.path().join("wireguard.cali/threaded");
        fs::create_dir(file.parent().unwrap()).unwrap();
        assert_eq!(set(devices.path(), device, true), Err(KernelError::NotFound));
        fs::write(&file, "0").unwrap();
        for (is_threaded, value) in [(true, "1"), (false, "0")] {
            set(devices.path(), device, is_threaded).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), value);
        }
        assert_eq!(set(&file, InterfaceName::from_static(".."), true), Err(KernelError::NotFound));
    }
}
