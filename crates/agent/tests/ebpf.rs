//! Felix's leftovers on a node in its eBPF mode, with programs that the kernel runs: they are
//! loaded, pinned and attached as Felix would have left them, and `tortie run` and `tortie cleanup`
//! remove them.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "a test that runs the program on the kernel")]

#[path = "ebpf/bpf.rs"]
mod bpf;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tortie_lab::netns::Namespace;

use bpf::{ProgramKind, TcxDirection};

const PATIENCE: Duration = Duration::from_secs(120);
const ROOT: &str = "/sys/fs/bpf";
const CLUSTER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: shop}
spec: {nodeName: n1, containers: [{name: c, image: i}]}
status: {phase: Running, podIPs: [{ip: 10.65.0.2}]}
";

fn shell(line: &str) -> String {
    let output = Command::new("sh").args(["-euc", line]).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Loads a program with this name, and pins it at a path.
fn pinned(kind: ProgramKind, name: &str, path: &str) {
    let path = Path::new(ROOT).join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    bpf::pin(&bpf::load(kind, name).unwrap(), &path).unwrap();
}

/// Attaches a program to an interface by a link, and pins the link at a path.
fn tcx(interface: &str, direction: TcxDirection, path: &str) {
    let program = bpf::load(ProgramKind::Tc, "cali_tc_main").unwrap();
    let link = bpf::attach_tcx(&program, index(interface), direction).unwrap();
    let path = Path::new(ROOT).join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    bpf::pin(&link, &path).unwrap();
}

fn index(interface: &str) -> u32 {
    shell(&format!("ip -o link show dev {interface}")).split(':').next().unwrap().parse().unwrap()
}

/// Returns the number of programs that are attached to cali1 by links.
fn tcx_programs() -> u32 {
    let of = |direction| bpf::attached_tcx(index("cali1"), direction).unwrap();
    of(TcxDirection::Ingress) + of(TcxDirection::Egress)
}

/// Returns the interfaces, qdiscs, filters and pinned objects as text.
fn shown() -> String {
    let filters = ["cali1", "cali2", "eth0", "eth2"]
        .map(|name| format!("tc filter show dev {name} ingress; tc filter show dev {name} egress"));
    shell(&format!("ip -o link; tc qdisc; {}; find {ROOT} | sort", filters.join("; ")))
}

/// Reports whether an interface has an XDP program.
fn has_xdp(interface: &str) -> bool {
    shell(&format!("ip -o link show dev {interface}")).contains("xdp")
}

/// Creates Felix's leftovers, and objects of other programs.
fn leave() {
    let interfaces = ["cali1", "cali2", "eth0", "eth1", "eth2"];
    let links = interfaces.map(|name| format!("ip link add {name} type veth peer name p{name}; ip link set {name} up"));
    shell(&format!("{}; ip link add bpfin.cali type veth peer name bpfout.cali", links.join("; ")));
    pinned(ProgramKind::Tc, "cali_tc_main", "calico/tc/cali_tc_main");
    pinned(ProgramKind::Tc, "others", "others/filter");
    let attach = |interface: &str, direction: &str, pin: &str| {
        format!("tc filter add dev {interface} {direction} bpf da object-pinned {ROOT}/{pin}")
    };
    let (felix, other) = ("calico/tc/cali_tc_main", "others/filter");
    shell(&["cali1", "cali2", "eth0", "eth2"].map(|name| format!("tc qdisc add dev {name} clsact")).join("; "));
    shell(
        &[
            attach("cali1", "ingress", felix),
            attach("cali1", "egress", felix),
            attach("eth0", "ingress", felix),
            attach("cali2", "ingress", felix),
            attach("cali2", "ingress", other),
            attach("eth2", "egress", other),
        ]
        .join("; "),
    );
    for (interface, mode) in [("eth0", "xdpgeneric"), ("eth1", "xdpdrv")] {
        let pin = format!("calico/xdp/prefilter_v1_{interface}");
        pinned(ProgramKind::Xdp, "xdp_calico_entr", &pin);
        shell(&format!("ip link set dev {interface} {mode} pinned {ROOT}/{pin}"));
    }
    pinned(ProgramKind::Xdp, "others", "others/xdp");
    shell(&format!("ip link set dev eth2 xdpgeneric pinned {ROOT}/others/xdp"));
    tcx("cali1", TcxDirection::Ingress, "tcx/cali1_ingress");
    tcx("cali1", TcxDirection::Egress, "tcx/cali1_egress");
    for name in ["cali_v4_ct3", "cali_v4_routes3"] {
        let path = Path::new(ROOT).join("tc/globals").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        bpf::pin(&bpf::create_map(name).unwrap(), &path).unwrap();
    }
    let path = Path::new(ROOT).join("tc/globals/others");
    bpf::pin(&bpf::create_map("others").unwrap(), &path).unwrap();

    assert!(["eth0", "eth1", "eth2"].into_iter().all(has_xdp), "{}", shown());
    assert_eq!(shown().matches("cali_tc_main:[").count(), 4, "{}", shown());
    assert_eq!(tcx_programs(), 2);
}

/// Reports whether all leftovers of Felix are gone.
fn is_gone() -> bool {
    let shown = shown();
    !["cali_tc_main", "bpfin.cali", "prefilter", "cali_v4", "tcx/cali1"].iter().any(|word| shown.contains(word))
        && !has_xdp("eth0")
        && !has_xdp("eth1")
        && tcx_programs() == 0
}

fn others_are_there() {
    let shown = shown();
    assert_eq!(shown.matches("filter:[").count(), 2, "{shown}");
    assert!(has_xdp("eth2"), "{shown}");
    for pin in ["others/filter", "others/xdp", "tc/globals/others"] {
        assert!(shown.contains(pin), "{pin}\n{shown}");
    }
    // The qdiscs of the other interfaces are no longer needed.
    let clsact =
        |name: &str| shown.lines().any(|line| line.contains("clsact") && line.contains(&format!("dev {name} ")));
    assert_eq!(["cali1", "cali2", "eth0", "eth2"].map(clsact), [false, true, false, true], "{shown}");
}

/// Returns `tortie` as the first process of a machine: only there it removes pinned objects.
fn tortie(folder: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--pid", "--fork", "--kill-child", "--mount-proc", env!("CARGO_BIN_EXE_tortie")]);
    command.env("XTABLES_LOCKFILE", folder.join("xtables.lock")).env("FELIX_IPTABLESBACKEND", "nft");
    command
}

/// Runs a body on a node with Felix's leftovers, and a separate BPF file system.
fn after_felix(test: &str, body: impl FnOnce(&Path) + Send) {
    let (namespace, folder) = (Namespace::new().unwrap(), TempDir::new().unwrap());
    namespace
        .run(|| {
            if let Err(why) = prepare() {
                // Written directly, since the test harness captures `eprintln!`.
                let _ = writeln!(io::stderr(), "{test} is skipped: {why}");
                return;
            }
            leave();
            body(folder.path());
        })
        .unwrap();
}

/// Prepares the use of eBPF. Returns the reason if it is unavailable.
fn prepare() -> Result<(), String> {
    bpf::leave_mounts().map_err(|error| format!("no namespace of mounts: {error}"))?;
    let mount = format!("mount --make-rprivate / && mount -t bpf bpf {ROOT}");
    let mounted = Command::new("sh").args(["-euc", &mount]).output().map_err(|error| error.to_string())?;
    if !mounted.status.success() {
        return Err(String::from_utf8_lossy(&mounted.stderr).trim().to_owned());
    }
    let program = bpf::load(ProgramKind::Tc, "test").map_err(|error| format!("eBPF: {error}"))?;
    let counted = bpf::attached_tcx(1, TcxDirection::Ingress);
    drop(program);
    counted.map(drop).map_err(|error| format!("eBPF programs attached by links: {error}"))
}

/// Pins a map by which Felix translates Services.
fn translate_services() {
    let name = "cali_v4_nat_fe3";
    bpf::pin(&bpf::create_map(name).unwrap(), &Path::new(ROOT).join("tc/globals").join(name)).unwrap();
}

/// Returns the agent's readiness answer over HTTP; empty if there is none.
fn readiness() -> String {
    let mut answer = String::new();
    if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", 9099)) {
        let _ = write!(stream, "GET /readiness HTTP/1.1\r\n\r\n");
        let _ = stream.read_to_string(&mut answer);
    }
    answer
}

/// Runs the agent until it has removed all leftovers of Felix.
fn start_after_felix(folder: &Path, bpf_enabled: &str) {
    take_over(folder, bpf_enabled, |_| true);
}

/// Runs the agent until it has removed all leftovers of Felix. First waits until `is_prepared`
/// accepts its log.
fn take_over(folder: &Path, bpf_enabled: &str, mut is_prepared: impl FnMut(&str) -> bool) {
    let manifests = folder.join("manifests");
    fs::create_dir(&manifests).unwrap();
    fs::write(manifests.join("cluster.yaml"), CLUSTER).unwrap();
    let log = folder.join("log");
    let mut agent = tortie(folder)
        .args(["run", "--node", "n1", "--log-format", "json", "--datastore"])
        .arg(format!("file:{}", manifests.display()))
        .arg("--state-dir")
        .arg(folder.join("state"))
        .arg("--mtu-file")
        .arg(folder.join("mtu"))
        .env("FELIX_ENDPOINTSTATUSPATHPREFIX", folder)
        .env("FELIX_BPFENABLED", bpf_enabled)
        .env("FELIX_HEALTHENABLED", "true")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let until = Instant::now() + PATIENCE;
    // The removal is logged when it is complete.
    let is_logged = || {
        let log = fs::read_to_string(&log).unwrap();
        ["eBPF programs of cali1", "XDP program of eth0", "XDP program of eth1"]
            .iter()
            .all(|leftover| log.contains(&format!("\"leftover\":\"{leftover}\"")))
    };
    while !(is_prepared(&fs::read_to_string(&log).unwrap()) && is_gone() && is_logged()) {
        let ended = agent.try_wait().unwrap();
        let log = fs::read_to_string(&log).unwrap();
        if ended.is_some() || Instant::now() > until {
            let _ = agent.kill();
            panic!("{ended:?}\n{}\n{log}", shown());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = agent.kill();
    let _ = agent.wait();
}

tortie_lab::kernel_test! {
    fn cleanup_removes_programs_of_felix_and_leaves_those_of_others() {
        after_felix("cleanup_removes_programs_of_felix_and_leaves_those_of_others", |folder| {
            let cleanup = || {
                let output = tortie(folder).arg("cleanup").output().unwrap();
                let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
                assert!(output.status.success(), "{printed}");
                printed
            };
            let printed = cleanup();
            assert!(is_gone(), "{}\n{printed}", shown());
            others_are_there();
            for thing in ["eBPF programs of cali1", "XDP program of eth0", "XDP program of eth1", "pinned eBPF objects", "device bpfin.cali"] {
                assert!(printed.contains(thing), "{thing}\n{printed}");
            }
            let again = cleanup();
            assert!(!again.contains("eBPF") && !again.contains("XDP"), "{again}");
        });
    }

    fn cleanup_keeps_programs_that_alone_translate_services() {
        after_felix("cleanup_keeps_programs_that_alone_translate_services", |folder| {
            translate_services();
            let before = shown();
            let output = tortie(folder).arg("cleanup").output().unwrap();
            let printed = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && printed.contains("no kube-proxy is found"), "{printed}");
            assert_eq!(shown(), before);
            let output = tortie(folder).args(["cleanup", "--without-services"]).output().unwrap();
            assert!(output.status.success() && is_gone(), "{}", shown());
            others_are_there();
        });
    }

    fn a_start_keeps_programs_that_translate_services_until_kube_proxy_does() {
        after_felix("a_start_keeps_programs_that_translate_services_until_kube_proxy_does", |folder| {
            translate_services();
            let mut has_kube_proxy = false;
            take_over(folder, "false", |log| {
                let is_refused = || {
                    let readiness = readiness();
                    readiness.starts_with("HTTP/1.1 503") && readiness.contains("no kube-proxy is found")
                };
                if !has_kube_proxy && log.contains("the dataplane of Felix cannot be removed") && is_refused() {
                    assert_eq!(shown().matches("cali_tc_main:[").count(), 4, "{}", shown());
                    shell("iptables-nft -t nat -N KUBE-SERVICES");
                    has_kube_proxy = true;
                }
                has_kube_proxy
            });
            let log = fs::read_to_string(folder.join("log")).unwrap();
            assert!(log.contains("the dataplane of Felix can be removed now"), "{log}");
            others_are_there();
        });
    }

    fn a_start_removes_programs_of_felix_once_policy_is_in_force() {
        after_felix("a_start_removes_programs_of_felix_once_policy_is_in_force", |folder| {
            start_after_felix(folder, "false");
            // Policy was written before.
            assert!(shell("iptables-nft-save -t filter").contains(":cali-FORWARD"));
            others_are_there();
        });
    }

    fn a_start_with_programs_of_its_own_removes_those_of_felix() {
        after_felix("a_start_with_programs_of_its_own_removes_those_of_felix", |folder| {
            start_after_felix(folder, "true");
            let pins = shell(&format!("find {ROOT}/tortie -name forward-4"));
            assert_eq!(pins.lines().count(), 1, "{pins}");
            others_are_there();
        });
    }

    fn a_start_beside_felix_or_in_place_of_kube_proxy_is_refused() {
        after_felix("a_start_beside_felix_or_in_place_of_kube_proxy_is_refused", |folder| {
            fs::create_dir(folder.join("manifests")).unwrap();
            fs::copy("/bin/sleep", folder.join("calico-felix")).unwrap();
            let refused = |beside: &str, policy_only: &str| {
                let line = format!(
                    "{beside} sleep 1; exec {} run --node n1 --datastore file:{folder}/manifests --state-dir {folder}/state --mtu-file \
                     {folder}/mtu",
                    env!("CARGO_BIN_EXE_tortie"),
                    folder = folder.display()
                );
                let mut command = Command::new("timeout");
                command.args(["60", "unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", &line]);
                command.env("FELIX_BPFENABLED", "true").env("FELIX_BPFPOLICYONLY", policy_only);
                command.env("XTABLES_LOCKFILE", folder.join("xtables.lock"));
                let output = command.output().unwrap();
                let printed = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
                assert!(!output.status.success() && output.status.code() != Some(124), "{printed}");
                printed
            };
            let felix = format!("{}/calico-felix 60 >/dev/null 2>&1 &", folder.display());
            let printed = refused(&felix, "true");
            assert!(printed.contains("Felix is running (process "), "{printed}");
            let printed = refused("", "false");
            assert!(printed.contains("BPFPolicyOnly=false: Tortie does not replace kube-proxy"), "{printed}");
            assert!(shell(&format!("find {ROOT} -name forward-4")).is_empty());
        });
    }
}
