//! Check whether tests that need a real kernel can run.
//!
//! Such tests create private network namespaces and program them; the host's namespace is never
//! touched. They need root, or an unprivileged user namespace, in which
//! [`kernel_test!`](crate::kernel_test) re-runs the test. `TORTIE_SKIP_KERNEL_TESTS=1` skips them
//! and prints their number to standard error.
//!
//! ```no_run
//! tortie_lab::kernel_test! {
//!     fn loopback_answers() {
//!         let namespace = tortie_lab::netns::Namespace::new().unwrap();
//!         namespace.shell("ping -c1 127.0.0.1").unwrap();
//!     }
//! }
//! ```

use std::{
    io::Write,
    process::{Command, ExitCode, ExitStatus},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::netns::{on_own_thread, unshare_network};

/// Environment variable that skips all kernel tests if it is `1`.
pub const SKIP_VARIABLE: &str = "TORTIE_SKIP_KERNEL_TESTS";

/// Environment variable of a process that was restarted inside a user namespace, so that it does
/// not restart again.
const REEXEC_VARIABLE: &str = "TORTIE_KERNEL_TESTS_IN_USER_NAMESPACE";

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Proof that this process may create and program network namespaces.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Kernel;

/// Reason for which a kernel test cannot run in this process.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// [`SKIP_VARIABLE`] is set.
    #[error("skipped because {SKIP_VARIABLE} is set ({count} so far in this process)")]
    Skipped {
        /// Number of tests skipped by this process, including this one.
        count: usize,
    },
    /// This process may not create network namespaces; [`in_user_namespace`] may help.
    #[error(
        "no permission to create a network namespace: {0} (run as root, allow unprivileged user namespaces, or set {SKIP_VARIABLE}=1)"
    )]
    NotPermitted(#[source] std::io::Error),
    /// A tool is missing.
    #[error("`ip` (iproute2) cannot be run: {0}")]
    NoIpCommand(#[source] std::io::Error),
    /// An unprivileged user namespace was tried and failed as well.
    #[error("neither root nor an unprivileged user namespace: {0} (set {SKIP_VARIABLE}=1 to skip)")]
    NoUserNamespace(#[source] Box<dyn std::error::Error + Send + Sync>),
}

/// Checks whether kernel tests may run in this process. All kernel tests of the workspace call it.
///
/// # Errors
/// The reason if they may not. A skipped test is counted, and the count is written to standard
/// error past the test harness's capture.
pub fn require() -> Result<Kernel, Unavailable> {
    if std::env::var(SKIP_VARIABLE).is_ok_and(|value| value == "1") {
        let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
        // The test harness would capture eprintln!.
        let _ = writeln!(std::io::stderr(), "kernel tests skipped: {count} ({SKIP_VARIABLE}=1)");
        return Err(Unavailable::Skipped { count });
    }
    Command::new("ip").arg("-V").output().map_err(Unavailable::NoIpCommand)?;
    on_own_thread(unshare_network).map_err(Unavailable::NotPermitted)?;
    Ok(Kernel)
}

/// Reports whether [`in_user_namespace`] started this process.
#[must_use]
pub fn is_in_user_namespace() -> bool {
    std::env::var_os(REEXEC_VARIABLE).is_some()
}

/// Runs this program again, with `arguments`, as root of a new user namespace with a separate mount
/// namespace.
///
/// # Errors
/// If no such namespace can be created, with the reason.
pub fn in_user_namespace<S: AsRef<std::ffi::OsStr>>(
    arguments: impl IntoIterator<Item = S>,
) -> Result<ExitStatus, Unavailable> {
    let refused = |reason: String| Err(Unavailable::NoUserNamespace(reason.into()));
    if is_in_user_namespace() {
        return refused("already inside one, and network namespaces are still refused".to_owned());
    }
    let program = std::env::current_exe().map_err(|error| Unavailable::NoUserNamespace(error.into()))?;
    // iptables keeps its lock below /run, which the mapped root does not own.
    let prepare = "mount -t tmpfs tmpfs /run";
    let unshare = ["--user", "--map-root-user", "--net", "--mount", "--", "sh", "-c"];
    match Command::new("unshare").args(unshare).arg(prepare).output() {
        Err(error) => return refused(format!("cannot run `unshare`: {error}")),
        Ok(trial) if !trial.status.success() => {
            return refused(String::from_utf8_lossy(&trial.stderr).trim().to_owned());
        }
        Ok(_) => {}
    }
    Command::new("unshare")
        .args(unshare)
        .arg(format!("{prepare} && exec \"$0\" \"$@\""))
        .arg(program)
        .args(arguments)
        .env(REEXEC_VARIABLE, "1")
        .status()
        .map_err(|error| Unavailable::NoUserNamespace(error.into()))
}

/// Runs this program again with the same arguments as root of a new user namespace. The exit code
/// reports success.
#[must_use]
pub fn again_in_user_namespace() -> ExitCode {
    match in_user_namespace(std::env::args_os().skip(1)) {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a test body, in this process or inside a user namespace. `path` is the module path and the
/// name of the test function; [`kernel_test!`](crate::kernel_test) provides it.
///
/// # Panics
/// If the test cannot run, with the reason, or if it fails.
pub fn run_test(path: &str, body: impl FnOnce()) {
    match require() {
        Ok(Kernel) => body(),
        Err(Unavailable::Skipped { .. }) => {}
        Err(Unavailable::NotPermitted(_)) => {
            let name = path.split_once("::").map_or(path, |(_crate, rest)| rest);
            match in_user_namespace([name, "--exact", "--nocapture", "--include-ignored"]) {
                Ok(status) => assert!(status.success(), "{name} failed inside a user namespace: {status}"),
                Err(error) => panic!("{name}: {error}"),
            }
        }
        Err(error) => panic!("{path}: {error}"),
    }
}

/// Declares a test that needs a real kernel: `kernel_test! { fn name() { … } }`.
#[macro_export]
macro_rules! kernel_test {
    ($($(#[$attribute:meta])* fn $name:ident() $body:block)+) => {$(
        #[test]
        $(#[$attribute])*
        fn $name() {
            $crate::kernel::run_test(concat!(module_path!(), "::", stringify!($name)), || $body);
        }
    )+};
}
