//! Parses the change of a release on the command line: `v2=10` or `v2=10%`.

use std::fmt;
use std::str::FromStr;

/// Maximum length of a release, which is a label value.
const MAX_RELEASE: usize = 63;
/// Maximum of a weight (`maximum` in the CRD).
pub(super) const MAX_WEIGHT: u32 = 1_000_000;

/// A release and its requested weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// The value of the label `splitBy`.
    pub(super) release: String,
    pub(super) target: RequestedWeight,
}

/// The weight of a release on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedWeight {
    Weight(u32),
    /// A share of the requests to the listed releases.
    Share(Percent),
}

impl FromStr for Change {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (release, target) = text.split_once('=').ok_or_else(|| {
            format!("`{text}` is not RELEASE=WEIGHT; write one like v2=10 or v2=10%")
        })?;
        if !is_release(release) {
            return Err(format!(
                "`{release}` is not a release, which is the value of a label: up to {MAX_RELEASE} letters, digits, `-`, `_` \
                 and `.`, with a letter or a digit at both ends"
            ));
        }
        let target = if target.ends_with('%') {
            RequestedWeight::Share(target.parse()?)
        } else {
            RequestedWeight::Weight(weight(target)?)
        };
        Ok(Self {
            release: release.to_owned(),
            target,
        })
    }
}

fn weight(text: &str) -> Result<u32, String> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let weight = text
        .parse()
        .ok()
        .filter(|it| is_number && *it <= MAX_WEIGHT);
    weight.ok_or_else(|| {
        format!("`{text}` is neither a weight from 0 to {MAX_WEIGHT} nor a percentage such as 10%")
    })
}

fn is_release(text: &str) -> bool {
    let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    bytes.len() <= MAX_RELEASE
        && is_end(bytes.first())
        && is_end(bytes.last())
        && bytes.iter().all(is_allowed)
}

/// A percentage such as `10%` or `0.5%`, in thousandths of a percent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Percent(u32);

impl Percent {
    /// 100 %.
    pub(super) const WHOLE: u32 = 100_000;
    /// Maximum number of decimal places.
    const DIGITS: usize = 3;

    /// The percentage in thousandths of a percent: [`Self::WHOLE`] is 100 %.
    pub(super) fn thousandths(self) -> u32 {
        self.0
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is not a percentage; write one from 0% to 100% like 10% or 0.5%, with up to 3 decimal places"
            )
        };
        let number = text.strip_suffix('%').ok_or_else(wrong)?;
        let (whole, fraction) = match number.split_once('.') {
            Some((_, "")) => return Err(wrong()),
            Some(parts) => parts,
            None => (number, ""),
        };
        let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if whole.is_empty()
            || fraction.len() > Self::DIGITS
            || !is_digits(whole)
            || !is_digits(fraction)
        {
            return Err(wrong());
        }
        let digits = format!("{whole}{fraction:0<width$}", width = Self::DIGITS);
        let thousandths = digits.parse().ok().filter(|it| *it <= Self::WHOLE);
        thousandths.map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        let text = text.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{text}%")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(release: &str, target: RequestedWeight) -> Change {
        Change {
            release: release.to_owned(),
            target,
        }
    }

    #[test]
    fn parses_weights_and_percentages() {
        let read = |text: &str| text.parse::<Change>().unwrap();
        assert_eq!(read("v2=10"), change("v2", RequestedWeight::Weight(10)));
        assert_eq!(
            read("v2=1000000"),
            change("v2", RequestedWeight::Weight(MAX_WEIGHT))
        );
        assert_eq!(
            read("shop-1.2_a=0"),
            change("shop-1.2_a", RequestedWeight::Weight(0))
        );
        assert_eq!(
            read("v2=10%"),
            change("v2", RequestedWeight::Share(Percent(10_000)))
        );
        assert_eq!(
            read("v2=0.125%"),
            change("v2", RequestedWeight::Share(Percent(125)))
        );
        assert_eq!(
            read("v2=100.0%"),
            change("v2", RequestedWeight::Share(Percent(100_000)))
        );
    }

    #[test]
    fn rejects_malformed_changes() {
        let long = format!("{}=1", "v".repeat(64));
        for (text, part) in [
            ("v2", "RELEASE=WEIGHT"),
            ("=10", "not a release"),
            ("-v2=10", "not a release"),
            ("v 2=10", "not a release"),
            (&long, "up to 63"),
            ("v2=", "neither a weight"),
            ("v2=+10", "neither a weight"),
            ("v2=-1", "neither a weight"),
            ("v2=1.5", "neither a weight"),
            ("v2=1000001", "from 0 to 1000000"),
            ("v2=%", "not a percentage"),
            ("v2=.5%", "not a percentage"),
            ("v2=5.%", "not a percentage"),
            ("v2=100.001%", "from 0% to 100%"),
            ("v2=0.0001%", "3 decimal places"),
            ("v2=99999999999999999999%", "from 0% to 100%"),
        ] {
            let error = text.parse::<Change>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn formats_percentages_without_trailing_zeros() {
        for text in ["0%", "10%", "0.5%", "33.333%", "100%"] {
            assert_eq!(text.parse::<Percent>().unwrap().to_string(), text);
        }
        assert_eq!("12.50%".parse::<Percent>().unwrap().to_string(), "12.5%");
    }
}
