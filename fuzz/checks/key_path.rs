//! Any path is a key or rejected, and a key's own path gives the key again.

use tortie_resources::path::{self, Parsed};

pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(Parsed::Key(key)) = path::parse(&text)
        && let Ok(written) = path::to_path(&key)
    {
        assert_eq!(path::parse(&written), Some(Parsed::Key(key)));
    }
}
