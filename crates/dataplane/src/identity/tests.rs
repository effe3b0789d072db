use std::collections::BTreeSet;

use tortie_ipsets::CommandFailure;
use tortie_iptables::{ChainName, ChainProblem, CommandError, InPlace, Refusal, Table, TableError};
use tortie_model::{Family, with_causes};

use crate::report::DataplaneProblem;
use crate::{KernelError, SysctlPath};

fn refused(family: Family, chain: &str, attempts: u32, stderr: &str) -> DataplaneProblem {
    let chain = ChainName::new(chain).expect("short");
    let error = Refusal(stderr.to_owned());
    let problem = ChainProblem::Refused { chain, in_place: InPlace::StandIn, error, attempts };
    DataplaneProblem::Chain { family, table: Table::Filter, problem, owners: Vec::new() }
}

fn unreadable(table: Table, family: Family, why: &str) -> DataplaneProblem {
    DataplaneProblem::Table(TableError::Save { table, family, error: CommandError::Io(why.to_owned()) })
}

#[test]
fn identity_is_independent_of_program_output_and_attempts() {
    let sysctl = |why: &str| DataplaneProblem::Sysctl {
        path: SysctlPath::new("net/ipv4/ip_forward").expect("plain"),
        error: KernelError::Failed(why.into()),
    };
    let names = |why: &str| DataplaneProblem::IpSetNames { family: Family::V4, failure: CommandFailure::new(why) };
    let pairs = [
        [refused(Family::V4, "cali-pi-x", 1, "line 7 failed"), refused(Family::V4, "cali-pi-x", 2, "line 9 failed")],
        [unreadable(Table::Raw, Family::V4, "a"), unreadable(Table::Raw, Family::V4, "b")],
        [sysctl("a"), sysctl("b")],
        [names("a"), names("b")],
    ];
    for [first, second] in pairs {
        assert_ne!(first, second);
        assert_eq!(first.identity(), second.identity());
    }
}

#[test]
fn problems_of_different_objects_differ() {
    let all = [
        refused(Family::V4, "cali-pi-x", 1, ""),
        refused(Family::V6, "cali-pi-x", 1, ""),
        refused(Family::V4, "cali-pi-y", 1, ""),
        unreadable(Table::Raw, Family::V4, ""),
        unreadable(Table::Raw, Family::V6, ""),
        unreadable(Table::Filter, Family::V4, ""),
    ];
    let identities: BTreeSet<_> = all.iter().map(DataplaneProblem::identity).collect();
    assert_eq!(identities.len(), all.len(), "{identities:?}");
}

#[test]
fn problems_are_described_in_plain_words() {
    let text = with_causes(&refused(Family::V4, "cali-pi-x", 2, "exit code 4: line 7 failed"));
    assert_eq!(
        text,
        "configuration: IPv4 table filter: the kernel refuses chain cali-pi-x, and a stand-in is in its place \
         (2 attempts): exit code 4: line 7 failed",
    );
    let identity = refused(Family::V6, "cali-pi-x", 2, "").identity();
    assert_eq!(identity.to_string(), "chain refused: IPv6 table filter chain cali-pi-x");
}
