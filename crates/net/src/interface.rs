//! Names of network interfaces.

use crate::InlineText;

crate::word_name!(
    /// The name of a network interface: at most 15 bytes (`IFNAMSIZ` with its terminator).
    ///
    /// A trailing `+` is rejected, because `iptables` would read it as a wildcard, and `/`, which
    /// the kernel rejects. The kernel accepts some names that are rejected here, such as `é` and
    /// `!x`: rules cannot contain these.
    ///
    /// ```
    /// use tortie_net::InterfaceName;
    /// let name: InterfaceName = "cali12345678901".parse()?;
    /// assert_eq!(name.as_str(), "cali12345678901");
    /// assert!("a name that no interface can have".parse::<InterfaceName>().is_err());
    /// # Ok::<(), tortie_net::InvalidName>(())
    /// ```
    InterfaceName, 15, "interface"
);

impl InterfaceName {
    const fn acceptable(text: &InlineText<15>) -> bool {
        let mut rest = text.as_str().as_bytes();
        while let [byte, after @ ..] = rest {
            if *byte == b'/' || (*byte == b'+' && after.is_empty()) {
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
    fn names_that_iptables_or_the_kernel_would_misread_are_rejected() {
        for bad in ["", "cali+", "a/b", "0123456789abcdef", "a b", "a\tb", "a\"b", "!x", "a\nb", "é"] {
            assert!(InterfaceName::new(bad).is_err(), "{bad:?}");
        }
        for good in ["0123456789abcde", "a+b", "eth0.100", "vxlan-v6.calico", "-eth0"] {
            assert_eq!(InterfaceName::new(good).unwrap().as_str(), good);
        }
    }

    #[test]
    fn order_is_the_order_of_the_text() {
        let mut names = ["cali-b", "cali-a", "cali", "cali-aa"].map(|n| InterfaceName::new(n).unwrap());
        names.sort_unstable();
        assert_eq!(names.map(|n| n.to_string()), ["cali", "cali-a", "cali-aa", "cali-b"]);
    }
}
