//! Names in a certificate.

use rustls::pki_types::CertificateDer;

use super::PeerNames;

/// DER tags of a sequence, a set and an object identifier.
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
/// DER tags of texts in ASCII or UTF-8.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];
/// `id-at-commonName`, 2.5.4.3 (RFC 5280, A.1).
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];

/// Maximum number of a certificate's URIs in an error.
const SHOWN: usize = 5;

/// Valid certificate without any of the required names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the certificate of the other side is for {borne}, and not for {wanted}")]
pub(super) struct NameMismatch {
    borne: String,
    wanted: String,
}

impl PeerNames {
    /// Checks that a certificate has one of the required names. Unreadable names do not count.
    ///
    /// # Errors
    /// [`NameMismatch`] with the names that it has.
    pub(super) fn accept(&self, certificate: &CertificateDer<'_>) -> Result<(), NameMismatch> {
        let Ok(certificate) = webpki::EndEntityCert::try_from(certificate) else {
            return Err(self.mismatch(None, &[]));
        };
        let name = common_name(certificate.subject());
        let uris: Vec<&str> = certificate.valid_uri_names().collect();
        let by_name = self.common_name.is_some() && self.common_name.as_deref() == name;
        if by_name || self.uri_san.as_deref().is_some_and(|wanted| uris.contains(&wanted)) {
            return Ok(());
        }
        Err(self.mismatch(name, &uris))
    }

    fn mismatch(&self, name: Option<&str>, uris: &[&str]) -> NameMismatch {
        let list = |name: Option<&str>, uris: &[&str]| {
            let name = name.map(|name| format!("common name {name:?}"));
            name.into_iter().chain(uris.iter().take(SHOWN).map(|uri| format!("URI {uri:?}"))).collect::<Vec<_>>()
        };
        let borne = list(name, uris);
        let borne = if borne.is_empty() { "no name that can be read".to_owned() } else { borne.join(", ") };
        let wanted = list(self.common_name.as_deref(), self.uri_san.as_deref().as_slice()).join(" or ");
        NameMismatch { borne, wanted }
    }
}

/// Returns the common name of a subject; the last of several, as in Go (`crypto/x509/pkix`).
fn common_name(subject: &[u8]) -> Option<&str> {
    // The tag of the sequence may be present or absent.
    let mut names = match element(subject) {
        Some((SEQUENCE, inner, [])) => inner,
        _ => subject,
    };
    let mut found = None;
    while !names.is_empty() {
        let (SET, mut attributes, rest) = element(names)? else { return None };
        names = rest;
        while !attributes.is_empty() {
            let (SEQUENCE, attribute, rest) = element(attributes)? else { return None };
            attributes = rest;
            let (OBJECT_ID, kind, value) = element(attribute)? else { return None };
            if kind == COMMON_NAME {
                let (tag, text, []) = element(value)? else { return None };
                found = Some(std::str::from_utf8(text).ok().filter(|_| TEXTS.contains(&tag))?);
            }
        }
    }
    found
}

/// Returns the tag and the content of the first DER element, and the bytes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => rest.split_first().map(|(&length, rest)| (usize::from(length), rest))?,
        0x82 => rest.split_first_chunk::<2>().map(|(&length, rest)| (usize::from(u16::from_be_bytes(length)), rest))?,
        _ => return None,
    };
    let (inner, rest) = rest.split_at_checked(length)?;
    Some((tag, inner, rest))
}

#[cfg(test)]
mod tests {
    use super::common_name;

    fn length(of: &[u8]) -> u8 {
        u8::try_from(of.len()).unwrap()
    }

    #[test]
    fn the_last_common_name_counts_and_nothing_panics() {
        let cn = |text: &str| {
            let text = text.as_bytes();
            let attribute = [&[0x06, 3, 0x55, 4, 3, 0x0c, length(text)][..], text].concat();
            let attribute = [&[0x30, length(&attribute)][..], &attribute].concat();
            [&[0x31, length(&attribute)][..], &attribute].concat()
        };
        let organisation = [0x31, 10, 0x30, 8, 0x06, 3, 0x55, 4, 10, 0x0c, 1, b'x'];
        let subject = [&cn("first")[..], &organisation, &cn("last")].concat();
        assert_eq!(common_name(&subject), Some("last"));
        let tagged = [&[0x30, length(&subject)][..], &subject].concat();
        assert_eq!(common_name(&tagged), Some("last"));
        assert_eq!(common_name(&organisation), None);
        for end in 0..subject.len() {
            let _ = common_name(&subject[..end]);
            let mut damaged = subject.clone();
            damaged[end] ^= 0x83;
            let _ = common_name(&damaged);
        }
    }
}
