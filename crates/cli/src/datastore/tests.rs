use tortie_model::desired::ConfigSource;

use super::*;

fn with<T>(
    parameters: &[(&str, &str)],
    variables: &[(&str, &str)],
    read: impl FnOnce(&Settings<'_>) -> Result<T, Failure>,
) -> Result<T, String> {
    let mut local = Sources::default();
    let raw = parameters.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    local.set(ConfigSource::Environment, raw);
    let environment = |needs: &str| {
        let found = variables.iter().find(|(name, _)| *name == needs);
        found.map(|(_, value)| (*value).to_owned())
    };
    read(&Settings { local: &local, environment: &environment }).map_err(|failure| failure.to_string())
}

#[test]
fn etcd_is_found_as_calicos_programs_find_it() {
    let args = super::super::etcd::EtcdArgs::default();
    let etcd = |parameters, variables, url| with(parameters, variables, |settings| settings.etcd(url, &args));
    let files = [("etcdcafile", "/ca"), ("etcdcertfile", "/cert"), ("etcdkeyfile", "/key")];
    let config = etcd(&files, &[("ETCD_ENDPOINTS", "https://a:2379, https://b:2379/")], None).unwrap();
    assert_eq!(config.endpoints, ["a:2379", "b:2379"]);
    assert_eq!((config.ca_file, config.key_file), (Some("/ca".into()), Some("/key".into())));
    let config = etcd(&[("etcdendpoints", "http://c:1")], &[("ETCD_ENDPOINTS", "http://d:1")], None).unwrap();
    assert_eq!((&*config.endpoints, config.ca_file), (&["c:1".to_owned()][..], None));
    assert_eq!(etcd(&[], &[], None).unwrap().endpoints, ["127.0.0.1:2379"]);
    for (parameters, url, error) in [
        (&[("etcdendpoints", "https://a:1")][..], None, "ETCD_CA_CERT_FILE"),
        (&files[1..2], Some("etcd://a:1"), "must be given together"),
    ] {
        let refused = etcd(parameters, &[], url).unwrap_err();
        assert!(refused.contains(error), "{refused}");
    }
}

#[test]
fn felix_is_asked_before_calico_and_calico_before_the_rest() {
    fn etcd(parameters: &[(&str, &str)], variables: &[(&str, &str)]) -> Result<EtcdConfig, String> {
        let args = super::super::etcd::EtcdArgs::default();
        with(parameters, variables, |settings| settings.etcd(None, &args))
    }
    let folder = tempfile::TempDir::new().unwrap();
    let password = folder.path().join("password");
    std::fs::write(&password, "from a file\n").unwrap();
    let password = password.to_str().unwrap();
    let mut variables = vec![
        ("ETCD_ENDPOINTS", "https://a:1"),
        ("ETCD_CA_CERT_FILE", "/ca"),
        ("ETCD_CERT_FILE", "/cert"),
        ("ETCD_KEY_FILE", "/key"),
        ("ETCD_USERNAME", "me"),
        ("ETCD_PASSWORD", "secret"),
    ];
    let config = etcd(&[], &variables).unwrap();
    assert_eq!((config.endpoints, config.ca_file), (vec!["a:1".to_owned()], Some("/ca".into())));
    assert_eq!(config.user, Some(("me".into(), "secret".to_owned().into())));
    variables.extend([("CALICO_ETCD_CERT_FILE", "/calico-cert"), ("CALICO_ETCD_ENDPOINTS", "https://b:1")]);
    variables.push(("ETCD_PASSWORD_FILE", password));
    let config = etcd(&[("etcdkeyfile", "/felix-key")], &variables).unwrap();
    assert_eq!(config.endpoints, ["b:1"]);
    assert_eq!((config.cert_file, config.key_file), (Some("/calico-cert".into()), Some("/felix-key".into())));
    assert_eq!(config.user, Some(("me".into(), tortie_datastore::store::etcd::Password::file(password))));
    let address = [("etcdaddr", "c:1"), ("etcdscheme", "https")];
    assert_eq!(etcd(&address, &variables).unwrap().endpoints, ["c:1"]);
    assert!(etcd(&address, &[]).unwrap_err().contains("ETCD_CA_CERT_FILE"));
    assert_eq!(etcd(&address[..1], &[]).unwrap().endpoints, ["c:1"]);
    let alone = etcd(&address[..1], &[("ETCD_USERNAME", "me")]).unwrap_err();
    assert!(alone.contains("needs ETCD_PASSWORD"), "{alone}");
}

#[test]
fn typha_is_found_by_address_or_else_by_service() {
    fn typha(parameters: &[(&str, &str)]) -> Result<TyphaServers, String> {
        with(parameters, &[], |settings| settings.typha(None))
    }
    let addresses = |list: &[&str]| Ok(TyphaServers::Addresses(list.iter().map(|&server| server.into()).collect()));
    let service =
        |namespace: &str, name: &str| Ok(TyphaServers::Service { namespace: namespace.into(), name: name.into() });
    let by_name = ("typhak8sservicename", "calico-typha");
    assert_eq!(typha(&[("typhaaddr", "typha-1"), by_name]), addresses(&["typha-1:5473"]));
    assert_eq!(typha(&[("typhaaddr", "10.0.0.1:1,[::1]:2")]), addresses(&["10.0.0.1:1", "[::1]:2"]));
    assert_eq!(typha(&[by_name]), service("kube-system", "calico-typha"));
    assert_eq!(typha(&[by_name, ("typhak8snamespace", "calico-system")]), service("calico-system", "calico-typha"));
    assert!(typha(&[("typhaaddr", "a:0")]).unwrap_err().starts_with("FELIX_TYPHAADDR: `a:0`"));
    assert!(typha(&[]).unwrap_err().contains("needs FELIX_TYPHAADDR or FELIX_TYPHAK8SSERVICENAME"));
}

#[test]
fn times_of_typha_are_seconds() {
    let time = |text: &str| with(&[("typhareadtimeout", text)], &[], |settings| settings.seconds("TyphaReadTimeout"));
    assert_eq!(time("1.5"), Ok(Some(Duration::from_millis(1500))));
    assert_eq!(time(""), Ok(None));
    for wrong in ["0", "-1", "NaN", "1e300", "x"] {
        assert!(time(wrong).unwrap_err().contains("is not a number of seconds"), "{wrong}");
    }
}

#[test]
fn a_fan_out_server_is_known_as_felix_knows_typha() {
    let none = FanoutFlags::default();
    assert_eq!(with(&[], &[], |settings| settings.fanout_tls(&none)), Ok(None));
    let all =
        [("typhacafile", "/ca"), ("typhacertfile", "/cert"), ("typhakeyfile", "/key"), ("typhacn", "typha-server")];
    let tls = with(&all, &[], |settings| settings.fanout_tls(&none)).unwrap().unwrap();
    assert_eq!(tls.files.key, PathBuf::from("/key"));
    let error = with(&all[..3], &[], |settings| settings.fanout_tls(&none)).unwrap_err();
    assert!(error.contains("the other side's name is missing"), "{error}");
}

#[test]
fn a_fan_out_reads_the_datastore_that_the_node_configures() {
    #[derive(clap::Parser)]
    struct Program {
        #[command(flatten)]
        datastore: DatastoreArgs,
    }
    let written_to = |url: &str, kind: Option<&str>| {
        let args = <Program as clap::Parser>::parse_from(["tortie", "--datastore", url]).datastore;
        let endpoints = ("EtcdEndpoints".to_owned(), "http://a:1".to_owned());
        let kind = kind.map(|kind| ("DatastoreType".to_owned(), kind.to_owned()));
        let mut local = Sources::default();
        local.set(ConfigSource::Environment, kind.into_iter().chain([endpoints]).collect());
        let etcd = args.status(&local).unwrap().is_some();
        #[cfg(feature = "kubernetes")]
        let nodes = args.nodes(&local).unwrap().is_some();
        #[cfg(not(feature = "kubernetes"))]
        let nodes = false;
        (etcd, nodes)
    };
    let kubernetes = cfg!(feature = "kubernetes");
    for url in ["typha://a:1", "fanout://a:1"] {
        assert_eq!(written_to(url, None), (false, false));
        assert_eq!(written_to(url, Some("etcdv3")), (true, false));
        assert_eq!(written_to(url, Some("Kubernetes")), (false, kubernetes));
    }
    assert_eq!(written_to("etcd://a:1", Some("kubernetes")), (true, false));
    assert_eq!(written_to("file:/tmp", Some("kubernetes")), (false, false));
    #[cfg(feature = "kubernetes")]
    assert_eq!(written_to("kubernetes:", None), (false, true));
}
