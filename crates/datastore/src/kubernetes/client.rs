//! Reading and writing of single objects.

use std::fmt;
use std::io;
use std::sync::{Arc, Once, mpsc};

use http::Method;
use serde_json::Value;
use tokio::runtime::{Builder, Handle, Runtime};

use super::config::KubeConfig;
use super::connection::{ANSWER, Call, Connection, next};
use super::error::ApiError;
use super::json::ListItems;
use super::kinds::CalicoApi;
use super::resource::{ApiResource, escaped};

/// Client of one API server. Clones share connections and the I/O thread.
///
/// Methods block until the response arrives, for at most about a minute. They do not retry, except
/// that refused credentials are read again once. The namespace of a cluster-scoped object is empty.
///
/// ```no_run
/// use serde_json::json;
/// use tortie_datastore::kubernetes::{ApiResource, Client, KubeConfig};
///
/// let client = Client::new("".parse::<KubeConfig>()?)?;
/// let lease = json!({
///     "apiVersion": "coordination.k8s.io/v1",
///     "kind": "Lease",
///     "metadata": {"name": "tortie", "namespace": "kube-system"},
/// });
/// match client.create(ApiResource::LEASES, "kube-system", &lease) {
///     Ok(created) => println!("{}", created["metadata"]["resourceVersion"]),
///     Err(error) if error.is_already_exists() => println!("somebody else was first"),
///     Err(error) => return Err(error.into()),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// Whether the server is to change nothing.
    is_dry: bool,
}

/// Objects in a page of a list.
const PAGE: usize = 500;
/// Access reviews, which are requested by creating them.
const REVIEWS: ApiResource = ApiResource::new("authorization.k8s.io", "v1", "selfsubjectaccessreviews");
/// Attempts to read a list whose pages expire.
const TRIES: usize = 3;

struct Shared {
    connection: Arc<Connection>,
    /// API of Calico's kinds by the configuration.
    calico_api: Option<CalicoApi>,
    missing_right: Once,
    /// Present until dropped.
    runtime: Option<Runtime>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A hanging plugin must not block the thread that drops the client.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("connection", &self.shared.connection).finish_non_exhaustive()
    }
}

impl Client {
    /// Starts the thread for I/O. Nothing is read or connected to yet.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn new(config: KubeConfig) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).thread_name("kubernetes").enable_all().build()?;
        let calico_api = config.api_group().map(|value| CalicoApi::named(&value));
        let connection = Arc::new(Connection::new(config));
        let shared = Shared { connection, calico_api, missing_right: Once::new(), runtime: Some(runtime) };
        Ok(Self { shared: Arc::new(shared), is_dry: false })
    }

    /// Returns a client whose changes are dry runs: the server validates each change and returns
    /// the result, without storing it.
    #[must_use]
    pub fn dry_run(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), is_dry: true }
    }

    /// Reads an object.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub fn get(&self, resource: ApiResource, namespace: &str, name: &str) -> Result<Value, ApiError> {
        self.ask(Call::get(resource.path(namespace, name)))
    }

    /// Creates an object; returns it as the server stored it.
    ///
    /// # Errors
    /// [`ApiError::is_already_exists`] if the name is taken, and any other [`ApiError`].
    pub fn create(&self, resource: ApiResource, namespace: &str, object: &Value) -> Result<Value, ApiError> {
        self.ask(self.change(Method::POST, resource.path(namespace, ""), "application/json", object))
    }

    /// Replaces an object; returns it as the server stored it. If `object` has a `resourceVersion`,
    /// only that version is replaced.
    ///
    /// # Errors
    /// [`ApiError::is_conflict`] if it has changed since, and any other [`ApiError`].
    pub fn replace(
        &self,
        resource: ApiResource,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<Value, ApiError> {
        self.ask(self.change(Method::PUT, resource.path(namespace, name), "application/json", object))
    }

    /// As [`Client::replace`], for the `status` subresource.
    ///
    /// # Errors
    /// As [`Client::replace`].
    pub fn replace_status(
        &self,
        resource: ApiResource,
        namespace: &str,
        name: &str,
        object: &Value,
    ) -> Result<Value, ApiError> {
        let target = format!("{}/status", resource.path(namespace, name));
        self.ask(self.change(Method::PUT, target, "application/json", object))
    }

    /// Applies a JSON merge patch (RFC 7396): sets the fields of `patch`, and removes those that
    /// are null there. Returns the resulting object.
    ///
    /// # Errors
    /// As [`Client::replace`].
    pub fn patch(&self, resource: ApiResource, namespace: &str, name: &str, patch: &Value) -> Result<Value, ApiError> {
        self.ask(self.change(Method::PATCH, resource.path(namespace, name), "application/merge-patch+json", patch))
    }

    /// As [`Client::patch`], with the permission to change `status` alone: of a node, its status,
    /// labels and annotations.
    ///
    /// # Errors
    /// As [`Client::replace`].
    pub fn patch_status(
        &self,
        resource: ApiResource,
        namespace: &str,
        name: &str,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let target = format!("{}/status", resource.path(namespace, name));
        self.ask(self.change(Method::PATCH, target, "application/merge-patch+json", patch))
    }

    /// Deletes an object; only this version of it, if one is given.
    ///
    /// # Errors
    /// [`ApiError::is_not_found`], [`ApiError::is_conflict`], and any other [`ApiError`].
    pub fn delete(
        &self,
        resource: ApiResource,
        namespace: &str,
        name: &str,
        version: Option<&str>,
    ) -> Result<(), ApiError> {
        self.delete_if(resource, namespace, name, None, version)
    }

    /// Deletes the object with this UID, and not a later one of the same name; only this version of
    /// it, if one is given.
    ///
    /// # Errors
    /// As [`Client::delete`].
    pub fn delete_object(
        &self,
        resource: ApiResource,
        namespace: &str,
        name: &str,
        uid: &str,
        version: Option<&str>,
    ) -> Result<(), ApiError> {
        self.delete_if(resource, namespace, name, Some(uid), version)
    }

    fn delete_if(
        &self,
        resource: ApiResource,
        namespace: &str,
        name: &str,
        uid: Option<&str>,
        version: Option<&str>,
    ) -> Result<(), ApiError> {
        let expected = [("uid", uid), ("resourceVersion", version)];
        let expected: serde_json::Map<String, Value> =
            expected.into_iter().filter_map(|(field, value)| Some((field.to_owned(), value?.into()))).collect();
        let mut options = serde_json::json!({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": expected});
        if let (true, Some(options)) = (self.is_dry, options.as_object_mut()) {
            // If the body has options, the server ignores those of the URL.
            options.insert("dryRun".into(), serde_json::json!(["All"]));
        }
        self.ask(self.change(Method::DELETE, resource.path(namespace, name), "application/json", &options)).map(drop)
    }

    /// Lists all objects of a kind at one version, restricted by a label selector unless it is
    /// empty. Meant for few objects; [`super::Reflector`] is for kinds with many.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub fn list(&self, resource: ApiResource, namespace: &str, labels: &str) -> Result<Vec<Value>, ApiError> {
        let mut target = format!("{}?limit={PAGE}", resource.path(namespace, ""));
        if !labels.is_empty() {
            target.push_str("&labelSelector=");
            target.push_str(&escaped(labels));
        }
        let mut tries = 1;
        loop {
            match self.list_pages(&target) {
                // The version of the first page has expired.
                Err(error) if error.is_expired() && tries < TRIES => tries += 1,
                result => return result,
            }
        }
    }

    fn list_pages(&self, target: &str) -> Result<Vec<Value>, ApiError> {
        let (mut all, mut more) = (Vec::new(), String::new());
        loop {
            let next = if more.is_empty() { String::new() } else { format!("&continue={}", escaped(&more)) };
            let call = Call::get(format!("{target}{next}"));
            let page = self.wait(|connection| async move { list_page(&connection, &call).await })?;
            all.extend(page.0);
            more = page.1;
            if more.is_empty() {
                return Ok(all);
            }
        }
    }

    /// Returns the names of the API groups of the server.
    ///
    /// # Errors
    /// See [`ApiError`].
    pub fn groups(&self) -> Result<Vec<String>, ApiError> {
        let groups = self.ask(Call::get("/apis".into()))?;
        let Some(groups) = groups.get("groups").and_then(Value::as_array) else {
            return Err(ApiError::Malformed("the response has no list `groups`".into()));
        };
        Ok(groups.iter().filter_map(|group| group.get("name")?.as_str().map(str::to_owned)).collect())
    }

    /// Reports whether the server is ready: it has read the definitions of all kinds. A server that
    /// does not answer this client counts as not ready.
    pub(super) fn is_ready(&self) -> Result<bool, ApiError> {
        match self.wait(|connection| async move { connection.ask(&Call::get("/readyz".into())).await }) {
            Err(error) if error.code().is_some() => Ok(false),
            answer => answer.map(|_| true),
        }
    }

    /// Reports whether the server permits this client a verb, such as `delete`, on an object.
    /// Nothing is changed, and the object need not exist (`SelfSubjectAccessReview` of
    /// `authorization.k8s.io/v1`).
    ///
    /// # Errors
    /// See [`ApiError`]; [`ApiError::Malformed`] if the response has no decision.
    pub fn is_allowed(&self, verb: &str, resource: ApiResource, namespace: &str, name: &str) -> Result<bool, ApiError> {
        let review = serde_json::json!({
            "apiVersion": REVIEWS.api_version(),
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {
                "verb": verb,
                "group": resource.group,
                "version": resource.version,
                "resource": resource.plural,
                "namespace": namespace,
                "name": name,
            }},
        });
        let answer = self.create(REVIEWS, "", &review)?;
        let allowed = answer.pointer("/status/allowed").and_then(Value::as_bool);
        allowed.ok_or_else(|| ApiError::Malformed("the access review has no `status.allowed`".into()))
    }

    fn change(&self, method: Method, target: String, content_type: &'static str, body: &Value) -> Call {
        let target = if self.is_dry { target + "?dryRun=All" } else { target };
        Call { method, target, content_type, body: body.to_string().into_bytes() }
    }

    fn ask(&self, call: Call) -> Result<Value, ApiError> {
        let bytes = self.wait(|connection| async move { connection.ask(&call).await })?;
        serde_json::from_slice(&bytes).map_err(|_| ApiError::Malformed("it is not JSON".into()))
    }

    /// Waits for a response on a thread outside the runtime, so that this also works where blocking
    /// on a runtime is forbidden.
    fn wait<T: Send + 'static, F>(&self, ask: impl FnOnce(Arc<Connection>) -> F) -> Result<T, ApiError>
    where
        F: Future<Output = Result<T, ApiError>> + Send + 'static,
    {
        let (done, answer) = mpsc::sync_channel(1);
        let Some(handle) = self.handle() else { return Err(gone()) };
        let asked = ask(Arc::clone(&self.shared.connection));
        handle.spawn(async move {
            // If this fails, the caller does not wait any more.
            let _ = done.send(asked.await);
        });
        answer.recv().unwrap_or_else(|_| Err(gone()))
    }

    pub(super) fn handle(&self) -> Option<&Handle> {
        self.shared.runtime.as_ref().map(Runtime::handle)
    }

    /// Returns the API of Calico's kinds by the configuration; `None` if the server decides.
    pub(super) fn calico_api(&self) -> Option<CalicoApi> {
        self.shared.calico_api
    }

    /// Logs once that the API of Calico's kinds was chosen without the right to list a kind.
    pub(super) fn note_missing_right(&self, unreadable: ApiResource) {
        self.shared.missing_right.call_once(|| {
            tracing::warn!(
                %unreadable,
                "two APIs have Calico's resources, and one cannot be read; using projectcalico.org/v3, or as CALICO_API_GROUP says"
            );
        });
    }

    pub(super) fn connection(&self) -> Arc<Connection> {
        Arc::clone(&self.shared.connection)
    }
}

/// Reads one page of a list; returns its objects and the continue token. The size of each object is
/// limited, not that of a page, because five hundred network sets can be large.
async fn list_page(connection: &Connection, call: &Call) -> Result<(Vec<Value>, String), ApiError> {
    let mut body = connection.send(call).await?.into_body();
    let (mut list, mut items) = (ListItems::default(), Vec::new());
    while let Some(bytes) = next(&mut body, ANSWER).await? {
        let mut bytes: &[u8] = &bytes;
        while let Some(item) = list.take(&mut bytes)? {
            let item = serde_json::from_str(&item);
            items.push(item.map_err(|_| ApiError::Malformed("an item of a list is not JSON".into()))?);
        }
    }
    Ok((items, list.finish()?.more))
}

fn gone() -> ApiError {
    ApiError::Unreachable("the client has ended".into())
}
