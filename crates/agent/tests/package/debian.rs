//! The Debian package.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};

use super::machine::{Agent, Machine, Service, write_cluster};
use super::unit::{allowed_calls, counted_calls, settings};
use super::{PACKAGES, output_of};

const UNIT: &str = "/usr/lib/systemd/system/tortie.service";
/// File that the agent writes into one of Calico's directories.
const MTU: &str = "var/lib/calico/mtu";
const EBPF: &str = "/usr/share/doc/tortie/examples/ebpf.conf";

/// Returns each file with its permissions and owner.
fn contents() -> BTreeSet<String> {
    let listed = output_of(Command::new("dpkg-deb").arg("--contents").arg(&PACKAGES.debian));
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{} {} {}", words[0], words[1], words[5].trim_start_matches('.'))
    };
    listed.lines().map(line).filter(|line| !line.ends_with('/')).collect()
}

#[test]
fn the_package_holds_the_agent_its_unit_and_their_documentation() {
    let contents = contents();
    let (pages, others): (BTreeSet<_>, BTreeSet<_>) = contents.iter().partition(|line| line.contains("/man1/"));
    let expected = [
        "-rw-r----- root/root /etc/tortie/felix.cfg",
        "-rw-r----- root/root /etc/tortie/tortie.env",
        "-rw-r--r-- root/root /usr/lib/systemd/system/tortie.service",
        "-rw-r--r-- root/root /usr/share/bash-completion/completions/tortie",
        "-rw-r--r-- root/root /usr/share/doc/tortie/CHANGELOG.md.gz",
        "-rw-r--r-- root/root /usr/share/doc/tortie/LICENSE",
        "-rw-r--r-- root/root /usr/share/doc/tortie/copyright",
        "-rw-r--r-- root/root /usr/share/doc/tortie/examples/ebpf.conf",
        "-rw-r--r-- root/root /usr/share/fish/vendor_completions.d/tortie.fish",
        "-rw-r--r-- root/root /usr/share/zsh/vendor-completions/_tortie",
        "-rwxr-xr-x root/root /usr/bin/tortie",
    ];
    assert_eq!(others.iter().map(|line| line.as_str()).collect::<Vec<_>>(), expected);
    for page in ["tortie.1.gz", "tortie-run.1.gz", "tortie-cleanup.1.gz", "tortie-staged-commit.1.gz"] {
        assert!(pages.contains(&format!("-rw-r--r-- root/root /usr/share/man/man1/{page}")), "{page}: {pages:?}");
    }
}

#[test]
fn the_package_depends_on_the_linked_libraries() {
    let field = |name| output_of(Command::new("dpkg-deb").arg("--field").arg(&PACKAGES.debian).arg(name));
    assert_eq!(field("Version").trim(), env!("CARGO_PKG_VERSION"));
    let linked = output_of(Command::new("ldd").arg(&PACKAGES.binary.program));
    let libraries = linked.lines().filter_map(|line| line.trim().split_once(" => "));
    let owners: BTreeSet<&str> = libraries
        .map(|(name, _)| match name.split('.').next().unwrap() {
            "libc" | "libm" | "libpthread" | "libdl" | "librt" => "libc6",
            "libgcc_s" => "libgcc-s1",
            other => panic!("{other} is of a package that is not depended on"),
        })
        .collect();
    let depends = field("Depends");
    let named: BTreeSet<&str> = depends.split(',').map(|one| one.split_whitespace().next().unwrap()).collect();
    assert_eq!(named, owners);
    assert_eq!(field("Recommends").trim(), "iptables, ipset", "neither nftables nor eBPF programs need any");
}

/// Returns the unit's way of starting the agent, with or without the example for eBPF programs.
fn service(machine: &Machine, with_ebpf: bool) -> Service {
    let mut settings = settings(&machine.read(UNIT));
    if with_ebpf {
        for (name, values) in super::unit::settings(&machine.read(EBPF)) {
            settings.entry(name).or_default().extend(values);
        }
    }
    let words = |name: &str| -> Vec<String> {
        settings[name].iter().flat_map(|value| value.split_whitespace()).map(str::to_owned).collect()
    };
    let below = |folder: &str, name: &str| -> Vec<String> {
        words(name).iter().map(|word| format!("{folder}/{word}")).collect()
    };
    let mut writable = [below("/run", "RuntimeDirectory"), below("/var/lib", "StateDirectory")].concat();
    writable.extend(words("ReadWritePaths").into_iter().filter(|path| !path.starts_with('-')));
    let environment = words("EnvironmentFile").iter().map(|path| machine.read(path)).collect::<String>();
    Service {
        words: words("ExecStart"),
        environment: environment.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect(),
        capabilities: words("CapabilityBoundingSet")
            .iter()
            .map(|name| format!("+{}", name.strip_prefix("CAP_").unwrap().to_lowercase()))
            .collect(),
        writable,
    }
}

fn install(machine: &Machine) {
    machine.write("/tmp/place", "");
    let copy = "cp \"$DEB\" \"$ROOT/tmp/tortie.deb\"";
    output_of(machine.outside(copy).env("DEB", &PACKAGES.debian));
    // Triggers of other packages, such as the index of manual pages, are not tested here.
    machine.output_of(&["dpkg", "--no-triggers", "--install", "/tmp/tortie.deb"]);
}

/// Configures the demonstration's policy, as an operator does.
fn configure(machine: &Machine, parameters: &str) {
    write_cluster(machine, "/etc/tortie/policy");
    let environment = machine.read("/etc/tortie/tortie.env");
    let chosen = "TORTIE_DATASTORE=file:/etc/tortie/policy\nFELIX_FELIXHOSTNAME=demo-node\n";
    machine.write("/etc/tortie/tortie.env", &format!("{environment}{chosen}"));
    machine.write("/etc/tortie/felix.cfg", &format!("[global]\n{parameters}"));
}

fn stopped(agent: &mut Agent) {
    let (status, log) = agent.end();
    assert!(status.success() && !log.contains(" ERROR "), "{status}: {log}");
    assert!(agent.next_notification().starts_with("STOPPING=1\n"));
}

/// Reports whether dpkg itself keeps a file after the removal of a package.
fn of_others(path: &str) -> bool {
    ["var/lib/dpkg/", "var/log/", "var/cache/", "tmp/"].iter().any(|folder| path.starts_with(folder))
}

tortie_lab::kernel_test! {
    fn it_is_installed_enforces_policy_and_leaves_nothing_when_it_is_purged() {
        let machine = Machine::like_this_one();
        let written = || machine.written().into_iter().filter(|path| !of_others(path)).collect::<Vec<_>>();
        assert_eq!(written(), [""; 0]);
        install(&machine);
        let installed: BTreeSet<String> = contents().iter().map(|line| line.split(" /").nth(1).unwrap().to_owned()).collect();
        assert_eq!(written().into_iter().collect::<BTreeSet<_>>(), installed, "nothing is enabled, made or changed besides");
        machine.output_of(&["dpkg", "--verify", "tortie"]);

        // An agent without a configured datastore changes nothing.
        let mut unconfigured = machine.start(&service(&machine, false));
        let (status, log) = unconfigured.wait();
        assert!(log.contains("--datastore"), "{status}: {log}");
        // A restart would fail in the same way.
        let not_again = &settings(&machine.read(UNIT))["RestartPreventExitStatus"];
        assert_eq!(not_again, &[status.code().unwrap().to_string()]);
        assert_eq!(machine.ruleset(), "");

        configure(&machine, "NFTablesMode = Enabled\n");
        let mut agent = machine.start(&service(&machine, false));
        agent.is_ready();
        let enforced = machine.ruleset();
        assert!(enforced.contains("filter-cali-tw-"), "{enforced}");
        stopped(&mut agent);

        let removed = machine.run(&["dpkg", "--no-triggers", "--remove", "tortie"]);
        let message = String::from_utf8(removed.stderr).unwrap();
        assert!(removed.status.success() && message.contains("run `tortie cleanup`"), "{message}");
        // The removal of a package must not open a host.
        assert!(machine.ruleset().contains("filter-cali-tw-"));
        let left = written();
        let stays = |path: &String| path.starts_with("etc/tortie/") || path.starts_with("var/lib/tortie/") || path == MTU || path == "run/xtables.lock";
        assert!(left.iter().all(stays), "{left:?}");
        assert!(left.contains(&"etc/tortie/tortie.env".to_owned()), "the configuration stays: {left:?}");

        install(&machine);
        let cleaned = machine.output_of(&["tortie", "cleanup"]);
        assert!(cleaned.contains("tables changed"), "{cleaned}");
        assert_eq!(machine.ruleset(), "");
        machine.output_of(&["dpkg", "--no-triggers", "--purge", "tortie"]);
        assert_eq!(written(), [""; 0]);
        assert!(!machine.run(&["ls", "/etc/tortie"]).status.success());
        assert!(!machine.run(&["ls", "/var/lib/tortie"]).status.success());
        assert!(!machine.run(&["ls", "/var/lib/calico"]).status.success());

        // Files of a CNI plugin in that directory stay.
        install(&machine);
        let of_plugin = "var/lib/calico/nodename";
        for file in [MTU, of_plugin] {
            machine.write(&format!("/{file}"), "");
        }
        machine.output_of(&["dpkg", "--no-triggers", "--purge", "tortie"]);
        assert_eq!(written(), [MTU, of_plugin]);
    }

    fn the_unit_permits_the_agent_under_each_back_end() {
        let machine = Machine::like_this_one();
        install(&machine);
        output_of(&mut machine.outside("mount -t bpf bpf \"$ROOT/sys/fs/bpf\""));
        let backends = [
            ("NFTablesMode = Enabled\n", false),
            ("IptablesBackend = NFT\n", false),
            ("BPFEnabled = true\n", true),
        ];
        let own = machine.read("/etc/tortie/tortie.env");
        for (parameters, with_ebpf) in backends {
            machine.write("/etc/tortie/tortie.env", &own);
            configure(&machine, parameters);
            let mut service = service(&machine, with_ebpf);
            let counts = "/run/tortie/calls";
            service.words.splice(0..0, ["strace", "-f", "-c", "-o", counts].map(str::to_owned));
            let mut agent = machine.start(&service);
            agent.is_ready();
            let (status, log) = agent.end();
            assert!(status.success() && !log.contains(" ERROR "), "{parameters}: {status}: {log}");
            let mut filters = settings(&machine.read(UNIT))["SystemCallFilter"].clone();
            if with_ebpf {
                filters.extend(settings(&machine.read(EBPF))["SystemCallFilter"].clone());
            }
            let allowed = allowed_calls(&filters);
            let made = counted_calls(&machine.read(counts));
            assert!(made.len() > 30 && made.contains("sendto") && made.contains("execve"), "{made:?}");
            let refused: Vec<_> = made.iter().filter(|call| !allowed.contains(*call)).collect();
            assert_eq!(refused, [""; 0], "{parameters}");
            machine.output_of(&["tortie", "cleanup"]);
        }
    }

    fn without_the_rights_of_the_example_the_needs_of_ebpf_are_reported() {
        let machine = Machine::like_this_one();
        install(&machine);
        configure(&machine, "BPFEnabled = true\n");
        let mut agent = machine.start(&service(&machine, false));
        let deadline = Instant::now() + Duration::from_secs(60);
        let shown_status = loop {
            let status = machine.run(&["tortie", "status"]);
            let shown_status = String::from_utf8(status.stdout).unwrap();
            if shown_status.contains("os error 1") || Instant::now() > deadline {
                break shown_status;
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        assert!(shown_status.contains("needs CAP_BPF, CAP_PERFMON") && shown_status.contains("not ready"), "{shown_status}");
        assert!(agent.end().0.success());
    }

    fn systemd_understands_the_unit_and_finds_little_that_it_leaves_open() {
        let machine = Machine::like_this_one();
        install(&machine);
        let verified = machine.run(&["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", UNIT]);
        let complaints = String::from_utf8_lossy(&verified.stderr).into_owned();
        assert!(verified.status.success() && !complaints.contains("tortie"), "{verified:?}");
        // Exposure of 100; most of it is for the two capabilities, the network, and root. Above 40
        // systemd no longer rates a unit OK.
        machine.output_of(&["systemd-analyze", "security", "--offline=yes", "--threshold=30", UNIT]);
    }
}
