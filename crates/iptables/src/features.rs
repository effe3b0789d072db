//! Features of the installed iptables and the running kernel on which rule texts depend.

/// Features that change rule texts, and with them rule hashes
/// (`felix/environment/feature_detect_linux.go`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Features {
    /// `SNAT --random-fully`: iptables 1.6.0 and Linux 3.14.
    pub snat_random_fully: bool,
    /// `MASQUERADE --random-fully`: iptables 1.6.2 and Linux 3.14.
    pub masquerade_random_fully: bool,
    /// `NFLOG --nflog-size` instead of the broken `--nflog-range`: Linux 4.8.
    pub nflog_size: bool,
    /// `iptables-restore --wait`: iptables 1.6.2.
    pub restore_supports_lock: bool,
}

impl Features {
    /// Features of a current system.
    pub const ALL: Self =
        Self { snat_random_fully: true, masquerade_random_fully: true, nflog_size: true, restore_supports_lock: true };

    /// Returns the features of the given versions. An unknown version counts as old: iptables
    /// 1.4.7, Linux 3.10.
    #[must_use]
    pub fn detect(iptables: Option<Version>, kernel: Option<Version>) -> Self {
        let iptables = iptables.unwrap_or(Version(1, 4, 7));
        let kernel = kernel.unwrap_or(Version(3, 10, 0));
        let kernel_randomizes = kernel >= Version(3, 14, 0);
        Self {
            snat_random_fully: kernel_randomizes && iptables >= Version(1, 6, 0),
            masquerade_random_fully: kernel_randomizes && iptables >= Version(1, 6, 2),
            nflog_size: kernel >= Version(4, 8, 0),
            restore_supports_lock: iptables >= Version(1, 6, 2),
        }
    }

    /// Applies a `FeatureDetectOverride` setting, `Name=true,Name=false,…`, and returns the unused
    /// pieces: names of other features, and pieces that are not `Name=bool`.
    pub fn apply_overrides<'a>(&mut self, setting: &'a str) -> Vec<&'a str> {
        let mut unused = Vec::new();
        for piece in setting.split(',').map(str::trim).filter(|piece| !piece.is_empty()) {
            let Some((name, value)) = piece.split_once('=') else {
                unused.push(piece);
                continue;
            };
            let Some(value) = parse_override(value) else {
                unused.push(piece);
                continue;
            };
            match name.trim() {
                "SNATFullyRandom" => self.snat_random_fully = value,
                "MASQFullyRandom" => self.masquerade_random_fully = value,
                "NFLogSize" => self.nflog_size = value,
                "RestoreSupportsLock" => self.restore_supports_lock = value,
                _ => unused.push(piece),
            }
        }
        unused
    }
}

/// Parses a value of `FeatureDetectOverride`.
#[must_use]
pub fn parse_override(value: &str) -> Option<bool> {
    match value.trim().to_ascii_lowercase().as_str() {
        "true" | "t" | "1" => Some(true),
        "false" | "f" | "0" => Some(false),
        _ => None,
    }
}

/// Major, minor and patch number of iptables or of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Returns the first version number in a text such as `iptables v1.8.9 (nf_tables)` or
    /// `Linux version 6.18.2-generic`; a missing patch number is 0.
    #[must_use]
    pub fn find_in(text: &str) -> Option<Self> {
        text.split(|c: char| !c.is_ascii_digit() && c != '.').find_map(|word| {
            let mut numbers = word.split('.').map(str::parse);
            let major = numbers.next()?.ok()?;
            let minor = numbers.next()?.ok()?;
            let patch = numbers.next().and_then(Result::ok).unwrap_or(0);
            Some(Self(major, minor, patch))
        })
    }
}

#[cfg(test)]
mod tests;
