use tortie_iptables::SaveReader;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::*;

/// Rules with comments in other places, other matches, jumps between chains, and hooks of ours.
const RULES: &str = "set -e; for ipt in iptables-legacy ip6tables-legacy; do
$ipt-restore <<'END'
*raw
:PREROUTING ACCEPT [0:0]
:OUTPUT DROP [0:0]
-A OUTPUT -j ACCEPT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:cali-nat - [0:0]
-A PREROUTING -m comment --comment cali:AAAAhoiAYhphO9Mso -j cali-nat
-A PREROUTING -m comment --comment cali:wUHhoiAYhphO9Mso -j cali-nat
-A POSTROUTING -j cali-nat
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:OTHER - [0:0]
:cali-FORWARD - [0:0]
:cali-empty - [0:0]
:felix-old - [0:0]
-A INPUT -p tcp -m multiport --dports 1:5,22 -m comment --comment \"it's \\\"cali:wUHhoiAYhphO9Mso\\\"\"
-A INPUT -g cali-FORWARD
-A INPUT -j felix-old
-A FORWARD -m comment --comment cali:wUHhoiAYhphO9Mso -m mark --mark 0x10/0x10 -j cali-FORWARD
-A FORWARD -j OTHER
-A FORWARD
-A OTHER -p udp -m udp --dport 53 -j REJECT
-A OTHER -m comment --comment cali:abcdefghijklmnop -j ACCEPT
-A cali-FORWARD -m comment --comment first -m comment --comment cali:abcdefghijklmnop -j cali-empty
-A cali-FORWARD -m comment --comment cali:bbbbefghijklmnop -j MARK --set-xmark 0x1/0x1
-A cali-FORWARD -j RETURN
-A cali-FORWARD -i eth0 -o lo -m conntrack --ctstate RELATED -j DROP
COMMIT
END
done";

kernel_test! {
    fn an_existing_table_reads_like_the_output_of_iptables_save_without_texts() {
        let namespace = Namespace::new().unwrap();
        let wanted: Vec<_> = Family::ALL.into_iter().flat_map(|family| Table::ALL.map(|table| (family, table))).collect();
        let missing = namespace.run(|| read(&wanted)).unwrap();
        assert!(missing.iter().all(Option::is_none), "{missing:?}");
        for rules in ["true", RULES] {
            for table in Table::ALL {
                namespace.shell(&format!("iptables-legacy-save -t {table}; ip6tables-legacy-save -t {table}")).unwrap();
            }
            namespace.shell(rules).unwrap();
            let read = namespace.run(|| read(&wanted)).unwrap();
            for (&(family, table), read) in wanted.iter().zip(read) {
                let program = if family == Family::V4 { "iptables" } else { "ip6tables" };
                let saved = namespace.shell(&format!("{program}-legacy-save -t {table}")).unwrap();
                let mut expected = SaveReader::read(table, saved.as_bytes()).unwrap();
                expected.forget_texts();
                assert_eq!(read.as_ref(), Some(&expected), "{family} {table}\n{saved}");
            }
        }
    }

    fn a_masquerade_by_another_program_is_left_to_iptables_save() {
        let namespace = Namespace::new().unwrap();
        namespace.shell("iptables-legacy -t nat -A POSTROUTING -o tunl0 -j MASQUERADE").unwrap();
        let nat = (Family::V4, Table::Nat);
        assert_eq!(namespace.run(|| read(&[nat])).unwrap(), [None]);
    }
}
