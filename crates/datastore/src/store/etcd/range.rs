//! Reading ranges of keys page by page.

use std::time::Duration;

use etcd_client::{GetOptions, KeyValue, KvClient};

use super::connection::{Failure, within};

/// Keys in a page.
const PAGE: i64 = 500;
/// Size limit of a response in bytes. If a page is larger, fewer keys are requested.
const MAX_ANSWER: usize = 32 << 20;

/// Reads all keys that begin with `prefix` at one revision, in the order of keys.
pub struct Pages {
    client: KvClient,
    /// First key of the next page; `None` after the last page.
    next: Option<Vec<u8>>,
    end: Vec<u8>,
    /// The revision that is read; 0 before the first page.
    revision: i64,
    limit: i64,
    patience: Duration,
}

impl Pages {
    /// Begins at the first page. A `revision` of 0 is the current one.
    #[must_use]
    pub fn new(client: KvClient, prefix: &str, revision: i64, patience: Duration) -> Self {
        let client = client.max_decoding_message_size(MAX_ANSWER);
        Self { client, next: Some(prefix.into()), end: end_of(prefix.as_bytes()), revision, limit: PAGE, patience }
    }

    /// Returns the revision that is read; 0 if nothing has been read.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// Reads the next page; `None` after the last.
    ///
    /// # Errors
    /// [`Failure`]; the page can be requested again.
    pub async fn next(&mut self) -> Result<Option<Vec<KeyValue>>, Failure> {
        let Some(from) = self.next.clone() else { return Ok(None) };
        let mut answer = loop {
            let mut options = GetOptions::new().with_range(self.end.clone()).with_limit(self.limit);
            if self.revision > 0 {
                options = options.with_revision(self.revision);
            }
            match within(self.patience, "reading", self.client.get(from.clone(), Some(options))).await {
                Err(Failure::TooLarge) if self.limit > 1 => self.limit = (self.limit / 8).max(1),
                answer => break answer?,
            }
        };
        if self.revision == 0 {
            self.revision = answer.header().map_or(0, etcd_client::ResponseHeader::revision);
        }
        let keys = answer.take_kvs();
        self.next = match keys.last() {
            Some(last) if answer.more() => Some([last.key(), &[0]].concat()),
            _ => None,
        };
        Ok(Some(keys))
    }
}

/// Returns the end of the range of all keys that begin with `prefix` (exclusive).
#[must_use]
pub fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return end;
        }
    }
    // The range is unbounded.
    vec![0]
}

#[cfg(test)]
mod tests {
    use super::end_of;

    #[test]
    fn ends() {
        assert_eq!(end_of(b"/calico/"), b"/calico0");
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), b"\0");
        assert_eq!(end_of(b""), b"\0");
    }
}
