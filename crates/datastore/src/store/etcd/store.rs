//! Reading and writing single resources.

use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use std::{fmt, io};

use etcd_client::{
    Client, Compare, CompareOp, GetOptions, KeyValue, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse,
};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tortie_model::{Cause, with_causes};
use tortie_resources::stored::{self, ResourceKey, ResourceKind, Revision};

use super::EtcdConfig;
use super::connection::{Failure, connect, within};
use super::feed::EtcdFeed;
use super::range::Pages;
use super::value::{object, stored_text};
use super::watch::EtcdWatch;
use crate::store::stamp::{random, stamp};
use crate::store::{
    Listing, ResourceStore, ResourceWatch, StoreError, StoredResource, StoredText, TextChange, TextStore, Verb,
};

/// The resources in etcd. Calls block; they must not be made from within an async runtime.
///
/// ```no_run
/// use tortie_resources::stored::{ResourceKey, ResourceKind};
/// use tortie_datastore::store::ResourceStore;
/// use tortie_datastore::store::etcd::EtcdStore;
///
/// let store = EtcdStore::new("etcd://127.0.0.1:2379".parse()?)?;
/// let policy = store.get(&ResourceKey::new(ResourceKind::NetworkPolicy, "shop", "web")?)?;
/// store.update(&policy.key, policy.object, policy.revision)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EtcdStore {
    config: EtcdConfig,
    runtime: Runtime,
    connection: Mutex<Connection>,
}

#[derive(Default)]
struct Connection {
    client: Option<Client>,
    /// Index of the next endpoint.
    turn: usize,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore").field("config", &self.config).finish_non_exhaustive()
    }
}

impl EtcdStore {
    /// Returns a store, which connects when needed.
    ///
    /// # Errors
    /// If the configuration is invalid, or no further thread can be started.
    pub fn new(config: EtcdConfig) -> io::Result<Self> {
        config.check().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("etcd-store").enable_all().build()?;
        Ok(Self { config, runtime, connection: Mutex::default() })
    }

    /// Writes a text under any path, such as a status; it vanishes after `ttl`, if one is given (in
    /// whole seconds).
    ///
    /// # Errors
    /// [`StoreError::Refused`] or [`StoreError::Unavailable`].
    pub fn put_text(&self, path: &str, text: &str, ttl: Option<Duration>) -> Result<(), StoreError> {
        let key = self.full(path);
        let patience = self.config.pace.request;
        self.call(async |mut client| {
            let mut options = PutOptions::new();
            if let Some(ttl) = ttl {
                // etcd limits leases anyway.
                let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX).max(1);
                let lease = within(patience, "asking for a lease", client.lease_grant(seconds, None)).await?;
                options = options.with_lease(lease.id());
            }
            within(patience, "writing", client.put(key.clone(), text, Some(options))).await
        })?;
        Ok(())
    }

    /// Deletes the text under a path. Returns whether there was one.
    ///
    /// # Errors
    /// [`StoreError::Refused`] or [`StoreError::Unavailable`].
    pub fn delete_text(&self, path: &str) -> Result<bool, StoreError> {
        let key = self.full(path);
        let patience = self.config.pace.request;
        let answer =
            self.call(async |mut client| within(patience, "deleting", client.delete(key.clone(), None)).await)?;
        Ok(answer.deleted() > 0)
    }

    /// Reads the texts under all paths that begin with `prefix`, in the order of paths, without
    /// values that are not UTF-8.
    ///
    /// # Errors
    /// [`StoreError::Refused`] or [`StoreError::Unavailable`].
    pub fn list_texts(&self, prefix: &str) -> Result<Vec<(String, String)>, StoreError> {
        let (values, _) = self.values(prefix)?;
        let text = |kv: KeyValue| {
            let (key, value) = kv.into_key_value();
            let key = String::from_utf8(key).ok()?;
            Some((key.strip_prefix(&self.config.key_prefix)?.to_owned(), String::from_utf8(value).ok()?))
        };
        Ok(values.into_iter().filter_map(text).collect())
    }

    fn full(&self, path: &str) -> String {
        format!("{}{path}", self.config.key_prefix)
    }

    /// Returns all keys that begin with this prefix and their values, and the revision.
    fn values(&self, prefix: &str) -> Result<(Vec<KeyValue>, i64), StoreError> {
        let prefix = self.full(prefix);
        let patience = self.config.pace.request;
        self.call(async |client| {
            let mut pages = Pages::new(client.kv_client(), &prefix, 0, patience);
            let mut values = Vec::new();
            while let Some(page) = pages.next().await? {
                values.extend(page);
            }
            Ok((values, pages.revision()))
        })
    }

    /// Makes one call, with the existing connection or with the first endpoint that works. After a
    /// failure the next call begins with another endpoint. The failed call is not repeated, because
    /// it may have taken effect.
    fn call<T, F>(&self, call: impl FnOnce(Client) -> F) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let result = self.runtime.block_on(async {
            let client = self.client().await?;
            call(client).await
        });
        result.map_err(|failure| {
            let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
            match failure {
                Failure::Refused(cause) => {
                    // The password may have been replaced, which makes the client's token invalid.
                    connection.client.take_if(|_| self.config.user.is_some());
                    StoreError::Refused(cause)
                }
                other => {
                    connection.client = None;
                    connection.turn += 1;
                    StoreError::Unavailable(Cause::new(other))
                }
            }
        })
    }

    async fn client(&self) -> Result<Client, Failure> {
        let turn = {
            let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(client) = &connection.client {
                return Ok(client.clone());
            }
            connection.turn
        };
        let mut last = Failure::Lost("there is no endpoint".into());
        for turn in turn..turn + self.config.endpoints.len() {
            match connect(&self.config, turn).await {
                Ok((client, _)) => {
                    let mut connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
                    *connection = Connection { client: Some(client.clone()), turn };
                    return Ok(client);
                }
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    /// Does `then` if all of `compare` holds; otherwise reads the key.
    fn transact(&self, key: &ResourceKey, compare: Vec<Compare>, then: TxnOp) -> Result<TxnResponse, StoreError> {
        let transaction = Txn::new().when(compare).and_then([then]).or_else([TxnOp::get(self.full(&key.path()), None)]);
        let patience = self.config.pace.request;
        self.call(async |mut client| within(patience, "writing", client.txn(transaction)).await)
    }

    /// Returns the resource that a successful transaction has written.
    fn written(key: &ResourceKey, answer: &TxnResponse, object: Value) -> Result<StoredResource, StoreError> {
        let revision = Revision(answer.header().map_or(0, etcd_client::ResponseHeader::revision));
        let object = stored::from_stored(key, object, revision)
            .map_err(|error| StoreError::Unreadable { key: key.clone(), why: Cause::new(error) })?;
        Ok(StoredResource { key: key.clone(), revision, object })
    }

    /// Writes an object if all of `compare` holds.
    fn write(
        &self,
        key: &ResourceKey,
        mut object: Value,
        compare: Vec<Compare>,
    ) -> Result<Result<StoredResource, Option<Revision>>, StoreError> {
        stored::to_stored(key, &mut object).map_err(|error| StoreError::Invalid { key: key.clone(), error })?;
        let put = TxnOp::put(self.full(&key.path()), object.to_string(), None);
        let answer = self.transact(key, compare, put)?;
        if answer.succeeded() { Self::written(key, &answer, object).map(Ok) } else { Ok(Err(found(&answer))) }
    }

    fn at(&self, key: &ResourceKey, revision: Revision) -> Compare {
        Compare::mod_revision(self.full(&key.path()), CompareOp::Equal, revision.0)
    }
}

/// Returns the version of a resource that a failed transaction has found.
fn found(answer: &TxnResponse) -> Option<Revision> {
    answer.op_responses().into_iter().find_map(|response| match response {
        TxnOpResponse::Get(got) => got.kvs().first().map(|kv| Revision(kv.mod_revision())),
        _ => None,
    })
}

fn read(key: ResourceKey, kv: &KeyValue) -> Result<StoredResource, StoreError> {
    let revision = Revision(kv.mod_revision());
    match object(&key, kv.value(), revision) {
        Ok(object) => Ok(StoredResource { key, revision, object }),
        Err(error) => Err(StoreError::Unreadable { key, why: Cause::new(error) }),
    }
}

fn not_as_expected(key: &ResourceKey, expected: Revision, found: Option<Revision>) -> StoreError {
    match found {
        Some(found) => StoreError::Conflict { key: key.clone(), expected, found },
        None => StoreError::NotFound(key.clone()),
    }
}

impl ResourceStore for EtcdStore {
    fn get(&self, key: &ResourceKey) -> Result<StoredResource, StoreError> {
        let path = self.full(&key.path());
        let patience = self.config.pace.request;
        let answer = self.call(async |mut client| {
            within(patience, "reading", client.get(path.clone(), Some(GetOptions::new()))).await
        })?;
        let kv = answer.kvs().first().ok_or_else(|| StoreError::NotFound(key.clone()))?;
        read(key.clone(), kv)
    }

    fn list(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Listing, StoreError> {
        let (values, revision) = self.values(&stored::prefix_of(kind, namespace))?;
        let mut listing = Listing { revision: Revision(revision), ..Listing::default() };
        for kv in values {
            let path = kv.key_str().ok().and_then(|path| path.strip_prefix(&self.config.key_prefix));
            // Other paths are not Calico's.
            let Some(key) = path.and_then(ResourceKey::from_path) else { continue };
            match read(key, &kv) {
                Ok(resource) => listing.resources.push(resource),
                Err(StoreError::Unreadable { key, why }) => listing.unreadable.push((key, with_causes(&why))),
                Err(other) => return Err(other),
            }
        }
        Ok(listing)
    }

    fn create(&self, key: &ResourceKey, mut object: Value) -> Result<StoredResource, StoreError> {
        stamp(&mut object, SystemTime::now(), random());
        let absent = Compare::version(self.full(&key.path()), CompareOp::Equal, 0);
        self.write(key, object, vec![absent])?.map_err(|_| StoreError::AlreadyExists(key.clone()))
    }

    fn update(&self, key: &ResourceKey, object: Value, based_on: Revision) -> Result<StoredResource, StoreError> {
        let unchanged = self.at(key, based_on);
        // A missing key has the revision 0.
        if based_on.0 <= 0 {
            return Err(self
                .get(key)
                .map_or_else(|error| error, |there| not_as_expected(key, based_on, Some(there.revision))));
        }
        self.write(key, object, vec![unchanged])?.map_err(|found| not_as_expected(key, based_on, found))
    }

    fn put(&self, key: &ResourceKey, mut object: Value) -> Result<StoredResource, StoreError> {
        stamp(&mut object, SystemTime::now(), random());
        self.write(key, object, Vec::new())?.map_err(|_| StoreError::Unavailable("a write was not carried out".into()))
    }

    fn delete(&self, key: &ResourceKey, version: Option<Revision>) -> Result<(), StoreError> {
        let compare = version.map(|version| self.at(key, version)).into_iter().collect();
        let answer = self.transact(key, compare, TxnOp::delete(self.full(&key.path()), None))?;
        if !answer.succeeded() {
            return Err(not_as_expected(key, version.unwrap_or_default(), found(&answer)));
        }
        let deleted = answer.op_responses().into_iter().any(|response| match response {
            TxnOpResponse::Delete(deleted) => deleted.deleted() > 0,
            _ => false,
        });
        if deleted { Ok(()) } else { Err(StoreError::NotFound(key.clone())) }
    }

    fn watch(&self, kind: ResourceKind, namespace: Option<&str>) -> Result<Box<dyn ResourceWatch>, StoreError> {
        let feed = EtcdFeed::new(self.config.clone(), vec![stored::prefix_of(kind, namespace)]);
        let feed = feed.map_err(|error| StoreError::Unavailable(Cause::new(Arc::new(error))))?;
        Ok(Box::new(EtcdWatch::new(feed, self.config.endpoints.len())))
    }

    /// Returns true: roles of etcd distinguish only reading and writing of keys, so a client that
    /// may write may delete.
    fn is_allowed(&self, _: Verb, _: &ResourceKey) -> Result<bool, StoreError> {
        Ok(true)
    }
}

impl EtcdStore {
    /// Reads the texts under all paths that begin with `prefix`, at one revision, in the order of
    /// paths.
    ///
    /// # Errors
    /// [`StoreError::Refused`] or [`StoreError::Unavailable`].
    pub fn texts(&self, prefix: &str) -> Result<Vec<StoredText>, StoreError> {
        let (values, _) = self.values(prefix)?;
        Ok(values.iter().filter_map(|kv| self.stored_text(kv)).collect())
    }

    fn stored_text(&self, kv: &KeyValue) -> Option<StoredText> {
        stored_text(&self.config.key_prefix, kv)
    }
}

impl TextStore for EtcdStore {
    fn text(&self, path: &str) -> Result<Option<StoredText>, StoreError> {
        let key = self.full(path);
        let patience = self.config.pace.request;
        let answer = self.call(async |mut client| within(patience, "reading", client.get(key.clone(), None)).await)?;
        Ok(answer.kvs().first().and_then(|kv| self.stored_text(kv)))
    }

    fn commit(&self, changes: &[TextChange]) -> Result<Option<Revision>, StoreError> {
        let compare: Vec<Compare> = changes
            .iter()
            .map(|change| {
                // A missing key has the revision 0.
                let expected = change.expected.map_or(0, |revision| revision.0);
                Compare::mod_revision(self.full(&change.path), CompareOp::Equal, expected)
            })
            .collect();
        let operations: Vec<TxnOp> = changes
            .iter()
            .map(|change| match &change.text {
                Some(text) => TxnOp::put(self.full(&change.path), text.as_str(), None),
                None => TxnOp::delete(self.full(&change.path), None),
            })
            .collect();
        let transaction = Txn::new().when(compare).and_then(operations);
        let patience = self.config.pace.request;
        let answer = self.call(async |mut client| within(patience, "writing", client.txn(transaction)).await)?;
        let revision = Revision(answer.header().map_or(0, etcd_client::ResponseHeader::revision));
        Ok(answer.succeeded().then_some(revision))
    }
}
