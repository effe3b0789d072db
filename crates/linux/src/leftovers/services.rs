//! Services that Felix's eBPF programs translate.

use std::path::Path;
use std::time::Duration;

use super::pins;
use crate::exec::Runner;
use crate::kube_proxy;

/// Returns the reason why Felix's eBPF programs must stay: they translate the addresses of
/// Services, and no kube-proxy is found that would continue to do so.
pub(super) fn depend_on_felix(pins: &Path, runner: &Runner, timeout: Duration) -> Option<String> {
    let map = pins::nat_map(pins)?;
    (!kube_proxy::is_found(runner, timeout)).then(|| {
        format!(
            "eBPF programs of Calico translate Services ({}), and no kube-proxy is found: start kube-proxy, or run \
             tortie with --without-services",
            map.display()
        )
    })
}
