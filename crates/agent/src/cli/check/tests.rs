use std::fs;

use super::*;

fn check(manifest: &str, strict: bool) -> Result<(), Failure> {
    let dir = tempfile::TempDir::new().unwrap();
    fs::write(dir.path().join("m.yaml"), manifest).unwrap();
    run(&Args { paths: vec![dir.path().to_owned()], strict })
}

#[test]
fn errors_fail_and_warnings_do_not() {
    assert!(check("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n", true).is_ok());
    let unknown = "apiVersion: example.org/v1\nkind: Gadget\nmetadata: {name: a}\n";
    assert!(check(unknown, false).is_ok());
    assert!(matches!(check(unknown, true), Err(Failure::Reported(1))));
    assert!(matches!(check("apiVersion: v1\nkind: Namespace\nmetadata: {}\n", false), Err(Failure::Reported(1))));
}

#[test]
fn one_file_can_be_checked() {
    let dir = tempfile::TempDir::new().unwrap();
    let file = dir.path().join("m.yaml");
    fs::write(&file, "{").unwrap();
    assert!(matches!(run(&Args { paths: vec![file], strict: false }), Err(Failure::Reported(1))));
    let missing = run(&Args { paths: vec!["/no/such/path".into()], strict: false }).unwrap_err();
    assert!(missing.to_string().starts_with("/no/such/path: No such file"), "{missing}");
}

#[test]
fn what_is_asked_for_and_not_done_is_a_warning_with_its_place() {
    let felix = "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {name: default}\nspec:\n  \
                 iptablesBackend: best\n  bpfLogLevel: debug\n";
    let pool = "---\napiVersion: projectcalico.org/v3\nkind: IPPool\nmetadata: {name: pods}\nspec: {cidr: 10.0.0.0/16, \
                ipipMode: Always}\n";
    let dir = tempfile::TempDir::new().unwrap();
    fs::write(dir.path().join("m.yaml"), format!("{felix}{pool}")).unwrap();
    let said = |problem: &InputProblem| line(problem, true).rsplit_once("m.yaml:").unwrap().1.to_owned();
    let found: Vec<String> = find(&[dir.path().to_owned()]).unwrap().iter().map(said).collect();
    assert_eq!(
        found,
        [
            "5:20: FelixConfiguration/default: spec.iptablesBackend: `best` must be one of auto, legacy, nft; the default is \
             used: auto (warning)",
            "6:16: FelixConfiguration/default: spec.bpfLogLevel: is a parameter of Felix that has no effect here: eBPF programs \
             decide by policy and do nothing else, at hooks of netfilter; services, connections, routes and checks of reverse \
             paths are the kernel's and kube-proxy's (warning)",
            "11:37: IPPool/pods: spec.ipipMode: is done as Felix does it, but was never tested on a kernel that has IP-in-IP \
             (warning)",
        ]
    );
    assert!(run(&Args { paths: vec![dir.path().to_owned()], strict: false }).is_ok());
}
