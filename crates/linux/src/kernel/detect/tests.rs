use std::cell::RefCell;

use tortie_iptables::Backend;
use tortie_model::{Family, with_causes};

use super::{DetectError, Probed, detect_on, save_programs, sweep_facts};

fn detect_in_use(machine: &Fake) -> Backend {
    super::detect_in_use(machine, None)
}

/// Machine with these programs, and their output for these arguments.
#[derive(Default)]
struct Fake {
    legacy_tables: bool,
    installed: Vec<&'static str>,
    prints: Vec<(&'static str, &'static str)>,
    ran: RefCell<Vec<String>>,
}

impl Probed for Fake {
    fn is_installed(&self, program: &str) -> bool {
        self.installed.contains(&program)
    }

    fn has_legacy_tables(&self, _family: Family) -> bool {
        self.legacy_tables
    }

    fn outputs(&self, programs: &[(String, &[&str])]) -> Vec<Vec<u8>> {
        let commands = programs.iter().map(|(program, args)| [&[program.as_str()], *args].concat().join(" "));
        let print = |command: String| {
            let text = self.prints.iter().find(|(of, _)| *of == command).map_or("", |(_, text)| *text);
            self.ran.borrow_mut().push(command);
            text.as_bytes().to_vec()
        };
        commands.map(print).collect()
    }
}

const ALL: [&str; 8] = [
    "iptables-nft-save",
    "iptables-nft-restore",
    "ip6tables-nft-save",
    "ip6tables-nft-restore",
    "iptables-legacy-save",
    "iptables-legacy-restore",
    "ip6tables-legacy-save",
    "ip6tables-legacy-restore",
];

fn machine(legacy_tables: bool, prints: &[(&'static str, &'static str)]) -> Fake {
    Fake { legacy_tables, installed: ALL.to_vec(), prints: prints.to_vec(), ran: RefCell::default() }
}

#[test]
fn the_kubelets_hint_decides_without_a_full_listing() {
    let machine = machine(true, &[("ip6tables-nft-save -t mangle", ":KUBE-IPTABLES-HINT - [0:0]\n")]);
    assert_eq!(detect_in_use(&machine), Backend::Nft);
    assert_eq!(
        *machine.ran.borrow(),
        [
            "iptables-nft-save -t mangle",
            "ip6tables-nft-save -t mangle",
            "iptables-legacy-save -t mangle",
            "ip6tables-legacy-save -t mangle",
        ]
    );
}

#[test]
fn a_hint_in_legacy_tables_beats_more_rules_in_nft() {
    let machine = machine(
        true,
        &[
            ("iptables-legacy-save -t mangle", ":KUBE-KUBELET-CANARY - [0:0]\n"),
            ("iptables-nft-save", "-A INPUT -j ACCEPT\n-A INPUT -j ACCEPT\n"),
        ],
    );
    assert_eq!(detect_in_use(&machine), Backend::Legacy);
}

#[test]
fn without_a_hint_rules_are_counted() {
    let nft = ("iptables-nft-save", "*filter\n-A INPUT -j ACCEPT\n-A INPUT -j ACCEPT\n");
    let legacy = ("ip6tables-legacy-save", "*filter\n-A INPUT -j ACCEPT\n");
    assert_eq!(detect_in_use(&machine(true, &[nft, legacy])), Backend::Nft);
    assert_eq!(detect_in_use(&machine(true, &[legacy])), Backend::Legacy);
    assert_eq!(detect_in_use(&machine(true, &[])), Backend::Legacy);
}

#[test]
fn many_rules_are_not_listed_if_the_mangle_table_decides() {
    let many = "*mangle\n-A PREROUTING -j a\n-A a -j ACCEPT\n";
    let few = "*filter\n-A INPUT -j ACCEPT\n";
    for (backend, programs, other) in [
        (Backend::Nft, ["iptables-nft-save -t mangle", "iptables-nft-save"], "iptables-legacy-save"),
        (Backend::Legacy, ["iptables-legacy-save -t mangle", "iptables-legacy-save"], "iptables-nft-save"),
    ] {
        let all = format!("ip6tables-{backend}-save");
        for (prints, lists_all) in [
            (vec![(programs[0], many)], false),
            (vec![(programs[0], many), (other, few)], false),
            // As many there are, and one more of the same elsewhere.
            (vec![(programs[0], few), (programs[1], many), (other, few)], backend == Backend::Nft),
        ] {
            let machine = machine(true, &prints);
            assert_eq!(detect_in_use(&machine), backend, "{prints:?}");
            assert_eq!(machine.ran.borrow().contains(&all), lists_all, "{prints:?}");
        }
    }
    // The result of the mangle table may be wrong.
    let machine = machine(
        true,
        &[("iptables-nft-save -t mangle", few), ("iptables-nft-save", few), ("iptables-legacy-save", many)],
    );
    assert_eq!(detect_in_use(&machine), Backend::Legacy);
}

#[test]
fn an_empty_machine_gets_the_backend_of_its_iptables() {
    for (version, backend) in
        [("iptables v1.8.9 (nf_tables)", Backend::Nft), ("iptables v1.8.9 (legacy)", Backend::Legacy)]
    {
        for legacy_tables in [false, true] {
            let machine = machine(legacy_tables, &[("iptables --version", version)]);
            let detected = detect_on(&machine, None, &Family::ALL, "", None).unwrap();
            assert_eq!((detected.setup.backend, detected.instead_of), (backend, None), "{version}");
        }
        // Existing rules take precedence.
        let legacy = ("iptables-legacy-save", "-A INPUT -j ACCEPT\n");
        let machine = machine(true, &[("iptables --version", version), legacy]);
        assert_eq!(detect_on(&machine, None, &Family::ALL, "", None).unwrap().setup.backend, Backend::Legacy);
    }
}

#[test]
fn a_usable_setup_is_not_replaced_by_an_unusable_one() {
    let with = |installed: &[&'static str]| Fake { installed: installed.to_vec(), ..Fake::default() };
    let detect = |machine: &Fake, wanted, previous| detect_on(machine, Some(wanted), &Family::ALL, "", previous);
    let nft_only = with(&ALL[..4]);
    let running = detect(&nft_only, Backend::Nft, None).unwrap();
    assert_eq!(running.instead_of, None);
    // At run time, the present setup stays, even if no implementation is usable for now.
    for machine in [&nft_only, &with(&[])] {
        let kept = detect(machine, Backend::Legacy, Some(&running.setup)).unwrap();
        assert_eq!(kept.setup, running.setup);
        let DetectError::Missing { backend, .. } = kept.instead_of.unwrap();
        assert_eq!(backend, Backend::Legacy);
    }
    // At the start, the other implementation is used.
    let other = detect(&nft_only, Backend::Legacy, None).unwrap();
    assert!(other.setup.backend == Backend::Nft && other.instead_of.is_some());
    let error = detect(&with(&ALL[..3]), Backend::Legacy, None).unwrap_err();
    assert_eq!(
        with_causes(&error),
        "iptables (legacy) cannot be used: neither iptables-legacy-save nor iptables-save is installed"
    );
}

#[test]
fn legacy_modules_are_not_loaded_by_looking() {
    let machine = machine(false, &[("iptables-nft-save", "-A INPUT -j ACCEPT\n")]);
    assert_eq!(detect_in_use(&machine), Backend::Nft);
    assert!(machine.ran.borrow().iter().all(|command| !command.contains("legacy")));
}

#[test]
fn general_programs_stand_in_for_those_that_are_not_installed() {
    let machine = Fake { installed: vec!["iptables-save", "iptables-restore"], ..Fake::default() };
    assert_eq!(save_programs(&machine, Backend::Nft), [Some("iptables-save".to_owned()), None]);
}

#[test]
fn sweeping_needs_programs_of_both_implementations() {
    let facts = sweep_facts(&machine(true, &[]), Family::V6);
    assert!(facts.legacy_programs && facts.nft_programs && facts.legacy_modules_loaded);
    let machine = Fake { installed: ALL[..5].to_vec(), ..Fake::default() };
    let facts = sweep_facts(&machine, Family::V4);
    assert!(!facts.legacy_programs && facts.nft_programs && !facts.legacy_modules_loaded);
}
