//! Service addresses whose packets must not loop (`felix/dataplane/linux/service_loop_mgr.go`).

use std::sync::Arc;

use tortie_iptables::{StandIn, Table};
use tortie_model::{BgpConfiguration, Cidr};
use tortie_rules::Renderer;
use tortie_rules::names::chain;

use crate::output::Output;
use crate::report::DataplaneProblem;

/// Networks of services, from the BGP configuration.
#[derive(Debug)]
pub(crate) struct ServiceLoop {
    configuration: Arc<BgpConfiguration>,
    dirty: bool,
}

impl Default for ServiceLoop {
    fn default() -> Self {
        // `dirty`: the chain exists even without services.
        Self { configuration: Arc::default(), dirty: true }
    }
}

impl ServiceLoop {
    pub(crate) fn on_update(&mut self, configuration: Arc<BgpConfiguration>) {
        self.dirty |= self.configuration != configuration;
        self.configuration = configuration;
    }

    fn texts(&self) -> impl Iterator<Item = &Arc<str>> {
        let Self { configuration, .. } = self;
        let lists = [
            &configuration.service_cluster_cidrs,
            &configuration.service_external_cidrs,
            &configuration.service_load_balancer_cidrs,
        ];
        lists.into_iter().flat_map(|list| list.iter())
    }

    pub(crate) fn complete(&mut self, renderer: &Renderer, output: &mut Output) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let services: Vec<Cidr> = self.texts().filter_map(|text| text.parse().ok()).collect();
        for family_output in &mut output.families {
            let chain = renderer.cidr_block(services.iter().copied(), family_output.family);
            family_output.update_chain(&[Table::Filter], &Arc::new(chain));
        }
        // A stand-in that drops would cut off all forwarded packets.
        output.set_stand_in(&[Table::Filter], chain::CIDR_BLOCK, &StandIn::Rules(Vec::new()));
    }

    pub(crate) fn problems(&self) -> impl Iterator<Item = DataplaneProblem> {
        let wrong = self.texts().filter(|text| text.parse::<Cidr>().is_err());
        wrong.map(|text| DataplaneProblem::Network { origin: "network of services", text: text.to_string() })
    }
}
