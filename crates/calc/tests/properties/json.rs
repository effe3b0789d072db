//! Updates of both kinds as JSON.

use proptest::prelude::*;
use tortie_calc::{Demand, Graph, GraphConfig};
use tortie_model::desired::DesiredUpdate;
use tortie_model::{Key, SyncStatus, Update};

use crate::generate::{HOST, overlay_update, update};

fn back<T: serde::Serialize + serde::de::DeserializeOwned>(value: &T) -> T {
    let text = serde_json::to_string(value).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn updates_are_read_as_they_were_written(
        updates in prop::collection::vec(prop_oneof![4 => update(), 1 => overlay_update()], 1..40),
    ) {
        let config = GraphConfig { routes: Demand::Always, vteps: Demand::Always, ..GraphConfig::new(HOST.into()) };
        let (mut graph, mut out) = (Graph::new(&config), Vec::new());
        graph.on_status(SyncStatus::InSync);
        for update in updates {
            prop_assert_eq!(&back::<Update>(&update), &update);
            prop_assert_eq!(&back::<Key>(&update.key()), &update.key());
            graph.on_update(update);
            graph.flush(&mut out);
        }
        for update in out {
            prop_assert_eq!(&back::<DesiredUpdate>(&update), &update);
        }
    }
}
