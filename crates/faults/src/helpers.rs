//! Programs that an agent runs, each with injectable faults.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

/// Programs that the agent may run.
const NAMES: [&str; 17] = [
    "iptables",
    "ip6tables",
    "iptables-save",
    "ip6tables-save",
    "iptables-restore",
    "ip6tables-restore",
    "iptables-nft",
    "ip6tables-nft",
    "iptables-nft-save",
    "ip6tables-nft-save",
    "iptables-nft-restore",
    "ip6tables-nft-restore",
    "iptables-legacy-save",
    "ip6tables-legacy-save",
    "iptables-legacy-restore",
    "ip6tables-legacy-restore",
    "ipset",
];

/// Search path of the real programs.
pub(super) const REAL_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// A folder with a wrapper for each program. If a file of the program's name exists in another
/// folder, the wrapper runs it as shell text first; then it executes the real program. The text has
/// the program's path in `$real`, its name in `$name`, and a folder for notes in `$notes`.
#[derive(Debug)]
pub(super) struct Helpers {
    programs: PathBuf,
    /// The installed programs: [`NAMES`], or none.
    names: &'static [&'static str],
    faults: PathBuf,
}

impl Helpers {
    /// Creates the wrappers; without packet filters, none.
    pub(super) fn create(folder: &Path, has_packet_filters: bool) -> io::Result<Self> {
        let names: &[_] = if has_packet_filters { &NAMES } else { &[] };
        let helpers = Self { programs: folder.join("programs"), names, faults: folder.join("faults") };
        fs::create_dir_all(&helpers.programs)?;
        fs::create_dir_all(&helpers.faults)?;
        let wrapper = folder.join("wrapper");
        let faults = helpers.faults.display();
        let script = format!(
            "#!/bin/sh\nPATH={REAL_PATH}\nname=${{0##*/}}\nreal=$(command -v \"$name\") || exit 127\n\
             notes={faults}/notes\nfault={faults}/$name\nif [ -e \"$fault\" ]; then . \"$fault\"; fi\nexec \"$real\" \"$@\"\n"
        );
        fs::create_dir_all(helpers.faults.join("notes"))?;
        fs::write(&wrapper, script)?;
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755))?;
        for name in names {
            helpers.install(name)?;
        }
        Ok(helpers)
    }

    /// Returns the only folder in which the agent finds programs.
    pub(super) fn path(&self) -> &Path {
        &self.programs
    }

    /// Makes a program run this shell text first from now on. Running processes are not affected.
    pub(super) fn fault(&self, program: &str, text: &str) -> io::Result<()> {
        debug_assert!(NAMES.contains(&program), "{program} is not among the helper programs");
        let new = self.faults.join("notes/new");
        fs::write(&new, format!("{text}\n"))?;
        fs::rename(new, self.faults.join(program))
    }

    /// Removes the fault of a program.
    pub(super) fn repair(&self, program: &str) -> io::Result<()> {
        match fs::remove_file(self.faults.join(program)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Removes all faults, and installs all programs.
    pub(super) fn repair_all(&self) -> io::Result<()> {
        self.names.iter().try_for_each(|name| {
            self.repair(name)?;
            self.install(name)
        })
    }

    /// Uninstalls a program.
    pub(super) fn uninstall(&self, program: &str) -> io::Result<()> {
        fs::remove_file(self.programs.join(program))
    }

    /// Installs a program again.
    pub(super) fn install(&self, program: &str) -> io::Result<()> {
        match symlink("../wrapper", self.programs.join(program)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the notes that a fault has written under this name; empty if there are none.
    pub(super) fn notes(&self, name: &str) -> String {
        fs::read_to_string(self.faults.join("notes").join(name)).unwrap_or_default()
    }

    /// Deletes the notes of this name.
    pub(super) fn clear_notes(&self, name: &str) {
        let _ = fs::remove_file(self.faults.join("notes").join(name));
    }
}
