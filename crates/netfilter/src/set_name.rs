//! Names in the kernel of the sets that rules refer to.

use tortie_net::{Family, InvalidName, IpSetId, IpSetName};

/// The beginning of a main set's name. The `0` is a format version: it has to be raised when
/// the *type* of a set changes, since only sets of one type can be swapped.
const fn main_prefix(family: Family) -> &'static str {
    match family {
        Family::V4 => "cali40",
        Family::V6 => "cali60",
    }
}

/// The name under which rules refer to the set `id`: `cali40` or `cali60`, then the id, cut at 31
/// bytes.
///
/// ```
/// use tortie_netfilter::{Family, IpSetId, ip_set_name};
/// let name = ip_set_name(Family::V4, &IpSetId::new("s:AMAB7BNa5u3MmIiwZrblkWtHt0jdW3Fh9pFWhA"))?;
/// assert_eq!(name.as_str(), "cali40s:AMAB7BNa5u3MmIiwZrblkWt");
/// # Ok::<(), tortie_netfilter::InvalidName>(())
/// ```
///
/// # Errors
/// [`InvalidName`] if the id is empty or has characters that a rule or a restore file cannot hold.
pub fn ip_set_name(family: Family, id: &IpSetId) -> Result<IpSetName, InvalidName> {
    let text = id.as_str();
    let invalid = || InvalidName { kind: "IP set", name: text.to_owned(), max: IpSetName::MAX_LEN };
    let is_plain = |b: u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\'' | b'#' | b'\\');
    if text.is_empty() || !text.bytes().all(is_plain) {
        return Err(invalid());
    }
    let prefix = main_prefix(family);
    let cut = text.len().min(IpSetName::MAX_LEN - prefix.len());
    IpSetName::new(&[prefix, text.split_at(cut).0].concat()).map_err(|_| invalid())
}
