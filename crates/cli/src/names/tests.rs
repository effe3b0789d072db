use super::*;

fn named(first: &str, names: &[&str]) -> Result<Vec<String>, Failure> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let keys = keys(&first.parse().map_err(Failure::usage)?, &names, "shop")?;
    Ok(keys.iter().map(ToString::to_string).collect())
}

#[test]
fn resources_are_named_as_kubectl_has_it() {
    assert_eq!(named("np", &["web", "db"]).unwrap(), ["NetworkPolicy/shop/web", "NetworkPolicy/shop/db"]);
    assert_eq!(named("np/web", &["tiers/x"]).unwrap(), ["NetworkPolicy/shop/web", "Tier/x"]);
    assert_eq!(named("networkpolicy.networking.k8s.io/web", &[]).unwrap(), ["KubernetesNetworkPolicy/shop/web"]);
    for (first, names, why) in [
        ("np/web", &["db"][..], "`db`: is not KIND/NAME, as the first one is"),
        ("np/web", &["foo/db"], "`foo/db`: `foo` is not a kind"),
        ("np/shop/web", &[], "the namespace is for -n"),
        ("np/", &[], "is neither"),
        ("np", &["a/b"], "`a/b` is not a name"),
    ] {
        let error = named(first, names).unwrap_err().to_string();
        assert!(error.contains(why), "{first}: {error}");
    }
}

#[test]
fn unknown_kinds_are_distinguished_from_unsupported_ones() {
    insta::assert_snapshot!("foo".parse::<KindOrOne>().unwrap_err());
    let error_of = |word: &str| word.parse::<KindOrOne>().unwrap_err().to_string();
    assert_eq!(error_of("pods"), "is of Kubernetes alone: `kubectl get pods` shows it");
    assert_eq!(error_of("np,gnp"), "is more than one kind; only `tortie get` takes several");
    assert!(
        error_of("gnpp").starts_with("`gnpp` is not a kind of resource that the datastore keeps; is `gnp` meant?\n")
    );
}

#[test]
fn several_kinds_are_shown() {
    let read = |text: &str| text.parse::<ShownKinds>().map_err(|error| error.to_string());
    let kinds = vec![ResourceKind::GlobalNetworkPolicy, ResourceKind::NetworkPolicy];
    assert_eq!(read("gnp,np"), Ok(ShownKinds::Several(kinds)));
    assert_eq!(read("all"), Ok(ShownKinds::All));
    assert!(matches!(read("np/web"), Ok(ShownKinds::One(one)) if one.is_one()));
    for (text, why) in [("np,foo", "`foo` is not a kind"), ("np,pods", "of Kubernetes alone"), ("np,", "is not a kind")]
    {
        assert!(read(text).unwrap_err().contains(why), "{text}");
    }
}

#[test]
fn a_namespace_is_one_name() {
    assert_eq!(namespace("shop"), Ok("shop".into()));
    for text in ["a,b", "*", "", "a b", "a/b"] {
        assert!(namespace(text).is_err(), "{text}");
    }
}
