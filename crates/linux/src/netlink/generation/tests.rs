use std::io::Write as _;
use std::process::{Command, Stdio};

use tortie_iptables::CommitCounter;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;

use super::*;

#[test]
fn the_generation_is_read_from_new_generation_messages_only() {
    let answer = [0, 0, 0, 7, 8, 0, 1, 0, 0, 0, 1, 2, 8, 0, 2, 0, 0, 0, 0, 9];
    assert_eq!(parse(NFT_MSG_NEWGEN, &answer).unwrap(), Some(258));
    assert_eq!(parse(NFT_MSG_GETGEN, &answer).unwrap(), None);
    for cut in [0, 3, 4, 7, 11] {
        assert!(parse(NFT_MSG_NEWGEN, &answer[..cut]).is_err(), "{cut}");
    }
    assert!(parse(NFT_MSG_NEWGEN, &[0, 0, 0, 0, 6, 0, 1, 0, 0, 0, 0, 0]).is_err());
}

#[test]
fn queues_are_supported_if_only_the_end_of_the_probe_is_refused() {
    use tortie_nftables::Command as Change;

    let Transaction { commands, .. } = queue_probe();
    let [
        Change::AddTable,
        Change::AddChain { .. },
        Change::AddRule { rule, .. },
        Change::DeleteTable,
        Change::DeleteTable,
    ] = &commands[..]
    else {
        panic!("{commands:?}");
    };
    assert!(rule.expressions.contains(&tortie_nftables::Expression::Queue { number: 0 }), "{rule:?}");
    assert!(is_last_alone([4].into_iter(), 5));
    for refused in [vec![], vec![2], vec![2, 4], vec![0, 1, 2, 3, 4]] {
        assert!(!is_last_alone(refused.into_iter(), 5));
    }
}

fn restore(namespace: &Namespace, program: &str, input: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--noflush").stdin(Stdio::piped()).stderr(Stdio::null());
    let mut child = namespace.spawn(&mut command).unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait().unwrap().success()
}

kernel_test! {
    /// All transactions of a reconciler count as its own, and no others do.
    fn foreign_commits_are_distinguished_from_ours() {
        let namespace = Namespace::new().unwrap();
        let mut nftables = namespace.run(|| Nftables::open(Duration::from_secs(10)).unwrap()).unwrap();
        let mut counter = CommitCounter::default();
        let start = counter.foreign(nftables.generation().unwrap());
        for program in ["iptables-nft-restore", "ip6tables-nft-restore"] {
            for input in [
                "*filter\n:cali-a - -\n:cali-b - -\n-A cali-a --jump cali-b\n-I FORWARD --jump cali-a\nCOMMIT\n",
                "*filter\n:cali-a - -\n-A cali-a --jump DROP\nCOMMIT\n",
                "*filter\n-D cali-a 1\n:cali-b - -\nCOMMIT\n*filter\n:cali-b - -\n--delete-chain cali-b\nCOMMIT\n",
                "*nat\n:cali-c - -\n-A PREROUTING --jump cali-c\nCOMMIT\n",
                "*filter\n-D FORWARD --jump cali-a\n-A FORWARD --jump cali-a\nCOMMIT\n",
            ] {
                assert!(restore(&namespace, program, input), "{input}");
                let transactions = CommitCounter::transactions(input);
                assert!(transactions.is_some());
                counter.committed(transactions);
                assert_eq!(counter.foreign(nftables.generation().unwrap()), start, "{input}");
            }
        }
        // Nothing changes, and nothing is counted.
        let empties = "*filter\n:cali-e - -\n-A cali-e -j DROP\n-D cali-e 1\nCOMMIT\n*filter\n:cali-e - -\nCOMMIT\n";
        assert!(restore(&namespace, "iptables-nft-restore", empties));
        assert_eq!(CommitCounter::transactions(empties), None);
        counter.committed(Some(1));
        assert_eq!(counter.foreign(nftables.generation().unwrap()), start);
        namespace.shell("iptables-nft-save; iptables-nft-save -t filter; ip6tables-nft-save").unwrap();
        assert_eq!(counter.foreign(nftables.generation().unwrap()), start);
        for line in ["iptables-nft -A INPUT -j ACCEPT", "iptables-nft -A cali-a -j DROP", "nft add table inet theirs"] {
            let before = counter.foreign(nftables.generation().unwrap());
            namespace.shell(line).unwrap();
            assert_ne!(counter.foreign(nftables.generation().unwrap()), before, "{line}");
        }
        // A refused transaction has no effect, but an earlier one of the same input would go
        // unnoticed.
        let before = counter.foreign(nftables.generation().unwrap());
        assert!(!restore(&namespace, "iptables-nft-restore", "*filter\n-A nowhere -j DROP\nCOMMIT\n"));
        counter.committed(None);
        assert_ne!(counter.foreign(nftables.generation().unwrap()), before);
    }
}
