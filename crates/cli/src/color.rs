use std::ffi::OsStr;

/// Use of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl ColorChoice {
    pub(super) fn wanted(self, is_terminal: bool) -> bool {
        match self {
            Self::Auto => automatic(is_terminal, std::env::var_os("NO_COLOR").as_deref()),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

/// Reports whether a terminal gets colours: unless `NO_COLOR` is set and not empty
/// (<https://no-color.org>).
fn automatic(is_terminal: bool, no_color: Option<&OsStr>) -> bool {
    is_terminal && no_color.is_none_or(OsStr::is_empty)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_terminals_show_colours_and_none_does_where_they_are_not_wanted() {
        for (is_terminal, no_color, expected) in [
            (true, None, true),
            (true, Some(""), true),
            (true, Some("1"), false),
            (true, Some("0"), false),
            (false, None, false),
            (false, Some(""), false),
        ] {
            assert_eq!(automatic(is_terminal, no_color.map(OsStr::new)), expected, "{is_terminal} {no_color:?}");
        }
        assert!(ColorChoice::Always.wanted(false));
        assert!(!ColorChoice::Never.wanted(true));
    }
}
