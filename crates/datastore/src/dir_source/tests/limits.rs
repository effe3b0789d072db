//! A limit of watched directories, in a user namespace of its own.

use std::env;
use std::process::Command;

use tortie_lab::kernel_test;

use super::*;

const TEST: &str = "dir_source::tests::limits::all_directories_are_watched_again_within_the_limit";
/// Set in the process that has the limit.
const IS_LIMITED: &str = "TORTIE_TEST_IS_LIMITED";
const LIMIT: usize = 40;

kernel_test! {
    fn all_directories_are_watched_again_within_the_limit() {
        if env::var_os(IS_LIMITED).is_some() {
            return watch_again();
        }
        let limit = format!("echo {LIMIT} > /proc/sys/user/max_inotify_watches && exec \"$@\"");
        let ran = Command::new("unshare")
            .args(["--user", "--map-root-user", "--", "sh", "-c", &limit, "sh"])
            .arg(env::current_exe().unwrap())
            .args(["--exact", TEST, "--nocapture"])
            .env(IS_LIMITED, "")
            .output()
            .unwrap();
        let [out, err] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
        assert!(ran.status.success() && out.contains("1 passed"), "{out}{err}");
    }
}

/// Watches a directory that takes more than half of the limit, and then more than all of it.
fn watch_again() {
    let dir = TempDir::new().unwrap();
    let at = |number: usize| dir.path().join(format!("sub{number}"));
    (1..LIMIT - 5).for_each(|number| fs::create_dir(at(number)).unwrap());
    let (feed, _watching) = channel();
    let (hint, hints) = sync_channel(1);
    let mut watch = Watch::new(DirSource::new(dir.path(), Options::default()), &feed, hint);
    let is_watching = |watch: &Watch<'_>| watch.watched.as_ref().is_some_and(|(_, watcher)| watcher.is_some());
    assert_eq!((watch.keep_watching(), is_watching(&watch)), (false, true));
    for _ in 0..3 {
        watch.watch_all();
        assert_eq!((watch.misses_events, is_watching(&watch)), (false, true));
    }
    // Some directories have events even if all of them exceed the limit.
    (LIMIT - 5..LIMIT + 5).for_each(|number| fs::create_dir(at(number)).unwrap());
    watch.watch_all();
    assert_eq!((watch.misses_events, is_watching(&watch)), (true, true));
    while hints.recv_timeout(INTERVAL).is_ok() {}
    fs::write(dir.path().join("a.yaml"), tier("a", 1)).unwrap();
    assert_eq!(hints.recv_timeout(Duration::from_secs(20)), Ok(()));
    (LIMIT - 5..LIMIT + 5).for_each(|number| fs::remove_dir(at(number)).unwrap());
    watch.watch_all();
    assert_eq!((watch.misses_events, is_watching(&watch)), (false, true));
    // Another directory of the same name is watched within the limit as well.
    let away = TempDir::new().unwrap();
    fs::rename(dir.path(), away.path().join("dir")).unwrap();
    fs::create_dir(dir.path()).unwrap();
    (1..LIMIT - 5).for_each(|number| fs::create_dir(at(number)).unwrap());
    assert_eq!((watch.keep_watching(), is_watching(&watch)), (false, true));
}
