//! Maps, programs and links of the network namespace of the thread that uses them.

use std::fs::{self, File};
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock, statfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};
use rustix::process::geteuid;
use rustix::thread::{MembarrierCommand, membarrier};
use sha2::{Digest, Sha256};
use tortie_bpf::{ArrayMap, HashMap, MapInfo, PerCpuArrayMap, Program, RingBuffer};
use tortie_ebpf::hooks::{self, Attachment, HookSettings, KernelLayout};
use tortie_ebpf::layout::{self, LearnedKey, MapKind};
use tortie_ebpf::{Btf, LearnedWrite, MapSizes};

use super::attach::{self, Attacher, LinuxLink};
use super::edge::{AttachPoint, Edge, Pinned, generation_of};
use super::log::LogSource;
use crate::error_context::with_context;
use crate::netlink::tracking;

/// Mount point of the BPF file system, which holds pinned objects.
const BPF_DIRECTORY: &str = "/sys/fs/bpf";
const BPF_FS_MAGIC: u64 = 0xcafe_4a11;
const OWN_DIRECTORY: &str = "tortie";
/// Size of a pinned text in bytes.
const TEXT: usize = 256;
/// Maximum run time of a program, assumed if the kernel cannot report that all have ended.
const PAUSE: Duration = Duration::from_millis(50);

/// Maps, programs and links of the running kernel.
#[derive(Debug)]
pub struct LinuxEdge {
    directory: PathBuf,
    settings: HookSettings,
    attacher: Attacher,
    /// Read when first needed.
    layout: Option<KernelLayout>,
    layout_version: u32,
    netlink_timeout: Duration,
}

/// A map of any kind.
#[derive(Debug)]
pub enum LinuxMap {
    /// With one value for all CPUs.
    Shared(ArrayMap),
    /// With a value for each CPU.
    PerCpu(PerCpuArrayMap),
    /// Ring buffer of records.
    Ring(RingBuffer),
    /// With values by key.
    Hash(HashMap),
}

impl LinuxMap {
    fn descriptor(&self) -> RawFd {
        match self {
            Self::Shared(map) => map.descriptor(),
            Self::PerCpu(map) => map.descriptor(),
            Self::Ring(map) => map.descriptor(),
            Self::Hash(map) => map.descriptor(),
        }
    }

    fn pin(&self, path: &Path) -> io::Result<()> {
        match self {
            Self::Shared(map) => map.pin(path),
            Self::PerCpu(map) => map.pin(path),
            Self::Ring(map) => map.pin(path),
            Self::Hash(map) => map.pin(path),
        }
    }

    /// Returns the size of a value in bytes, and the number of values.
    fn size(&self) -> (usize, u32) {
        let of = |info: MapInfo| (info.value_size as usize, info.entries);
        match self {
            Self::Shared(map) => of(map.info()),
            Self::PerCpu(map) => of(map.info()),
            Self::Ring(map) => of(map.info()),
            Self::Hash(map) => (map.sizes().1, map.entries()),
        }
    }
}

impl LinuxEdge {
    /// Uses programs with these settings, attached in the wanted way, or in the best one that the
    /// kernel supports.
    ///
    /// # Errors
    /// If the network namespace cannot be identified.
    pub fn new(settings: HookSettings, wanted: Option<Attachment>, netlink_timeout: Duration) -> io::Result<Self> {
        Ok(Self {
            directory: own_directory()?,
            settings,
            attacher: Attacher::new(wanted, netlink_timeout),
            layout: None,
            layout_version: layout::VERSION,
            netlink_timeout,
        })
    }

    /// Returns the program of a place for maps of these sizes.
    fn program(&mut self, place: AttachPoint, sizes: &MapSizes) -> io::Result<tortie_ebpf::Program> {
        if self.layout.is_none() {
            self.layout = Some(read_layout(self.attacher.attachment()?)?);
        }
        let layout = self.layout.as_ref().ok_or(io::ErrorKind::NotFound)?;
        hooks::program(place.hook, place.family, layout, &self.settings, sizes).map_err(io::Error::other)
    }

    /// Returns a path in a folder, after it has created the folder and removed an existing object
    /// of that name.
    fn free_path(&self, folder: &str, name: &str) -> io::Result<PathBuf> {
        mount_directory()?;
        make_own_directory(Path::new(BPF_DIRECTORY))?;
        let folder = self.directory.join(folder);
        fs::create_dir_all(&folder)?;
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(path),
        }
    }

    /// Pretends that the maps have another layout version.
    #[cfg(test)]
    fn with_layout_version(self, layout_version: u32) -> Self {
        Self { layout_version, ..self }
    }
}

/// Each network namespace has its own directory.
fn own_directory() -> io::Result<PathBuf> {
    let namespace = fs::metadata("/proc/thread-self/ns/net")?.ino();
    Ok(Path::new(BPF_DIRECTORY).join(OWN_DIRECTORY).join(namespace.to_string()))
}

/// Returns the offsets of the kernel's data that programs read, from the type information (BTF) of
/// the running kernel.
///
/// # Errors
/// If there is no type information, or it lacks something.
pub fn read_layout(attachment: Attachment) -> io::Result<KernelLayout> {
    let read = |name: &str| {
        let path = format!("/sys/kernel/btf/{name}");
        fs::read(&path).map_err(with_context(path))
    };
    let mut btf = Btf::parse(read("vmlinux")?).map_err(io::Error::other)?;
    // Conntrack is a part of the kernel, or a module.
    if let Ok(module) = read("nf_conntrack") {
        btf.add_module(module).map_err(io::Error::other)?;
    }
    KernelLayout::read(attachment, &btf).map_err(io::Error::other)
}

/// Mounts the BPF file system unless it is mounted.
fn mount_directory() -> io::Result<()> {
    let is_mounted = || -> io::Result<bool> { Ok(statfs(BPF_DIRECTORY)?.f_type.cast_unsigned() == BPF_FS_MAGIC) };
    if is_mounted()? {
        return Ok(());
    }
    // Two simultaneous mounts would hide each other's objects.
    let lock = File::open("/sys/fs")?;
    flock(&lock, FlockOperation::LockExclusive)?;
    if is_mounted()? {
        return Ok(());
    }
    mount("bpf", BPF_DIRECTORY, "bpf", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, Some(c"mode=0700"))
        .map_err(|errno| with_context(format!("no BPF file system can be mounted at {BPF_DIRECTORY}"))(errno.into()))
}

/// Makes the agent's directory in the file system for pinned objects, open to its owner only.
///
/// # Errors
/// If another user owns the directory or can write to it, since pinned objects there may be forged.
/// The mode of an existing mount is not changed.
fn make_own_directory(mount: &Path) -> io::Result<()> {
    let path = mount.join(OWN_DIRECTORY);
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    check_own_directory(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o700))
}

/// Checks that no other user can have pinned objects there; a directory that does not exist passes.
fn check_own_directory(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    let is_ours = metadata.uid() == geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if metadata.is_dir() && is_ours {
        return Ok(());
    }
    let why = format!("{}: not a directory that only its owner, this user, can write; remove it", path.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

impl Edge for LinuxEdge {
    type Map = LinuxMap;
    type Program = Program;
    type Link = LinuxLink;

    fn lacks_hooks(&mut self) -> io::Result<Option<String>> {
        self.attacher.lacking()
    }

    fn create_map(&mut self, kind: MapKind, entries: u32) -> io::Result<LinuxMap> {
        let name = format!("tortie_{}", kind.name());
        let size = u32::try_from(kind.value_size()).map_err(io::Error::other)?;
        if kind.is_ring() {
            return RingBuffer::create(&name, entries).map(LinuxMap::Ring);
        }
        if kind.is_hash() {
            let key = u32::try_from(LearnedKey::SIZE).map_err(io::Error::other)?;
            return HashMap::create(&name, key, size, entries).map(LinuxMap::Hash);
        }
        if kind.is_per_cpu() {
            return PerCpuArrayMap::create(&name, size, entries).map(LinuxMap::PerCpu);
        }
        let create = if kind.is_joined() { ArrayMap::create_joined } else { ArrayMap::create };
        create(&name, size, entries).map(LinuxMap::Shared).map_err(|error| {
            if kind.is_joined() && error.raw_os_error() == Some(Errno::TOOBIG.raw_os_error()) {
                return with_context("before Linux 6.0 these may have no more than 4 MiB")(error);
            }
            error
        })
    }

    fn write(&mut self, map: &LinuxMap, index: u32, value: &[u8]) -> io::Result<()> {
        match map {
            LinuxMap::Shared(map) => map.write(index, value),
            // Counters are only ever reset to zero.
            LinuxMap::PerCpu(map) => map.clear(index),
            LinuxMap::Ring(_) | LinuxMap::Hash(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn write_learned(&mut self, map: &LinuxMap, write: &LearnedWrite) -> io::Result<()> {
        let LinuxMap::Hash(map) = map else { return Err(io::ErrorKind::Unsupported.into()) };
        let key = write.key.to_bytes();
        match write.value {
            Some(value) => map.insert(&key, &value.to_bytes()),
            None => map.remove(&key).map(drop),
        }
    }

    fn read_learned(&mut self, map: &LinuxMap) -> io::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let LinuxMap::Hash(map) = map else { return Err(io::ErrorKind::Unsupported.into()) };
        let mut entries = Vec::new();
        for key in map.keys()? {
            entries.extend(map.get(&key)?.map(|value| (key, value)));
        }
        Ok(entries)
    }

    fn open_log(&mut self, maps: &[(MapKind, LinuxMap)]) -> io::Result<Option<LogSource>> {
        let of = |wanted: MapKind| maps.iter().find_map(|(kind, map)| (*kind == wanted).then_some(map));
        let (Some(LinuxMap::Ring(ring)), Some(LinuxMap::Shared(lost))) = (of(MapKind::Log), of(MapKind::Lost)) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        Ok(Some(LogSource { ring: ring.try_clone()?, lost: lost.try_clone()? }))
    }

    fn read(&mut self, map: &LinuxMap, index: u32) -> io::Result<Vec<u8>> {
        match map {
            LinuxMap::Shared(map) => {
                let mut value = vec![0; map.info().value_size as usize];
                map.read(index, &mut value)?;
                Ok(value)
            }
            LinuxMap::PerCpu(map) => map.read(index),
            LinuxMap::Ring(_) | LinuxMap::Hash(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn load(&mut self, place: AttachPoint, maps: &[(MapKind, LinuxMap)]) -> io::Result<Program> {
        let entries = |of: MapKind| {
            let found = maps.iter().find_map(|(kind, map)| match map {
                LinuxMap::Shared(map) if *kind == of => Some(map.info().entries),
                _ => None,
            });
            found.unwrap_or_default()
        };
        let sizes = MapSizes {
            blocks: entries(MapKind::Blocks),
            groups: entries(MapKind::Groups),
            endpoints: entries(MapKind::Endpoints),
            exact: entries(MapKind::Exact),
            ..MapSizes::default()
        };
        let bytes = self.program(place, &sizes)?.bytes(|id| {
            let map = maps.iter().find(|(kind, _)| kind.id() == id);
            map.map_or(-1, |(_, map)| map.descriptor())
        });
        let name = format!("tortie_{}", place.to_string().replace('-', "_"));
        self.attacher.load(&name, &bytes)
    }

    fn attach(&mut self, place: AttachPoint, generation: u64, program: &Program) -> io::Result<LinuxLink> {
        self.attacher.attach(place, generation, program)
    }

    fn changes(&mut self) -> io::Result<Option<u32>> {
        self.attacher.changes()
    }

    fn made_of(&mut self, places: &[AttachPoint]) -> io::Result<String> {
        let mut sha = Sha256::new();
        for place in places {
            // Left out: the descriptors of the maps, which differ each time, and their sizes, which
            // may differ.
            sha.update(self.program(*place, &MapSizes::default())?.bytes(|id| i32::try_from(id.0).unwrap_or(-1)));
            sha.update(place.to_string());
        }
        let digest = sha.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
        Ok(format!("layout {}, programs {digest}", self.layout_version))
    }

    fn pin_object(&mut self, folder: &str, name: &str, object: Pinned<'_, LinuxMap, Program>) -> io::Result<()> {
        let path = self.free_path(folder, name)?;
        match object {
            Pinned::Map(map) => map.pin(&path),
            Pinned::Program(program) => program.pin(&path),
            Pinned::Text(text) => {
                let mut value = text.as_bytes().to_vec();
                value.resize(TEXT, 0);
                let map = ArrayMap::create("tortie_made_of", u32::try_from(TEXT).map_err(io::Error::other)?, 1)?;
                map.write(0, &value)?;
                map.pin(&path)
            }
        }
    }

    fn pinned_map(&mut self, folder: &str, name: &str, kind: MapKind) -> io::Result<(LinuxMap, u32)> {
        let path = self.directory.join(folder).join(name);
        let map = if kind.is_ring() {
            LinuxMap::Ring(RingBuffer::open(&path)?)
        } else if kind.is_hash() {
            LinuxMap::Hash(HashMap::open(&path)?)
        } else if kind.is_per_cpu() {
            LinuxMap::PerCpu(PerCpuArrayMap::open(&path)?)
        } else if kind.is_joined() {
            let size = u32::try_from(kind.value_size()).map_err(io::Error::other)?;
            LinuxMap::Shared(ArrayMap::open_joined(&path, size)?)
        } else {
            LinuxMap::Shared(ArrayMap::open(&path)?)
        };
        let (value_size, entries) = map.size();
        if value_size != kind.value_size() {
            return Err(io::Error::other(format!("its values have {value_size} bytes")));
        }
        Ok((map, entries))
    }

    fn pinned_program(&mut self, folder: &str, name: &str, link: &str) -> io::Result<(Program, LinuxLink)> {
        let folder = self.directory.join(folder);
        let program = Program::open(&folder.join(name))?;
        let link = self.attacher.open(&folder.join(link))?;
        if link.program()? != program.info()?.id {
            return Err(io::Error::other("another program is attached"));
        }
        Ok((program, link))
    }

    fn pinned_text(&mut self, folder: &str, name: &str) -> io::Result<String> {
        let map = ArrayMap::open(&self.directory.join(folder).join(name))?;
        let mut value = vec![0; map.info().value_size as usize];
        map.read(0, &mut value)?;
        let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
        Ok(String::from_utf8_lossy(text).into_owned())
    }

    fn pin(&mut self, folder: &str, name: &str, link: &LinuxLink) -> io::Result<()> {
        link.pin(&self.free_path(folder, name)?)
    }

    fn folders(&mut self) -> io::Result<Vec<String>> {
        // Checked before any object in it is opened.
        check_own_directory(&Path::new(BPF_DIRECTORY).join(OWN_DIRECTORY))?;
        folders(&self.directory, self.netlink_timeout)
    }

    fn names(&mut self, folder: &str) -> io::Result<Vec<String>> {
        names_in(&self.directory.join(folder))
    }

    fn rename(&mut self, folder: &str, name: &str) -> io::Result<()> {
        fs::rename(self.directory.join(folder), self.directory.join(name))
    }

    fn remove(&mut self, folder: &str) -> io::Result<()> {
        remove(&self.directory, folder, self.netlink_timeout)
    }

    fn track_connections(&mut self) -> io::Result<()> {
        tracking::track_connections(self.netlink_timeout).map_err(io::Error::other)
    }

    fn wait_for_packets(&mut self) -> io::Result<()> {
        if membarrier(MembarrierCommand::Global).is_err() {
            thread::sleep(PAUSE);
        }
        Ok(())
    }
}

fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect()
}

/// Returns the folders, and the numbers of attached generations without a folder.
fn folders(directory: &Path, netlink_timeout: Duration) -> io::Result<Vec<String>> {
    let mut folders = names_in(directory)?;
    let named: Vec<u64> = folders.iter().filter_map(|folder| generation_of(folder)).collect();
    let attached = attach::generations(netlink_timeout)?;
    folders.extend(attached.iter().filter(|number| !named.contains(number)).map(u64::to_string));
    Ok(folders)
}

fn remove(directory: &Path, folder: &str, netlink_timeout: Duration) -> io::Result<()> {
    if let Some(generation) = generation_of(folder) {
        attach::detach(generation, netlink_timeout)?;
    }
    let folder = directory.join(folder);
    for name in names_in(&folder)? {
        let path = folder.join(name);
        attach::detach_pinned(&path)?;
        fs::remove_file(&path)?;
    }
    match fs::remove_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Detaches all programs of this network namespace, and removes the nftables table that enables
/// connection tracking. Returns the number of generations that were removed.
///
/// # Errors
/// If an object cannot be removed.
pub fn remove_all(netlink_timeout: Duration) -> io::Result<usize> {
    let directory = own_directory()?;
    let folders = folders(&directory, netlink_timeout)?;
    for folder in &folders {
        remove(&directory, folder, netlink_timeout)?;
    }
    for empty in [directory.as_path(), &Path::new(BPF_DIRECTORY).join(OWN_DIRECTORY)] {
        // The directory may hold objects of other network namespaces.
        let _ = fs::remove_dir(empty);
    }
    tracking::leave_connections(netlink_timeout).map_err(io::Error::other)?;
    Ok(folders.len())
}

#[cfg(test)]
mod tests;
