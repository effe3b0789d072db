//! The programs that an agent runs, each of which can be told to misbehave.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

/// What the agent may run.
const NAMES: [&str; 18] = [
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
    "conntrack",
];

/// What it may run on a node that has neither iptables nor IP sets.
const NAMES_WITHOUT_PACKET_FILTERS: [&str; 1] = ["conntrack"];

/// Where the real programs are.
pub(super) const REAL_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// A folder with a wrapper for each program. A wrapper runs the shell text that lies under its name in another folder, if
/// there is one, and then becomes the real program. The text finds the program in `$real`, its name in `$name`, and a
/// folder for notes in `$notes`.
#[derive(Debug)]
pub(super) struct Helpers {
    programs: PathBuf,
    /// Of [`NAMES`], those that there are.
    names: &'static [&'static str],
    faults: PathBuf,
}

impl Helpers {
    /// Those of iptables and IP sets are not among them if there are no packet filters.
    pub(super) fn create(folder: &Path, has_packet_filters: bool) -> io::Result<Self> {
        let names: &[_] = if has_packet_filters { &NAMES } else { &NAMES_WITHOUT_PACKET_FILTERS };
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

    /// The only folder in which the agent finds programs.
    pub(super) fn path(&self) -> &Path {
        &self.programs
    }

    /// From now on a program runs this shell text first. Programs that run already are not concerned.
    pub(super) fn fault(&self, program: &str, text: &str) -> io::Result<()> {
        debug_assert!(NAMES.contains(&program), "{program} is not among the helper programs");
        let new = self.faults.join("notes/new");
        fs::write(&new, format!("{text}\n"))?;
        fs::rename(new, self.faults.join(program))
    }

    /// The program works again.
    pub(super) fn mend(&self, program: &str) -> io::Result<()> {
        match fs::remove_file(self.faults.join(program)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// All programs work again, and are there.
    pub(super) fn mend_all(&self) -> io::Result<()> {
        self.names.iter().try_for_each(|name| {
            self.mend(name)?;
            self.install(name)
        })
    }

    /// The program is not installed any more.
    pub(super) fn uninstall(&self, program: &str) -> io::Result<()> {
        fs::remove_file(self.programs.join(program))
    }

    /// The program is installed again.
    pub(super) fn install(&self, program: &str) -> io::Result<()> {
        match symlink("../wrapper", self.programs.join(program)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// What a fault has written to its notes under this name; empty if nothing.
    pub(super) fn notes(&self, name: &str) -> String {
        fs::read_to_string(self.faults.join("notes").join(name)).unwrap_or_default()
    }

    /// Forgets the notes of this name.
    pub(super) fn clear_notes(&self, name: &str) {
        let _ = fs::remove_file(self.faults.join("notes").join(name));
    }
}
