//! Faults that tests inject.

use std::time::Duration;

/// Requests that a fault affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// First pages of lists.
    List,
    /// Later pages of lists.
    Continue,
    /// Watches.
    Watch,
    /// All reads and writes of single objects.
    Object,
    /// Writes of single objects, except dry runs.
    Write,
    /// All of the above.
    Any,
}

/// Faulty behaviour instead of the regular answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 410: the requested version has expired.
    Gone,
    /// 429, with this many seconds in `Retry-After`.
    TooManyRequests(u64),
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404, as for a kind that is not installed.
    NotFound,
    /// 404, as for a namespace that no longer exists.
    NoNamespace,
    /// 422, as for an object that a schema or an admission webhook rejects.
    Invalid,
    /// 500.
    Internal,
    /// The connection ends before the answer.
    Hangup,
    /// The connection ends within the answer's body.
    DropInside,
    /// The HTTP answer is complete, but its JSON is cut in the middle.
    Truncate,
    /// The answer begins and stalls for this time; then the connection ends.
    Stall(Duration),
    /// The answer is delayed by this time.
    Slow(Duration),
    /// The watch sends nothing but an event of type ERROR with this code.
    ErrorEvent(u16),
    /// The watch sends a line that is not an event.
    Nonsense,
}

#[derive(Clone, Debug)]
pub(super) struct PlannedFault {
    pub(super) on: On,
    /// Plural of the affected kind; empty for all kinds.
    pub(super) plural: String,
    pub(super) fault: Fault,
    pub(super) left: usize,
}

/// Returns the fault for a request, if one is planned, and counts it down.
pub(super) fn take(planned: &mut Vec<PlannedFault>, on: On, is_write: bool, plural: &str) -> Option<Fault> {
    let at = planned.iter().position(|fault| {
        (fault.on == on || fault.on == On::Any || is_write && fault.on == On::Write)
            && (fault.plural.is_empty() || fault.plural == plural)
    })?;
    let fault = planned[at].fault;
    planned[at].left = planned[at].left.saturating_sub(1);
    if planned[at].left == 0 {
        planned.remove(at);
    }
    Some(fault)
}
