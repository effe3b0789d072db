use super::*;

const HINT: &[u8] = b"*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n";
const CANARY: &[u8] = b"*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n";
const ONE_RULE: &[u8] = b"*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j ACCEPT\nCOMMIT\n";

fn probe() -> BackendProbe<'static> {
    BackendProbe::default()
}

#[test]
fn the_kubelets_hint_decides() {
    let nft = BackendProbe { nft_mangle: [b"", HINT], legacy_mangle: [CANARY, b""], ..probe() };
    assert_eq!(detect_backend(&nft), Backend::Nft);
    let legacy = BackendProbe { legacy_mangle: [b"", CANARY], nft_all: [ONE_RULE, b""], ..probe() };
    assert_eq!(detect_backend(&legacy), Backend::Legacy);
}

#[test]
fn without_a_hint_the_more_rules_win_and_legacy_wins_a_tie() {
    assert_eq!(detect_backend(&probe()), Backend::Legacy);
    let tie = BackendProbe { nft_all: [ONE_RULE, b""], legacy_all: [b"", ONE_RULE], ..probe() };
    assert_eq!(detect_backend(&tie), Backend::Legacy);
    let nft = BackendProbe { nft_all: [ONE_RULE, ONE_RULE], legacy_all: [b"", ONE_RULE], ..probe() };
    assert_eq!(detect_backend(&nft), Backend::Nft);
}

#[test]
fn without_any_rules_the_installed_iptables_counts() {
    let version = |text| BackendProbe { installed: Backend::of_version(text), ..probe() };
    let nft = version("iptables v1.8.9 (nf_tables)\n");
    assert_eq!(detect_backend(&nft), Backend::Nft);
    assert_eq!(detect_backend(&version("iptables v1.8.9 (legacy)\n")), Backend::Legacy);
    assert_eq!(detect_backend(&version("iptables v1.6.1\n")), Backend::Legacy);
    // The installed implementation is irrelevant if there are rules.
    let tie = BackendProbe { nft_all: [ONE_RULE, b""], legacy_all: [b"", ONE_RULE], ..nft };
    assert_eq!(detect_backend(&tie), Backend::Legacy);
    let more = BackendProbe { nft_all: [ONE_RULE, b""], ..version("iptables v1.8.9 (legacy)\n") };
    assert_eq!(detect_backend(&more), Backend::Nft);
}

#[test]
fn programs_of_the_backend_are_preferred() {
    let found = Programs::find(Backend::Nft, Family::V6, |_| true).expect("installed");
    assert_eq!(found, Programs::specific(Backend::Nft, Family::V6));
    assert_eq!(found.restore, "ip6tables-nft-restore");
    let general = |name: &str| !name.contains("legacy");
    let found = Programs::find(Backend::Legacy, Family::V4, general).expect("installed");
    assert_eq!((found.save.as_str(), found.restore.as_str()), ("iptables-save", "iptables-restore"));
    let missing = Programs::find(Backend::Legacy, Family::V4, |_| false).expect_err("not there");
    assert_eq!(missing.to_string(), "neither iptables-legacy-save nor iptables-save is installed");
}

#[test]
fn only_the_backend_that_is_not_in_use_is_swept() {
    let all = SweepFacts { legacy_programs: true, nft_programs: true, legacy_modules_loaded: true };
    assert_eq!(backend_to_sweep(Backend::Nft, all), Some(Backend::Legacy));
    assert_eq!(backend_to_sweep(Backend::Legacy, all), Some(Backend::Nft));
    let unloaded = SweepFacts { legacy_modules_loaded: false, ..all };
    assert_eq!(backend_to_sweep(Backend::Nft, unloaded), None, "must not load modules");
    assert_eq!(backend_to_sweep(Backend::Legacy, unloaded), Some(Backend::Nft));
    let no_nft = SweepFacts { nft_programs: false, ..all };
    assert_eq!(backend_to_sweep(Backend::Legacy, no_nft), None, "would hit the tables in use");
}
