//! What must be on the machine besides a Rust toolchain.

use crate::shell::{self, is_installed};

/// A program or, relative to where programs are, another file; and the Debian package that has it.
struct Need {
    file: &'static str,
    package: &'static str,
}

const KERNEL_TOOLS: &[Need] = &[
    Need { file: "iptables-nft-restore", package: "iptables" },
    Need { file: "iptables-legacy-restore", package: "iptables" },
    Need { file: "ipset", package: "ipset" },
    // A test lets another program change the kernel's ruleset.
    Need { file: "nft", package: "nftables" },
    Need { file: "ip", package: "iproute2" },
    Need { file: "conntrack", package: "conntrack" },
    Need { file: "unshare", package: "util-linux" },
];

const SERVERS: &[Need] =
    &[Need { file: "etcd", package: "etcd-server" }, Need { file: "etcdctl", package: "etcd-client" }];

/// What lets calls of the kernel fail, and writes maps of eBPF programs by hand.
const FAULT_TOOLS: &[Need] =
    &[Need { file: "strace", package: "strace" }, Need { file: "bpftool", package: "bpftool" }];

/// What looks at the pages that are made.
const BROWSERS: &[Need] = &[
    Need { file: "chromium", package: "chromium" },
    Need { file: "../share/fonts/truetype/dejavu/DejaVuSans.ttf", package: "fonts-dejavu-core" },
];

const COMPILERS: &[Need] = &[Need { file: "cc", package: "gcc" }];
/// What the features of the agent need as well.
const PROTOCOL_TOOLS: &[Need] = &[
    Need { file: "protoc", package: "protobuf-compiler" },
    // Which the package before only recommends.
    Need { file: "../include/google/protobuf/descriptor.proto", package: "libprotobuf-dev" },
];
const CXX_COMPILERS: &[Need] = &[Need { file: "c++", package: "g++" }];

/// Installs what is missing for building.
pub(crate) fn to_build() -> Result<(), String> {
    install(COMPILERS)?;
    install(PROTOCOL_TOOLS)
}

/// Installs what is missing for building the agent without features, and running it on the kernel.
pub(crate) fn to_show() -> Result<(), String> {
    install(COMPILERS)?;
    install(KERNEL_TOOLS)
}

/// Installs what is missing for running on the kernel.
pub(crate) fn to_run() -> Result<(), String> {
    to_build()?;
    install(KERNEL_TOOLS)
}

/// Installs what is missing for the tests.
pub(crate) fn to_test() -> Result<(), String> {
    to_run()?;
    install(SERVERS)?;
    install(FAULT_TOOLS)?;
    install(BROWSERS)
}

/// Installs what is missing for the fuzz targets.
pub(crate) fn to_fuzz() -> Result<(), String> {
    to_build()?;
    install(CXX_COMPILERS)
}

fn install(needs: &[Need]) -> Result<(), String> {
    let mut packages: Vec<&str> = needs.iter().filter(|n| !is_installed(n.file)).map(|n| n.package).collect();
    packages.dedup();
    if packages.is_empty() {
        return Ok(());
    }
    let list = packages.join(" ");
    if !is_installed("apt-get") {
        return Err(format!("please install: {list} (names of Debian packages)"));
    }
    println!("installing {list}");
    let as_root = |args: &[&str]| {
        let mut words = if is_root() { vec![] } else { vec!["sudo"] };
        words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]);
        words.extend(args);
        shell::run(&mut shell::command(words[0], &words[1..]))
    };
    let mut args = vec!["install", "-y", "-qq", "--no-install-recommends"];
    args.extend(&packages);
    // A new machine has no package lists; another may have good ones, and no network.
    as_root(&args)
        .or_else(|_| as_root(&["update", "-qq"]).and_then(|()| as_root(&args)))
        .map_err(|error| format!("{list} cannot be installed: {error}"))
}

fn is_root() -> bool {
    shell::output(&mut shell::command("id", &["-u"])).is_ok_and(|uid| uid.trim() == "0")
}
