//! Escaped text in markup.

use std::fmt::{self, Write as _};

/// Text escaped for an XML or HTML document, also for attributes. Characters that XML does not
/// allow become U+FFFD.
///
/// ```
/// let text = tortie_analysis::map::Escaped("</td><script>\"'&\u{7}").to_string();
/// assert_eq!(text, "&lt;/td&gt;&lt;script&gt;&quot;&#39;&amp;\u{fffd}");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Escaped<T>(pub T);

impl<T: fmt::Display> fmt::Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for character in self.0.to_string().chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\n' | '\t' => f.write_char(character)?,
                other if other.is_control() || matches!(other, '\u{fffe}' | '\u{ffff}') => f.write_char('\u{fffd}')?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}
