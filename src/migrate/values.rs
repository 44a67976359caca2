//! Values of annotations, read as ingress-nginx reads them. An invalid one is reported where it is read.

use ipnet::IpNet;

use super::model::Ingress;
use super::report::Outcome::DefaultAlready;
use super::report::Report;

/// The annotations of an Ingress.
#[derive(Clone, Copy)]
pub(super) struct Values<'a>(pub(super) &'a Ingress);

impl<'a> Values<'a> {
    /// Returns a text; `None` if it is absent or empty.
    pub(super) fn text(self, name: &str) -> Option<&'a str> {
        let value = self.0.annotations.get(name)?.trim();
        (!value.is_empty()).then_some(value)
    }

    /// Reports whether an annotation is set.
    pub(super) fn has(self, name: &str) -> bool {
        self.0.annotations.contains_key(name)
    }

    /// Returns a switch. ingress-nginx ignores one with blanks around it.
    pub(super) fn flag(self, name: &str) -> Option<bool> {
        flag(self.0.annotations.get(name)?)
    }

    /// Returns a switch. Says that ingress-nginx ignores another value.
    pub(super) fn flag_or(self, name: &str, default: bool, report: &mut Report) -> bool {
        if let (Some(text), None) = (self.text(name), self.flag(name)) {
            self.ignored(name, text, "true or false", report);
        }
        self.flag(name).unwrap_or(default)
    }

    /// Returns a number. Says that ingress-nginx ignores another value.
    pub(super) fn number(self, name: &str, report: &mut Report) -> Option<u64> {
        let text = self.text(name)?;
        let number = text.parse().ok();
        if number.is_none() {
            self.ignored(name, text, "a number", report);
        }
        number
    }

    fn ignored(self, name: &str, text: &str, expected: &str, report: &mut Report) {
        let message = format!("`{text}` is not {expected}, so that ingress-nginx ignores it");
        report.ingress(&self.0.name, name, DefaultAlready, message);
    }

    /// Returns the elements of a list with commas.
    pub(super) fn list(self, name: &str) -> Vec<&'a str> {
        elements(self.text(name).unwrap_or_default())
    }
}

/// Parses a switch as Go's `strconv.ParseBool` does.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Some(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Some(false),
        _ => None,
    }
}

/// Returns the elements of a list with commas.
pub(super) fn elements(text: &str) -> Vec<&str> {
    let parts = text.split(',').map(str::trim);
    parts.filter(|part| !part.is_empty()).collect()
}

/// Returns addresses and CIDRs.
///
/// # Errors
/// With the element that is neither.
pub(super) fn cidrs(list: &[&str]) -> Result<Vec<String>, String> {
    let read = |text: &&str| {
        let is_one = text.parse::<IpNet>().is_ok() || text.parse::<std::net::IpAddr>().is_ok();
        match is_one {
            true => Ok((*text).to_owned()),
            false => Err((*text).to_owned()),
        }
    };
    list.iter().map(read).collect()
}

/// Converts a size of nginx such as `8m` to a quantity; `None` if it is invalid.
pub(super) fn size(text: &str) -> Option<String> {
    let split = text.find(|c: char| !c.is_ascii_digit());
    let (digits, unit) = text.split_at(split.unwrap_or(text.len()));
    if digits.is_empty() || digits.len() > 12 {
        return None;
    }
    let number: u64 = digits.parse().ok()?;
    let unit = match unit {
        "" => "",
        "k" | "K" => "Ki",
        "m" | "M" => "Mi",
        "g" | "G" => "Gi",
        _ => return None,
    };
    Some(match number {
        // No limit in nginx. A section replaces that of the Gateway, so that this is more than anybody sends.
        0 => UNLIMITED.to_owned(),
        number => format!("{number}{unit}"),
    })
}

/// A size that no request body has.
pub(super) const UNLIMITED: &str = "1000000Gi";

/// Converts seconds to a duration of the Gateway API, which has up to 5 digits for each unit.
pub(super) fn seconds(number: u64) -> String {
    match number {
        0..=99_999 => format!("{number}s"),
        _ => format!("{}h", number.div_ceil(3600).min(99_999)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes_of_nginx() {
        for (text, expected) in [
            ("8m", Some("8Mi")),
            ("512K", Some("512Ki")),
            ("1g", Some("1Gi")),
            ("1048576", Some("1048576")),
            ("0", Some(UNLIMITED)),
            ("0m", Some(UNLIMITED)),
            ("8MB", None),
            ("m", None),
            ("-1", None),
        ] {
            assert_eq!(size(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn writes_durations_with_few_digits() {
        assert_eq!(seconds(60), "60s");
        assert_eq!(seconds(86_400), "86400s");
        assert_eq!(seconds(604_800), "168h");
    }

    #[test]
    fn addresses_and_networks_are_valid() {
        assert!(cidrs(&["10.0.0.0/8", "::1", "192.0.2.7"]).is_ok());
        assert_eq!(cidrs(&["10.0.0.0/8", "office"]), Err("office".to_owned()));
    }
}
