//! The feed of texts under paths.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tortie_datastore::store::etcd::{EtcdEvent, EtcdFeed};

use crate::cluster;

const PATIENCE: Duration = Duration::from_secs(90);

/// Follows a feed until the known texts are these.
fn follow(feed: &mut EtcdFeed, known: &mut BTreeMap<String, String>, expected: &[(&str, &str)]) {
    let expected: BTreeMap<String, String> =
        expected.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    let until = Instant::now() + PATIENCE;
    let mut listed: Option<BTreeMap<String, String>> = None;
    while *known != expected || listed.is_some() {
        assert!(Instant::now() < until, "not in time: {known:?}");
        match feed.next(Duration::from_millis(100)) {
            Some(EtcdEvent::ListBegins) => listed = Some(BTreeMap::new()),
            Some(EtcdEvent::Listed(text)) => {
                drop(listed.as_mut().expect("it begins first").insert(text.path, text.text));
            }
            Some(EtcdEvent::ListEnds(_)) => *known = listed.take().expect("it begins first"),
            Some(EtcdEvent::Changed(text)) => drop(known.insert(text.path, text.text)),
            Some(EtcdEvent::Deleted { path, .. }) => drop(known.remove(&path)),
            Some(EtcdEvent::Unavailable(_)) | None => {}
        }
    }
}

#[test]
fn the_feed_matches_the_store() {
    let mut etcd = cluster::one();
    etcd.put("/a/1", "one").unwrap();
    etcd.put("/b/1", "other").unwrap();
    let mut feed = EtcdFeed::new(cluster::config(&etcd.url()), vec!["/a/".into(), "/c/".into()]).unwrap();
    let mut known = BTreeMap::new();
    follow(&mut feed, &mut known, &[("/a/1", "one")]);
    etcd.put("/c/1", "three").unwrap();
    etcd.put("/b/2", "other").unwrap();
    etcd.put("/a/1", "two").unwrap();
    follow(&mut feed, &mut known, &[("/a/1", "two"), ("/c/1", "three")]);
    etcd.delete("/a/1").unwrap();
    follow(&mut feed, &mut known, &[("/c/1", "three")]);

    // Changes during an interruption are received afterwards, even if they were compacted.
    etcd.put("/a/2", "four").unwrap();
    etcd.delete("/c/1").unwrap();
    etcd.compact().unwrap();
    etcd.kill(0);
    let until = Instant::now() + PATIENCE;
    while !matches!(feed.next(Duration::from_millis(100)), Some(EtcdEvent::Unavailable(_))) {
        assert!(Instant::now() < until, "the outage is not reported");
    }
    etcd.restart(0).unwrap();
    follow(&mut feed, &mut known, &[("/a/2", "four")]);
}
