//! IPAM blocks in etcd, beside the resources of `projectcalico.org/v3`.

use tortie_model::{Interner, Key};

use super::{Decoded, decode_text};
use crate::object::{Kind, ObjectId, Outcome, Resource};
use crate::{FieldProblem, Position, Severity, path};

/// Returns the identity of the block at a path of etcd; `None` for other paths.
#[must_use]
pub fn block_id(path: &str) -> Option<ObjectId> {
    match path::parse(path)? {
        path::Parsed::Key(Key::Block(cidr)) => {
            Some(ObjectId { kind: Kind::IpamBlock, namespace: "".into(), name: cidr.to_string().into() })
        }
        _ => None,
    }
}

/// Reads a block from the text at its path (`libcalico-go/lib/backend/model/block.go`).
#[must_use]
pub fn read_block(path: &str, text: &str) -> Resource {
    let (outcome, problems) = match decode_text(path, Some(text), &mut Interner::new()) {
        Ok(Decoded::Update(update)) if update.exists() => (Outcome::Valid(vec![update]), Vec::new()),
        Ok(_) => (Outcome::Valid(Vec::new()), Vec::new()),
        Err(error) => {
            let position = Position::default();
            let problem = FieldProblem::new(Severity::Error, position, error.field, error.reason);
            (Outcome::Invalid { substitute: None }, vec![problem])
        }
    };
    Resource { id: block_id(path), subject: path.to_owned(), position: Position::default(), outcome, problems }
}
