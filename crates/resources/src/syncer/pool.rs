//! IP pools in the form for Felix and the BGP daemon (`IPPoolV3ToV1` of
//! `libcalico-go/lib/backend/k8s/resources/ippool.go`).

use serde_json::{Value as Json, json};
use tortie_model::{EncapMode, Update};

use crate::object::{Contributions, Object};
use crate::path;
use crate::tree::Sink;

/// Returns the path and the value of a pool. The reading for Felix does not cover all its fields.
pub(super) fn ip_pool(object: &Object<'_, '_>, for_felix: &Contributions, sink: &mut Sink) -> Option<(String, Json)> {
    let [update @ Update::IpPool(_, Some(pool))] = &for_felix[..] else { return None };
    let spec = object.map.field("spec")?.map(sink)?;
    let assignment_mode = spec.text("assignmentMode", sink).unwrap_or("Automatic");
    if !matches!(assignment_mode, "Automatic" | "Manual") {
        spec.error(sink, format!("assignmentMode: `{assignment_mode}` is neither Automatic nor Manual"));
    }
    let mut value = json!({
        "cidr": pool.cidr.to_string(),
        "ipip": if pool.ipip_mode == EncapMode::Never { "" } else { "tunl0" },
        "ipip_mode": pool.ipip_mode.as_str(),
        "vxlan_mode": pool.vxlan_mode.as_str(),
        "masquerade": pool.masquerade,
        "ipam": !pool.disabled,
        "disabled": pool.disabled,
        "disableBGPExport": spec.flag("disableBGPExport", sink),
        "assignment_mode": assignment_mode,
    });
    if let (false, Some(fields)) = (pool.allowed_uses.is_empty(), value.as_object_mut()) {
        fields.insert("allowed_uses".into(), pool.allowed_uses.iter().map(|word| &**word).collect());
    }
    Some((path::to_path(&update.key()).ok()?, value))
}
