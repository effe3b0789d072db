//! A socket for each workload that has credentials.
//!
//! Workloads can write into the folders of their sockets. Files there are reached through
//! descriptors, and never through links.

use std::collections::BTreeMap;
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Read as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, open, openat, statat, unlinkat};
use rustix::process::geteuid;
use tokio::net::UnixListener;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tortie_model::{WorkloadEndpointId, with_causes};

use super::grpc::{ClientRequest, Service};
use super::workload::{CredentialsError, endpoint_of, volume_of};

const LOOK: Duration = Duration::from_millis(100);
/// Interval between checks whether all sockets are unchanged.
const LOOK_CLOSELY: Duration = Duration::from_secs(2);
/// The largest file of credentials, bytes.
const MAX_CREDENTIALS: u64 = 64 * 1024;
const MAX_CONNECTIONS: usize = 4;
/// Pause after a connection could not be accepted, for instance for want of file descriptors.
const RETRY_DELAY: Duration = Duration::from_millis(100);
const SOCKET: &str = "socket";

#[derive(Debug)]
pub(super) struct Sockets {
    prefix: PathBuf,
    requests: UnboundedSender<ClientRequest>,
    next_client: Arc<AtomicU64>,
    bound: BTreeMap<String, Bound>,
    /// Logged problems: of volumes, and under the empty name of the folder with all credentials.
    problems: BTreeMap<String, String>,
}

/// A socket that is served until this is dropped, which also ends its connections.
#[derive(Debug)]
struct Bound {
    credentials: Stamp,
    folder: OwnedFd,
    inodes: (u64, u64),
    _listener: JoinSet<()>,
}

/// Properties of a file that change when it is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    changed: (i64, i64),
    length: u64,
}

#[derive(Debug, thiserror::Error)]
enum SocketError {
    #[error("the credentials cannot be read")]
    Unreadable(#[source] io::Error),
    #[error("the credentials are not in a file that only root or the agent's user can write")]
    Untrusted,
    #[error("the credentials are of no use")]
    Credentials(#[from] CredentialsError),
    #[error("there is no folder for the socket")]
    Folder(#[source] io::Error),
    #[error("there can be no socket")]
    Socket(#[from] io::Error),
}

impl Sockets {
    pub(super) fn new(prefix: PathBuf, requests: UnboundedSender<ClientRequest>) -> Self {
        let next_client = Arc::new(AtomicU64::new(0));
        Self { prefix, requests, next_client, bound: BTreeMap::new(), problems: BTreeMap::new() }
    }

    pub(super) async fn keep(mut self) {
        let mut last: Option<(Instant, SystemTime)> = None;
        loop {
            let changed = fs::metadata(self.credentials()).and_then(|folder| folder.modified());
            let is_same = matches!((&last, &changed), (Some((_, last)), Ok(changed)) if last == changed);
            let is_due = last.is_none_or(|(looked, _)| looked.elapsed() >= LOOK_CLOSELY);
            if is_due || !is_same {
                self.look();
                last = changed.ok().map(|changed| (Instant::now(), changed));
            }
            sleep(LOOK).await;
        }
    }

    fn credentials(&self) -> PathBuf {
        self.prefix.join("creds")
    }

    /// Serves the existing volumes, each with its current credentials and folder, and no others.
    fn look(&mut self) {
        let listed = volumes(&self.credentials());
        let volumes = match listed {
            Ok(volumes) => {
                self.resolved("");
                volumes
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.problem("", &format!("there are no credentials: {error}"));
                Vec::new()
            }
            // Without a listing all sockets are left as they are.
            Err(error) => return self.problem("", &format!("the credentials cannot be listed: {error}")),
        };
        self.bound.retain(|volume, _| volumes.contains(volume));
        self.problems.retain(|volume, _| volume.is_empty() || volumes.contains(volume));
        for volume in volumes {
            if self.bound.get(&volume).is_some_and(|bound| bound.is_current(&self.prefix, &volume)) {
                continue;
            }
            // The clients of the old socket belong to another workload by now, or cannot be reached
            // there.
            self.bound.remove(&volume);
            match self.bind(&volume) {
                Ok((endpoint, bound)) => {
                    tracing::info!(volume, %endpoint, "the policy sync API is available to a workload");
                    self.bound.insert(volume.clone(), bound);
                    self.resolved(&volume);
                }
                Err(error) => self.problem(&volume, &with_causes(&error)),
            }
        }
    }

    fn bind(&self, volume: &str) -> Result<(WorkloadEndpointId, Bound), SocketError> {
        let (credentials, text) = read_credentials(&self.prefix, volume)?;
        let endpoint = endpoint_of(&text)?;
        let folder = open_folder(&self.prefix, volume).map_err(SocketError::Folder)?;
        match unlinkat(&folder, SOCKET, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(SocketError::Socket(error.into())),
        }
        let listener = std::os::unix::net::UnixListener::bind(in_folder(&folder).join(SOCKET))?;
        listener.set_nonblocking(true)?;
        let inodes = (inode(&folder, "")?, open_to_all(&folder)?);
        let service = Service {
            endpoint: endpoint.clone(),
            requests: self.requests.clone(),
            next_client: Arc::clone(&self.next_client),
        };
        let mut task = JoinSet::new();
        task.spawn(accept(UnixListener::from_std(listener)?, service));
        Ok((endpoint, Bound { credentials, folder, inodes, _listener: task }))
    }

    fn problem(&mut self, volume: &str, problem: &str) {
        if self.problems.get(volume).is_none_or(|known| known != problem) {
            let prefix = self.prefix.display();
            tracing::warn!(%prefix, volume, problem, "no policy sync API for workloads; trying again");
            self.problems.insert(volume.to_owned(), problem.to_owned());
        }
    }

    fn resolved(&mut self, volume: &str) {
        if let Some(problem) = self.problems.remove(volume) {
            tracing::info!(prefix = %self.prefix.display(), volume, problem, "resolved");
        }
    }
}

impl Bound {
    /// Whether credentials, folder and socket are unchanged since it was created.
    fn is_current(&self, prefix: &Path, volume: &str) -> bool {
        let credentials = fs::symlink_metadata(credentials_of(prefix, volume)).map(|file| Stamp::of(&file));
        let folder = open_folder(prefix, volume).and_then(|folder| inode(&folder, ""));
        let socket = inode(&self.folder, SOCKET);
        credentials.is_ok_and(|stamp| stamp == self.credentials)
            && folder.is_ok_and(|inode| inode == self.inodes.0)
            && socket.is_ok_and(|inode| inode == self.inodes.1)
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if inode(&self.folder, SOCKET).is_ok_and(|inode| inode == self.inodes.1) {
            let _ = unlinkat(&self.folder, SOCKET, AtFlags::empty());
        }
    }
}

impl Stamp {
    fn of(file: &fs::Metadata) -> Self {
        Self { inode: file.ino(), changed: (file.ctime(), file.ctime_nsec()), length: file.len() }
    }
}

fn volumes(credentials: &Path) -> io::Result<Vec<String>> {
    let mut volumes = Vec::new();
    for entry in fs::read_dir(credentials)? {
        volumes.extend(entry?.file_name().to_str().and_then(volume_of).map(str::to_owned));
    }
    Ok(volumes)
}

fn credentials_of(prefix: &Path, volume: &str) -> PathBuf {
    prefix.join("creds").join(format!("{volume}.json"))
}

fn read_credentials(prefix: &Path, volume: &str) -> Result<(Stamp, Vec<u8>), SocketError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = open(credentials_of(prefix, volume), flags, Mode::empty()).map_err(io::Error::from);
    let file = File::from(file.map_err(SocketError::Unreadable)?);
    let metadata = file.metadata().map_err(SocketError::Unreadable)?;
    let is_ours = [0, geteuid().as_raw()].contains(&metadata.uid()) && metadata.mode() & 0o022 == 0;
    if !metadata.is_file() || !is_ours || metadata.len() > MAX_CREDENTIALS {
        return Err(SocketError::Untrusted);
    }
    let mut text = Vec::new();
    file.take(MAX_CREDENTIALS).read_to_end(&mut text).map_err(SocketError::Unreadable)?;
    Ok((Stamp::of(&metadata), text))
}

fn open_folder(prefix: &Path, volume: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(prefix.join("mount").join(volume), flags, Mode::empty())?)
}

fn in_folder(folder: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", folder.as_raw_fd()).into()
}

/// Allows all users, as Felix does: the workload's user is unknown. Returns the inode.
fn open_to_all(folder: &OwnedFd) -> io::Result<u64> {
    // Another file may be there by now.
    let socket = openat(folder, SOCKET, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&socket)?;
    if FileType::from_raw_mode(found.st_mode) != FileType::Socket {
        return Err(io::Error::new(ErrorKind::AlreadyExists, "there is something else than a socket"));
    }
    fs::set_permissions(in_folder(&socket), Permissions::from_mode(0o777))?;
    Ok(found.st_ino)
}

fn inode(folder: &OwnedFd, name: &str) -> io::Result<u64> {
    Ok(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH)?.st_ino)
}

async fn accept(listener: UnixListener, service: Service) {
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
        };
        match accepted {
            Ok((connection, _)) if connections.len() < MAX_CONNECTIONS => {
                connections.spawn(service.clone().serve(connection));
            }
            Ok(_) => tracing::debug!(endpoint = %service.endpoint, "too many connections of a policy sync client"),
            Err(error) => {
                tracing::debug!(endpoint = %service.endpoint, %error, "a connection could not be taken");
                sleep(RETRY_DELAY).await;
            }
        }
    }
}
