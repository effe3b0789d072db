//! Owner of a Unix socket (`linux/unix_diag.h`).

use std::time::Duration;

use super::error::NetlinkError;
use super::socket::Socket;
use super::wire;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const AF_UNIX: u8 = 1;
/// `1 << TCP_LISTEN`.
const LISTENING: u32 = 1 << 10;
const UDIAG_SHOW_NAME: u32 = 1;
const UDIAG_SHOW_UID: u32 = 1 << 6;
/// `struct unix_diag_msg`.
const HEADER_LEN: usize = 16;
const UNIX_DIAG_NAME: u16 = 0;
const UNIX_DIAG_UID: u16 = 7;

/// Returns the owner of the listener with this abstract name; `None` if there is none, or the
/// kernel does not report owners (before Linux 5.3).
///
/// Unlike a connection, this is independent of the listener's queue, and works across PID
/// namespaces.
///
/// # Errors
/// If listeners cannot be listed, such as by a kernel without `CONFIG_UNIX_DIAG`.
pub fn unix_listener_uid(abstract_name: &str, timeout: Duration) -> Result<Option<u32>, NetlinkError> {
    let mut request = vec![AF_UNIX, 0, 0, 0];
    for word in [LISTENING, 0, UDIAG_SHOW_NAME | UDIAG_SHOW_UID, 0, 0] {
        request.extend(word.to_ne_bytes());
    }
    let wanted = [&[0], abstract_name.as_bytes()].concat();
    let mut socket = Socket::open_diag(timeout)?;
    let found = socket.dump_raw(SOCK_DIAG_BY_FAMILY, &request, "Unix sockets", |_, payload| {
        let (mut is_wanted, mut uid) = (false, None);
        let attributes = payload.get(HEADER_LEN..).unwrap_or_default();
        wire::for_each_attribute("Unix socket", attributes, |kind, value| {
            match kind {
                UNIX_DIAG_NAME => is_wanted = value == wanted,
                UNIX_DIAG_UID => uid = Some(wire::number(value)?),
                _ => {}
            }
            Some(())
        })?;
        Ok(uid.filter(|_| is_wanted))
    })?;
    Ok(found.first().copied())
}
