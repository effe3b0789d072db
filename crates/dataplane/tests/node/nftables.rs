//! Tables of nftables in place of iptables and IP sets.

use std::time::Duration;

use tortie_dataplane::fake::FakeKernel;
use tortie_dataplane::{Dataplane, DataplaneConfig, Kernel, NftablesConfig, RulesetNews};
use tortie_iptables::{Backend, Table};
use tortie_model::Family;
use tortie_model::desired::DesiredUpdate;
use tortie_nftables::TableId;
use tortie_rules::PacketFilter;

use crate::common::{apply_until_in_sync, config, kernel, pod, policy, profile, up, workload};

fn by_nftables() -> DataplaneConfig {
    let mut config = config(Backend::Nft);
    config.rules.packet_filter = PacketFilter::Nftables(tortie_rules::NftablesConfig::default());
    config.nftables = Some(NftablesConfig::default());
    config
}

fn start() -> (Dataplane, FakeKernel) {
    let mut dataplane = Dataplane::new(by_nftables());
    for update in [profile("kns.default"), policy("a", "all()", None), workload("w", pod("cali1", 1), &["a"])] {
        dataplane.on_update(update);
    }
    dataplane.on_link(up("cali1", 7));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    let mut kernel = kernel(Backend::Nft);
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    (dataplane, kernel)
}

fn dump(kernel: &FakeKernel) -> Vec<String> {
    kernel.nftables.values().flat_map(tortie_nftables::fake::FakeKernel::dump).collect()
}

/// How often tables were read so far.
fn reads(dataplane: &Dataplane) -> u64 {
    dataplane.stats().nftables.iter().map(|(_, stats)| stats.reads).sum()
}

#[test]
fn what_is_programmed_is_in_one_table_of_each_family_and_nowhere_else() {
    let (_, kernel) = start();
    let dump = dump(&kernel);
    for table in ["ip calico", "ip6 calico"] {
        assert!(dump.iter().any(|line| line.contains(&format!("{table} filter-cali-tw-cali1"))), "{dump:#?}");
    }
    assert!(kernel.sets.names().is_empty());
    assert!(!kernel.tables_v4.saved(Table::Filter).contains("cali-"));
}

#[test]
fn a_table_that_somebody_else_deletes_is_back_as_soon_as_the_kernel_tells() {
    let (mut dataplane, mut kernel) = start();
    let before = dump(&kernel);
    dataplane.on_ruleset(RulesetNews::Restarted);
    kernel.sleep(Duration::from_secs(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());

    let v4 = TableId::calico(Family::V4);
    kernel.nftables.insert(Family::V4, tortie_nftables::fake::FakeKernel::new(v4));
    let nothing_told = dump(&kernel);
    kernel.sleep(Duration::from_secs(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(dump(&kernel), nothing_told, "nobody has looked");

    dataplane.on_ruleset(RulesetNews::Transactions(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(dump(&kernel), before);
}

#[test]
fn what_the_kernel_tells_of_our_own_transactions_makes_nobody_read() {
    let (mut dataplane, mut kernel) = start();
    dataplane.on_ruleset(RulesetNews::Restarted);
    kernel.sleep(Duration::from_secs(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    let before = reads(&dataplane);

    dataplane.on_update(policy("a", "b == 'c'", None));
    dataplane.on_update(workload("v", pod("cali2", 2), &["a"]));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    dataplane.on_ruleset(RulesetNews::Transactions(2));
    kernel.sleep(Duration::from_secs(1));
    assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
    assert_eq!(reads(&dataplane), before, "one transaction of each family");
}

#[test]
fn whoever_insists_is_answered_twice_a_second() {
    let (mut dataplane, mut kernel) = start();
    dataplane.on_ruleset(RulesetNews::Restarted);
    let before = reads(&dataplane);
    for transaction in 1..=100 {
        dataplane.on_ruleset(RulesetNews::Transactions(transaction));
        kernel.sleep(Duration::from_millis(50));
        dataplane.apply(&mut kernel);
    }
    let read = (reads(&dataplane) - before) / 2;
    assert!((8..=11).contains(&read), "{read} in five seconds");
}
