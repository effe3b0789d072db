use tortie_dataplane::Netfilter;
use tortie_lab::kernel_test;
use tortie_lab::netns::Namespace;
use tortie_model::Family;

use super::super::LinuxKernel;
use super::*;

const TIMEOUT: Duration = Duration::from_secs(10);

/// Returns a kernel that has read its tables ahead.
fn ahead(namespace: &Namespace) -> LinuxKernel {
    let tables = [Family::V4, Family::V6].map(TableId::calico);
    let kernel = namespace.run(|| LinuxKernel::new(TIMEOUT).reading_ahead(&tables)).unwrap();
    assert_eq!(kernel.read_ahead.threads.len(), 2);
    while kernel.read_ahead.threads.iter().any(|(_, thread)| !thread.is_finished()) {
        thread::sleep(Duration::from_millis(1));
    }
    kernel
}

kernel_test! {
    fn a_table_that_was_read_ahead_is_current() {
        let namespace = Namespace::new().unwrap();
        namespace.shell("nft add table ip calico; nft add chain ip calico a; nft add rule ip calico a accept").unwrap();
        let fresh = |table| namespace.run(|| LinuxKernel::new(TIMEOUT).read_nftables(table).unwrap()).unwrap();
        let (v4, v6) = (TableId::calico(Family::V4), TableId::calico(Family::V6));
        let mut kernel = ahead(&namespace);
        let mut read = |table| namespace.run(|| kernel.read_nftables(table).unwrap()).unwrap();
        assert_eq!((read(v4), read(v6)), (fresh(v4), None));
        // Each table is taken once.
        namespace.shell("nft add chain ip calico b; nft add table ip6 calico; nft add chain ip6 calico a").unwrap();
        assert_eq!((read(v4), read(v6)), (fresh(v4), fresh(v6)));
        let mut kernel = ahead(&namespace);
        let (generation, old) = kernel.read_ahead.take(v4).unwrap();
        assert_eq!((old.unwrap().chains.len(), kernel.read_ahead.take(v4)), (2, None));
        let mut kernel = ahead(&namespace);
        namespace.shell("nft add chain ip calico c").unwrap();
        let mut read = |table| namespace.run(|| kernel.read_nftables(table).unwrap()).unwrap();
        assert_eq!(read(v4).unwrap().chains.len(), 3, "the ruleset has changed since generation {generation}");
        assert_eq!(read(v6), fresh(v6));
    }
}
