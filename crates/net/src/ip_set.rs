//! Names of IP sets.

use crate::InlineText;

crate::text_id!(
    /// The identity of an IP set, the same for both families and of any length, such as `s:…` for a
    /// selector, `n:…` for a named port, `svc:…` and `svcnoport:…` for a service
    /// (`felix/calc/rule_scanner.go`). In the kernel it has an [`IpSetName`] for each family.
    IpSetId
);

crate::word_name!(
    /// The name of an IP set in the kernel: at most 31 bytes (`IPSET_MAXNAMELEN` with its
    /// terminator).
    ///
    /// `#` is rejected, because a comment begins with it in some of the texts that name sets.
    ///
    /// ```
    /// use tortie_net::IpSetName;
    /// assert_eq!(IpSetName::new("cali40all-hosts-net")?.as_str(), "cali40all-hosts-net");
    /// assert!(IpSetName::new("not one word").is_err());
    /// # Ok::<(), tortie_net::InvalidName>(())
    /// ```
    IpSetName, 31, "IP set"
);

impl IpSetName {
    const fn acceptable(text: &InlineText<31>) -> bool {
        if text.is_option() {
            return false;
        }
        let mut rest = text.as_str().as_bytes();
        while let [byte, after @ ..] = rest {
            if *byte == b'#' {
                return false;
            }
            rest = after;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_not_one_word_are_rejected() {
        for bad in ["", "a b", "a\n", "ä", "a\"", "#a", "a#", "-A", "0123456789012345678901234567890x"] {
            assert!(IpSetName::new(bad).is_err(), "{bad:?}");
        }
        assert_eq!(IpSetName::new(&"x".repeat(31)).unwrap().as_str().len(), IpSetName::MAX_LEN);
    }
}
