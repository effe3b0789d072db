//! Errors and limits of messages.

/// Bounds of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// Records of the answer section that are read; 512 by default. The others are counted.
    pub records: usize,
    /// Addresses of records and hints that are read; 512 by default. The others are counted.
    pub addresses: usize,
    /// Pairs of a name and an address in the result; 2,048 by default. The question comes first,
    /// and its aliases as they lead from it; the others are counted.
    pub pairs: usize,
    /// Aliases from the question to the last name, and further targets of services; 16 each by
    /// default.
    pub links: usize,
}

impl Default for MessageLimits {
    fn default() -> Self {
        Self { records: 512, addresses: 512, pairs: 2_048, links: 16 }
    }
}

/// The reason for which a message teaches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is shorter than its header.
    #[error("the message is shorter than a header")]
    Short,
    /// The message is a query.
    #[error("the message is a query")]
    Query,
    /// The operation is not a query.
    #[error("the message has the operation {0}")]
    Opcode(u8),
    /// The server reports an error, or that there is no such name.
    #[error("the server answered with the code {0}")]
    Failed(u8),
    /// The message does not have exactly one question.
    #[error("the message has {0} questions")]
    Questions(u16),
    /// The question is malformed.
    #[error("the question is malformed")]
    Question,
    /// The question is of another class than the Internet.
    #[error("the question has the class {0}")]
    Class(u16),
    /// The question is for records that have no addresses.
    #[error("the question has the type {0}")]
    Type(u16),
    /// A record is malformed.
    #[error("record {0} of the answer section is malformed")]
    Record(usize),
    /// An alias leads back to an earlier name.
    #[error("the aliases form a loop")]
    Loop,
    /// There are more aliases than the limit.
    #[error("there are more than {0} aliases")]
    LongChain(usize),
}

impl MessageError {
    /// Returns the reason as one word, for the label of a metric.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Query => "query",
            Self::Opcode(_) => "opcode",
            Self::Failed(_) => "failed",
            Self::Questions(_) => "questions",
            Self::Question => "question",
            Self::Class(_) => "class",
            Self::Type(_) => "type",
            Self::Record(_) => "record",
            Self::Loop => "loop",
            Self::LongChain(_) => "long-chain",
        }
    }
}
