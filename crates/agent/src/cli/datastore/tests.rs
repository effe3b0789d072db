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
    let environment = |wanted: &str| {
        let found = variables.iter().find(|(name, _)| *name == wanted);
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
    for (parameters, url, error) in [
        (&[][..], None, "ETCD_ENDPOINTS"),
        (&[("etcdendpoints", "https://a:1")], None, "ETCD_CA_CERT_FILE"),
        (&files[1..2], Some("etcd://a:1"), "must be given together"),
    ] {
        let refused = etcd(parameters, &[], url).unwrap_err();
        assert!(refused.contains(error), "{refused}");
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
