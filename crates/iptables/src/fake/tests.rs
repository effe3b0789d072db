use super::*;

fn noflush() -> Command {
    Command { program: "iptables-restore".to_owned(), args: vec!["--noflush".to_owned()], input: String::new() }
}

fn kernel(backend: Backend, input: &str) -> FakeKernel {
    let mut kernel = FakeKernel::new(backend);
    kernel.restore(&noflush(), input).expect("acceptable");
    kernel
}

/// As observed with iptables 1.8.9.
#[test]
fn rules_read_back_respelt() {
    let kernel = kernel(
        Backend::Nft,
        "*filter\n:cali-B - -\n\
         -A FORWARD -m comment --comment \"cali:abcdefghijklmnop\" -m comment --comment word --source 1.2.3.4 ! -i eth0 --jump cali-B\n\
         -A cali-B -m mark --mark 0/0x20000 --jump MARK --set-mark 0/0x10000\n\
         -A cali-B -p 17 -m multiport ! --destination-ports 53,80:81 --goto cali-B2\nCOMMIT\n"
            .replace(":cali-B - -", ":cali-B - -\n:cali-B2 - -")
            .as_str(),
    );
    assert_eq!(
        kernel.rules(Table::Filter, "FORWARD"),
        Some(vec![
            "-s 1.2.3.4/32 ! -i eth0 -m comment --comment \"cali:abcdefghijklmnop\" -m comment --comment word -j cali-B".to_owned()
        ])
    );
    assert_eq!(
        kernel.rules(Table::Filter, "cali-B"),
        Some(vec![
            "-m mark --mark 0x0/0x20000 -j MARK --set-xmark 0x0/0x10000".to_owned(),
            "-p udp -m multiport ! --dports 53,80:81 -g cali-B2".to_owned(),
        ])
    );
}

#[test]
fn a_transaction_is_atomic_and_the_one_before_it_stays() {
    let mut kernel = kernel(Backend::Legacy, "");
    let input = "*filter\n:one - -\nCOMMIT\n*filter\n:two - -\n-R one 3 -j DROP\nCOMMIT\n";
    kernel.restore(&noflush(), input).expect_err("no rule 3");
    assert_eq!(kernel.chains(Table::Filter), ["FORWARD", "INPUT", "OUTPUT", "one"]);
    assert_eq!(kernel.counters().transactions, 1);
}

#[test]
fn without_noflush_the_table_is_wiped() {
    let mut kernel = kernel(Backend::Legacy, "*filter\n:one - -\n-A FORWARD -j one\nCOMMIT\n");
    let flush = Command { args: Vec::new(), ..noflush() };
    kernel.restore(&flush, "*filter\n:two - -\nCOMMIT\n").expect("acceptable");
    assert_eq!(kernel.chains(Table::Filter), ["FORWARD", "INPUT", "OUTPUT", "two"]);
    assert_eq!(kernel.rules(Table::Filter, "FORWARD"), Some(Vec::new()));
}

#[test]
fn invalid_rules_are_refused() {
    for bad in [
        "-A FORWARD -j missing",
        "-A FORWARD -g ACCEPT",
        "-A missing -j DROP",
        "-D FORWARD -j DROP",
        "-D FORWARD 1",
        "-R FORWARD 1 -j DROP",
        "-I FORWARD 3 -j DROP",
        ":cali-123456789012345678901234 - -",
        "-A FORWARD -m comment --comment \"open -j DROP",
        "-A FORWARD -m set --match-set missing src -j DROP",
        "--delete-chain FORWARD",
        "--delete-chain user",
        "-A user -j user",
    ] {
        for backend in [Backend::Legacy, Backend::Nft] {
            let mut kernel = kernel(backend, "*filter\n:user - -\n-A user -j DROP\nCOMMIT\n");
            kernel.set_ip_sets([]);
            let before = kernel.saved(Table::Filter);
            kernel.run(Table::Filter, bad).expect_err(bad);
            assert_eq!(kernel.saved(Table::Filter), before);
        }
    }
    let mut kernel = FakeKernel::new(Backend::Nft);
    kernel.run(Table::Nat, "-A OUTPUT -j DROP").expect_err("nothing is dropped in nat");
}

#[test]
fn nft_deletes_only_chains_not_referenced_before() {
    let setup = "*filter\n:a - -\n:b - -\n-A a -j b\nCOMMIT\n";
    let delete = "*filter\n:a - -\n:b - -\n--delete-chain b\nCOMMIT\n";
    kernel(Backend::Legacy, setup).restore(&noflush(), delete).expect("not referenced any more");
    kernel(Backend::Nft, setup).restore(&noflush(), delete).expect_err("was referenced");
    let two_steps = "*filter\n:a - -\nCOMMIT\n*filter\n--delete-chain b\nCOMMIT\n";
    kernel(Backend::Nft, setup).restore(&noflush(), two_steps).expect("not referenced any more");
}
