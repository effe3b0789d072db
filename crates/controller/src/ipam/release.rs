//! Release of addresses and blocks. Each task reads the entries, evaluates them again and writes
//! related entries in one transaction, or one after the other without transactions
//! (`libcalico-go/lib/ipam/{ipam,ipam_block_reader_writer}.go`).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::Value;
use tortie_datastore::store::{StoreError, TextChange};
use tortie_net::Cidr;
use tortie_resources::stored::{ResourceKey, ResourceKind, Revision};

use super::block::{affinity_path, block_path, handle_path, has_nothing, is_leaving, less, marked};
use super::leak::{Counts, Leak, Reason, Settled, Written};
use super::pods::PodFacts;
use super::stepwise;
use super::transaction::{Misfit, TRIES, Transaction, read_block, too_often};
use crate::access::{Access, JobError, LiveKind, kubernetes_name};

/// Address task of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseTask {
    /// Release leaks; all addresses of a handle together.
    Leaks { leaks: Vec<Leak>, cooldown: Duration },
    /// Release these blocks of a node that is gone, if they are empty.
    Node { node: String, blocks: BTreeSet<Cidr> },
    /// Release a block from a node, if it is empty.
    Block { cidr: Cidr, node: String },
    /// Free the addresses of a block whose cooldown is over.
    EndCooldown { cidr: Cidr, cooldown: Duration },
    /// Delete a block that is marked as deleted.
    EndDeletion { cidr: Cidr },
    /// Subtract the counts of addresses released earlier from a handle.
    Handle { handle: String, counts: Counts },
}

/// Current state of a node in the datastore and in Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum LiveNode {
    Foreign,
    Exists(String),
    Leaves(String),
    Gone,
}

impl ReleaseTask {
    /// Runs the task.
    ///
    /// # Errors
    /// If the datastore or the API server fails. Of several blocks, some may be released already.
    /// Without transactions, a single release may be incomplete as well.
    pub(crate) fn run(&self, access: Access<'_>) -> Result<Settled, JobError> {
        let mut settled = Settled::default();
        match self {
            Self::Leaks { leaks, cooldown } => release_leaks(access, leaks, *cooldown, &mut settled)?,
            Self::Node { node, blocks } => release_node(access, node, blocks, &mut settled)?,
            Self::Block { cidr, node } => {
                release_block(access, node, *cidr, false, &mut settled)?;
            }
            Self::EndCooldown { cidr, cooldown } => end_cooldown(access, *cidr, *cooldown, &mut settled)?,
            Self::EndDeletion { cidr } => end_deletion(access, *cidr, &mut settled)?,
            Self::Handle { handle, counts } => {
                stepwise::decrement(access, handle, counts, &mut settled)?;
                settled.paid = Some(handle.clone());
            }
        }
        Ok(settled)
    }
}

fn live_node(access: Access<'_>, name: &str) -> Result<LiveNode, JobError> {
    let key = ResourceKey::new(ResourceKind::Node, "", name).map_err(JobError::unfit)?;
    let node = match access.resources.get(&key) {
        Err(StoreError::NotFound(_)) => return Ok(LiveNode::Gone),
        Err(StoreError::Unreadable { .. }) => return Ok(LiveNode::Foreign),
        other => other?.object,
    };
    let Some(kubernetes) = kubernetes_name(&node).map(str::to_owned) else { return Ok(LiveNode::Foreign) };
    let found = access.live.get(LiveKind::Nodes, "", &kubernetes)?;
    Ok(if found.is_some() { LiveNode::Exists(kubernetes) } else { LiveNode::Leaves(kubernetes) })
}

/// Reports whether a leak still is one: nodes and pods may have returned, or their events may not
/// have arrived yet.
fn is_confirmed(access: Access<'_>, leak: &Leak, nodes: &mut BTreeMap<String, LiveNode>) -> Result<bool, JobError> {
    if !nodes.contains_key(&leak.node) {
        nodes.insert(leak.node.clone(), live_node(access, &leak.node)?);
    }
    let node = nodes.get(&leak.node).unwrap_or(&LiveNode::Foreign);
    let kubernetes = match (node, leak.reason) {
        (LiveNode::Gone, _) => None,
        (LiveNode::Leaves(kubernetes), _) | (LiveNode::Exists(kubernetes), Reason::Grace) => Some(&**kubernetes),
        (LiveNode::Foreign, _) | (LiveNode::Exists(_), Reason::NodeGone) => return Ok(false),
    };
    let Some((namespace, name)) = &leak.pod else { return Ok(*node == LiveNode::Gone) };
    let pod = access.live.get(LiveKind::Pods, namespace, name)?;
    Ok(!pod.is_some_and(|pod| PodFacts::read(&pod).may_have(leak.address, kubernetes)))
}

fn release_leaks(
    access: Access<'_>,
    leaks: &[Leak],
    cooldown: Duration,
    settled: &mut Settled,
) -> Result<(), JobError> {
    let mut nodes = BTreeMap::new();
    let mut by_handle: BTreeMap<&str, Vec<&Leak>> = BTreeMap::new();
    for leak in leaks {
        by_handle.entry(&leak.release.handle).or_default().push(leak);
    }
    let mut blocks: BTreeMap<Cidr, Vec<&Leak>> = BTreeMap::new();
    for of_handle in by_handle.values() {
        let mut all = true;
        for leak in of_handle {
            if !is_confirmed(access, leak, &mut nodes)? {
                settled.valid.push(leak.place());
                all = false;
            }
        }
        for leak in of_handle.iter().filter(|_| all) {
            blocks.entry(leak.cidr).or_default().push(leak);
        }
    }
    if blocks.is_empty() {
        return Ok(());
    }
    if !access.texts.is_transactional() {
        return stepwise::release(access, &blocks, cooldown, settled);
    }
    for _ in 0..TRIES {
        if try_release(access, &blocks, cooldown, settled)? {
            return Ok(());
        }
    }
    Err(too_often("the addresses that have leaked"))
}

/// Releases the addresses whose allocation is unchanged, and subtracts them from their handles.
/// Reports whether no conflict prevented it.
fn try_release(
    access: Access<'_>,
    blocks: &BTreeMap<Cidr, Vec<&Leak>>,
    cooldown: Duration,
    settled: &mut Settled,
) -> Result<bool, JobError> {
    let mut transaction = Transaction::default();
    let mut unchanged = Vec::new();
    let mut released: Vec<(Cidr, String)> = Vec::new();
    let mut handles: BTreeMap<&str, Counts> = BTreeMap::new();
    for (cidr, leaks) in blocks {
        let Some((mut block, text, revision)) = read_block(access, *cidr)? else {
            unchanged.push(Written { cidr: *cidr, text: None, revision: Revision::default() });
            continue;
        };
        let done = block.release(leaks.iter().map(|leak| &leak.release), access.time, cooldown);
        if done.is_empty() {
            unchanged.push(Written { cidr: *cidr, text: Some(text), revision });
            continue;
        }
        for release in done {
            *handles.entry(&release.handle).or_default().entry(*cidr).or_default() += 1;
            released.extend(leaks.iter().find(|leak| leak.release == *release).map(|leak| (*cidr, leak.node.clone())));
        }
        transaction.block(*cidr, block, revision);
    }
    for (handle, counts) in handles {
        let path = handle_path(handle);
        // A deleted handle needs no change.
        let Some(stored) = access.texts.text(&path)? else { continue };
        let handle: Option<Value> = serde_json::from_str(&stored.text).ok();
        // A handle with other contents stays unchanged.
        if let Some(left) = handle.and_then(|handle| less(&handle, &counts)) {
            let text = (!has_nothing(&left)).then(|| left.to_string());
            transaction.changes.push(TextChange { path, expected: Some(stored.revision), text });
        }
    }
    if !transaction.commit(access, settled)? {
        return Ok(false);
    }
    settled.written.extend(unchanged);
    settled.released = released;
    Ok(true)
}

fn release_node(
    access: Access<'_>,
    node: &str,
    blocks: &BTreeSet<Cidr>,
    settled: &mut Settled,
) -> Result<(), JobError> {
    if live_node(access, node)? != LiveNode::Gone {
        return Ok(());
    }
    // An error for one block does not keep the others from their release.
    let mut result = Ok(true);
    for cidr in blocks {
        let one = release_block(access, node, *cidr, true, settled);
        result = result.and_then(|all| one.map(|one| all && one));
    }
    if result? {
        settled.cleared = Some(node.to_owned());
    }
    Ok(())
}

/// Releases a block from a node if none of its addresses is allocated. Reports whether the node
/// does not have it any more.
///
/// Without transactions it marks the affinity, deletes the block and then the affinity. After an
/// interruption the mark shows other processes that the release is incomplete.
fn release_block(
    access: Access<'_>,
    node: &str,
    cidr: Cidr,
    node_is_gone: bool,
    settled: &mut Settled,
) -> Result<bool, JobError> {
    let host = format!("host:{node}");
    let at_once = access.texts.is_transactional();
    // Each attempt may complete one step, or fail in a conflict.
    for _ in 0..TRIES + 2 {
        let path = affinity_path(node, cidr);
        let affinity = access.texts.text(&path)?;
        let expected = affinity.as_ref().map(|affinity| affinity.revision);
        let leaves = affinity.as_ref().is_some_and(|affinity| is_leaving(&affinity.text));
        let block = read_block(access, cidr)?;
        let mut transaction = Transaction::default();
        let is_affine = block.as_ref().is_some_and(|(block, ..)| block.affinity() == Some(&*host));
        let is_last = match block {
            Some((block, text, revision)) if is_affine => {
                if !block.is_empty() {
                    settled.written.push(Written { cidr, text: Some(text), revision });
                    return Ok(false);
                }
                match affinity.filter(|_| !at_once && !leaves) {
                    Some(affinity) => {
                        let text = marked(&affinity.text);
                        let text = text.map_err(|source| Misfit { place: path.clone(), source })?;
                        transaction.changes.push(TextChange { path, expected, text: Some(text) });
                    }
                    None => {
                        transaction.set(cidr, None, revision);
                        if at_once {
                            transaction.changes.push(TextChange { path, expected, text: None });
                        }
                    }
                }
                at_once
            }
            // An existing node may be about to claim the block.
            _ if !node_is_gone && !leaves => return Ok(affinity.is_none()),
            other => {
                if affinity.is_some() {
                    transaction.changes.push(TextChange { path, expected, text: None });
                }
                if other.is_none() && at_once {
                    transaction.changes.push(TextChange { path: block_path(cidr), expected: None, text: None });
                }
                true
            }
        };
        if transaction.commit(access, settled)? && is_last {
            return Ok(true);
        }
    }
    Err(too_often(&format!("the block {cidr}")))
}

fn end_cooldown(access: Access<'_>, cidr: Cidr, cooldown: Duration, settled: &mut Settled) -> Result<(), JobError> {
    for _ in 0..TRIES {
        let Some((mut block, text, revision)) = read_block(access, cidr)? else { return Ok(()) };
        if !block.end_cooldown(access.time, cooldown) {
            settled.written.push(Written { cidr, text: Some(text), revision });
            return Ok(());
        }
        let mut transaction = Transaction::default();
        transaction.block(cidr, block, revision);
        if transaction.commit(access, settled)? {
            return Ok(());
        }
    }
    Err(too_often(&format!("the block {cidr}")))
}

/// Deletes an empty block that another process marked as deleted, but did not delete.
fn end_deletion(access: Access<'_>, cidr: Cidr, settled: &mut Settled) -> Result<(), JobError> {
    for _ in 0..TRIES {
        let Some((block, text, revision)) = read_block(access, cidr)? else { return Ok(()) };
        if !block.is_deleted() || !block.is_empty() {
            settled.written.push(Written { cidr, text: Some(text), revision });
            return Ok(());
        }
        if let Some(node) = block.node() {
            return release_block(access, node, cidr, false, settled).map(drop);
        }
        let mut transaction = Transaction::default();
        transaction.set(cidr, None, revision);
        if transaction.commit(access, settled)? {
            return Ok(());
        }
    }
    Err(too_often(&format!("the block {cidr}")))
}
