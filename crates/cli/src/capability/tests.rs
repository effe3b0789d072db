use super::{Capability, missing};

fn status(user: &str, effective: &str, ambient: &str) -> String {
    format!(
        "Name:\ttortie\nUid:\t1\t{user}\t1\t1\nCapEff:\t{effective}\nCapBnd:\t000001ffffffffff\nCapAmb:\t{ambient}\n"
    )
}

fn missing_net_admin(status: &str) -> Option<String> {
    missing(status, Capability::NetAdmin)
}

#[test]
fn others_are_needed_by_the_process_alone() {
    let ptrace = status("7", "0000000000080000", "0000000000000000");
    assert_eq!(missing(&ptrace, Capability::SysPtrace), None);
    assert!(missing(&ptrace, Capability::SysAdmin).is_some() && missing(&ptrace, Capability::NetRaw).is_some());
}

#[test]
fn root_needs_the_capability_and_others_must_pass_it_on() {
    let (none, all, net_admin) = ("0000000000000000", "000001ffffffffff", "0000000000001000");
    assert_eq!(missing_net_admin(&status("0", all, none)), None);
    assert_eq!(missing_net_admin(&status("0", net_admin, none)), None);
    assert_eq!(
        missing_net_admin(&status("0", "000001ffffffefff", none)).unwrap(),
        "does not have it, running as user 0"
    );
    assert_eq!(missing_net_admin(&status("7", none, none)).unwrap(), "does not have it, running as user 7");
    assert!(missing_net_admin(&status("7", net_admin, none)).unwrap().contains("do not inherit it from user 7"));
    assert_eq!(missing_net_admin(&status("7", net_admin, net_admin)), None);
    assert_eq!(missing_net_admin(""), None);
}
