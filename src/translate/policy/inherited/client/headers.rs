//! `headers` of a ClientPolicy.

use crate::api::client_policy::HeaderLimits;
use crate::ir::client::{ConnectionSettings, ForwardingHeader, RequestIds, Underscores};

use super::super::policy::Content;
use crate::translate::reason::{Fault, Faults, invalid};

pub(super) fn headers(section: &HeaderLimits) -> Result<Content, Fault> {
    let HeaderLimits {
        max_count,
        max_bytes,
        underscores,
        request_id,
        forwarded,
    } = section;
    for (name, value) in [("maxCount", max_count), ("maxBytes", max_bytes)] {
        if *value == Some(0) {
            return invalid(format!("spec.headers.{name}: 0 would refuse every request"));
        }
    }
    let underscores = match underscores.as_deref() {
        None => None,
        Some("Allow") => Some(Underscores::Allow),
        Some("Drop") => Some(Underscores::Drop),
        Some("Reject") => Some(Underscores::Reject),
        Some(other) => {
            return invalid(format!(
                "spec.headers.underscores: {other:?} is none of Allow, Drop and Reject"
            ));
        }
    };
    let request_id = match request_id.as_deref() {
        None => None,
        Some("Generate") => Some(RequestIds::Generate),
        Some("Trust") => Some(RequestIds::Trust),
        Some("Off") => Some(RequestIds::Off),
        Some(other) => {
            return invalid(format!(
                "spec.headers.requestID: {other:?} is none of Generate, Trust and Off"
            ));
        }
    };
    let forwarded = forwarded.as_deref().map(self::forwarded).transpose()?;
    Ok(Content::Connections(ConnectionSettings {
        max_headers: max_count.map(|it| it as usize),
        max_header_bytes: max_bytes.map(|it| it as usize),
        underscores,
        request_id,
        forwarded,
        ..ConnectionSettings::default()
    }))
}

fn forwarded(names: &[String]) -> Result<Vec<ForwardingHeader>, Fault> {
    let (mut headers, mut faults) = (Vec::new(), Faults::default());
    for (index, name) in names.iter().enumerate() {
        let mut all = ForwardingHeader::ALL.into_iter();
        let header = all.find(|it| it.name() == name).map_or_else(
            || {
                let all = ForwardingHeader::ALL.map(ForwardingHeader::name).join(", ");
                invalid(format!(
                    "spec.headers.forwarded[{index}]: {name:?} is none of {all}"
                ))
            },
            Ok,
        );
        let header = faults.keep(header);
        headers.extend(header.filter(|it| !headers.contains(it)));
    }
    faults.finish(headers)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn faults_name_the_field() {
        for (section, expected) in [
            (
                json!({"underscores": "Drop", "requestID": "Off", "forwarded": []}),
                None,
            ),
            (
                json!({"underscores": "Remove"}),
                Some("spec.headers.underscores: \"Remove\" is none of Allow, Drop and Reject"),
            ),
            (
                json!({"requestID": "On"}),
                Some("spec.headers.requestID: \"On\" is none of Generate, Trust and Off"),
            ),
            (
                json!({"forwarded": ["Forwarded", "Via"]}),
                Some(
                    "spec.headers.forwarded[1]: \"Via\" is none of X-Forwarded-For, X-Forwarded-Proto, \
                     X-Forwarded-Host, X-Forwarded-Port, X-Real-IP, Forwarded",
                ),
            ),
            (
                json!({"maxCount": 0}),
                Some("spec.headers.maxCount: 0 would refuse every request"),
            ),
        ] {
            let section = serde_json::from_value(section).unwrap();
            let message = headers(&section).err().map(|fault| fault.message);
            assert_eq!(message.as_deref(), expected);
        }
    }
}
