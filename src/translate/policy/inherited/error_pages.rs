//! `errorPages` of RoutePolicies.

use http::HeaderValue;

use crate::api::route_policy::{ErrorPage, PageKey, PagesRef};
use crate::ir::ObjectRef;
use crate::ir::error_page::{self as ir, PageContent, PageSource, PageVariant};

use super::policy::PageServer;
use crate::translate::config_map;
use crate::translate::input::Input;
use crate::translate::media_type;
use crate::translate::reason::{Fault, Faults, Reason, all, both, invalid};

/// Parses the section of a policy, and collects the servers that it names. A ConfigMap that cannot be used has the reason
/// `InvalidConfigMapRef`.
pub(super) fn read(
    input: &Input<'_>,
    policy: &ObjectRef,
    section: &[ErrorPage],
    servers: &mut Vec<PageServer>,
) -> Result<Vec<ir::ErrorPage>, Fault> {
    let pages = section.iter().zip(0..);
    let pages = pages.map(|(page, index)| {
        let field = format!("spec.errorPages[{index}]");
        self::page(input, policy, (page, &field), servers)
    });
    let pages = all(pages);
    if pages.is_err() {
        servers.clear();
    }
    pages
}

fn page(
    input: &Input<'_>,
    policy: &ObjectRef,
    (page, field): (&ErrorPage, &str),
    servers: &mut Vec<PageServer>,
) -> Result<ir::ErrorPage, Fault> {
    // Destructured, so that a new field fails to compile until it is handled here.
    let ErrorPage {
        codes,
        source,
        config_map_ref,
        backend_ref,
        keep_status,
    } = page;
    let source = match source.as_deref() {
        None | Some("Gateway") => Ok(PageSource::Gateway),
        Some("Backend") => Ok(PageSource::Backend),
        Some("Any") => Ok(PageSource::Any),
        Some(other) => invalid(format!(
            "{field}.source: {other:?} is none of Gateway, Backend and Any"
        )),
    };
    let codes = self::codes(codes, field);
    let content = match (config_map_ref, backend_ref) {
        (Some(PagesRef { name, keys }), None) => {
            let map = ObjectRef::core("ConfigMap", &policy.namespace, name);
            let field = format!("{field}.configMapRef");
            variants(input, &map, keys, &field).map(PageContent::Variants)
        }
        (None, Some(reference)) => {
            servers.push(PageServer {
                field: format!("{field}.backendRef"),
                reference: reference.clone(),
            });
            Ok(PageContent::Server(ir::PageServer {
                policy: policy.clone(),
                index: servers.len() - 1,
                backend: reference.object_ref(&policy.namespace),
            }))
        }
        _ => invalid(format!(
            "{field}: has not exactly one of configMapRef and backendRef"
        )),
    };
    let (source, (codes, content)) = both(source, both(codes, content))?;
    Ok(ir::ErrorPage {
        codes,
        source,
        content,
        keeps_status: keep_status.unwrap_or(true),
    })
}

fn codes(codes: &[u16], field: &str) -> Result<Vec<u16>, Fault> {
    let mut sorted = codes.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.is_empty() {
        return invalid(format!("{field}.codes: it is empty"));
    }
    all(sorted.into_iter().map(|code| match code {
        400..=599 => Ok(code),
        _ => invalid(format!("{field}.codes: {code} is not 400 to 599")),
    }))
}

fn variants(
    input: &Input<'_>,
    map: &ObjectRef,
    keys: &[PageKey],
    field: &str,
) -> Result<Vec<PageVariant>, Fault> {
    let (mut variants, mut faults) = (Vec::<PageVariant>::new(), Faults::default());
    for (index, PageKey { key, media_type }) in keys.iter().enumerate() {
        let place = format!("{field}.keys[{index}].mediaType");
        let parsed = match media_type::parse(media_type) {
            Some(parsed) if variants.iter().any(|it| it.media_type() == parsed) => {
                invalid(format!("{place}: {parsed} is listed before"))
            }
            Some(parsed) => Ok(parsed),
            None => invalid(format!(
                "{place}: {media_type:?} is not a media type such as text/html"
            )),
        };
        let body = config_map::text(input, map, key).map_err(|why| {
            let message = format!("{field}.keys[{index}].key: {why}");
            Fault::new(Reason::InvalidConfigMapRef, message)
        });
        if let Some((parsed, body)) = faults.keep(both(parsed, body)) {
            variants.push(PageVariant {
                content_type: content_type(parsed),
                body,
            });
        }
    }
    match keys.is_empty() {
        true => invalid(format!("{field}.keys: it is empty")),
        false => faults.finish(variants),
    }
}

/// Returns the `Content-Type` of a page: values of ConfigMaps are UTF-8.
fn content_type(mut media_type: String) -> HeaderValue {
    if media_type.starts_with("text/") {
        media_type.push_str("; charset=utf-8");
    }
    let fallback = HeaderValue::from_static("application/octet-stream");
    HeaderValue::try_from(media_type).unwrap_or(fallback)
}
