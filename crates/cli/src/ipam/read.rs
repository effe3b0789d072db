use serde_json::Value;
use tortie_controller::addresses::Addresses;
use tortie_datastore::kubernetes::{ApiResource, Client, Event, ListWatch, Received, Reflector};
use tortie_datastore::store::{ResourceStore, StoreError, StoredText};
use tortie_resources::stored::ResourceKind;

use super::super::Failure;
use super::super::store::{OpenStore, StoreArgs};

/// Reads IPAM's entries and pools; with `users` also the objects that have addresses.
pub(super) fn read(store: &StoreArgs, users: bool) -> Result<Addresses, Failure> {
    let mut addresses = Addresses::default();
    let kinds = |of_users: &[ResourceKind]| [&Addresses::NETWORKS[..], of_users].concat();
    match store.open_own()? {
        #[cfg(feature = "etcd")]
        OpenStore::Etcd(store) => {
            let kinds = kinds(if users { &Addresses::USERS } else { &[] });
            take(&mut addresses, &*store, &kinds, |prefix| store.texts(prefix)).map_err(Failure::failed)?;
        }
        OpenStore::Kubernetes(store, client) => {
            // Pods are the workload endpoints.
            let kinds = kinds(if users { &[ResourceKind::Node] } else { &[] });
            take(&mut addresses, &store, &kinds, |prefix| store.texts(prefix)).map_err(Failure::failed)?;
            if users {
                each(&client, ApiResource::PODS, |pod| addresses.take_pod(&pod))?;
                let mut services = Vec::new();
                each(&client, ApiResource::SERVICES, |service| services.push(service))?;
                addresses.take_services(&services);
            }
        }
    }
    Ok(addresses)
}

fn take(
    addresses: &mut Addresses,
    resources: &dyn ResourceStore,
    kinds: &[ResourceKind],
    texts: impl Fn(&str) -> Result<Vec<StoredText>, StoreError>,
) -> Result<(), StoreError> {
    for prefix in Addresses::PREFIXES {
        texts(prefix)?.iter().for_each(|stored| addresses.take_text(&stored.path, &stored.text));
    }
    for kind in kinds {
        let listing = match resources.list(*kind, None) {
            // Releases of Calico before 3.22 have no reservations.
            Err(StoreError::NoKind(ResourceKind::IpReservation)) => continue,
            listing => listing?,
        };
        listing.resources.iter().for_each(|resource| addresses.take_resource(&resource.key, &resource.object));
        listing.unreadable.into_iter().for_each(|(key, why)| addresses.take_unreadable(key.to_string(), why));
    }
    Ok(())
}

/// Passes all objects of a kind, one at a time: a large cluster has too many pods for one list.
fn each(client: &Client, resource: ApiResource, mut take: impl FnMut(Value)) -> Result<(), Failure> {
    let mut reflector = Reflector::new(client);
    reflector.add(ListWatch::all(resource));
    loop {
        match reflector.recv(None) {
            Received::Event(_, Event::Item(object)) => {
                take(serde_json::from_str(&object).map_err(Failure::failed_at("Kubernetes"))?);
            }
            Received::Event(_, Event::End) => return Ok(()),
            Received::Event(_, Event::Unavailable(error)) => return Err(Failure::failed_at("Kubernetes")(error)),
            _ => {}
        }
    }
}
