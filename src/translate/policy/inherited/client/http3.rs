//! `http3` of a ClientPolicy.

use std::sync::Arc;
use std::time::Duration;

use crate::api::client_policy::Http3Settings;
use crate::ir::ObjectRef;
use crate::ir::client::Http3;

use super::super::policy::Content;
use super::limited::{Limit, limited};
use crate::translate::reason::{Fault, invalid};

/// How long clients remember it by default.
const MAX_AGE: Duration = Duration::from_secs(24 * 3600);
/// Maximum of `maxAge`: 365 days.
const LONGEST: Limit = (Duration::from_secs(8760 * 3600), "8760h");

pub(super) fn http3(policy: &ObjectRef, section: &Http3Settings) -> Result<Content, Fault> {
    let Http3Settings {
        advertised_port,
        max_age,
    } = section;
    if *advertised_port == Some(0) {
        return invalid("spec.http3.advertisedPort: 0 is not a port".to_owned());
    }
    let max_age = max_age.as_deref();
    let max_age = max_age.map(|it| limited(it, "spec.http3.maxAge", LONGEST));
    Ok(Content::Http3(Arc::new(Http3 {
        advertised_port: *advertised_port,
        max_age: max_age.transpose()?.unwrap_or(MAX_AGE),
        policy: policy.clone(),
    })))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(section: Value) -> Result<Content, Fault> {
        let policy = ObjectRef::new("portcullis.dev", "ClientPolicy", "ns", "policy");
        http3(&policy, &serde_json::from_value(section).unwrap())
    }

    #[test]
    fn an_empty_section_has_the_port_of_the_listener_and_a_day() {
        let Ok(Content::Http3(settings)) = read(json!({})) else {
            panic!("HTTP/3");
        };
        assert_eq!(settings.advertised_port, None);
        assert_eq!(settings.max_age, Duration::from_secs(86_400));
    }

    #[test]
    fn faults_name_the_field() {
        for (section, expected) in [
            (json!({"advertisedPort": 1, "maxAge": "1s"}), None),
            (json!({"advertisedPort": 65535, "maxAge": "8760h"}), None),
            (
                json!({"advertisedPort": 0}),
                Some("spec.http3.advertisedPort: 0 is not a port"),
            ),
            (
                json!({"maxAge": "999ms"}),
                Some("spec.http3.maxAge: must be 1s to 8760h"),
            ),
            (
                json!({"maxAge": "8761h"}),
                Some("spec.http3.maxAge: must be 1s to 8760h"),
            ),
        ] {
            let message = read(section).err().map(|fault| fault.message);
            assert_eq!(message.as_deref(), expected);
        }
    }
}
