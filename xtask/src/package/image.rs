//! An image in OCI layout, made without a container runtime.
//!
//! It contains the agent and, as it is linked to glibc, the loader and its libraries, copied from
//! the build machine. It has no distribution, no shell and no iptables. The nftables and eBPF back
//! ends need nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::binary::Binary;
use super::{Package, architecture, version};
use crate::files::{copy, empty, failed, open_folders, sha256, write};
use crate::shell::{output, root, run};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";

/// Folders that serve as mount points, or for written files if the root is writable.
const FOLDERS: &[&str] = &["etc/tortie", "proc", "run/tortie", "sys", "var/lib/tortie"];

/// Users by name, and the configuration of host name lookup.
const FILES: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/sbin/nologin\n"),
    ("etc/group", "root:x:0:\nnonroot:x:65532:\n"),
    ("etc/nsswitch.conf", "hosts: files dns\n"),
];

/// A layer and its descriptors.
struct Layer {
    /// Digest of the uncompressed archive.
    diff_id: String,
    blob: Value,
    created_by: &'static str,
}

/// Makes the image and returns its folder.
pub(super) fn make(package: &Package, binary: &Binary) -> Result<PathBuf, String> {
    let layout = empty(&package.out.join("oci"))?;
    let tree = package.out.join("layer");
    // Layers that rarely change come first.
    let system = layer(package, &layout, &tree, "libraries, and the loader of glibc", |tree| system(binary, tree))?;
    let agent = layer(package, &layout, &tree, "the agent", |tree| {
        copy(&root().join("LICENSE"), &tree.join("usr/share/doc/tortie/LICENSE"), 0o644)?;
        copy(&binary.program, &tree.join("usr/bin/tortie"), 0o755)
    })?;
    let layers = [system, agent];
    let created = time(package.epoch)?;
    let history = |layer: &Layer| json!({"created": created, "created_by": layer.created_by});
    let config = json!({
        "created": created,
        "author": "The Tortie authors",
        "architecture": architecture()?,
        "os": "linux",
        "config": {
            "Env": ["PATH=/usr/sbin:/usr/bin"],
            "Entrypoint": ["/usr/bin/tortie"],
            // The manifests run agents as user 0.
            "User": "65532:65532",
            "Labels": labels(),
        },
        "rootfs": {"type": "layers", "diff_ids": layers.iter().map(|layer| &layer.diff_id).collect::<Vec<_>>()},
        "history": layers.iter().map(history).collect::<Vec<_>>(),
    });
    let config = put_json(&layout, CONFIG, &config)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": layers.iter().map(|layer| &layer.blob).collect::<Vec<_>>(),
        "annotations": labels(),
    });
    let mut manifest = put_json(&layout, MANIFEST, &manifest)?;
    manifest["platform"] = json!({"architecture": architecture()?, "os": "linux"});
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": version()});
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [manifest]});
    write(&layout.join("index.json"), &index.to_string())?;
    write(&layout.join("oci-layout"), &json!({"imageLayoutVersion": "1.0.0"}).to_string())?;
    Ok(layout)
}

fn labels() -> Value {
    json!({
        "org.opencontainers.image.title": "tortie",
        "org.opencontainers.image.description":
            "Network policy agent; enforces by nftables and eBPF programs. Without iptables, a shell, or a distribution.",
        "org.opencontainers.image.version": version(),
        "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
    })
}

/// Adds the loader and the libraries of the program under the paths by which they are found, their
/// licences, and the other files of a root.
fn system(binary: &Binary, tree: &Path) -> Result<(), String> {
    for path in &library_paths(&output(Command::new("ldd").arg(&binary.program))?)? {
        // A link would point to a missing file.
        let real = fs::canonicalize(path).map_err(failed(path))?;
        copy(&real, &tree.join(path.strip_prefix("/").unwrap_or(path)), 0o755)?;
        let package = package_of(&[path, &real])?;
        let licence = PathBuf::from(format!("usr/share/doc/{package}/copyright"));
        copy(&Path::new("/").join(&licence), &tree.join(licence), 0o644)?;
    }
    for (path, text) in FILES {
        write(&tree.join(path), text)?;
    }
    for folder in FOLDERS {
        let folder = tree.join(folder);
        fs::create_dir_all(&folder).map_err(failed(&folder))?;
    }
    Ok(())
}

/// Returns the Debian package of a file, which may be registered under another name of its folder.
fn package_of(names: &[&Path; 2]) -> Result<String, String> {
    for name in names {
        let owner = Command::new("dpkg-query").arg("--search").arg(name).output();
        let owner = owner.map_err(|error| format!("dpkg-query: {error}"))?;
        if let Some((package, _)) = String::from_utf8_lossy(&owner.stdout).split_once(':') {
            return Ok(package.to_owned());
        }
    }
    Err(format!("{} is of no package, so that its licence is not known", names[0].display()))
}

/// Returns the paths that `ldd` prints: `NAME => PATH (ADDRESS)`, the loader without an arrow.
/// Libraries of the kernel have no path.
fn library_paths(found: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in found.lines() {
        if line.contains("not found") {
            return Err(format!("missing library: {}", line.trim()));
        }
        let named = line.split_once("=>").map_or(line, |(_, path)| path);
        paths.extend(named.split_whitespace().next().filter(|path| path.starts_with('/')).map(PathBuf::from));
    }
    if paths.is_empty() {
        return Err(format!("ldd names no library: {}", found.trim()));
    }
    Ok(paths)
}

/// Packs the files that `fill` writes to a folder.
fn layer(
    package: &Package,
    layout: &Path,
    tree: &Path,
    created_by: &'static str,
    fill: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<Layer, String> {
    fill(&empty(tree)?)?;
    open_folders(tree)?;
    let archive = package.out.join("layer.tar");
    let mut tar = Command::new("tar");
    // Equal files give equal archives, for any user and any order on the disk.
    tar.args(["--create", "--format=ustar", "--sort=name", "--numeric-owner", "--owner=0", "--group=0"]);
    tar.arg(format!("--mtime=@{}", package.epoch)).arg("--file").arg(&archive).arg("--directory").arg(tree);
    run(tar.arg(".").env("LC_ALL", "C"))?;
    let diff_id = format!("sha256:{}", sha256(&archive)?);
    run(Command::new("gzip").args(["--no-name", "--force", &format!("-{}", package.compression)]).arg(&archive))?;
    let blob = put(layout, LAYER, &package.out.join("layer.tar.gz"))?;
    fs::remove_dir_all(tree).map_err(failed(tree))?;
    Ok(Layer { diff_id, blob, created_by })
}

/// Moves a file to the blobs, and returns its descriptor.
fn put(layout: &Path, media_type: &str, file: &Path) -> Result<Value, String> {
    let digest = sha256(file)?;
    let size = fs::metadata(file).map_err(failed(file))?.len();
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(failed(&blobs))?;
    fs::rename(file, blobs.join(&digest)).map_err(failed(file))?;
    Ok(json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size}))
}

fn put_json(layout: &Path, media_type: &str, value: &Value) -> Result<Value, String> {
    let file = layout.join("new.json");
    write(&file, &value.to_string())?;
    put(layout, media_type, &file)
}

/// Formats a time by RFC 3339.
fn time(epoch: u64) -> Result<String, String> {
    let text = output(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", &format!("--date=@{epoch}")]))?;
    Ok(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_where_the_loader_finds_them() {
        let found = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                     \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(library_paths(found).unwrap(), paths);
        assert!(library_paths("\tlibz.so.1 => not found\n").unwrap_err().contains("libz.so.1"));
        assert!(library_paths("\tstatically linked\n").is_err());
    }

    #[test]
    fn times_have_the_format_of_the_specification() {
        assert_eq!(time(1_700_000_000).unwrap(), "2023-11-14T22:13:20Z");
    }
}
