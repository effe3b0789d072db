//! Any messages are a listing of an nftables table, and at most two transactions turn any listed
//! table into the desired one.

use std::time::Duration;

use tortie_net::Family;
use tortie_netfilter::{Action, Chain, ChainName, HookPosition, Rule, Table as Layer, kernel_chain};
use tortie_nftables::wire::SnapshotReader;
use tortie_nftables::{Features, Plan, Table, TableConfig, TableId};

/// `NFT_MSG_NEWCHAIN`, `NFT_MSG_NEWRULE`, `NFT_MSG_NEWSET`, `NFT_MSG_NEWSETELEM` and
/// `NFT_MSG_NEWTABLE`, with `NFNL_SUBSYS_NFTABLES << 8`.
const KINDS: [u16; 5] = [0xa03, 0xa06, 0xa09, 0xa0c, 0xa00];

/// The first byte chooses the family. Messages follow: a byte for the kind, two for the length, and
/// the payload.
pub(crate) fn check(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else { return };
    let family = if first % 2 == 0 { Family::V4 } else { Family::V6 };
    let mut reader = SnapshotReader::new(TableId::calico(family));
    while let [kind, low, high, after @ ..] = rest {
        let (payload, next) = after.split_at(usize::from(u16::from_le_bytes([*low, *high])).min(after.len()));
        let _ = reader.on_message(KINDS[usize::from(*kind) % KINDS.len()], payload);
        rest = next;
    }
    while reader.next_request().is_some() {}

    let mut table = described(family);
    assert!(matches!(table.plan(Duration::ZERO), Plan::Read));
    table.on_read(Duration::ZERO, Ok(reader.finish()));
    // First all changes, then maps that rules no longer use.
    for _ in 0..2 {
        match table.plan(Duration::ZERO) {
            // The listed table differs from the desired one, unless it equals it to the last
            // expression.
            Plan::Commit(transaction) => {
                assert!(!transaction.to_string().is_empty());
                table.on_committed(Duration::ZERO, Ok(()));
            }
            Plan::Done { .. } => return,
            other => panic!("{other:?}"),
        }
    }
    assert!(matches!(table.plan(Duration::ZERO), Plan::Done { .. }));
}

fn described(family: Family) -> Table {
    let name = |name: &str| ChainName::new(name).expect("short");
    let mut table = Table::new(TableConfig::new(TableId::calico(family)), Features::ALL);
    let to_ours = vec![Rule::new(Action::Jump(name("cali-FORWARD")))];
    table.set_hook(Layer::Filter, kernel_chain::FORWARD, HookPosition::Insert, to_ours);
    table.update_chain(Layer::Filter, Chain::new(name("cali-FORWARD"), vec![Rule::new(Action::Drop)]));
    table
}
