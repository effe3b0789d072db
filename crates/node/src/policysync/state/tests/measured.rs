//! Duration with a set of 250,000 members.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tortie_model::RuleAction;
use tortie_model::desired::DesiredUpdate;

use crate::policysync::fixture::{delta, endpoint, pod, policy, set};
use crate::policysync::state::{ClientId, ClientOutput, Limits, State};

const MEMBERS: u32 = 250_000;
const CLIENTS: u64 = 100;
const ROUNDS: u32 = 1_000;

fn per_round(mut round: impl FnMut(u32)) -> Duration {
    let begin = Instant::now();
    (0..ROUNDS).for_each(&mut round);
    begin.elapsed() / ROUNDS
}

fn send_all(state: &mut State, clients: impl Iterator<Item = u64>) -> usize {
    let mut count = 0;
    for client in clients {
        while let ClientOutput::Messages(messages) = state.take(ClientId(client)) {
            count += black_box(messages.iter().filter_map(|message| tortie_protocol::encode(message, 0)).count());
        }
    }
    count
}

/// Run with `cargo test --profile bench -p tortie-node --features policysync --lib -- --ignored
/// --nocapture a_large_set`.
#[test]
#[ignore = "prints times that only an optimized build on a quiet machine has; tests of the same code assert the sent messages"]
fn a_large_set() {
    let mut state = State::new(Limits::default());
    let begin = Instant::now();
    state.on_update(set("large", 0..MEMBERS));
    println!("{MEMBERS} members: {:?}", begin.elapsed());
    state.on_update(set("small", 0..10));
    state.on_update(policy("large", &["large"], RuleAction::Allow));
    state.on_update(policy("small", &["small"], RuleAction::Allow));
    for client in 0..CLIENTS {
        state.on_update(endpoint(&format!("large-{client}"), &["large"], &[]));
        state.on_update(endpoint(&format!("small-{client}"), &["small"], &[]));
    }
    state.on_update(DesiredUpdate::InSync);
    let change = |round: u32| delta("large", [MEMBERS + round], [round]);
    println!("a change without subscribers: {:?}", per_round(|round| state.on_update(change(round))));

    for client in 0..CLIENTS {
        state.join(ClientId(client), pod(&format!("small-{client}")));
    }
    send_all(&mut state, 0..CLIENTS);
    let took = per_round(|round| {
        state.on_update(change(ROUNDS + round));
        assert_eq!(send_all(&mut state, 0..CLIENTS), 0);
    });
    println!("the same beside {CLIENTS} clients of other sets: {took:?}");
    (0..CLIENTS).for_each(|client| state.leave(ClientId(client)));

    let begin = Instant::now();
    state.join(ClientId(0), pod("large-0"));
    send_all(&mut state, 0..1);
    println!("a client that begins: {:?}", begin.elapsed());
    for client in 1..CLIENTS {
        state.join(ClientId(client), pod(&format!("large-{client}")));
    }
    send_all(&mut state, 0..CLIENTS);
    let took = per_round(|round| {
        state.on_update(change(2 * ROUNDS + round));
        assert_eq!(send_all(&mut state, 0..CLIENTS), usize::try_from(CLIENTS).unwrap());
    });
    println!("a change that {CLIENTS} clients are sent: {took:?}");
}
