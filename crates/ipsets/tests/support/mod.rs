//! Common parts of the tests against the fake kernel.
#![allow(dead_code, reason = "each test program uses a part of it")]

use std::time::Duration;

use tortie_ipsets::fake::FakeIpset;
use tortie_ipsets::{Config, Family, IpSetId, IpSets, Member, Report, SetSpec, SetType};

pub(crate) struct World {
    pub(crate) sets: IpSets,
    pub(crate) kernel: FakeIpset,
    pub(crate) now: Duration,
}

pub(crate) fn id(text: &str) -> IpSetId {
    IpSetId::new(text)
}

pub(crate) fn member(set_type: SetType, text: &str) -> Member {
    Member::parse(set_type, Family::V4, text).unwrap().unwrap()
}

pub(crate) fn members(set_type: SetType, texts: &str) -> Vec<Member> {
    texts.split_whitespace().map(|text| member(set_type, text)).collect()
}

impl World {
    pub(crate) fn new() -> Self {
        Self { sets: IpSets::new(Family::V4, Config::default()), kernel: FakeIpset::new(), now: Duration::ZERO }
    }

    /// Two sets in the kernel and counts at 0.
    pub(crate) fn in_sync() -> Self {
        let mut world = Self::new();
        world.put("a", SetType::HashIp, "10.0.0.1 10.0.0.2");
        world.put("b", SetType::HashNet, "10.0.0.0/8 192.168.0.1");
        world.succeed();
        world.kernel.reset_counts();
        world
    }

    pub(crate) fn put(&mut self, set: &str, set_type: SetType, texts: &str) {
        let spec = SetSpec::new(set_type);
        self.sets.add_or_replace(&id(set), spec, members(set_type, texts)).unwrap();
    }

    pub(crate) fn add(&mut self, set: &str, text: &str) {
        let set_type = self.sets.spec(&id(set)).unwrap().set_type();
        let members = members(set_type, text);
        self.sets.add_members(&id(set), members).unwrap();
    }

    pub(crate) fn remove(&mut self, set: &str, text: &str) {
        let set_type = self.sets.spec(&id(set)).unwrap().set_type();
        let members = members(set_type, text);
        self.sets.remove_members(&id(set), members).unwrap();
    }

    pub(crate) fn apply(&mut self) -> Report {
        self.kernel.apply(&mut self.sets, &mut self.now)
    }

    #[track_caller]
    pub(crate) fn succeed(&mut self) {
        let report = self.apply();
        assert!(report.is_success(), "{report:?}");
    }

    #[track_caller]
    pub(crate) fn holds(&self, set: &str, texts: &str) {
        let expected: Vec<&str> = texts.split_whitespace().collect();
        assert_eq!(self.kernel.members(&format!("cali40{set}")), expected);
    }

    pub(crate) fn delete_all(&mut self) {
        while self.kernel.apply_deletions(&mut self.sets, &mut self.now).more {}
    }

    pub(crate) fn lines(&self) -> Vec<&str> {
        self.kernel.restored().iter().flat_map(|text| text.lines()).filter(|line| *line != "COMMIT").collect()
    }
}
