//! Error texts of ipset for refused lines.

use tortie_net::IpSetName;
use tortie_netfilter::MemberError;

impl From<MemberError> for Refused {
    fn from(error: MemberError) -> Self {
        Self::BadMember(error)
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    #[error("The set with the given name does not exist")]
    NoSuchSet,
    #[error("Kernel error received: Operation not permitted")]
    NotPermitted,
    #[error("unknown argument {0}")]
    UnknownArgument(String),
    #[error("Syntax error: setname '{0}' is longer than {max}", max = IpSetName::MAX_LEN)]
    NameTooLong(String),
    #[error("Syntax error: unknown INET family")]
    UnknownFamily,
    #[error("Syntax error: cannot parse maxelem")]
    BadMaxElements,
    #[error("Syntax error: cannot parse range")]
    BadRange,
    #[error("Mandatory option `range' is missing")]
    NoRange,
    #[error("Set cannot be created: set with the same name already exists")]
    SetExists,
    #[error("Element cannot be added to the set: it's already added")]
    MemberExists,
    #[error("Hash is full, cannot add more elements")]
    Full,
    #[error("Element cannot be deleted from the set: it's not added")]
    NoSuchMember,
    #[error("Sets cannot be swapped: the second set does not exist")]
    NoSecondSet,
    #[error("The sets cannot be swapped: their type does not match")]
    TypesDiffer,
    #[error("Set cannot be renamed: it is in use by another system")]
    RenamedInUse,
    #[error("Set cannot be renamed: a set with the new name already exists")]
    NewNameExists,
    #[error("Set cannot be destroyed: it is in use by a kernel component")]
    DestroyedInUse,
    #[error("Syntax error: cannot parse {0}: wrong family")]
    WrongFamily(String),
    #[error("Syntax error")]
    BadMember(#[source] MemberError),
    #[error("The value of the CIDR parameter of the IP address is invalid")]
    ZeroPrefix,
    #[error("Element is out of the range of the set")]
    OutOfRange,
}
