//! Changes and snapshots as frames of the fan-out protocol.

use bytes::Bytes;
use prost::Message as _;

use crate::cache::{Breadcrumb, Delta, Entry, OwnPrefix, Snapshot, WireFormat, WireSnapshot};
use crate::protocol::frame::{self, Compression};
use crate::protocol::{Batch, Settled, ToClient, WireEntry, WireStatus, server};

/// Approximate uncompressed size of a batch of a snapshot in bytes.
const BATCH: usize = 512 * 1024;

fn frame(batch: Batch, compression: Compression) -> Bytes {
    frame::encode(&ToClient { message: Some(server::Message::Batch(batch)) }, compression)
}

fn settled(breadcrumb: &Breadcrumb) -> Settled {
    Settled { sequence: breadcrumb.sequence, status: WireStatus::from(breadcrumb.status).into() }
}

/// Encodes the changes of a breadcrumb that all clients of this format get; empty if there are
/// none.
pub(super) fn breadcrumb(breadcrumb: &Breadcrumb, format: WireFormat) -> Bytes {
    let entries: Vec<WireEntry> = breadcrumb
        .deltas
        .iter()
        .filter(|delta| delta.audience.reads(format))
        .map(|delta| wire_entry(delta, format))
        .collect();
    if entries.is_empty() && !breadcrumb.status_changed {
        return Bytes::new();
    }
    frame(Batch { entries, own: false, settled: Some(settled(breadcrumb)) }, Compression::Fast)
}

/// Encodes the changes of a breadcrumb that one node gets; `settle` if nothing else of the
/// breadcrumb follows.
pub(super) fn own_part(breadcrumb: &Breadcrumb, own: &OwnPrefix, settle: bool) -> Option<Bytes> {
    let entries: Vec<WireEntry> = breadcrumb
        .deltas
        .iter()
        .filter(|delta| own.covers(&delta.path))
        .map(|delta| own_entry(&delta.path, delta.entry.as_deref().map(|entry| entry.value.clone())))
        .collect();
    let settled = settle.then(|| settled(breadcrumb));
    (!entries.is_empty()).then(|| frame(Batch { entries, own: true, settled }, Compression::Fast))
}

fn wire_entry(delta: &Delta, format: WireFormat) -> WireEntry {
    let entry = delta.entry.as_deref();
    let value = entry.and_then(|entry| entry.value_in(format));
    let version = entry.map(|entry| version_in(entry, format)).unwrap_or_default();
    WireEntry { path: delta.path.to_string(), value, version }
}

fn own_entry(path: &str, value: Option<Bytes>) -> WireEntry {
    WireEntry { path: path.to_owned(), value, ..WireEntry::default() }
}

/// Returns the version for clients that name no node, which use it to identify the source of an
/// object. Enforcement on a node does not depend on versions.
fn version_in(entry: &Entry, format: WireFormat) -> String {
    if matches!(format, WireFormat::AllNodes | WireFormat::AllNodesOld) {
        entry.revision().to_owned()
    } else {
        String::new()
    }
}

/// Encodes the part of a snapshot that all clients of this format get.
pub(super) fn snapshot(base: Snapshot, format: WireFormat) -> WireSnapshot {
    let mut batches = Batches::new(false, Compression::Good);
    for entry in base.entries.iter() {
        if let Some(value) = entry.value_in(format) {
            let version = version_in(entry, format);
            batches.push(WireEntry { path: entry.path.to_string(), value: Some(value), version });
        }
    }
    let (pieces, raw_bytes) = batches.finish();
    WireSnapshot::new(base, pieces, raw_bytes)
}

/// Encodes the rest of a snapshot for one client.
pub(super) fn snapshot_end(base: &Snapshot, own: Option<&OwnPrefix>) -> Vec<Bytes> {
    let mut batches = Batches::new(true, Compression::Fast);
    if let Some(own) = own {
        for entry in base.entries.below(own.as_str()) {
            batches.push(own_entry(&entry.path, Some(entry.value.clone())));
        }
    }
    let (mut pieces, _) = batches.finish();
    let last = Batch { settled: Some(settled(&base.breadcrumb)), ..Batch::default() };
    pieces.push(frame(last, Compression::None));
    pieces
}

struct Batches {
    own: bool,
    compression: Compression,
    entries: Vec<WireEntry>,
    bytes: usize,
    pieces: Vec<Bytes>,
    raw_bytes: u64,
}

impl Batches {
    fn new(own: bool, compression: Compression) -> Self {
        Self { own, compression, entries: Vec::new(), bytes: 0, pieces: Vec::new(), raw_bytes: 0 }
    }

    fn push(&mut self, entry: WireEntry) {
        let bytes = entry.path.len() + entry.value.as_ref().map_or(0, Bytes::len);
        if self.bytes + bytes > BATCH {
            self.cut();
        }
        self.bytes += bytes;
        self.entries.push(entry);
    }

    fn cut(&mut self) {
        if !self.entries.is_empty() {
            let batch = Batch { entries: std::mem::take(&mut self.entries), own: self.own, settled: None };
            self.raw_bytes += batch.encoded_len() as u64;
            self.pieces.push(frame(batch, self.compression));
        }
        self.bytes = 0;
    }

    fn finish(mut self) -> (Vec<Bytes>, u64) {
        self.cut();
        (self.pieces, self.raw_bytes)
    }
}
