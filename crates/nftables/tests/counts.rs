//! Assignment of counters to rules.
#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use std::collections::BTreeMap;
use std::time::Duration;

use tortie_net::Family;
use tortie_netfilter::{
    Action, Chain, ChainName, HookPosition, Layout, MarkBits, Matches, Origin, PortList, Protocol, Rule,
    Table as Layer, kernel_chain,
};
use tortie_nftables::fake::FakeKernel;
use tortie_nftables::wire::{Counted, Snapshot};
use tortie_nftables::{Features, RuleCount, Table, TableConfig, TableId};

const V4: TableId = TableId::calico(Family::V4);
const POLICY: ChainName = ChainName::from_static("cali-pi-x");
const GROUP: ChainName = ChainName::from_static("cali-gi-x");

/// Rules that allow these ports, each with a different owner.
fn rules(ports: &[u16]) -> Vec<Rule> {
    let rule = |port: &u16| {
        let actions = [Action::SetMark(MarkBits::new(0x1_0000).unwrap()), Action::Return];
        let matches = Matches::new().protocol(Protocol::TCP).destination_ports(PortList::single(*port));
        let origin = Some(Origin { owner: format!("Policy/{port}").into(), part: Some(0) });
        Rule { origin, ..Rule::when(matches, Action::Several(actions.into())) }
    };
    ports.iter().map(rule).collect()
}

/// FORWARD leads to a group whose chain has the policy's rules, and one without origin.
fn listed(layout: Layout) -> (Table, Snapshot) {
    let mut table = Table::new(TableConfig { layout, ..TableConfig::new(V4) }, Features::ALL);
    let jump = vec![Rule::new(Action::Jump(GROUP))];
    table.set_hook(Layer::Filter, kernel_chain::FORWARD, HookPosition::Insert, jump);
    table.update_chain(Layer::Filter, Chain::new(POLICY, rules(&[80, 81, 82])));
    let action = if layout == Layout::Fast { Action::Include(POLICY) } else { Action::Jump(POLICY) };
    table.update_chain(Layer::Filter, Chain::new(GROUP, vec![Rule::new(action), Rule::new(Action::Drop)]));
    let (mut kernel, mut now) = (FakeKernel::new(V4), Duration::ZERO);
    kernel.apply(&mut table, &mut now).unwrap();
    let mut listed = kernel.read().unwrap().unwrap();
    let all = listed.chains.values_mut().flat_map(|chain| &mut chain.rules);
    for (packets, rule) in (1..).zip(all) {
        rule.counted = Some(Counted { packets, bytes: packets * 60 });
    }
    // A rule that another process has written meanwhile.
    let last = listed.chains.values_mut().filter_map(|chain| chain.rules.last_mut()).last().unwrap();
    last.comment = "cali:0000000000000000; his".to_owned();
    (table, listed)
}

fn counted(layout: Layout) -> (Table, Vec<RuleCount>) {
    let (table, listed) = listed(layout);
    let counts = table.counts(&listed);
    (table, counts)
}

fn owners(counts: &[RuleCount]) -> Vec<Vec<&str>> {
    counts.iter().map(|count| count.origins.iter().map(|origin| &*origin.owner).collect()).collect()
}

#[test]
fn rules_that_became_one_share_its_count() {
    let (table, counts) = counted(Layout::Fast);
    assert_eq!(owners(&counts), [["Policy/80", "Policy/81", "Policy/82"]]);
    let [count] = &counts[..] else { panic!("{counts:?}") };
    assert_eq!((count.of, count.chain.as_str()), (GROUP, "filter-cali-gi-x"));
    assert!(count.text.contains("tcp dport") && count.counted.bytes == count.counted.packets * 60, "{count:?}");
    assert_eq!(table.kernel_name(Layer::Filter, POLICY), None, "its rules stand in the chain of the group");
    assert_eq!(table.kernel_name(Layer::Filter, GROUP).unwrap().as_str(), "filter-cali-gi-x");
}

#[test]
fn each_rule_has_a_count_of_its_own_where_it_stays_by_itself() {
    let (table, counts) = counted(Layout::Felix);
    // The last one is not as it was written.
    assert_eq!(owners(&counts), [["Policy/80"], ["Policy/81"]]);
    let packets: BTreeMap<u64, ChainName> = counts.iter().map(|count| (count.counted.packets, count.of)).collect();
    assert_eq!(packets.into_values().collect::<Vec<_>>(), [POLICY, POLICY]);
    assert_eq!(table.kernel_name(Layer::Filter, POLICY).unwrap().as_str(), "filter-cali-pi-x");
    assert_eq!(table.kernel_name(Layer::Raw, POLICY), None);
}

/// Such a change waits for its plan while a table cannot be read.
#[test]
fn chains_that_are_removed_or_replaced_before_the_next_plan_have_no_counts() {
    for layout in [Layout::Felix, Layout::Fast] {
        let (mut table, listed) = listed(layout);
        table.update_chain(Layer::Filter, Chain::new(GROUP, vec![Rule::new(Action::Drop)]));
        table.remove_chain(Layer::Filter, POLICY);
        let counts = table.counts(&listed);
        assert!(layout == Layout::Fast || counts.is_empty(), "{counts:?}");
    }
}
