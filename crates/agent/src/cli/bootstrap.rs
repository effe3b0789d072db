//! What an agent of a fan-out or a Typha does before each connection, so that `WireGuard` is not in its way.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tortie_config::Sources;
use tortie_dataplane::Kernel;
use tortie_fanout::{DiscoveryError, ServerDiscovery};
use tortie_linux::kernel::LinuxKernel;
use tortie_model::Hostname;

use super::Failure;
use super::datastore::{DatastoreArgs, EngineHandle, TyphaServers};
use crate::engine::Input;
use crate::wireguard_bootstrap::{Bootstrap, FindServers, Published, Surroundings};

/// How long one request of the datastore may take (`felix/wireguard/bootstrap.go`).
#[cfg(feature = "etcd")]
const REQUEST: Duration = Duration::from_secs(10);
/// How long the engine may take to let go. An apply of a whole node may be under way.
const LET_GO: Duration = Duration::from_secs(60);

/// What finds these servers before each connection, and clears the way to them where it is known which datastore is behind
/// them; `None` if there is nothing to be found or done.
///
/// # Errors
/// If the settings do not go together.
pub(super) fn discovery(
    datastore: &DatastoreArgs,
    local: &Sources,
    servers: &TyphaServers,
    (node, engine): (Option<Hostname>, Option<EngineHandle>),
) -> Result<Option<Arc<dyn ServerDiscovery>>, Failure> {
    let finder: Box<dyn FindServers> = match servers {
        TyphaServers::Addresses(servers) => Box::new(servers.clone()),
        TyphaServers::Service { namespace, name } => service(namespace, name, node.as_ref())?,
    };
    if let Some((node, engine)) = node.zip(engine)
        && let Some(published) = published(datastore, local)?
    {
        let stop = engine.stop.clone();
        let bootstrap = Bootstrap::new(node, local.clone(), finder, published, Box::new(ThisNode(engine)), stop);
        return Ok(Some(Arc::new(bootstrap)));
    }
    Ok(match servers {
        TyphaServers::Addresses(_) => None,
        TyphaServers::Service { .. } => Some(Arc::new(AsFound(finder))),
    })
}

#[cfg(feature = "kubernetes")]
fn service(namespace: &str, name: &str, node: Option<&Hostname>) -> Result<Box<dyn FindServers>, Failure> {
    let node = node.map(Hostname::as_str).unwrap_or_default();
    Ok(Box::new(super::typha_service::TyphaService::new(namespace, name, node)?))
}

#[cfg(not(feature = "kubernetes"))]
fn service(_namespace: &str, name: &str, _node: Option<&Hostname>) -> Result<Box<dyn FindServers>, Failure> {
    let missing = "to find it takes a build with --features kubernetes";
    Err(Failure::Usage(format!("FELIX_TYPHAK8SSERVICENAME={name}: {missing}")))
}

/// Servers as they are found.
#[derive(Debug)]
struct AsFound(Box<dyn FindServers>);

impl ServerDiscovery for AsFound {
    fn servers(&self) -> Result<Vec<String>, DiscoveryError> {
        Ok(self.0.find()?.into_iter().map(|candidate| candidate.address).collect())
    }
}

#[cfg_attr(
    not(any(feature = "etcd", feature = "kubernetes")),
    expect(unused_variables, clippy::unnecessary_wraps, reason = "this build can ask no datastore directly")
)]
fn published(datastore: &DatastoreArgs, local: &Sources) -> Result<Option<Box<dyn Published>>, Failure> {
    #[cfg(feature = "etcd")]
    if let Some(config) = datastore.status(local)? {
        use tortie_store::etcd::{EtcdConfig, EtcdPace, EtcdStore};
        let pace = EtcdPace { connect: REQUEST, request: REQUEST, ..config.pace };
        let store = EtcdStore::new(EtcdConfig { pace, ..config }).map_err(Failure::io("the client of etcd"))?;
        return Ok(Some(Box::new(crate::wireguard_bootstrap::InStatus(Arc::new(store)))));
    }
    #[cfg(feature = "kubernetes")]
    if let Some(config) = datastore.nodes(local)? {
        use tortie_datastore::kubernetes::Client;
        let client = Client::new(config).map_err(Failure::io("the client of the API server"))?;
        return Ok(Some(Box::new(crate::wireguard_bootstrap::InAnnotations::new(client))));
    }
    Ok(None)
}

struct ThisNode(EngineHandle);

impl Surroundings for ThisNode {
    fn with_kernel(&self, timeout: Duration, task: &mut dyn FnMut(&mut dyn Kernel)) {
        task(&mut LinuxKernel::new(timeout));
    }

    fn let_go(&self) -> bool {
        let (waiting, gone) = channel();
        let is_told = self.0.inputs.send(Input::LetGo(waiting)).is_ok();
        is_told && gone.recv_timeout(LET_GO) == Err(RecvTimeoutError::Disconnected)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}
