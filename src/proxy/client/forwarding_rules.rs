//! What policies say of the headers about the origin of requests: which of them backends get, and where ids come from. Must
//! not know requests.

use http::HeaderValue;

use crate::ir::client::{ConnectionSettings, ForwardingHeader, RequestIds};

/// Maximum length of an id that a client chooses: it is in every line of the log about the request.
const MAX_ID: usize = 128;

/// The rules of a connection.
#[derive(Debug)]
pub(crate) struct ForwardingRules {
    ids: Option<RequestIds>,
    sent: Option<Vec<ForwardingHeader>>,
    /// The port that the listener declares.
    pub(super) port: u16,
}

impl ForwardingRules {
    /// Returns the rules for a port; `None` without any.
    pub(in crate::proxy) fn new(settings: &ConnectionSettings, port: u16) -> Option<Self> {
        let (ids, sent) = (settings.request_id, &settings.forwarded);
        (ids.is_some() || sent.is_some()).then(|| Self {
            ids,
            sent: sent.clone(),
            port,
        })
    }

    /// Returns the id that a client has chosen, if it may.
    pub(super) fn id(&self, chosen: Option<HeaderValue>, is_trusted: bool) -> Option<HeaderValue> {
        match self.ids {
            None => chosen.filter(|_| is_trusted),
            Some(RequestIds::Trust) => chosen.filter(is_id),
            Some(RequestIds::Generate | RequestIds::Off) => None,
        }
    }

    /// Reports whether backends get the id.
    pub(super) fn send_id(&self) -> bool {
        self.ids != Some(RequestIds::Off)
    }

    /// Returns the headers that backends get; `None` for the usual ones.
    pub(super) fn sent(&self) -> Option<&[ForwardingHeader]> {
        self.sent.as_deref()
    }
}

/// Reports whether a value can be the id of a request: visible characters of ASCII.
fn is_id(value: &HeaderValue) -> bool {
    let bytes = value.as_bytes();
    (1..=MAX_ID).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(ids: Option<RequestIds>) -> ForwardingRules {
        let settings = ConnectionSettings {
            request_id: ids,
            forwarded: Some(Vec::new()),
            ..ConnectionSettings::default()
        };
        ForwardingRules::new(&settings, 80).unwrap()
    }

    #[test]
    fn ids_of_clients_count_as_the_policy_says() {
        let chosen = |ids, id: &'static str, is_trusted| {
            let id = HeaderValue::from_static(id);
            rules(ids).id(Some(id), is_trusted).is_some()
        };
        for (ids, of_client, of_proxy) in [
            (None, false, true),
            (Some(RequestIds::Generate), false, false),
            (Some(RequestIds::Trust), true, true),
            (Some(RequestIds::Off), false, false),
        ] {
            assert_eq!(chosen(ids, "a-1", false), of_client, "{ids:?}");
            assert_eq!(chosen(ids, "a-1", true), of_proxy, "{ids:?}");
        }
        for id in ["", "a b", "a\tb"] {
            assert!(!chosen(Some(RequestIds::Trust), id, true), "{id:?}");
        }
        let long = HeaderValue::try_from("a".repeat(MAX_ID + 1)).unwrap();
        assert!(
            rules(Some(RequestIds::Trust))
                .id(Some(long), true)
                .is_none()
        );
    }

    #[test]
    fn connection_without_policies_has_no_rules() {
        assert!(ForwardingRules::new(&ConnectionSettings::default(), 80).is_none());
    }
}
