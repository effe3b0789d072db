//! The rules of the other iptables implementation are removed only when all rules of this one are
//! in the kernel.

use tortie_dataplane::Dataplane;
use tortie_dataplane::fake::FakeKernel;
use tortie_iptables::{Backend, Table};
use tortie_model::Family;
use tortie_model::desired::DesiredUpdate;

use crate::common::{apply_until_in_sync, config, dataplane, kernel, pod, policy, profile, up, workload};

const BACKENDS: [(Backend, Backend); 2] = [(Backend::Legacy, Backend::Nft), (Backend::Nft, Backend::Legacy)];

fn updates() -> Vec<DesiredUpdate> {
    vec![profile("kns.default"), policy("a", "all()", None), workload("w", pod("cali1", 1), &["a"])]
}

/// A kernel with the rules of one implementation, as found by a process that uses the other.
fn left_by(old: Backend, new: Backend) -> FakeKernel {
    let mut before = kernel(old);
    apply_until_in_sync(&mut dataplane(old, updates(), [up("cali1", 7)]), &mut before);
    let mut kernel = kernel(new);
    (kernel.netfilter.other_v4, kernel.netfilter.other_v6) = (before.netfilter.tables_v4, before.netfilter.tables_v6);
    (kernel.netfilter.sets, kernel.routing.routes, kernel.sysctls.values) =
        (before.netfilter.sets, before.routing.routes, before.sysctls.values);
    kernel
}

fn start(backend: Backend, other: Backend) -> Dataplane {
    let mut config = config(backend);
    config.iptables.sweep = Family::ALL.map(|family| (family, other)).into();
    let mut dataplane = Dataplane::new(config);
    updates().into_iter().for_each(|update| dataplane.on_update(update));
    dataplane.on_link(up("cali1", 7));
    dataplane.on_update(DesiredUpdate::InSync);
    dataplane.on_links_in_sync();
    dataplane
}

/// Returns the number of tables of the other implementation that still hold our rules or chains.
fn left(kernel: &FakeKernel) -> usize {
    let has = |(tables, table): (&tortie_iptables::fake::FakeKernel, Table)| tables.saved(table).contains("cali");
    let all = [&kernel.netfilter.other_v4, &kernel.netfilter.other_v6];
    all.into_iter().flat_map(|tables| Table::ALL.map(|table| (tables, table))).filter(|t| has(*t)).count()
}

#[test]
fn old_tables_are_swept_once_every_new_one_is_written() {
    for (old, new) in BACKENDS {
        let mut kernel = left_by(old, new);
        let all = left(&kernel);
        assert!(all >= 6, "{all}");
        let mut dataplane = start(new, old);
        assert!(apply_until_in_sync(&mut dataplane, &mut kernel).is_complete());
        assert_eq!(left(&kernel), 0, "{old} to {new}");
    }
}

#[test]
fn old_tables_stay_while_any_new_one_fails() {
    for (old, new) in BACKENDS {
        for family in Family::ALL {
            for table in Table::ALL {
                let mut kernel = left_by(old, new);
                let all = left(&kernel);
                let broken = |kernel: &mut FakeKernel, broken| match family {
                    Family::V4 => kernel.netfilter.tables_v4.set_incompatible(table, broken),
                    Family::V6 => kernel.netfilter.tables_v6.set_incompatible(table, broken),
                };
                broken(&mut kernel, true);
                let mut dataplane = start(new, old);
                for _ in 0..3 {
                    dataplane.apply(&mut kernel);
                    assert_eq!(left(&kernel), all, "{old} to {new}: {family:?} {table}");
                }
                broken(&mut kernel, false);
                apply_until_in_sync(&mut dataplane, &mut kernel);
                assert_eq!(left(&kernel), 0, "{old} to {new}: {family:?} {table}");
            }
        }
    }
}

#[test]
fn leftovers_that_return_at_run_time_are_swept_only_while_the_new_tables_are_in_force() {
    let mut kernel = left_by(Backend::Legacy, Backend::Nft);
    let returning = kernel.netfilter.other_v4.clone();
    let mut dataplane = start(Backend::Nft, Backend::Legacy);
    apply_until_in_sync(&mut dataplane, &mut kernel);
    assert_eq!(left(&kernel), 0);

    // The old rules come back, as after a start of the old version.
    kernel.netfilter.other_v4 = returning;
    let back = left(&kernel);
    kernel.netfilter.tables_v4.set_incompatible(Table::Filter, true);
    for _ in 0..60 {
        let pause = dataplane.apply(&mut kernel).next.expect("it tries again");
        tortie_dataplane::Clock::sleep(&mut kernel, pause.max(std::time::Duration::from_secs(5)));
    }
    assert_eq!(left(&kernel), back);
    kernel.netfilter.tables_v4.set_incompatible(Table::Filter, false);
    for _ in 0..60 {
        let pause = dataplane.apply(&mut kernel).next.expect("it looks again");
        tortie_dataplane::Clock::sleep(&mut kernel, pause.max(std::time::Duration::from_secs(5)));
    }
    assert_eq!(left(&kernel), 0);
}
