//! Go's encoding of a time.

use std::time::SystemTime;

/// Seconds from the beginning of the year 1, Go's epoch, to 1970.
const TO_1970: i64 = 62_135_596_800;

/// Time as Go encodes it (`Time.MarshalBinary`), including its time zone, so that it can be
/// returned unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoTime {
    /// Seconds since the beginning of the year 1.
    pub seconds: i64,
    /// Nanoseconds within the second.
    pub nanoseconds: u32,
    /// Seconds by which the local time is ahead of UTC; `None` for UTC itself.
    pub offset: Option<i32>,
}

impl GoTime {
    /// Returns a time in UTC: 1970 for an earlier time, the last one of Go's range for a later
    /// time.
    #[must_use]
    pub fn utc(time: SystemTime) -> Self {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX).saturating_add(TO_1970),
            nanoseconds: since.subsec_nanos(),
            offset: None,
        }
    }

    /// Decodes Go's encoding; `None` if the bytes are invalid.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (version, rest) = bytes.split_first()?;
        let (seconds, rest) = rest.split_first_chunk()?;
        let (nanoseconds, rest) = rest.split_first_chunk()?;
        let (minutes, rest) = rest.split_first_chunk()?;
        let minutes = i16::from_be_bytes(*minutes);
        let odd_seconds = match (version, rest) {
            (1, []) => 0,
            // A time zone that is not of whole minutes.
            (2, [odd]) => i32::from(odd.cast_signed()),
            _ => return None,
        };
        Some(Self {
            seconds: i64::from_be_bytes(*seconds),
            nanoseconds: u32::from_be_bytes(*nanoseconds),
            offset: (minutes != -1).then(|| i32::from(minutes) * 60 + odd_seconds),
        })
    }

    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (minutes, odd_seconds) = match self.offset {
            None => (-1, 0),
            Some(offset) => (offset / 60, offset % 60),
        };
        let mut bytes = vec![if odd_seconds == 0 { 1 } else { 2 }];
        bytes.extend(self.seconds.to_be_bytes());
        bytes.extend(self.nanoseconds.to_be_bytes());
        // Both fit: no time zone is that many days away, and a remainder of 60 is small.
        bytes.extend(i16::try_from(minutes).unwrap_or(-1).to_be_bytes());
        if odd_seconds != 0 {
            bytes.push(i8::try_from(odd_seconds).unwrap_or(0).cast_unsigned());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_come_back_as_they_came() {
        for offset in [None, Some(0), Some(-60 * 60), Some(5 * 3600 + 30 * 60), Some(-3617), Some(17)] {
            let time = GoTime { seconds: TO_1970 - 1, nanoseconds: 999_999_999, offset };
            assert_eq!(GoTime::decode(&time.encode()), Some(time));
        }
        for bad in [&[][..], &[1; 14], &[1; 16], &[2; 15], &[3; 15]] {
            assert_eq!(GoTime::decode(bad), None);
        }
    }
}
