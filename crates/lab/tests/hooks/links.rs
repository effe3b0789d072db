//! Lifetime of programs: until their links and pins are gone.

use std::path::PathBuf;
use std::process::Command;

use rustix::thread::UnshareFlags;
use tortie_bpf::{ArrayMap, NetfilterLink, PerCpuArrayMap, Program};
use tortie_ebpf::hooks::HookSettings;
use tortie_lab::kernel_test;
use tortie_lab::pods::Port;

use crate::check;
use crate::generation::{Generation, position};
use crate::workloads::{content, lab, place};

/// Mounts a BPF file system that is visible to this thread only, and disappears with its pinned
/// objects.
fn file_system() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    #[allow(deprecated, reason = "the replacement is unsafe because of CLONE_FILES, which is not used here")]
    rustix::thread::unshare(UnshareFlags::NEWNS).unwrap();
    let mount = format!("mount --make-rprivate / && mount -t bpf bpf {}", folder.path().display());
    let mounted = Command::new("sh").args(["-euc", &mount]).output().unwrap();
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    folder
}

fn unmount(folder: &tempfile::TempDir) {
    let done = Command::new("umount").arg(folder.path()).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// Runs `body` on a separate thread with a private mount namespace.
fn with_file_system(body: impl FnOnce(&tempfile::TempDir) + Send) {
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let folder = file_system();
            body(&folder);
            unmount(&folder);
        });
        if let Err(panic) = done.join() {
            std::panic::resume_unwind(panic);
        }
    });
}

kernel_test! {
    fn pinned_programs_filter_without_a_process_and_can_be_reopened() {
        with_file_system(|folder| {
            let lab = lab();
            let (a, b) = (place("a"), place("b"));
            let expected = [(&a, &b, Port::tcp(80), true), (&a, &b, Port::tcp(81), false)];
            let path = |number: usize| folder.path().join(format!("link{number}"));
            let (ids, places): (Vec<u32>, Vec<_>) = {
                let mut generation = Generation::load(&HookSettings::default());
                content().write(&lab, &generation);
                generation.attach(&lab, 1).unwrap();
                for (number, link) in generation.links.iter().enumerate() {
                    link.pin(&path(number)).unwrap();
                }
                assert!(generation.links[0].pin(&path(0)).is_err(), "the name is taken");
                let programs = generation.programs.iter();
                programs.map(|(at, program)| (program.info().unwrap().id, position(*at, 1))).unzip()
            };
            // All descriptors are closed now.
            check(&lab, &expected);
            let links: Vec<NetfilterLink> = (0..8).map(|number| NetfilterLink::open(&path(number)).unwrap()).collect();
            for (number, link) in links.iter().enumerate() {
                let info = link.info().unwrap();
                assert_eq!((info.program, info.at), (ids[number], places[number]));
            }
            // Closing the descriptors leaves the pinned links.
            drop(links);
            check(&lab, &expected);
            for number in 0..8 {
                NetfilterLink::open(&path(number)).unwrap().detach().unwrap();
            }
            check(&lab, &[(&a, &b, Port::tcp(81), true)]);
        });
    }

    fn a_pin_that_is_removed_is_detached() {
        with_file_system(|folder| {
            let lab = lab();
            let (a, b) = (place("a"), place("b"));
            let mut generation = Generation::load(&HookSettings::default());
            content().write(&lab, &generation);
            generation.attach(&lab, 0).unwrap();
            let paths: Vec<PathBuf> = (0..8).map(|number| folder.path().join(format!("link{number}"))).collect();
            generation.links.iter().zip(&paths).for_each(|(link, path)| link.pin(path).unwrap());
            drop(generation);
            check(&lab, &[(&a, &b, Port::tcp(81), false)]);
            paths.iter().for_each(|path| std::fs::remove_file(path).unwrap());
            check(&lab, &[(&a, &b, Port::tcp(81), true)]);
        });
    }

    fn a_generation_is_replaced_by_one_beside_it() {
        let lab = lab();
        let (a, b) = (place("a"), place("b"));
        let mut old = Generation::load(&HookSettings::default());
        content().write(&lab, &old);
        old.attach(&lab, 0).unwrap();
        let mut new = Generation::load(&HookSettings::default());
        let mut changed = content();
        changed.pods[1].1.ingress.remove(0);
        changed.write(&lab, &new);
        let taken = new.attach(&lab, 0).unwrap_err();
        assert_eq!(taken.kind(), std::io::ErrorKind::ResourceBusy, "{taken}");
        new.attach(&lab, 1).unwrap();
        // A packet needs the acceptance of both.
        check(&lab, &[(&a, &b, Port::tcp(80), false), (&a, &b, Port::sctp(80), true), (&a, &b, Port::tcp(81), false)]);
        drop(new);
        check(&lab, &[(&a, &b, Port::tcp(80), true)]);
        let mut new = Generation::load(&HookSettings::default());
        content().write(&lab, &new);
        new.attach(&lab, 1).unwrap();
        drop(old);
        check(&lab, &[(&a, &b, Port::tcp(80), true), (&a, &b, Port::tcp(81), false)]);
    }

    fn maps_and_programs_are_found_by_their_pins() {
        with_file_system(|folder| {
            let path = |name: &str| folder.path().join(name);
            let map = ArrayMap::create("values", 8, 3).unwrap();
            map.write(2, &7_u64.to_ne_bytes()).unwrap();
            map.pin(&path("map")).unwrap();
            let counters = PerCpuArrayMap::create("counters", 16, 5).unwrap();
            counters.pin(&path("counters")).unwrap();
            let generation = Generation::load(&HookSettings::default());
            let (_, program) = &generation.programs[0];
            program.pin(&path("program")).unwrap();
            let infos = (map.info(), counters.info(), program.info().unwrap());
            drop((map, counters, generation));

            let map = ArrayMap::open(&path("map")).unwrap();
            let mut value = [0; 8];
            map.read(2, &mut value).unwrap();
            assert_eq!(u64::from_ne_bytes(value), 7);
            let counters = PerCpuArrayMap::open(&path("counters")).unwrap();
            let program = Program::open(&path("program")).unwrap();
            assert_eq!((map.info(), counters.info(), program.info().unwrap()), infos);
            assert_eq!(infos.0.entries, 3);
            assert_eq!(infos.1.value_size, 16);

            // Opening a pin as another type of object fails.
            assert!(ArrayMap::open(&path("counters")).is_err());
            assert!(PerCpuArrayMap::open(&path("map")).is_err());
            assert!(ArrayMap::open(&path("program")).is_err());
            assert!(Program::open(&path("map")).is_err());
            assert!(NetfilterLink::open(&path("map")).is_err());
            assert!(NetfilterLink::open(&path("program")).is_err());
            assert_eq!(ArrayMap::open(&path("none")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        });
    }
}
