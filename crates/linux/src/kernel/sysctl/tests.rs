use std::fs;

use tempfile::TempDir;
use tortie_dataplane::{KernelError, SysctlPath};

use super::SysctlTree;

fn tree(value: &str) -> (TempDir, SysctlTree, SysctlPath) {
    let dir = TempDir::new().unwrap();
    fs::create_dir(dir.path().join("net")).unwrap();
    fs::write(dir.path().join("net/forwarding"), value).unwrap();
    let tree = SysctlTree::new(dir.path().to_owned());
    (dir, tree, SysctlPath::new("net/forwarding").unwrap())
}

#[test]
fn a_value_is_read_without_its_line_end() {
    let (_dir, tree, path) = tree("0\n");
    assert_eq!(tree.read(&path), Ok("0".to_owned()));
}

#[test]
fn a_value_is_written_over_the_old_one() {
    let (dir, tree, path) = tree("0");
    assert_eq!(tree.write(&path, "1"), Ok(()));
    assert_eq!(fs::read_to_string(dir.path().join("net/forwarding")).unwrap(), "1");
}

#[test]
fn an_existing_value_is_not_written() {
    let (dir, tree, path) = tree("1\n");
    assert_eq!(tree.write(&path, "1"), Ok(()));
    assert_eq!(fs::read_to_string(dir.path().join("net/forwarding")).unwrap(), "1\n");
}

#[test]
fn missing_files_are_not_created() {
    let (dir, tree, _path) = tree("0");
    for missing in ["net/other", "gone/forwarding", "net/forwarding/below"] {
        let missing = SysctlPath::new(missing).unwrap();
        assert_eq!(tree.read(&missing), Err(KernelError::NotFound));
        assert_eq!(tree.write(&missing, "1"), Err(KernelError::NotFound));
    }
    assert!(!dir.path().join("net/other").exists());
}
