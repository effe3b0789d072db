//! Names of sysctls.

use std::fmt;

/// The name of a sysctl as a path below `/proc/sys`, such as `net/ipv4/ip_forward`.
///
/// No component is empty, `.` or `..`, so it never leads out of that directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SysctlPath(String);

impl SysctlPath {
    /// Checks and keeps a path.
    ///
    /// # Errors
    /// [`InvalidSysctlPath`] if a component is empty, `.` or `..`, or has a NUL byte.
    pub fn new(path: impl Into<String>) -> Result<Self, InvalidSysctlPath> {
        let path = path.into();
        let is_plain = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
        if path.split('/').all(is_plain) { Ok(Self(path)) } else { Err(InvalidSysctlPath(path)) }
    }

    /// Returns the path below `/proc/sys`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SysctlPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Text that cannot be a [`SysctlPath`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not the path of a sysctl")]
pub struct InvalidSysctlPath(pub String);
