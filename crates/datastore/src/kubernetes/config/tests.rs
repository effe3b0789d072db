use std::fs;

use tempfile::TempDir;

use super::{KubeConfig, KubeConfigError};

#[test]
fn unusable_configurations_are_refused_without_a_request() {
    let folder = TempDir::new().unwrap();
    let check = |text: Option<&str>| {
        let path = folder.path().join("kubeconfig");
        match text {
            Some(text) => fs::write(&path, text).unwrap(),
            None => drop(fs::remove_file(&path)),
        }
        KubeConfig::file(path).check()
    };
    let sound = "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: s, user: u}}], \
                 clusters: [{name: s, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}";
    assert_eq!(check(Some(sound)), Ok(()));
    assert!(matches!(check(None), Err(KubeConfigError::File { .. })));
    assert!(matches!(check(Some("text")), Err(KubeConfigError::File { .. })));
    assert!(matches!(check(Some(&sound.replace("cluster: s,", "cluster: t,"))), Err(KubeConfigError::File { .. })));
    let no_certificate = sound.replace("http://127.0.0.1:1'", "https://127.0.0.1:1', certificate-authority: /nowhere");
    assert!(check(Some(&no_certificate)).is_err());
}
