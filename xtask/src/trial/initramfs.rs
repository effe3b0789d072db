//! The initramfs of a kernel, an archive in `newc` format
//! (`Documentation/driver-api/early-userspace/buffer-format.rst` of Linux), and its modules.

use std::path::Path;

/// An archive under construction.
#[derive(Default)]
pub(super) struct Initramfs {
    bytes: Vec<u8>,
    files: u32,
}

/// File types, as in `st_mode`.
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;

impl Initramfs {
    /// Adds a folder; its parent must have been added before.
    pub(super) fn folder(&mut self, name: &str) -> Result<(), String> {
        self.entry(name, DIRECTORY | 0o755, &[])
    }

    /// Adds an executable file.
    pub(super) fn file(&mut self, name: &str, content: &[u8]) -> Result<(), String> {
        self.entry(name, REGULAR | 0o755, content)
    }

    /// Returns the complete archive.
    pub(super) fn finish(mut self) -> Result<Vec<u8>, String> {
        self.entry("TRAILER!!!", 0, &[])?;
        Ok(self.bytes)
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<(), String> {
        let size = u32::try_from(content.len()).map_err(|_| format!("{name} is too large for an initramfs"))?;
        self.files += 1;
        // Number, mode, owner, group, links, time, size, four device numbers, length of the name
        // with its NUL, checksum.
        let name_size = name.len() as u64 + 1;
        let fields = [self.files, mode, 0, 0, 1, 0, size, 0, 0, 0, 0].map(u64::from);
        self.bytes.extend(b"070701");
        for field in fields.into_iter().chain([name_size, 0]) {
            self.bytes.extend(format!("{field:08x}").bytes());
        }
        self.bytes.extend(name.bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend(content);
        self.pad();
        Ok(())
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Returns the files of these modules and of their dependencies, in loading order. In
/// `dependencies` (`modules.dep`), the dependencies follow the module, and the first is loaded
/// last. Modules in `builtin` (`modules.builtin`) are part of the kernel already.
pub(super) fn to_load(modules: &[&str], dependencies: &str, builtin: &str) -> Result<Vec<String>, String> {
    let mut order: Vec<String> = Vec::new();
    for module in modules {
        if builtin.lines().any(|file| name(file) == *module) {
            continue;
        }
        let line = dependencies.lines().filter_map(|line| line.split_once(':')).find(|(file, _)| name(file) == *module);
        let (file, needs) = line.ok_or_else(|| format!("there is no module {module}"))?;
        for file in needs.split_whitespace().rev().chain([file]) {
            if !order.iter().any(|other| other == file) {
                order.push(file.to_owned());
            }
        }
    }
    Ok(order)
}

/// Returns the name of the module in a file. Files have hyphens where names have underscores.
pub(super) fn name(file: &str) -> String {
    let file = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
    file.split('.').next().unwrap_or_default().replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_a_header_a_name_and_a_content_per_file_each_aligned_to_four_bytes() {
        let mut archive = Initramfs::default();
        archive.folder("bin").unwrap();
        archive.file("init", b"abcde").unwrap();
        let archive = archive.finish().unwrap();
        let header = |number: u32, mode: &str, size: u32, name: u32| {
            format!(
                "070701{number:08x}{mode}{0:08x}{0:08x}{1:08x}{0:08x}{size:08x}{0:08x}{0:08x}{0:08x}{0:08x}{name:08x}{0:08x}",
                0, 1
            )
        };
        let expected = [
            &header(1, "000041ed", 0, 4),
            "bin\0\0\0",
            &header(2, "000081ed", 5, 5),
            "init\0\0",
            "abcde\0\0\0",
            &header(3, "00000000", 0, 11),
            "TRAILER!!!\0\0\0\0",
        ];
        assert_eq!(String::from_utf8(archive).unwrap(), expected.concat());
    }

    #[test]
    fn modules_are_loaded_after_those_that_they_need_each_once_and_none_that_is_built_in() {
        let dependencies = "\
            kernel/net/9p/9pnet.ko.xz:\n\
            kernel/net/9p/9pnet_virtio.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/drivers/virtio/virtio_ring.ko.xz kernel/drivers/virtio/virtio.ko.xz\n\
            kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz\n\
            kernel/drivers/net/dummy-two.ko: kernel/net/core/other.ko\n";
        let builtin = "kernel/fs/overlayfs/overlay.ko\n";
        let order = to_load(&["9pnet_virtio", "9p", "overlay", "dummy_two"], dependencies, builtin).unwrap();
        let order: Vec<String> = order.iter().map(|file| name(file)).collect();
        assert_eq!(order, ["virtio", "virtio_ring", "9pnet", "9pnet_virtio", "netfs", "9p", "other", "dummy_two"]);
        assert_eq!(to_load(&["veth"], dependencies, builtin), Err("there is no module veth".to_owned()));
    }
}
