use proptest::prelude::*;

use tortie_iptables::Action;

use super::{MarkMaskTooSmall, Marks};

#[test]
fn the_default_mask_gives_the_well_known_bits() {
    let marks = Marks::allocate(Marks::DEFAULT_MASK, false, false).unwrap();
    assert_eq!(Marks::default(), marks);
    assert_eq!(marks.policy().get(), 0x1b_0000);
    assert_eq!(marks.policy_but_accept().get(), 0x1a_0000);
    assert_eq!(marks.verdict().get(), 0x3_0000);
    assert_eq!(marks.drop.get(), 0x4_0000);
    assert_eq!(marks.endpoint.get(), 0xffe0_0000);
    let marks = Marks::allocate(Marks::DEFAULT_MASK, true, true).unwrap();
    assert_eq!(marks.wireguard.unwrap().get(), 0x20_0000);
    assert_eq!(marks.endpoint.get(), 0xffc0_0000);
    assert_eq!(marks.non_endpoint.unwrap().get(), 0x40_0000);
}

#[test]
fn a_small_mask_is_refused_with_its_size() {
    let error = Marks::allocate(0x1f, false, false).unwrap_err();
    assert_eq!(error, MarkMaskTooSmall { mask: 0x1f, available: 5, needed: 6 });
    assert_eq!(error.to_string(), "mark mask 0x1f has 5 bits; 6 are needed");
    assert!(Marks::allocate(0x3f, false, false).is_ok());
    assert!(Marks::allocate(0x3f, true, false).is_err());
    assert!(Marks::allocate(0, false, false).is_err());
}

proptest! {
    #[test]
    fn bits_are_distinct_and_within_the_mask(mask in any::<u32>(), wireguard in any::<bool>(), ipvs in any::<bool>()) {
        let Ok(marks) = Marks::allocate(mask, wireguard, ipvs) else {
            let needed = if wireguard { 7 } else { 6 };
            prop_assert!(mask.count_ones() < needed);
            return Ok(());
        };
        let Marks { accept, pass, drop, scratch0, scratch1, endpoint, .. } = marks;
        let mut all = vec![accept, pass, drop, scratch0, scratch1, endpoint];
        all.extend(marks.wireguard);
        prop_assert_eq!(all.iter().fold(0, |sum, bits| sum ^ bits.get()), mask);
        for (i, bits) in all.iter().enumerate() {
            prop_assert!(all[..i].iter().all(|other| !other.overlaps(*bits)));
        }
    }
}

/// Returns the mark bits that an action may change.
pub(crate) fn marks_written(action: &Action) -> u32 {
    match action {
        Action::ClearMark(bits) | Action::SetMark(bits) | Action::MarkWithinRate { mark: bits, .. } => bits.get(),
        Action::SetMaskedMark(mark) => mark.mask().get(),
        _ => 0,
    }
}
