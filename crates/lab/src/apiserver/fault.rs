//! Misbehaviour that tests ask for.

use std::time::Duration;

/// Which requests.
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
    /// Writes of single objects that are meant, as opposed to dry runs.
    Write,
    /// All of these.
    Any,
}

/// What happens instead of what should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// 410: what was asked for is too old.
    Gone,
    /// 429, with this many seconds in `Retry-After`.
    TooManyRequests(u64),
    /// 401.
    Unauthorized,
    /// 403.
    Forbidden,
    /// 404, as of a kind that there is not.
    NotFound,
    /// 404, as of a namespace that there is not any more.
    NoNamespace,
    /// 422, as of an object that a schema or a webhook is against.
    Invalid,
    /// 500.
    Internal,
    /// The connection ends before the answer.
    Hangup,
    /// The connection ends within an object.
    DropInside,
    /// The answer is complete and is not: JSON ends in the middle.
    Truncate,
    /// The answer begins, and then nothing comes.
    Stall(Duration),
    /// Nothing comes for so long; then the answer.
    Slow(Duration),
    /// An event of type ERROR with this code is all that a watch says.
    ErrorEvent(u16),
    /// A watch says something that is no event.
    Nonsense,
}

#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) on: On,
    /// Empty for all.
    pub(super) plural: String,
    pub(super) fault: Fault,
    pub(super) left: usize,
}

/// Takes the fault that a request meets, if any.
pub(super) fn take(planned: &mut Vec<Planned>, on: On, is_write: bool, plural: &str) -> Option<Fault> {
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
