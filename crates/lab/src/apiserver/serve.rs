//! Handling of the requests of a connection.

use std::io::{self, BufReader, Read, Write};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Shared;
use super::discovery;
use super::fault::{Fault, On, take};
use super::http::{self, Request};
use super::selector::Selector;
use super::store::{Change, Page, Refusal, ServedKind, refuse};

/// A connection with or without TLS.
pub(super) trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// Target of a path.
struct Route {
    kind: ServedKind,
    namespace: String,
    name: String,
    /// The path addresses the object's status.
    status: bool,
}

/// Bytes of a list per HTTP chunk.
const PIECE: usize = 16 << 10;

/// Answers requests one at a time until the client or a fault ends the connection.
pub(super) fn connection(shared: &Arc<Shared>, stream: Box<dyn Stream>) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    while let Some(request) = Request::read(&mut stream)? {
        shared.count(&request);
        if !request_answered(shared, &request, stream.get_mut())? {
            break;
        }
    }
    Ok(())
}

/// Answers a request, and reports whether the connection stays open.
fn request_answered(shared: &Arc<Shared>, request: &Request, stream: &mut Box<dyn Stream>) -> io::Result<bool> {
    if !shared.admits(request.token.as_deref()) {
        http::refusal(stream, &refuse(401, "Unauthorized", "Unauthorized"), None)?;
        return Ok(true);
    }
    if request.path == ["readyz"] && shared.lock().is_denied("get", "readyz") {
        http::refusal(
            stream,
            &refuse(403, "Forbidden", "is forbidden: User \"test\" cannot get path \"/readyz\""),
            None,
        )?;
        return Ok(true);
    }
    // Released before the answer, which may be held back.
    let document = discovery::document(&shared.lock().store, &request.path);
    if let Some(document) = document {
        http::answer(stream, 200, document.to_string().as_bytes(), "")?;
        return Ok(true);
    }
    if let Some(answer) = review(shared, request) {
        http::answer(stream, 201, answer.to_string().as_bytes(), "")?;
        return Ok(true);
    }
    let Some(route) = route(shared, &request.path) else {
        let missing = refuse(404, "NotFound", "the server could not find the requested resource");
        http::refusal(stream, &missing, None)?;
        return Ok(true);
    };
    let on = match (route.name.is_empty(), request.method.as_str()) {
        (true, "GET") if matches!(request.query("watch"), "true" | "1") => On::Watch,
        (true, "GET") if !request.query("continue").is_empty() => On::Continue,
        (true, "GET") => On::List,
        _ => On::Object,
    };
    let is_write = on == On::Object && request.method != "GET" && !is_dry(request);
    let fault = take(&mut shared.lock().faults, on, is_write, &route.kind.plural);
    if let Some(refusal) = fault.and_then(|fault| refused(fault, on)) {
        let retry_after = match fault {
            Some(Fault::TooManyRequests(seconds)) => Some(seconds),
            _ => None,
        };
        http::refusal(stream, &refusal, retry_after)?;
        return Ok(true);
    }
    let verb = match on {
        On::Watch => "watch",
        On::List | On::Continue => "list",
        On::Object | On::Write | On::Any => verb(&request.method),
    };
    let ServedKind { plural, group, .. } = &route.kind;
    if [plural, &format!("{plural}.{group}")].iter().any(|kind| shared.lock().is_denied(verb, kind)) {
        http::refusal(stream, &refuse(403, "Forbidden", "is forbidden: User \"test\" cannot do this"), None)?;
        return Ok(true);
    }
    match fault {
        Some(Fault::Hangup) => return Ok(false),
        Some(Fault::Slow(pause)) => thread::sleep(pause),
        _ => {}
    }
    match on {
        On::Watch => watch(shared, request, &route, fault, stream),
        On::List | On::Continue => list(shared, request, &route, fault, stream),
        On::Object | On::Write | On::Any => object(shared, request, &route, fault, stream),
    }
}

/// Answers a `SelfSubjectAccessReview` of `authorization.k8s.io/v1`.
fn review(shared: &Shared, request: &Request) -> Option<Value> {
    let path: Vec<&str> = request.path.iter().map(String::as_str).collect();
    if request.method != "POST" || path != ["apis", "authorization.k8s.io", "v1", "selfsubjectaccessreviews"] {
        return None;
    }
    let mut review: Value = serde_json::from_slice(&request.body).ok()?;
    let attributes = &review["spec"]["resourceAttributes"];
    let (verb, plural) = (attributes["verb"].as_str()?, attributes["resource"].as_str()?);
    let allowed = !shared.lock().is_denied(verb, plural);
    review["status"] = json!({"allowed": allowed});
    Some(review)
}

/// Returns the RBAC verb of a method on a single object.
fn verb(method: &str) -> &'static str {
    match method {
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    }
}

/// Reports whether a request is a dry run. Options of a deletion are in the body, or in the URL if
/// there is no body, as in the real server (`DeleteResource` of
/// `apiserver/pkg/endpoints/handlers/delete.go`).
fn is_dry(request: &Request) -> bool {
    if request.method == "DELETE" && !request.body.is_empty() {
        let options: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        return options["dryRun"] == json!(["All"]);
    }
    request.query("dryRun") == "All"
}

fn refused(fault: Fault, on: On) -> Option<Refusal> {
    Some(match fault {
        Fault::Gone if on == On::Watch => refuse(410, "Expired", "too old resource version: 1 (2)"),
        Fault::Gone => refuse(410, "Expired", "The provided continue parameter is too old."),
        Fault::TooManyRequests(_) => refuse(429, "TooManyRequests", "Too many requests, please try again later."),
        Fault::Unauthorized => refuse(401, "Unauthorized", "Unauthorized"),
        Fault::Forbidden => refuse(403, "Forbidden", "is forbidden: User \"test\" cannot do this"),
        Fault::NotFound => refuse(404, "NotFound", "the server could not find the requested resource"),
        Fault::NoNamespace => refuse(404, "NotFound", "namespaces \"shop\" not found"),
        Fault::Invalid => refuse(422, "Invalid", "is invalid: spec.selector: Invalid value"),
        Fault::Internal => refuse(500, "InternalError", "Internal error occurred: etcdserver: leader changed"),
        _ => return None,
    })
}

fn route(shared: &Shared, path: &[String]) -> Option<Route> {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    let (group, version, rest) = match &path[..] {
        ["api", version, rest @ ..] => ("", *version, rest),
        ["apis", group, version, rest @ ..] => (*group, *version, rest),
        _ => return None,
    };
    let mut status = false;
    let (namespace, plural, name) = match rest {
        ["namespaces", namespace, plural] => (*namespace, *plural, ""),
        ["namespaces", namespace, plural, name] => (*namespace, *plural, *name),
        [plural] => ("", *plural, ""),
        [plural, name] => ("", *plural, *name),
        [plural @ ("nodes" | "kubecontrollersconfigurations"), name, "status"] => {
            status = true;
            ("", *plural, *name)
        }
        _ => return None,
    };
    let kind = shared.lock().store.kind(group, version, plural)?.clone();
    if !kind.namespaced && !namespace.is_empty() {
        return None;
    }
    Some(Route { kind, namespace: namespace.into(), name: name.into(), status })
}

fn object(
    shared: &Shared,
    request: &Request,
    route: &Route,
    fault: Option<Fault>,
    stream: &mut Box<dyn Stream>,
) -> io::Result<bool> {
    let Route { kind, namespace, name, status } = route;
    let body = || {
        let bytes: &[u8] = if request.body.is_empty() { b"{}" } else { &request.body };
        serde_json::from_slice::<Value>(bytes).map_err(|_| refuse(400, "BadRequest", "the body is not JSON"))
    };
    let outcome = {
        let mut state = shared.lock();
        let mut trial = is_dry(request).then(|| state.store.clone());
        let store = trial.as_mut().unwrap_or(&mut state.store);
        let outcome = body().and_then(|mut body| match request.method.as_str() {
            "PATCH" if *status => {
                // A write of the status changes no other field (`nodeStatusStrategy` of
                // Kubernetes).
                body.as_object_mut().map(|body| body.shift_remove("spec"));
                store.patch(kind, namespace, name, &body)
            }
            "PUT" if *status && !kind.built_in => store.replace_status(kind, namespace, name, &body),
            _ if *status => Err(refuse(405, "MethodNotAllowed", "of a status, only patches are served")),
            "GET" => store.get(kind, namespace, name).cloned(),
            "POST" => store.create(kind, namespace, body),
            "PUT" => store.replace(kind, namespace, name, body),
            "PATCH" => store.patch(kind, namespace, name, &body),
            "DELETE" => store.delete(kind, namespace, name, &body),
            _ => {
                Err(refuse(405, "MethodNotAllowed", "the server does not allow this method on the requested resource"))
            }
        });
        match (outcome, trial) {
            (Ok(object), Some(_)) => Ok(at_version_of(object, state.store.get(kind, namespace, name).ok())),
            (outcome, _) => outcome,
        }
    };
    shared.changed.notify_all();
    match outcome {
        Ok(object) => {
            let code = if request.method == "POST" { 201 } else { 200 };
            let text = object.to_string();
            send(stream, code, text.as_bytes(), fault)
        }
        Err(refusal) => http::refusal(stream, &refusal, None).map(|()| true),
    }
}

/// Gives the result of a dry run the version of the existing object, or none if it would create the
/// object.
fn at_version_of(mut object: Value, now: Option<&Value>) -> Value {
    if let Some(metadata) = object["metadata"].as_object_mut() {
        match now {
            Some(now) => metadata.insert("resourceVersion".into(), now["metadata"]["resourceVersion"].clone()),
            None => metadata.shift_remove("resourceVersion"),
        };
    }
    object
}

/// Sends an answer with the given fault. Returns whether the connection stays open.
fn send(stream: &mut Box<dyn Stream>, code: u16, body: &[u8], fault: Option<Fault>) -> io::Result<bool> {
    let half = &body[..body.len() / 2];
    match fault {
        Some(Fault::Truncate) => http::answer(stream, code, half, "").map(|()| true),
        Some(Fault::DropInside) => {
            http::begin_chunks(stream)?;
            http::chunk(stream, half)?;
            Ok(false)
        }
        Some(Fault::Stall(pause)) => {
            http::begin_chunks(stream)?;
            http::chunk(stream, half)?;
            thread::sleep(pause);
            Ok(false)
        }
        _ if body.len() <= PIECE => http::answer(stream, code, body, "").map(|()| true),
        _ => {
            http::begin_chunks(stream)?;
            for piece in body.chunks(PIECE) {
                http::chunk(stream, piece)?;
            }
            http::end_chunks(stream).map(|()| true)
        }
    }
}

fn list(
    shared: &Shared,
    request: &Request,
    route: &Route,
    fault: Option<Fault>,
    stream: &mut Box<dyn Stream>,
) -> io::Result<bool> {
    let limit = request.query("limit").parse().unwrap_or(0);
    let page = match Selector::parse(request.query("labelSelector"), request.query("fieldSelector")) {
        Some(selector) => {
            let mut state = shared.lock();
            state.store.list(&route.kind, &route.namespace, &selector, limit, request.query("continue"))
        }
        None => Err(refuse(400, "BadRequest", "unable to parse requirement")),
    };
    match page {
        Ok(page) => send(stream, 200, encode(&route.kind, page).to_string().as_bytes(), fault),
        Err(refusal) => http::refusal(stream, &refusal, None).map(|()| true),
    }
}

/// Encodes a list as the real server does. Lists of built-in kinds begin with `kind` and
/// `apiVersion`, which their items omit; lists of other kinds are in alphabetical order.
fn encode(kind: &ServedKind, page: Page) -> Value {
    let mut metadata = json!({"resourceVersion": page.version.to_string()});
    if let Some(more) = page.more {
        metadata["continue"] = json!(more);
        metadata["remainingItemCount"] = json!(page.remaining);
    }
    let list = format!("{}List", kind.kind);
    if kind.built_in {
        let items: Vec<Value> = page
            .items
            .into_iter()
            .map(|mut item| {
                if let Some(fields) = item.as_object_mut() {
                    fields.retain(|name, _| name != "apiVersion" && name != "kind");
                }
                item
            })
            .collect();
        json!({"kind": list, "apiVersion": kind.api_version(), "metadata": metadata, "items": items})
    } else {
        json!({"apiVersion": kind.api_version(), "items": page.items, "kind": list, "metadata": metadata})
    }
}

fn watch(
    shared: &Shared,
    request: &Request,
    route: &Route,
    fault: Option<Fault>,
    stream: &mut Box<dyn Stream>,
) -> io::Result<bool> {
    let Some(selector) = Selector::parse(request.query("labelSelector"), request.query("fieldSelector")) else {
        return http::refusal(stream, &refuse(400, "BadRequest", "unable to parse requirement"), None).map(|()| true);
    };
    let seconds = request.query("timeoutSeconds").parse().unwrap_or(1800);
    let bookmarks = matches!(request.query("allowWatchBookmarks"), "true" | "1");
    let until = Instant::now() + Duration::from_secs(seconds);
    let version: u64 = match request.query("resourceVersion") {
        "" | "0" => shared.lock().store.version,
        text => match text.parse() {
            Ok(version) => version,
            Err(_) => return http::refusal(stream, &refuse(400, "BadRequest", "invalid version"), None).map(|()| true),
        },
    };
    http::begin_chunks(stream)?;
    let _counted = WatchCount::begin(shared);
    match fault {
        Some(Fault::ErrorEvent(code)) => {
            let reason = if code == 410 { "Expired" } else { "InternalError" };
            event(stream, "ERROR", &http::status(&refuse(code, reason, "as the test wished")))?;
            http::end_chunks(stream).map(|()| true)
        }
        Some(Fault::Nonsense) => {
            http::chunk(stream, b"{\"type\":\"ADDED\",\"object\":[17]}\n")?;
            http::end_chunks(stream).map(|()| true)
        }
        Some(Fault::Stall(pause)) => {
            thread::sleep(pause);
            Ok(false)
        }
        _ => Watch { shared, route, selector, bookmarks, until, version, marked: Instant::now() }.follow(fault, stream),
    }
}

/// A watch that sends changes.
struct Watch<'r> {
    shared: &'r Shared,
    route: &'r Route,
    selector: Selector,
    bookmarks: bool,
    until: Instant,
    /// The client has received all changes up to this version.
    version: u64,
    /// Time of the last bookmark.
    marked: Instant,
}

impl Watch<'_> {
    /// Sends changes until the client, the timeout or a fault ends the watch. Returns whether the
    /// connection stays open.
    fn follow(mut self, fault: Option<Fault>, stream: &mut Box<dyn Stream>) -> io::Result<bool> {
        let kind = &self.route.kind;
        loop {
            let cut = self.shared.cut();
            let changes = {
                let state = self.shared.lock();
                state.store.since(kind, self.version).map(|changes| (changes, state.store.version, state.every))
            };
            let (changes, newest, every) = match changes {
                Ok(changes) => changes,
                Err(refusal) => {
                    event(stream, "ERROR", &http::status(&refusal))?;
                    return http::end_chunks(stream).map(|()| true);
                }
            };
            if let ControlFlow::Break(goes_on) = self.send(&changes, fault, stream)? {
                return Ok(goes_on);
            }
            // A client that is ahead of this store receives nothing until the store has caught up.
            let is_behind = newest < self.version;
            self.version = self.version.max(newest);
            let now = Instant::now();
            if now >= self.marked + every || now >= self.until {
                self.marked = now;
                if self.bookmarks && !is_behind {
                    self.bookmark(stream)?;
                }
            }
            if now >= self.until {
                return http::end_chunks(stream).map(|()| true);
            }
            if self.shared.was_cut(cut)
                || self.shared.lock().store.kind(&kind.group, &kind.version, &kind.plural).is_none()
            {
                return Ok(false);
            }
            let state = self.shared.lock();
            if state.store.version <= self.version {
                let wait = (self.marked + every).min(self.until).saturating_duration_since(now);
                drop(self.shared.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Sends the changes that the selector matches. A fault ends the watch within the first of
    /// them; the result is then whether the connection stays open.
    fn send(
        &self,
        changes: &[Change],
        fault: Option<Fault>,
        stream: &mut Box<dyn Stream>,
    ) -> io::Result<ControlFlow<bool>> {
        for change in changes {
            let Some((kind, object)) = watch_event(change, &self.route.namespace, &self.selector) else { continue };
            let text = format!("{}\n", json!({"type": kind, "object": object}));
            match fault {
                Some(Fault::DropInside) => {
                    http::chunk(stream, &text.as_bytes()[..text.len() / 2])?;
                    return Ok(ControlFlow::Break(false));
                }
                Some(Fault::Truncate) => {
                    http::chunk(stream, &text.as_bytes()[..text.len() / 2])?;
                    return http::end_chunks(stream).map(|()| ControlFlow::Break(true));
                }
                _ => http::chunk(stream, text.as_bytes())?,
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn bookmark(&self, stream: &mut Box<dyn Stream>) -> io::Result<()> {
        let kind = &self.route.kind;
        let metadata = json!({"resourceVersion": self.version.to_string()});
        event(stream, "BOOKMARK", &json!({"kind": kind.kind, "apiVersion": kind.api_version(), "metadata": metadata}))
    }
}

/// Counts a watch as long as it lasts.
struct WatchCount<'s>(&'s Shared);

impl<'s> WatchCount<'s> {
    fn begin(shared: &'s Shared) -> Self {
        shared.watches.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for WatchCount<'_> {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::SeqCst);
    }
}

fn event(stream: &mut Box<dyn Stream>, kind: &str, object: &Value) -> io::Result<()> {
    http::chunk(stream, format!("{}\n", json!({"type": kind, "object": object})).as_bytes())
}

/// Returns event type and object of a change for a watch with this namespace and selector.
fn watch_event<'c>(change: &'c Change, namespace: &str, selector: &Selector) -> Option<(&'static str, &'c Value)> {
    let visible = |object: &&Value| {
        (namespace.is_empty() || object["metadata"]["namespace"] == namespace) && selector.matches(object)
    };
    let (before, after) = (change.before.as_ref().filter(visible), change.after.as_ref().filter(visible));
    match (before, after) {
        (None, Some(after)) => Some(("ADDED", after)),
        (Some(_), Some(after)) => Some(("MODIFIED", after)),
        // An object that no longer matches is sent in its present state, with the present version.
        (Some(before), None) => Some(("DELETED", change.after.as_ref().unwrap_or(before))),
        (None, None) => None,
    }
}
