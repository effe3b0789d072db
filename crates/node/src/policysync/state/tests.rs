//! A client that applies its messages has exactly the objects that its endpoint needs, and no
//! dangling reference at any time.

mod measured;
mod replica;

use proptest::prelude::*;
use tortie_model::desired::DesiredUpdate as U;
use tortie_model::{IpSetId, Rule, RuleAction};

use super::*;
use crate::policysync::fixture::{
    delta, endpoint, namespace, pod, policy, policy_id, policy_value, profile, service_account, set,
};
use replica::{Replica, World};

const SMALL: Limits = Limits { batch: 4, listed: 2, changed: 3, behind: usize::MAX };

fn state(limits: Limits, updates: impl IntoIterator<Item = U>) -> State {
    let mut state = State::new(limits);
    updates.into_iter().for_each(|update| state.on_update(update));
    state
}

fn all_of(state: &mut State, client: ClientId) -> Vec<U> {
    let mut all = Vec::new();
    while let ClientOutput::Messages(messages) = state.take(client) {
        all.extend(messages);
    }
    all
}

/// Kinds and names, as far as they matter for the order.
fn shown(messages: &[U]) -> Vec<String> {
    let show = |message: &U| match message {
        U::IpSet(set) => format!("set {} {}", set.id, set.members.len()),
        U::IpSetDelta(delta) => format!("delta {} +{} -{}", delta.id, delta.added.len(), delta.removed.len()),
        U::IpSetRemove(id) => format!("no set {id}"),
        U::Policy(id, _) => format!("policy {}", id.name),
        U::PolicyRemove(id) => format!("no policy {}", id.name),
        U::Profile(id, _) => format!("profile {id}"),
        U::ProfileRemove(id) => format!("no profile {id}"),
        U::WorkloadEndpoint(id, _) => format!("endpoint {}", id.workload),
        U::ServiceAccount(id, _) => format!("account {}", id.name),
        U::ServiceAccountRemove(id) => format!("no account {}", id.name),
        U::Namespace(name, _) => format!("namespace {name}"),
        U::NamespaceRemove(name) => format!("no namespace {name}"),
        U::InSync => "in sync".to_owned(),
        other => format!("{other:?}"),
    };
    messages.iter().map(show).collect()
}

fn shop() -> Vec<U> {
    vec![
        set("a", [1, 2, 3]),
        set("b", []),
        set("other", [9]),
        policy("p", &["a"], RuleAction::Allow),
        policy("other", &["other"], RuleAction::Allow),
        profile("open", &["b"]),
        endpoint("web", &["p"], &["open"]),
        endpoint("db", &["other"], &["open"]),
        service_account("web", "x"),
        namespace("shop", "x"),
        U::InSync,
    ]
}

#[test]
fn a_client_receives_the_dependencies_of_its_endpoint_in_order() {
    let mut state = state(Limits::default(), shop());
    state.join(ClientId(1), pod("web"));
    let first = all_of(&mut state, ClientId(1));
    let expected = [
        "set a 3",
        "set b 0",
        "policy p",
        "profile open",
        "endpoint shop/web",
        "account web",
        "namespace shop",
        "in sync",
    ];
    assert_eq!(shown(&first), expected);
    // Objects that only other endpoints need are not sent.
    state.on_update(delta("other", [10], []));
    state.on_update(endpoint("db", &[], &["open"]));
    assert_eq!(state.take(ClientId(1)), ClientOutput::Nothing);
    state.on_update(delta("a", [4], [1]));
    state.on_update(set("c", [7]));
    state.on_update(policy("q", &["c"], RuleAction::Deny));
    state.on_update(endpoint("web", &["q"], &[]));
    state.on_update(service_account("web", "y"));
    let then = all_of(&mut state, ClientId(1));
    let expected = [
        "set c 1",
        "policy q",
        "endpoint shop/web",
        "no policy p",
        "no profile open",
        "no set a",
        "no set b",
        "account web",
    ];
    assert_eq!(shown(&then), expected);
}

#[test]
fn sets_of_domains_are_not_needed() {
    use tortie_model::desired::{IpSetType, IpSetUpdate, Members, RuleSets, Rules};

    let members = Members::Domains(["a.io".parse().unwrap()].into());
    let id: IpSetId = "d:x".into();
    let domains = U::IpSet(IpSetUpdate { id: id.clone(), set_type: IpSetType::Domains, members });
    let mut value = policy_value(&["a"], RuleAction::Allow);
    let sets = RuleSets { dst_domains: [id.clone()].into(), ..RuleSets::default() };
    value.outbound = Rules::new([Rule::new(RuleAction::Allow)].into(), [sets].into()).unwrap();
    let updates = shop().into_iter().chain([domains, U::Policy(policy_id("p"), value.into())]);
    let mut state = state(Limits::default(), updates);
    state.join(ClientId(1), pod("web"));
    assert_eq!(shown(&all_of(&mut state, ClientId(1)))[..3], ["set a 3", "set b 0", "policy p"]);
    state.on_update(U::IpSetRemove(id));
    assert_eq!(state.take(ClientId(1)), ClientOutput::Nothing);
}

#[test]
fn large_sets_come_in_portions_before_their_referrers() {
    let mut state = state(SMALL, shop());
    state.join(ClientId(1), pod("web"));
    let ClientOutput::Messages(first) = state.take(ClientId(1)) else { panic!() };
    assert_eq!(shown(&first), ["set a 2", "delta a +1 -0"]);
    state.on_update(delta("a", [4], [1]));
    let rest = all_of(&mut state, ClientId(1));
    assert_eq!(shown(&rest)[..3], ["delta a +1 -1", "set b 0", "policy p"]);
}

#[test]
fn an_endpoint_that_is_not_there_is_followed_and_one_that_goes_ends() {
    let mut state = state(SMALL, [namespace("shop", "x"), U::InSync]);
    state.join(ClientId(1), pod("web"));
    assert_eq!(shown(&all_of(&mut state, ClientId(1))), ["namespace shop", "in sync"]);
    state.on_update(endpoint("web", &[], &[]));
    assert_eq!(shown(&all_of(&mut state, ClientId(1))), ["endpoint shop/web"]);
    // It is gone even if there is another one of the same name before the client asks.
    state.on_update(U::WorkloadEndpointRemove(pod("web")));
    state.on_update(endpoint("web", &[], &[]));
    assert_eq!(state.take(ClientId(1)), ClientOutput::End(End::Removed(pod("web"))));
    assert_eq!(state.take(ClientId(1)), ClientOutput::Nothing);
    assert!(state.clients.is_empty() && state.joined.is_empty() && !state.namespaces.has_subscribers());
}

#[test]
fn no_message_refers_to_an_unsent_object() {
    let mut state = state(SMALL, [endpoint("web", &["p"], &[]), U::InSync]);
    state.join(ClientId(1), pod("web"));
    assert_eq!(shown(&all_of(&mut state, ClientId(1))), ["in sync"]);
    state.on_update(policy("p", &["a"], RuleAction::Allow));
    assert_eq!(state.take(ClientId(1)), ClientOutput::Nothing);
    state.on_update(set("a", [1]));
    assert_eq!(shown(&all_of(&mut state, ClientId(1))), ["set a 1", "policy p", "endpoint shop/web"]);
}

#[test]
fn the_last_client_of_an_endpoint_counts() {
    let mut state = state(SMALL, shop());
    state.join(ClientId(1), pod("web"));
    all_of(&mut state, ClientId(1));
    state.join(ClientId(2), pod("web"));
    assert_eq!(state.take(ClientId(1)), ClientOutput::End(End::Replaced));
    // That the first one leaves late does not touch the other.
    state.leave(ClientId(1));
    assert_eq!(all_of(&mut state, ClientId(2)).len(), 9);
    state.on_update(endpoint("web", &[], &[]));
    assert!(matches!(state.take(ClientId(2)), ClientOutput::Messages(_)));
    state.leave(ClientId(2));
    assert!(state.sets.values().all(|set| !set.members.has_subscribers()));
}

#[test]
fn objects_missing_from_the_next_session_are_removed_at_in_sync() {
    let mut state = state(Limits::default(), shop());
    state.join(ClientId(1), pod("web"));
    state.join(ClientId(2), pod("db"));
    all_of(&mut state, ClientId(1));
    all_of(&mut state, ClientId(2));
    state.on_restart();
    let again = [
        set("a", [2, 3, 4]),
        set("b", []),
        policy("p", &["a"], RuleAction::Allow),
        profile("open", &["b"]),
        endpoint("web", &["p"], &["open"]),
        namespace("shop", "x"),
    ];
    again.into_iter().for_each(|update| state.on_update(update));
    // The difference, and nothing that is gone as long as it may still come.
    assert_eq!(shown(&all_of(&mut state, ClientId(1))), ["delta a +1 -1"]);
    assert_eq!(state.take(ClientId(2)), ClientOutput::Nothing);
    state.on_update(U::InSync);
    assert_eq!(shown(&all_of(&mut state, ClientId(1))), ["no account web"]);
    assert_eq!(state.take(ClientId(2)), ClientOutput::End(End::Removed(pod("db"))));
    assert!(!state.sets.contains_key(&IpSetId::new("other")) && !state.policies.contains_key(&policy_id("other")));
}

#[test]
fn a_recreated_set_is_sent_as_a_delta() {
    let mut state = state(Limits::default(), shop());
    state.join(ClientId(1), pod("web"));
    all_of(&mut state, ClientId(1));
    // The client takes nothing while the endpoint does without the set for a moment.
    let changes = [
        endpoint("web", &[], &["open"]),
        U::PolicyRemove(policy_id("p")),
        U::IpSetRemove(IpSetId::new("a")),
        set("a", [3, 4]),
        policy("p", &["a"], RuleAction::Allow),
        endpoint("web", &["p"], &["open"]),
    ];
    changes.into_iter().for_each(|update| state.on_update(update));
    let then = all_of(&mut state, ClientId(1));
    assert_eq!(shown(&then), ["delta a +1 -2", "policy p", "endpoint shop/web"]);
    // One that goes for good is kept no longer than the client has it.
    for update in [endpoint("web", &[], &["open"]), U::PolicyRemove(policy_id("p")), U::IpSetRemove(IpSetId::new("a"))]
    {
        state.on_update(update);
    }
    assert!(state.sets.contains_key(&IpSetId::new("a")));
    all_of(&mut state, ClientId(1));
    assert!(!state.sets.contains_key(&IpSetId::new("a")));
}

#[test]
fn a_slow_client_retains_a_bounded_number_of_changes() {
    let mut state = state(Limits { behind: 100, ..Limits::default() }, shop());
    for (client, name) in [(1, "web"), (2, "db")] {
        state.join(ClientId(client), pod(name));
        all_of(&mut state, ClientId(client));
    }
    // The same member over and over is one change.
    for round in 0..10_000 {
        state.on_update(if round % 2 == 0 { delta("a", [], [1]) } else { delta("a", [1], []) });
    }
    assert!(matches!(state.take(ClientId(1)), ClientOutput::Messages(_)));
    // New ones that go again at once leave nothing but that they have changed.
    for member in 1_000..2_000 {
        state.on_update(delta("a", [member], []));
        state.on_update(delta("a", [], [member]));
        state.take(ClientId(2));
    }
    assert_eq!(state.take(ClientId(1)), ClientOutput::End(End::Behind));
    assert!(state.clients().eq([ClientId(2)]));
    // A single change may be as large as it wants to be.
    state.join(ClientId(3), pod("web"));
    all_of(&mut state, ClientId(3));
    state.on_update(set("a", 10_000..20_000));
    assert!(matches!(state.take(ClientId(3)), ClientOutput::Messages(_)));
}

#[derive(Clone, Debug)]
enum Step {
    /// The world becomes another one; the updates are sent up to a part.
    Tell {
        world: World,
        cuts: Vec<(usize, usize)>,
    },
    Restart(World),
    Join(usize),
    Leave(usize),
    Take(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (World::any(), prop::collection::vec((0..40_usize, 0..2_usize), 0..4))
            .prop_map(|(world, cuts)| Step::Tell { world, cuts }),
        1 => World::any().prop_map(Step::Restart),
        2 => (0..2_usize).prop_map(Step::Join),
        1 => (0..2_usize).prop_map(Step::Leave),
        6 => (0..2_usize).prop_map(Step::Take),
    ]
}

/// Two workloads, and a client of each that may be there.
struct Bench {
    state: State,
    /// The objects that were sent to the state.
    truth: Replica,
    world: World,
    clients: [Option<(ClientId, Replica)>; 2],
    next: u64,
}

const PODS: [&str; 2] = ["web", "db"];

impl Bench {
    fn apply(&mut self, update: &U) {
        self.truth.apply_unchecked(update);
        self.state.on_update(update.clone());
    }

    fn take(&mut self, at: usize) {
        let Some((id, replica)) = &mut self.clients[at] else { return };
        match self.state.take(*id) {
            ClientOutput::Messages(messages) => {
                assert!(messages.len() <= SMALL.batch, "{messages:?}");
                messages.iter().for_each(|message| replica.apply(message, &self.truth));
            }
            ClientOutput::Nothing => replica.assert_complete(&self.truth, &pod(PODS[at])),
            ClientOutput::End(_) => self.clients[at] = None,
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Tell { world, cuts } => {
                let updates = self.world.updates_to(&world);
                for (index, update) in updates.iter().enumerate() {
                    self.apply(update);
                    cuts.iter().filter(|(at, _)| *at == index).for_each(|(_, client)| self.take(*client));
                }
                self.world = world;
            }
            Step::Restart(world) => {
                self.state.on_restart();
                let old = mem::take(&mut self.world);
                let updates = World::default().updates_to(&world);
                for (index, update) in updates.iter().enumerate() {
                    self.apply(update);
                    self.take(index % 2);
                }
                self.truth.remove_missing(&old, &world);
                self.state.on_update(U::InSync);
                self.truth.in_sync = true;
                self.world = world;
            }
            Step::Join(at) => {
                self.next += 1;
                self.state.join(ClientId(self.next), pod(PODS[at]));
                if let Some((old, _)) = self.clients[at].replace((ClientId(self.next), Replica::default())) {
                    assert!(matches!(self.state.take(old), ClientOutput::End(_)));
                }
            }
            Step::Leave(at) => {
                if let Some((id, _)) = self.clients[at].take() {
                    self.state.leave(id);
                }
            }
            Step::Take(at) => self.take(at),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 400 } else { 4_000 }))]
    #[test]
    fn a_client_has_all_dependencies_and_no_dangling_reference(steps in prop::collection::vec(step(), 1..40)) {
        let mut bench = Bench {
            state: State::new(SMALL),
            truth: Replica::default(),
            world: World::default(),
            clients: [None, None],
            next: 0,
        };
        for step in steps {
            bench.step(step);
        }
        for at in [0, 1] {
            for _ in 0..200 {
                bench.take(at);
            }
            if let Some((id, _)) = &bench.clients[at] {
                prop_assert_eq!(bench.state.take(*id), ClientOutput::Nothing);
            }
            bench.step(Step::Leave(at));
        }
        // No state of clients is left.
        prop_assert!(bench.state.joined.is_empty() && bench.state.clients.is_empty());
        prop_assert!(bench.state.sets.values().all(|set| !set.removed && !set.members.has_subscribers()));
        let sets: BTreeSet<_> = bench.state.sets.keys().cloned().collect();
        let expected: BTreeSet<_> = bench.truth.sets.keys().cloned().collect();
        prop_assert_eq!(sets, expected);
    }
}
