//! The Debian package: files of `deploy/debian`, the agent, and its generated documentation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::binary::Binary;
use super::{Package, architecture, version, write_manual};
use crate::files::{below, copy, empty, failed, open_folders, write};
use crate::shell::{output, root, run};

/// Files of `deploy/debian`, their target paths and modes.
const FILES: &[(&str, &str, u32)] = &[
    ("tortie.service", "usr/lib/systemd/system/tortie.service", 0o644),
    // Addresses and names of servers are readable for root and its group only.
    ("tortie.env", "etc/tortie/tortie.env", 0o640),
    ("felix.cfg", "etc/tortie/felix.cfg", 0o640),
    ("ebpf.conf", "usr/share/doc/tortie/examples/ebpf.conf", 0o644),
    ("copyright", "usr/share/doc/tortie/copyright", 0o644),
];

/// Files and scripts for dpkg.
const CONTROL: &[(&str, u32)] = &[("conffiles", 0o644), ("postinst", 0o755), ("prerm", 0o755), ("postrm", 0o755)];

/// Makes the package and returns its path.
pub(super) fn make(package: &Package, binary: &Binary) -> Result<PathBuf, String> {
    let tree = empty(&package.out.join("debian"))?;
    lay_out(package, binary, &tree)?;
    control(binary, &tree)?;
    open_folders(&tree)?;
    let file = package.out.join(format!("tortie_{}_{}.deb", version(), architecture()?));
    let level = package.compression;
    let compressor = if level > 5 { "-Zxz" } else { "-Zgzip" };
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", compressor, &format!("-z{level}"), "--build"]).arg(&tree).arg(&file);
    // The output is captured; otherwise dpkg-deb prints its progress.
    output(build.env("SOURCE_DATE_EPOCH", package.epoch.to_string()))?;
    fs::remove_dir_all(&tree).map_err(failed(&tree))?;
    Ok(file)
}

/// Copies all files to their target paths.
fn lay_out(package: &Package, binary: &Binary, tree: &Path) -> Result<(), String> {
    copy(&binary.program, &tree.join("usr/bin/tortie"), 0o755)?;
    for (name, target, mode) in FILES {
        copy(&root().join("deploy/debian").join(name), &tree.join(target), *mode)?;
    }
    let share = tree.join("usr/share");
    copy(&root().join("LICENSE"), &share.join("doc/tortie/LICENSE"), 0o644)?;
    copy(&root().join("CHANGELOG.md"), &share.join("doc/tortie/CHANGELOG.md"), 0o644)?;
    write_manual(&package.agent, &share)?;
    // Debian's zsh searches a separate folder for completions of packages.
    let (site, vendor) = (share.join("zsh/site-functions"), share.join("zsh/vendor-completions"));
    fs::rename(&site, &vendor).map_err(failed(&site))?;
    let mut gzip = Command::new("gzip");
    gzip.args(["--no-name", "--best"]).arg(share.join("doc/tortie/CHANGELOG.md"));
    let pages = below(&share.join("man/man1"))?;
    run(gzip.args(pages.iter().map(|page| share.join("man/man1").join(page))))
}

/// Writes the control files for dpkg.
fn control(binary: &Binary, tree: &Path) -> Result<(), String> {
    let source = root().join("deploy/debian");
    let target = tree.join("DEBIAN");
    let files = below(tree)?;
    let mut bytes = 0;
    for file in &files {
        bytes += fs::symlink_metadata(tree.join(file)).map_err(failed(file))?.len();
    }
    let sums = output(Command::new("md5sum").args(&files).current_dir(tree))?;
    write(&target.join("md5sums"), &sums)?;
    for (name, mode) in CONTROL {
        copy(&source.join(name), &target.join(name), *mode)?;
    }
    let template = source.join("control");
    let text = fs::read_to_string(&template).map_err(failed(&template))?;
    let text = text
        .replace("${version}", version())
        .replace("${architecture}", architecture()?)
        .replace("${installed-size}", &bytes.div_ceil(1024).to_string())
        .replace("${glibc}", &binary.least_glibc()?);
    if text.contains("${") {
        return Err(format!("{}: something is left to be filled in", template.display()));
    }
    write(&target.join("control"), &text)
}
