use super::{Report, ReportError};
use crate::felix;
use tortie_model::{Family, HostEndpointName, WorkloadEndpointId};

#[test]
fn reports_are_decoded_as_encoded() {
    let id = WorkloadEndpointId { orchestrator: "k8s".into(), workload: "shop/web".into(), endpoint: "eth0".into() };
    let endpoint = felix::WorkloadEndpoint { name: "cali1".into(), ..Default::default() };
    let reports = [
        Report::Process { timestamp: "2026-01-02T03:04:05Z".into(), uptime: 12.5 },
        Report::Host(HostEndpointName::new("eth0"), Some("up".into())),
        Report::Host(HostEndpointName::new("eth0"), None),
        Report::Workload { id: id.clone(), status: Some("down".into()), endpoint: Some(Box::new(endpoint)) },
        Report::Workload { id, status: None, endpoint: None },
        Report::Wireguard { public_key: "key".into(), family: Some(Family::V6) },
        Report::Wireguard { public_key: String::new(), family: None },
        Report::InSync,
    ];
    for report in reports {
        assert_eq!(Report::decode(&report.clone().encode(3)), Ok(report));
    }
}

#[test]
fn bytes_match_felix() {
    assert_eq!(Report::InSync.encode(0), [0x52, 0]);
    let report = Report::Host(HostEndpointName::new("e"), Some("up".into()));
    assert_eq!(report.encode(2), b"\x22\x0b\x0a\x03\x12\x01e\x12\x04\x0a\x02up\x40\x02");
}

#[test]
fn unreadable_reports_are_errors() {
    assert_eq!(Report::decode(&[]), Err(ReportError::Unknown));
    assert_eq!(Report::decode(b"\xa2\x06\0"), Err(ReportError::Unknown));
    assert_eq!(Report::decode(b"\x22\0"), Err(ReportError::NoId));
    assert!(matches!(Report::decode(b"\x22\x05"), Err(ReportError::NotProtobuf(_))));
}
