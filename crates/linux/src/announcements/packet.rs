//! Recognition of announcements.

/// Reports whether an ARP packet, without the header of its frame, is gratuitous: its sender asks
/// or answers for its own address.
pub(super) fn is_gratuitous(packet: &[u8]) -> bool {
    let address = || {
        let [hardware, protocol] = [4, 5].map(|at| packet.get(at).copied().map(usize::from));
        let (hardware, protocol) = (hardware?, protocol?);
        let sender = 8 + hardware;
        let target = sender + protocol + hardware;
        Some(packet.get(sender..sender + protocol)? == packet.get(target..target + protocol)?)
    };
    address().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::is_gratuitous;

    const WHO_HAS: &str = "0001 0800 0604 0001 020000000001 0a410001 000000000000";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: String = hex.split_whitespace().collect();
        (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex")).collect()
    }

    #[test]
    fn packets_about_the_own_address_are_announcements() {
        for (packet, expected) in [
            (format!("{WHO_HAS} 0a410001"), true),
            (format!("{WHO_HAS} 0a410001 {}", "00".repeat(18)), true),
            (format!("{WHO_HAS} 0a410002"), false),
            (WHO_HAS.replace("0604 0001", "0604 0002") + " 0a410001", true),
            // ARP probe, before an address is used.
            ("0001 0800 0604 0001 020000000001 00000000 000000000000 0a410001".to_owned(), false),
            (format!("{WHO_HAS} 0a4100"), false),
            (WHO_HAS[..14].to_owned(), false),
            (String::new(), false),
            // Other hardware has longer link-layer addresses.
            (format!("0020 0800 1404 0001 {0} 0a410001 {0} 0a410001", "02".repeat(20)), true),
            (format!("0001 0800 ffff 0001 {}", "00".repeat(300)), false),
        ] {
            assert_eq!(is_gratuitous(&bytes(&packet)), expected, "{packet}");
        }
    }
}
