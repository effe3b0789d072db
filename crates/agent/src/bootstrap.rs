//! Preparation of an agent of a fan-out or a Typha before each connection, so that `WireGuard` does
//! not block the connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tortie_config::Sources;
use tortie_dataplane::Links;
use tortie_linux::kernel::LinuxKernel;

use crate::wireguard_bootstrap::{Bootstrap, Environment, PublishedKeys};
use tortie_cli::Failure;
use tortie_cli::datastore::DatastoreArgs;
use tortie_cli::datastore::Prepare;
use tortie_cli::servers::Prepared;
use tortie_node::Handle;

/// Time limit of a datastore request (`felix/wireguard/bootstrap.go`).
#[cfg(feature = "etcd")]
const REQUEST: Duration = Duration::from_secs(10);
/// Time that the engine may take to release the kernel. An apply of a whole node may be under way.
const LET_GO: Duration = Duration::from_secs(60);

/// Returns the preparation before each connection; it has an effect if the datastore behind the
/// servers is known.
pub(super) fn prepare(agent: Handle) -> Prepare {
    Box::new(move |datastore: &DatastoreArgs, local: &Sources, node, finder| {
        let Some(published) = published(datastore, local)? else { return Ok(Prepared::AsFound(finder)) };
        let stop = agent.stop().clone();
        let bootstrap = Bootstrap::new(node, local.clone(), finder, published, Box::new(ThisNode(agent)), stop);
        Ok(Prepared::ByDiscovery(Arc::new(bootstrap)))
    })
}

#[cfg_attr(
    not(any(feature = "etcd", feature = "kubernetes")),
    expect(unused_variables, clippy::unnecessary_wraps, reason = "this build can query no datastore directly")
)]
fn published(datastore: &DatastoreArgs, local: &Sources) -> Result<Option<Box<dyn PublishedKeys>>, Failure> {
    #[cfg(feature = "etcd")]
    if let Some(config) = datastore.status(local)? {
        use tortie_datastore::store::etcd::{EtcdConfig, EtcdPace, EtcdStore};
        let pace = EtcdPace { connect: REQUEST, request: REQUEST, ..config.pace };
        let store = EtcdStore::new(EtcdConfig { pace, ..config }).map_err(Failure::io("the client of etcd"))?;
        return Ok(Some(Box::new(crate::wireguard_bootstrap::KeysInStatus(Arc::new(store)))));
    }
    #[cfg(feature = "kubernetes")]
    if let Some(config) = datastore.nodes(local)? {
        use tortie_datastore::kubernetes::Client;
        let client = Client::new(config).map_err(Failure::io("the client of the API server"))?;
        return Ok(Some(Box::new(crate::wireguard_bootstrap::KeysInAnnotations::new(client))));
    }
    Ok(None)
}

struct ThisNode(Handle);

impl Environment for ThisNode {
    fn with_kernel(&self, timeout: Duration, task: &mut dyn FnMut(&mut dyn Links)) {
        task(&mut LinuxKernel::new(timeout));
    }

    fn release(&self) -> bool {
        self.0.release_kernel(LET_GO)
    }

    fn now(&self) -> Instant {
        Instant::now()
    }
}
