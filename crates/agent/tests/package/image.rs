//! The image.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use super::machine::{Machine, Service, write_cluster};
use super::{PACKAGES, output_of, sha256};

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Returns the path of a descriptor's blob, which must have the descriptor's digest and size.
fn blob(descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
    let path = PACKAGES.image.join("blobs/sha256").join(digest);
    assert_eq!(sha256(&path), digest);
    assert_eq!(Some(fs::metadata(&path).unwrap().len()), descriptor["size"].as_u64());
    path
}

/// Returns the image's root directory, unpacked by another program.
fn unpack(folder: &TempDir) -> PathBuf {
    let bundle = folder.path().join("bundle");
    let image = format!("{}:{}", PACKAGES.image.display(), env!("CARGO_PKG_VERSION"));
    output_of(Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle));
    bundle.join("rootfs")
}

#[test]
fn everything_is_named_by_its_digest_and_nothing_else_exists() {
    let layout = &PACKAGES.image;
    assert_eq!(json(&layout.join("oci-layout"))["imageLayoutVersion"], "1.0.0");
    let index = json(&layout.join("index.json"));
    let manifests = index["manifests"].as_array().unwrap();
    assert_eq!((index["schemaVersion"].as_u64(), manifests.len()), (Some(2), 1));
    let mut named = BTreeSet::from([blob(&manifests[0])]);
    let manifest = json(&blob(&manifests[0]));
    assert_eq!(manifest["mediaType"], manifests[0]["mediaType"]);
    named.insert(blob(&manifest["config"]));
    let config = json(&blob(&manifest["config"]));
    let platform = |of: &Value| (of["architecture"].clone(), of["os"].clone());
    assert_eq!(platform(&config), platform(&manifests[0]["platform"]));
    assert_eq!(config["created"], "2023-11-14T22:13:20Z");
    let layers = manifest["layers"].as_array().unwrap();
    let diff_ids = config["rootfs"]["diff_ids"].as_array().unwrap();
    assert_eq!((layers.len(), diff_ids.len(), config["history"].as_array().unwrap().len()), (2, 2, 2));
    for (layer, diff_id) in layers.iter().zip(diff_ids) {
        assert_eq!(layer["mediaType"], "application/vnd.oci.image.layer.v1.tar+gzip");
        let unpacked = output_of(Command::new("sh").args(["-c", "gzip -dc \"$0\" | sha256sum"]).arg(blob(layer)));
        assert_eq!(diff_id, &format!("sha256:{}", unpacked.split_whitespace().next().unwrap()));
        named.insert(blob(layer));
    }
    let there = fs::read_dir(layout.join("blobs/sha256")).unwrap().map(|entry| entry.unwrap().path());
    assert_eq!(there.collect::<BTreeSet<_>>(), named);
}

tortie_lab::kernel_test! {
    fn with_nothing_else_in_its_root_the_agent_enforces_policy_by_nftables() {
        let folder = TempDir::new().unwrap();
        let root = unpack(&folder);
        let found = output_of(Command::new("sh").args(["-c", "find . -type f -printf '%P %m %U\n' | sort"]).current_dir(&root));
        let programs: Vec<&str> = found.lines().filter(|line| line.contains("bin/")).collect();
        assert_eq!(programs, ["usr/bin/tortie 755 0"]);
        let licences = found.lines().filter(|line| line.ends_with("/copyright 644 0")).count();
        let libraries = found.lines().filter(|line| line.contains(".so.")).count();
        // Those of the C library and of the compiler.
        assert!(libraries >= 3 && licences >= 2 && licences <= libraries, "{found}");
        let machine = Machine::of(&root);
        assert!(machine.output_of(&["/usr/bin/tortie", "version"]).starts_with("tortie "));
        write_cluster(&machine, "/etc/tortie/policy");
        let words = "/usr/bin/tortie run --datastore file:/etc/tortie/policy --node demo-node";
        let mut agent = machine.start(&Service {
            words: words.split(' ').map(str::to_owned).collect(),
            environment: vec!["FELIX_NFTABLESMODE=Enabled".to_owned()],
            capabilities: Vec::new(),
            writable: vec!["/run/tortie".to_owned(), "/var/lib/tortie".to_owned()],
        });
        agent.is_ready();
        assert!(machine.ruleset().contains("filter-cali-tw-"));
        let status = machine.output_of(&["/usr/bin/tortie", "status"]);
        assert!(status.contains("demo-node"), "{status}");
        let (status, log) = agent.end();
        assert!(status.success(), "{log}");
    }
}
