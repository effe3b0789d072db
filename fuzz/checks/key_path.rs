//! Any path names a key or nothing, and a key's own path names it again.

use tortie_resources::path::{self, Parsed};

pub(crate) fn check(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(Parsed::Key(key)) = path::parse(&text)
        && let Ok(written) = path::to_path(&key)
    {
        assert_eq!(path::parse(&written), Some(Parsed::Key(key)));
    }
}
