//! Random histories: a change that is not confirmed never cuts a connection (the fixture checks
//! that at each turn), and once everything is confirmed the state is as if nothing had ever been
//! held back.

use proptest::prelude::*;

use super::fixture::*;

#[derive(Clone, Debug)]
enum Step {
    Set(&'static str, Option<String>),
    Connect(Vec<&'static str>),
    Unreadable,
    Turn,
    Later,
    Confirm,
    Session,
    Restart,
    Reboot,
}

fn tier(name: &str, action: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: Tier\nmetadata: {{name: {name}}}\nspec: {{order: 5, defaultAction: {action}}}\n"
    )
}

fn set(net: &str) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: GlobalNetworkSet\nmetadata: {{name: admins, labels: {{who: admins}}}}\nspec: {{nets: \
         ['{net}']}}\n"
    )
}

fn felix(port: u16) -> String {
    format!(
        "apiVersion: projectcalico.org/v3\nkind: FelixConfiguration\nmetadata: {{name: default}}\nspec: {{failsafeInboundHostPorts: \
         [{{protocol: tcp, port: {port}}}]}}\n"
    )
}

fn policies(name: &'static str) -> impl Strategy<Value = Option<String>> {
    let rule = prop_oneof![
        Just(allow(22)),
        Just(allow(443)),
        Just("{action: Deny}".to_owned()),
        Just("{action: Pass}".to_owned()),
        Just("{action: Allow, source: {selector: who == 'admins'}}".to_owned()),
        Just("{action: Deny, source: {selector: who == 'admins'}}".to_owned()),
    ];
    let more = prop_oneof![
        Just("order: 1"),
        Just("order: 20"),
        Just("order: 3, tier: first"),
        Just("order: 2, preDNAT: true, applyOnForward: true"),
    ];
    let selector = prop_oneof![3 => Just("role == 'host'"), 1 => Just("all()"), 1 => Just("app == 'web'")];
    prop::option::weighted(
        0.8,
        (rule, more, selector).prop_map(move |(rule, more, selector)| {
            let name = if more.contains("tier") { format!("first.{name}") } else { name.to_owned() };
            policy_with(&name, &rule, more).replace("role == 'host'", selector)
        }),
    )
}

fn host() -> impl Strategy<Value = Option<String>> {
    prop_oneof![
        Just(None),
        Just(Some(HOST.to_owned())),
        Just(Some(HOST.replace("interfaceName: eth0", "interfaceName: '*'"))),
        Just(Some(HOST.replace("interfaceName: eth0", "expectedIPs: [192.0.2.1]"))),
        Just(Some(HOST.replace("role: host", "role: none"))),
        Just(Some(HOST.replace("interfaceName: eth0", "interfaceName: eth0, profiles: [projectcalico-default-allow]"))),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let file = prop_oneof![
        3 => host().prop_map(|text| Step::Set("host", text)),
        3 => policies("one").prop_map(|text| Step::Set("one", text)),
        3 => policies("two").prop_map(|text| Step::Set("two", text)),
        1 => prop_oneof![Just(None), Just(Some(tier("first", "Pass"))), Just(Some(tier("first", "Deny")))]
            .prop_map(|text| Step::Set("tier", text)),
        1 => prop_oneof![Just(None), Just(Some(set("198.51.100.0/24"))), Just(Some(set("203.0.113.0/24")))]
            .prop_map(|text| Step::Set("set", text)),
        1 => prop_oneof![Just(None), Just(Some(felix(22))), Just(Some(felix(443)))]
            .prop_map(|text| Step::Set("felix", text)),
        1 => prop::option::of(Just(PODS.to_owned())).prop_map(|text| Step::Set("pods", text)),
    ];
    let admins =
        prop_oneof![Just(vec![]), Just(vec![ADMIN]), Just(vec![ADMIN, "203.0.113.9:4"]), Just(vec!["203.0.113.9:4"])];
    prop_oneof![
        8 => file,
        2 => admins.prop_map(Step::Connect),
        1 => Just(Step::Unreadable),
        4 => Just(Step::Turn),
        2 => Just(Step::Later),
        1 => Just(Step::Confirm),
        1 => Just(Step::Session),
        1 => Just(Step::Restart),
        1 => Just(Step::Reboot),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn no_connection_is_cut_unconfirmed_and_confirmed_changes_apply(
        steps in prop::collection::vec(step(), 1..40),
    ) {
        let mut node = Node::start(&[ADMIN], &[("cluster", CLUSTER)]);
        for step in steps {
            match step {
                Step::Set(file, text) => node.set(file, text.as_deref()),
                Step::Connect(admins) => node.connect(&admins),
                Step::Unreadable => node.observer.0.lock().unwrap().0 = Err("no netlink".into()),
                Step::Turn => node.turn(),
                Step::Later => node.later(),
                Step::Confirm => drop(node.try_confirm()),
                Step::Session => node.begin_session(),
                Step::Restart => node.restart(),
                Step::Reboot => node.reboot(&[]),
            }
        }
        node.turn();
        node.try_confirm();
        node.turn();
        prop_assert_eq!(node.held(), Vec::<String>::new());
        prop_assert_eq!(&node.dataplane, &node.plain());
    }
}
