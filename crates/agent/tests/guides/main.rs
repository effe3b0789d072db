//! The guides of the book, followed to the letter. Each command runs in a shell on a separate
//! machine, and its output is compared with the page. So are the front page and other documents
//! with commands.
#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests that follow pages")]

mod felix;
mod markdown;
mod session;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use tortie_lab::netns::Namespace;

use session::{Session, root};

/// Follows a page on a machine with only a loopback interface.
fn follow(page: &str) {
    Session::start(&Namespace::new().unwrap()).follow(page);
}

/// A host that is managed from another one, over a connection to port 22.
struct Managed {
    host: Namespace,
    administrator: Namespace,
}

impl Managed {
    fn new() -> Self {
        let (host, administrator) = (Namespace::new().unwrap(), Namespace::new().unwrap());
        let cable = format!("ip link add eth0 type veth peer name eth0 netns {}", administrator.path().display());
        host.shell(&format!("{cable}; ip addr add 192.0.2.1/24 dev eth0; ip link set eth0 up")).unwrap();
        administrator.shell("ip addr add 192.0.2.7/24 dev eth0; ip link set eth0 up").unwrap();
        Self { host, administrator }
    }
}

tortie_lab::kernel_test! {
    fn the_guide_on_host_protection_holds() {
        use std::io::{Read as _, Write as _};
        use std::net::{SocketAddr, TcpListener, TcpStream};
        let managed = Managed::new();
        let listener = managed.host.run(|| TcpListener::bind("0.0.0.0:22")).unwrap().unwrap();
        thread::spawn(move || {
            for mut stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                });
            }
        });
        let port: SocketAddr = "192.0.2.1:22".parse().unwrap();
        let connect = || TcpStream::connect_timeout(&port, Duration::from_secs(5));
        let mut connection = managed.administrator.run(connect).unwrap().unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        Session::start(&managed.host).follow("docs/book/src/guides/host.md");
        connection.write_all(b"x").unwrap();
        connection.read_exact(&mut [0]).unwrap();
    }

    fn the_guide_from_felix_to_tortie_and_back_holds() {
        let node = Namespace::new().unwrap();
        node.shell("ip link add cali1234 type veth peer name pod; ip link set cali1234 up; ip link set pod up").unwrap();
        let felix = felix::leave_its_rules(&node);
        Session::start(&node).follow("docs/book/src/guides/felix.md");
        felix.finds_its_chains(&node);
    }

    fn the_guide_on_other_cni_plugins_holds() {
        follow("docs/book/src/guides/other-cni.md");
    }

    fn the_guide_on_domain_names_holds() {
        follow("docs/book/src/guides/names.md");
    }

    fn the_guide_on_upgrades_holds() {
        follow("docs/book/src/guides/upgrade.md");
    }

    fn the_guides_on_etcd_and_confirmed_changes_hold() {
        follow("docs/book/src/guides/etcd.md");
        follow("docs/book/src/guides/commit-confirm.md");
    }

    fn the_guide_on_many_nodes_holds() {
        follow("docs/book/src/guides/many-nodes.md");
    }

    fn pages_of_commands_without_an_agent_show_their_output() {
        follow("docs/book/src/commands/check.md");
        follow("docs/book/src/commands/trace.md");
        follow("docs/book/src/commands/plan.md");
        follow("docs/book/src/commands/map.md");
        follow("docs/book/src/commands/render.md");
        follow("docs/book/src/commands/selector.md");
        follow("docs/book/src/commands/suggest.md");
        follow("docs/book/src/commands/replay.md");
        follow("docs/book/src/commands/confirm.md");
        follow("docs/book/src/commands/staged.md");
        follow("docs/book/src/commands/apply.md");
        follow("docs/book/src/commands/ipam.md");
        follow("docs/book/src/commands/fanout.md");
    }

    fn pages_of_commands_beside_an_agent_show_their_output() {
        follow("docs/book/src/commands/run.md");
        follow("docs/book/src/commands/status.md");
        follow("docs/book/src/commands/show.md");
        follow("docs/book/src/commands/flows.md");
        follow("docs/book/src/commands/history.md");
        follow("docs/book/src/commands/node.md");
        follow("docs/book/src/commands/cleanup.md");
    }

    fn the_introduction_shows_the_output_of_commands() {
        follow("docs/book/src/introduction.md");
    }

    fn the_front_page_shows_the_output_of_commands() {
        follow("README.md");
    }

    fn the_page_on_installation_fills_and_reads_etcd() {
        follow("docs/book/src/install.md");
    }

    /// A page with one wrong output fails, so that the tests above do not pass by accident.
    fn deviations_from_a_page_are_found() {
        let follow = |text: &str| {
            let mut session = Session::start(&Namespace::new().unwrap());
            session.follow_text("page", text)
        };
        let good = "```sh\nexport NAME=value\ncd /etc\nsleep 1000 &\nmkdir tortie\n```\n```console\n$ echo $NAME in $PWD on $(hostname)\nvalue in \
                    /etc on worker-1\n$ kill -0 $! && false\n$ cat /nowhere\n…: No such file or directory\n```\n";
        assert_eq!(follow(good), Ok(()));
        assert!(!Path::new("/etc/tortie").exists(), "the machine is the page's own");
        let bad = follow(&good.replace("value in /etc", "value in /var")).unwrap_err();
        assert!(bad.starts_with("page:8: echo $NAME"), "{bad}");
        let bad = follow(&good.replace("cd /etc", "cd /nowhere")).unwrap_err();
        assert!(bad.starts_with("page:2: a command failed") && bad.contains("/nowhere"), "{bad}");
    }
}

/// Documents, and folders with documents, whose commands must run.
const PLACES: [&str; 3] = ["docs/book/src", "README.md", "deploy/README.md"];

fn pages(path: &Path, pages: &mut BTreeSet<String>) {
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| self::pages(&entry.unwrap().path(), pages));
    } else if path.extension().is_some_and(|extension| extension == "md") {
        pages.insert(path.strip_prefix(root()).unwrap().display().to_string());
    }
}

#[test]
fn each_page_with_commands_is_followed_above() {
    let mut all = BTreeSet::new();
    PLACES.iter().for_each(|place| pages(&root().join(place), &mut all));
    let tests = include_str!("main.rs");
    let (mut followed, mut unused) = (0, BTreeSet::from(markdown::REASONS));
    for page in all {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        unused.retain(|reason| !text.contains(&format!("not-run=\"{reason}\"")));
        let steps = markdown::steps(&text).unwrap_or_else(|error| panic!("{page}: {error}"));
        let is_followed = tests.contains(&format!("follow(\"{page}\")"));
        assert_eq!(!steps.is_empty(), is_followed, "{page}: {} commands", steps.len());
        followed += usize::from(is_followed);
    }
    assert!(followed >= 6, "{followed}");
    assert!(unused.is_empty(), "{unused:?}");
}
