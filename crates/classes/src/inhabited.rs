//! Buckets that have addresses. A network has none if the networks that it covers fill it.

use ahash::AHashSet;
use tortie_model::{Cidr, Family};

use crate::addresses::Addresses;
use crate::ids::BucketId;
use crate::networks::{not_filled, unspecified};

/// The buckets with addresses that are in no longer network.
#[derive(Debug, Default)]
pub(crate) struct Inhabited {
    buckets: AHashSet<BucketId>,
    /// The families that have addresses in no network.
    outside: Vec<Family>,
    /// The buckets that are in no other.
    outermost: AHashSet<(Family, BucketId)>,
}

impl Inhabited {
    pub(crate) fn new(addresses: &Addresses) -> Self {
        let mut inhabited = Self::default();
        for family in Family::ALL {
            let of_family = || addresses.prefixes().map(|(net, _)| net).filter(|net| net.family() == family);
            let is_known = of_family().next().is_some_and(|net| net.prefix_len() == 0);
            let all = Cidr::new(unspecified(family), 0).filter(|_| !is_known);
            let nets: Vec<Cidr> = all.into_iter().chain(of_family()).collect();
            for (net, has_addresses) in nets.iter().zip(not_filled(&nets)) {
                let bucket = if all == Some(*net) { None } else { addresses.bucket_of_net(*net) };
                if let Some(bucket) = bucket
                    && addresses.around(bucket).is_none()
                {
                    inhabited.outermost.insert((family, bucket));
                }
                match bucket {
                    _ if !has_addresses => {}
                    Some(bucket) => drop(inhabited.buckets.insert(bucket)),
                    None => inhabited.outside.push(family),
                }
            }
        }
        inhabited
    }

    /// Reports whether a bucket has such addresses; without a bucket, whether some addresses are in
    /// no network.
    pub(crate) fn contains(&self, bucket: Option<BucketId>, family: Family) -> bool {
        bucket.map_or_else(|| self.outside.contains(&family), |bucket| self.buckets.contains(&bucket))
    }

    /// The buckets of a family that are in no other, in no order.
    pub(crate) fn outermost(&self, family: Family) -> impl Iterator<Item = BucketId> + '_ {
        self.outermost.iter().filter(move |(of, _)| *of == family).map(|(_, bucket)| *bucket)
    }
}
