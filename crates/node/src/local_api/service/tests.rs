use std::sync::{Arc, Mutex};

use super::*;
use crate::engine::inspect::{
    Configuration, DecisionCounters, Endpoint, IpSet, LastApply, Listing, Parameter, Policy, RuleCounters, RuleCounts,
    SetValue, Tier,
};
use crate::flows::{EndRecord, FlowRecord, HitRecord, LastHit, ServiceRecord, StagedRecord};
use crate::host_changes::{ConfirmedChanges, HeldChanges};
use tortie_telemetry::health::{Condition, Reporter};

/// A service whose engine answers like this, and the queries that the engine received.
fn service(answer: impl Fn(&Query) -> Option<Answer> + Send + Sync + 'static) -> (Service, Arc<Mutex<Vec<Query>>>) {
    let health = Health::default();
    health.expect(Reporter::Dataplane, Duration::ZERO);
    health.report(Reporter::Dataplane, Condition::good());
    let queries: Arc<Mutex<Vec<Query>>> = Arc::default();
    let log = Arc::clone(&queries);
    let ask = move |question: Question| {
        log.lock().unwrap().push(question.query.clone());
        answer(&question.query).is_some_and(|answer| question.reply.try_send(answer).is_ok())
    };
    let facts = Facts {
        node: "n1".into(),
        datastore: "file:/etc/tortie".into(),
        dataplane: "internal".into(),
        started: Instant::now(),
    };
    (Service::new(facts, StatusSources { health, ..StatusSources::default() }, ask, Runner::default()), queries)
}

fn reply(service: &Service, call: &Value) -> Value {
    match service.answer(call.to_string().as_bytes(), true).unwrap().unwrap() {
        CallAnswer::Once(reply) => json!(reply),
        CallAnswer::Flows(_) => panic!("{call}"),
    }
}

#[test]
fn parameters_reach_the_engine_and_others_are_refused_by_name() {
    let (service, queries) = service(|query| match query {
        Query::Endpoints(_) => Some(Answer::Endpoints(Vec::new())),
        Query::IpSets(_) => Some(Answer::IpSets(Vec::new())),
        _ => None,
    });
    let call = |method: &str, parameters: Value| reply(&service, &json!({"method": method, "parameters": parameters}));
    assert_eq!(
        call("org.tortie.agent.Endpoints", json!({"name": "shop/web"})),
        json!({"parameters": {"endpoints": []}})
    );
    assert_eq!(call("org.tortie.agent.IpSets", json!({"id": null})), json!({"parameters": {"ip_sets": []}}));
    assert_eq!(*queries.lock().unwrap(), [Query::Endpoints(Some("shop/web".into())), Query::IpSets(None)]);
    for (method, parameters, wrong) in [
        ("org.tortie.agent.Endpoints", json!({"name": 7}), "name"),
        ("org.tortie.agent.Endpoints", json!({"id": "x"}), "id"),
        ("org.tortie.agent.Status", json!({"name": "x"}), "name"),
        ("org.tortie.agent.Endpoints", json!({"counters": true}), "counters"),
        ("org.tortie.agent.Policies", json!({"counters": 1}), "counters"),
        ("org.varlink.service.GetInterfaceDescription", json!({}), "interface"),
    ] {
        assert_eq!(
            call(method, parameters),
            json!({"error": "org.varlink.service.InvalidParameter", "parameters": {"parameter": wrong}})
        );
    }
    assert_eq!(queries.lock().unwrap().len(), 2, "refused calls are not passed to the engine");
    for method in ["org.tortie.agent.Reboot", "org.varlink.service.Set", "Status", ""] {
        assert_eq!(
            call(method, json!({})),
            json!({"error": "org.varlink.service.MethodNotFound", "parameters": {"method": method}})
        );
    }
    assert_eq!(
        call("org.example.Status", json!({})),
        json!({"error": "org.varlink.service.InterfaceNotFound", "parameters": {"interface": "org.example"}})
    );
}

#[test]
fn endpoints_without_a_reader_have_no_names_and_an_address_is_checked() {
    let (service, queries) = service(|query| match query {
        Query::Endpoints(_) => Some(Answer::Endpoints(vec![Endpoint {
            kind: "workload".into(),
            interface: Some("cali1".into()),
            ..Endpoint::default()
        }])),
        Query::IpSets(_) => Some(Answer::IpSets(Vec::new())),
        _ => None,
    });
    let call =
        |parameters: Value| reply(&service, &json!({"method": "org.tortie.agent.Domains", "parameters": parameters}));
    let nothing = json!({"parameters": {"endpoints": [], "left_out": 0}});
    assert_eq!(call(json!({"name": "shop/web", "address": "192.0.2.1"})), nothing);
    assert_eq!(call(json!({"name": null, "address": null})), nothing);
    let asked = [Some("shop/web".into()), None].map(|name| [Query::Endpoints(name), Query::IpSets(None)]);
    assert_eq!(*queries.lock().unwrap(), asked.concat());
    for (parameters, wrong) in
        [(json!({"address": "192.0.2"}), "address"), (json!({"address": 7}), "address"), (json!({"id": "x"}), "id")]
    {
        let refused = json!({"error": "org.varlink.service.InvalidParameter", "parameters": {"parameter": wrong}});
        assert_eq!(call(parameters), refused);
    }
}

#[test]
fn a_busy_engine_is_reported_with_the_rest_of_the_status() {
    let (service, _) = service(|_| None);
    let busy = reply(&service, &json!({"method": "org.tortie.agent.Policies"}));
    assert_eq!(busy, json!({"error": "org.tortie.agent.Busy", "parameters": {}}));
    let status = reply(&service, &json!({"method": "org.tortie.agent.Status"}));
    let status: Status = serde_json::from_value(status["parameters"].clone()).unwrap();
    assert_eq!((status.engine, status.ready, status.node.as_str()), (None, true, "n1"));
}

#[test]
fn counters_come_with_policies_if_they_are_asked_for() {
    let listing = |program: &str| Listing { family: tortie_model::Family::V4, program: program.into() };
    let answer = move |program: &str| {
        let listings = vec![listing(program)];
        service(move |query| {
            let Query::Policies { counts, .. } = query else { return None };
            let counts = counts.then(|| RuleCounts::Listings(listings.clone()));
            Some(Answer::Policies(vec![Policy::default()], counts))
        })
        .0
    };
    let call = |service: &Service, counters| {
        reply(service, &json!({"method": "org.tortie.agent.Policies", "parameters": {"counters": counters}}))
    };
    let (works, fails) = (answer("/bin/true"), answer("/bin/false"));
    assert_eq!(call(&works, true)["parameters"]["policies"][0]["counters"], json!([]));
    for without in [call(&works, false), call(&fails, false)] {
        assert!(without["parameters"]["policies"][0].get("counters").is_none(), "{without}");
    }
    let failed = call(&fails, true);
    assert_eq!(failed["error"], "org.tortie.agent.NotListed");
    assert_eq!(failed["parameters"]["why"], "/bin/false: exit status: 1: ");
}

#[test]
fn counters_are_reported_by_their_source() {
    let call = |counts: RuleCounts| {
        let answer = move |_: &Query| Some(Answer::Policies(vec![Policy::default()], Some(counts.clone())));
        reply(&service(answer).0, &json!({"method": "org.tortie.agent.Counters"}))["parameters"].clone()
    };
    let by_chains = call(RuleCounts::Listings(Vec::new()));
    assert_eq!((&by_chains["decisions"], &by_chains["policies"][0]["counters"]), (&Value::Null, &json!([])));
    let decision = DecisionCounters { packets: 7, ..DecisionCounters::default() };
    let by_programs = call(RuleCounts::Decisions(vec![decision]));
    assert_eq!((&by_programs["decisions"][0]["packets"], &by_programs["policies"]), (&json!(7), &json!([])));
    assert_eq!(call(RuleCounts::Failed("no".into()))["why"], "no");
}

#[test]
fn invalid_calls_are_errors() {
    let (service, _) = service(|_| None);
    for text in ["", "[]", "{}", "{\"method\": 1}", "\u{0}", "{\"method\": \"a.b\", \"parameters\": []}"] {
        assert!(service.answer(text.as_bytes(), true).is_err(), "{text}");
    }
    let call = b"{\"method\": \"org.varlink.service.GetInfo\", \"oneway\": true}";
    assert!(service.answer(call, true).unwrap().is_none());
}

/// The fields of a type or of the answer of a method, as the description of the interface has them.
fn described(element: &str) -> Vec<String> {
    let text = DESCRIPTION.split(element).nth(1).unwrap_or_else(|| panic!("no {element}"));
    let text = text.split_once("-> (").filter(|_| element.starts_with("method")).map_or(text, |(_, answer)| answer);
    let fields = text.trim_start_matches(' ').trim_start_matches('(').split(')').next().unwrap();
    fields.split(',').map(|field| field.split(':').next().unwrap().trim().to_owned()).collect()
}

fn fields(value: &Value) -> Vec<String> {
    value.as_object().unwrap().keys().cloned().collect()
}

#[test]
fn the_description_names_every_field() {
    let tier = Tier { name: String::new(), default_action: String::new(), ingress: Vec::new(), egress: Vec::new() };
    let apply = LastApply { seconds_ago: 0.0, took_ms: 0.0, complete: true };
    let component = Component { name: String::new(), live: true, ready: true, detail: String::new() };
    let set_value = SetValue { source: String::new(), value: String::new() };
    let policy = Policy {
        counters: Some(Vec::new()),
        decisions: Some(Vec::new()),
        last_hit: Some(LastHit::default()),
        ..Policy::default()
    };
    let text = || Some("x".to_owned());
    let end = EndRecord { name: "x".into(), port: Some(1), ..EndRecord::default() };
    let hit = HitRecord { tier: text(), policy: text(), profile: text(), rule: Some(0), ..HitRecord::default() };
    let flow = FlowRecord {
        icmp_type: Some(8),
        sent_to: text(),
        service: Some(ServiceRecord::default()),
        host: vec![hit.clone()],
        staged: vec![StagedRecord::default()],
        ..FlowRecord::default()
    };
    let pending = PendingSummary { by: String::new(), state: String::new(), seconds_left: 0, resources: Vec::new() };
    let ip_set = IpSet { members: Some(Vec::new()), ..IpSet::default() };
    for (name, value) in [
        ("type Component", json!(component)),
        ("type LastApply", json!(apply)),
        ("type EngineStatus", json!(EngineStatus::default())),
        ("type Counters", json!(Counters::default())),
        ("type SetValue", json!(set_value)),
        ("type Parameter", json!(Parameter::default())),
        ("type Tier", json!(tier)),
        ("type Endpoint", json!(Endpoint::default())),
        ("type Policy", json!(policy)),
        ("type LastHit", json!(LastHit::default())),
        ("type FlowEnd", json!(end)),
        ("type FlowHit", json!(hit)),
        ("type FlowStaged", json!(StagedRecord { at: text(), ..StagedRecord::default() })),
        ("type FlowService", json!(ServiceRecord { port_name: text(), ..ServiceRecord::default() })),
        ("type Flow ", json!(flow)),
        ("type RuleCounters", json!(RuleCounters::default())),
        ("type DecisionCounters", json!(DecisionCounters::default())),
        ("type IpSet", json!(ip_set)),
        ("type PendingChange", json!(pending)),
        ("method Configuration", json!(Configuration::default())),
    ] {
        assert_eq!(described(name), fields(&value), "{name}");
    }
    let (service, _) = service(|_| Some(Answer::Status(Box::default())));
    let status = reply(&service, &json!({"method": "org.tortie.agent.Status"}));
    assert_eq!(described("method Status"), fields(&status["parameters"]));
    let info = reply(&service, &json!({"method": "org.varlink.service.GetInfo"}));
    for interface in info["parameters"]["interfaces"].as_array().unwrap() {
        let call = json!({
            "method": "org.varlink.service.GetInterfaceDescription",
            "parameters": {"interface": interface},
        });
        let text = reply(&service, &call)["parameters"]["description"].as_str().unwrap().to_owned();
        assert!(text.contains(&format!("\ninterface {}\n", interface.as_str().unwrap())), "{text}");
    }
}

#[test]
fn only_root_confirms_held_changes() {
    let held = HeldChanges { objects: vec!["tier first".into()], ..HeldChanges::default() };
    let confirmed = ConfirmedChanges { confirmed: Some(held), not_kept: None };
    let (service, queries) = service(move |_| Some(Answer::Confirmed(confirmed.clone())));
    let call = json!({"method": "org.tortie.agent.ConfirmHostChanges"}).to_string();
    let reply = |is_root| match service.answer(call.as_bytes(), is_root).unwrap().unwrap() {
        CallAnswer::Once(reply) => json!(reply),
        CallAnswer::Flows(_) => panic!("no flows were requested"),
    };
    assert_eq!(reply(false)["error"], "org.varlink.service.PermissionDenied");
    assert!(queries.lock().unwrap().is_empty());
    assert_eq!(reply(true)["parameters"]["confirmed"]["objects"], json!(["tier first"]));
    assert_eq!(*queries.lock().unwrap(), [Query::ConfirmHostChanges]);
}
