//! Where the access log goes and which requests it has.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The access log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessLog {
    /// Where it goes.
    pub target: AccessLogTarget,
    /// Which requests it has.
    pub filter: AccessLogFilter,
}

/// Where the access log goes. Default: standard output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AccessLogTarget {
    /// Nowhere: there is none.
    Off,
    /// Standard output.
    #[default]
    Stdout,
    /// A file, which is appended to.
    File(PathBuf),
}

impl FromStr for AccessLogTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" => Ok(Self::Stdout),
            "off" => Ok(Self::Off),
            // Without a slash it could be a misspelled `off`.
            _ if text.contains('/') => Ok(Self::File(text.into())),
            _ => Err(format!(
                "`{text}` is neither `on`, `off` nor a path with a slash, such as ./access.log"
            )),
        }
    }
}

impl fmt::Display for AccessLogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Stdout => f.write_str("on"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Which requests the access log has: errors, and a share of the others in millionths. Default: all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessLogFilter(u32);

impl AccessLogFilter {
    /// All requests.
    pub const ALL: Self = Self(1_000_000);
    /// Errors only.
    pub const ERRORS: Self = Self(0);

    /// Share of the requests that are no errors, in millionths.
    pub fn millionths(self) -> u32 {
        self.0
    }
}

impl Default for AccessLogFilter {
    fn default() -> Self {
        Self::ALL
    }
}

impl FromStr for AccessLogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = match text {
            "all" => return Ok(Self::ALL),
            "errors" => return Ok(Self::ERRORS),
            _ => text.parse::<f64>().ok(),
        };
        share
            .filter(|share| (0.000_001..=1.0).contains(share))
            .map(|share| Self((share * 1e6).round() as u32))
            .ok_or_else(|| {
                format!(
                    "`{text}` is neither `all`, `errors` nor a share from 0.000001 to 1 such as 0.01"
                )
            })
    }
}

impl fmt::Display for AccessLogFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::ALL => f.write_str("all"),
            Self::ERRORS => f.write_str("errors"),
            Self(millionths) => (f64::from(millionths) / 1e6).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints_targets() {
        for text in ["on", "off", "./access.log", "/var/log/access.log"] {
            let target: AccessLogTarget = text.parse().unwrap();
            assert_eq!(target.to_string(), text);
        }
        for text in ["", "of", "access.log"] {
            let error = text.parse::<AccessLogTarget>().unwrap_err();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn reads_and_prints_filters() {
        for (text, millionths) in [
            ("all", 1_000_000),
            ("errors", 0),
            ("0.01", 10_000),
            ("0.000001", 1),
        ] {
            let filter: AccessLogFilter = text.parse().unwrap();
            assert_eq!(
                (filter.millionths(), &*filter.to_string()),
                (millionths, text)
            );
        }
        for text in ["", "none", "0", "-0.1", "1.1", "1%", "NaN", "0.0000001"] {
            assert!(text.parse::<AccessLogFilter>().is_err(), "{text}");
        }
    }
}
