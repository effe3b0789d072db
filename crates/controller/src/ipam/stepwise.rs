//! Release of addresses in a datastore that changes one entry at a time: first the blocks, then the
//! counts of the handles (`releaseIPsFromBlock` of `libcalico-go/lib/ipam/ipam.go`).
//!
//! An interruption leaves handles that count too many addresses. That loses no address: handles
//! only count the addresses per block for a search, and the handles of deleted pods are not used
//! again.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;
use tortie_datastore::store::TextChange;
use tortie_net::Cidr;
use tortie_resources::stored::Revision;

use super::block::{Release, handle_path, has_nothing, is_deleted, less};
use super::leak::{Counts, Leak, Settled, Written};
use super::transaction::{TRIES, Transaction, commit, read_block, too_often};
use crate::access::{Access, JobError};

/// Releases the addresses whose allocation is unchanged. On an error, some of several blocks may be
/// released already.
pub(super) fn release(
    access: Access<'_>,
    blocks: &BTreeMap<Cidr, Vec<&Leak>>,
    cooldown: Duration,
    settled: &mut Settled,
) -> Result<(), JobError> {
    let mut handles: BTreeMap<&str, Counts> = BTreeMap::new();
    let mut result = Ok(());
    for (cidr, leaks) in blocks {
        match release_in(access, *cidr, leaks, cooldown, settled) {
            Ok(released) => {
                for release in released {
                    *handles.entry(&release.handle).or_default().entry(*cidr).or_default() += 1;
                }
            }
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    for (handle, counts) in handles {
        if decrement(access, handle, &counts, settled).is_err() {
            // The subtraction becomes a separate task.
            settled.owed.push((handle.to_owned(), counts));
        }
    }
    // A partial success is reported as success. The other leaks remain and are retried; that retry
    // reports their error.
    if settled.released.is_empty() { result } else { Ok(()) }
}

fn release_in<'l>(
    access: Access<'_>,
    cidr: Cidr,
    leaks: &[&'l Leak],
    cooldown: Duration,
    settled: &mut Settled,
) -> Result<Vec<&'l Release>, JobError> {
    for _ in 0..TRIES {
        let Some((mut block, text, revision)) = read_block(access, cidr)? else {
            settled.written.push(Written { cidr, text: None, revision: Revision::default() });
            return Ok(Vec::new());
        };
        let released = block.release(leaks.iter().map(|leak| &leak.release), access.time, cooldown);
        if released.is_empty() {
            settled.written.push(Written { cidr, text: Some(text), revision });
            return Ok(released);
        }
        let mut transaction = Transaction::default();
        transaction.block(cidr, block, revision);
        if transaction.commit(access, settled)? {
            let nodes = leaks.iter().filter(|leak| released.contains(&&leak.release)).map(|leak| leak.node.clone());
            settled.released.extend(nodes.map(|node| (cidr, node)));
            return Ok(released);
        }
    }
    Err(too_often(&format!("the block {cidr}")))
}

/// Subtracts counts of addresses from a handle. A handle with other contents stays unchanged.
pub(super) fn decrement(
    access: Access<'_>,
    handle: &str,
    counts: &Counts,
    settled: &mut Settled,
) -> Result<(), JobError> {
    let path = handle_path(handle);
    for _ in 0..TRIES {
        let Some(stored) = access.texts.text(&path)? else { return Ok(()) };
        let object: Option<Value> = serde_json::from_str(&stored.text).ok();
        let left = object.filter(|object| !is_deleted(object)).and_then(|object| less(&object, counts));
        let Some(left) = left else { return Ok(()) };
        let text = (!has_nothing(&left)).then(|| left.to_string());
        let is_update = text.is_some();
        let change = TextChange { path: path.clone(), expected: Some(stored.revision), text };
        if commit(access, &[change])?.is_some() {
            *if is_update { &mut settled.updated } else { &mut settled.deleted } += 1;
            return Ok(());
        }
    }
    Err(too_often(&format!("the handle {handle}")))
}
