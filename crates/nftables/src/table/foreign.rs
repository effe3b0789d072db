//! Sets whose members another program, or the kernel, keeps.

use tortie_net::{IpSetId, IpSetName};
use tortie_netfilter::SetType;

use super::{Table, UpdateError};
use crate::names::SetName;
use crate::set::SetKind;

impl Table {
    /// Defines a set whose members another program keeps: it is created without members, and
    /// removed with all of them.
    ///
    /// # Errors
    /// If two ids have one name.
    pub fn define_foreign_set(&mut self, id: &IpSetId, name: IpSetName, set_type: SetType) -> Result<(), UpdateError> {
        self.replace_set(id, name, set_type, [])?;
        if let Some(set) = self.desired.sets.get_mut(&SetName::new(name)) {
            set.leave_members();
        }
        Ok(())
    }

    /// Defines a set of token buckets for rules with
    /// [`AboveRateOfDestination`](tortie_netfilter::Match::AboveRateOfDestination).
    ///
    /// # Errors
    /// If two ids have one name.
    pub fn define_buckets(&mut self, id: &IpSetId, name: IpSetName) -> Result<(), UpdateError> {
        self.define_foreign_set(id, name, SetType::HashIp)?;
        if let Some(set) = self.desired.sets.get_mut(&SetName::new(name)) {
            set.kind = SetKind::Buckets;
        }
        Ok(())
    }
}
