//! Fields without effect are reported.

use tortie_model::Interner;

use super::{Format, Options, Outcome, problems, read};
use crate::Severity;
use crate::manifest::{ParameterCheck, ParameterRemark};

fn calico(kind: &str, spec: &str) -> String {
    format!("apiVersion: projectcalico.org/v3\nkind: {kind}\nmetadata: {{name: default}}\nspec: {spec}\n")
}

#[test]
fn a_pool_with_ip_in_ip_is_reported_and_used() {
    let pool = |modes: &str| calico("IPPool", &format!("{{cidr: 10.0.0.0/16{modes}}}"));
    for modes in [", ipipMode: Always", ", ipipMode: CrossSubnet"] {
        let problems = problems(&pool(modes));
        let expected = "warning: IPPool/default: spec.ipipMode: is done as Felix does it, but was never tested";
        assert!(problems.lines().count() == 1 && problems.contains(expected), "{problems}");
    }
    for modes in ["", ", ipipMode: Never, vxlanMode: Never", ", vxlanMode: ''", ", vxlanMode: Always"] {
        assert_eq!(problems(&pool(modes)), "");
    }
}

#[test]
fn results_of_the_parameter_check_are_at_the_field() {
    fn check(name: &str, value: &str) -> Option<ParameterRemark> {
        let flaw = format!("`{value}` is not for me");
        match name {
            "NFTablesMode" => Some(ParameterRemark::NoEffect(flaw)),
            "MaxIpsetSize" => Some(ParameterRemark::Invalid { flaw, instead: "mine is used".into() }),
            _ => None,
        }
    }
    let options = Options { parameters: ParameterCheck(check), ..Options::default() };
    let text = "apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata:
  name: node.a
  annotations:
    config.projectcalico.org/MaxIpsetSize: '7'
spec:
  nftablesMode: Enabled
  logPrefix: x
";
    let manifest = read(text, Format::Yaml, &options, &mut Interner::new());
    let [resource] = &manifest.resources[..] else { panic!("{manifest:?}") };
    assert!(matches!(&resource.outcome, Outcome::Valid(all) if all.len() == 3), "{:?}", resource.outcome);
    let listed: Vec<String> = resource.problems.iter().map(|p| format!("{}: {p}", p.position)).collect();
    assert_eq!(
        listed,
        [
            "8:17: spec.nftablesMode: `Enabled` is not for me",
            "6:5: metadata.annotations: config.projectcalico.org/MaxIpsetSize: `7` is not for me; mine is used",
        ]
    );
    let to_write = read(text, Format::Yaml, &Options { for_writing: true, ..options }, &mut Interner::new());
    let errors = to_write.resources[0].problems.iter().filter(|problem| problem.severity == Severity::Error);
    let errors: Vec<&str> = errors.map(|error| &*error.message).collect();
    assert_eq!(errors, ["config.projectcalico.org/MaxIpsetSize: `7` is not for me"]);
    assert_eq!(to_write.resources[0].outcome, Outcome::Invalid { substitute: None });
}

#[test]
fn tortie_parameters_are_fields_like_those_of_felix() {
    let config = |spec: &str| calico("FelixConfiguration", spec);
    assert_eq!(problems(&config("{cutDeniedConnections: true}")), "");
    let refused = problems(&config("{cutDeniedConnections: sometimes}"));
    assert!(refused.contains("error: FelixConfiguration/default: spec.cutDeniedConnections: "), "{refused}");
    let misspelt = problems(&config("{cutDeniedConnection: true}"));
    assert!(misspelt.contains("spec.cutDeniedConnection: is not a known parameter"), "{misspelt}");
}
