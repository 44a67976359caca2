//! The controllerName of an installation: its GatewayClasses have it, and it tells its statuses and objects from those of others.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The controllerName of GatewayClasses, unless the operator sets another.
pub const CONTROLLER_NAME: &str = "portcullis.dev/gateway-controller";
/// Domain of names that only this project gives: a field manager of the API server has one, too.
const OWN_DOMAIN: &str = "portcullis.dev";
/// Maximum length: objects in the cluster record the name as their field manager.
const MAX_LENGTH: usize = 128;

/// A controllerName.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerName(Arc<str>);

impl ControllerName {
    /// Returns the name as text.
    pub fn as_arc(&self) -> &Arc<str> {
        &self.0
    }

    /// Returns the flag that gives pods this name; `None` for the default.
    pub fn flag(&self) -> Option<String> {
        (*self != Self::default()).then(|| format!("--controller-name={self}"))
    }
}

impl Default for ControllerName {
    fn default() -> Self {
        Self(CONTROLLER_NAME.into())
    }
}

impl FromStr for ControllerName {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SHAPE: &str =
            "must be DOMAIN/PATH of at most 128 characters, such as example.com/internal";
        let (domain, path) = text.split_once('/').ok_or(SHAPE)?;
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let is_domain = domain.starts_with(|one: char| one.is_ascii_alphanumeric())
            && domain
                .bytes()
                .all(|byte| is_name(byte) || b"-.".contains(&byte));
        let is_path = !path.is_empty() && path.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_domain || !is_path || text.len() > MAX_LENGTH {
            return Err(SHAPE);
        }
        if domain == OWN_DOMAIN && text != CONTROLLER_NAME {
            return Err("names of portcullis.dev are reserved: use a domain of your own");
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for ControllerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_has_a_domain_and_a_path() {
        for name in [CONTROLLER_NAME, "example.com/internal", "a/b/c"] {
            let parsed: ControllerName = name.parse().unwrap();
            assert_eq!(parsed.to_string(), name);
        }
        let long = format!("example.com/{}", "a".repeat(MAX_LENGTH));
        for other in [
            "",
            "example.com",
            "example.com/",
            "/a",
            "Example.com/a",
            "a/b c",
            long.as_str(),
        ] {
            assert!(other.parse::<ControllerName>().is_err(), "{other}");
        }
    }

    #[test]
    fn name_of_the_field_manager_of_the_default_is_reserved() {
        let reserved = crate::cluster::api_server::FIELD_MANAGER;
        assert!(reserved.parse::<ControllerName>().is_err());
    }

    #[test]
    fn pods_get_no_flag_for_the_default() {
        assert_eq!(ControllerName::default().flag(), None);
        let other: ControllerName = "example.com/internal".parse().unwrap();
        let flag = "--controller-name=example.com/internal";
        assert_eq!(other.flag().as_deref(), Some(flag));
    }
}
