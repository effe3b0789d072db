//! Tables of legacy iptables, read by getsockopt(2) (`linux/netfilter_ipv4/ip_tables.h`).

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES`; the same for IPv6.
const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;
/// `XT_TABLE_MAXNAMELEN`.
const NAME: usize = 32;
/// Size of `struct ipt_get_entries` without entries, on a 64-bit machine: name, size, padding.
const ENTRIES_HEADER: usize = 40;
const SIZE: std::ops::Range<usize> = NAME..NAME + 4;
/// Reads before a table that changes all the time is given up.
const ATTEMPTS: usize = 4;

/// `struct ipt_getinfo`.
#[derive(Default, PartialEq, Eq)]
#[repr(C)]
struct Info {
    name: [u8; NAME],
    valid_hooks: u32,
    hook_entry: [u32; 5],
    underflow: [u32; 5],
    num_entries: u32,
    size: u32,
}

/// A table of legacy iptables, as the kernel lists it.
#[derive(Debug)]
pub struct XtablesTable {
    /// Offset of the first entry of each hook of the table, in the order of `enum nf_inet_hooks`.
    pub hooks: [Option<u32>; 5],
    listing: Vec<u8>,
}

impl XtablesTable {
    /// Reads a table of this network namespace. Like `iptables-save -t`, this creates the table if
    /// it is missing.
    ///
    /// # Errors
    /// The kernel's error: `ENOENT` or `ENOPROTOOPT` if it has no such table, `EPERM` without
    /// `CAP_NET_ADMIN`; [`Unsupported`](io::ErrorKind::Unsupported) on a 32-bit machine.
    pub fn read(is_ipv6: bool, name: &str) -> io::Result<Self> {
        if size_of::<usize>() != 8 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let (domain, level) =
            if is_ipv6 { (libc::AF_INET6, libc::IPPROTO_IPV6) } else { (libc::AF_INET, libc::IPPROTO_IP) };
        // SAFETY: the call has no pointers.
        let socket = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
        if socket < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the call has just opened this descriptor, which nothing else owns.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let mut attempt = 1;
        loop {
            match read_once(&socket, level, name) {
                // The table has changed between the calls.
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) && attempt < ATTEMPTS => attempt += 1,
                result => return result,
            }
        }
    }

    /// Returns the entries, `struct ipt_entry` or `struct ip6t_entry`, one after the other.
    #[must_use]
    pub fn entries(&self) -> &[u8] {
        self.listing.get(ENTRIES_HEADER..).unwrap_or_default()
    }
}

fn read_once(socket: &OwnedFd, level: i32, name: &str) -> io::Result<XtablesTable> {
    let mut info = Info::default();
    let place = info.name.get_mut(..name.len()).filter(|place| place.len() < NAME);
    place.ok_or(io::ErrorKind::InvalidInput)?.copy_from_slice(name.as_bytes());
    let name = info.name;
    read_info(socket, level, &mut info)?;
    let len = ENTRIES_HEADER + info.size as usize;
    let mut listing = vec![0; len];
    if let Some(place) = listing.get_mut(..NAME) {
        place.copy_from_slice(&name);
    }
    if let Some(place) = listing.get_mut(SIZE) {
        place.copy_from_slice(&info.size.to_ne_bytes());
    }
    // SAFETY: `listing` has `len` bytes, and begins with the header of this option.
    unsafe { get(socket, level, GET_ENTRIES, listing.as_mut_ptr(), len)? };
    let mut later = Info { name, ..Info::default() };
    read_info(socket, level, &mut later)?;
    if later != info {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let hook =
        |hook: usize| (info.valid_hooks & (1 << hook) != 0).then(|| info.hook_entry.get(hook).copied()).flatten();
    Ok(XtablesTable { hooks: std::array::from_fn(hook), listing })
}

/// Reads the size and the hooks of the table that `info` names.
fn read_info(socket: &OwnedFd, level: i32, info: &mut Info) -> io::Result<()> {
    // SAFETY: `info` has the layout of the structure of this option and may be written.
    unsafe { get(socket, level, GET_INFO, std::ptr::from_mut(info).cast(), size_of::<Info>()) }
}

/// Reads an option of a socket.
///
/// # Safety
/// `value` points to `len` bytes that may be written, laid out as `option` demands.
unsafe fn get(socket: &OwnedFd, level: i32, option: i32, value: *mut u8, len: usize) -> io::Result<()> {
    let mut written = libc::socklen_t::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: by the contract of this function; `written` lives during the call.
    let result = unsafe { libc::getsockopt(socket.as_raw_fd(), level, option, value.cast(), &raw mut written) };
    match result {
        0 if written as usize == len => Ok(()),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}
