//! RoutePolicies: how requests are handled where their rule does not say it.

use std::collections::BTreeMap;

use crate::api::Resource;
use crate::api::filter::HeaderModifier;
use crate::api::route_policy::{BodyBuffer, RequestBody, RoutePolicy, RouteSpec, RouteTimeouts};
use crate::ir::ObjectRef;
use crate::ir::error_page::ErrorPage;
use crate::ir::filter::HeaderChanges;
use crate::ir::route_defaults::RouteDefaults;

use super::policy::{Content, Policy, Section};
use super::{compression, error_pages};
use crate::translate::filter::{Message, headers};
use crate::translate::input::Input;
use crate::translate::reason::{ConditionType, Fault, Reason};
use crate::translate::{duration, retry, size, timeouts};

/// Maximum size of request bodies that are read as a whole: a client may keep some of them at the same time.
const MAX_BUFFERED_BODY: usize = 1024 * 1024;

/// Parses a policy.
pub(super) fn read(input: &Input<'_>, object: &RoutePolicy) -> Policy {
    // Destructured, so that a new field fails to compile until it is handled here.
    let RouteSpec {
        target_refs: _,
        strategy: _,
        request_body,
        timeouts,
        retry,
        request_headers,
        response_headers,
        compression,
        error_pages,
    } = &object.spec;
    let name = object.object_ref();
    let mut sections = BTreeMap::new();
    let mut set = |section, content: Option<Result<RouteDefaults, Fault>>| {
        let content = content.map(|content| of_policy(&name, content));
        sections.extend(content.map(|content| (section, content)));
    };
    set(
        Section::RequestBody,
        request_body.as_ref().map(self::request_body),
    );
    set(
        Section::RouteTimeouts,
        timeouts.as_ref().map(self::timeouts),
    );
    let retry = retry.as_ref().map(|spec| {
        Ok(RouteDefaults {
            retry: Some(retry::translate(spec, Section::Retry.field())?),
            ..RouteDefaults::default()
        })
    });
    set(Section::Retry, retry);
    let changed = |spec: &Option<HeaderModifier>, of, section: Section| {
        let spec = spec.as_ref();
        spec.map(|spec| headers(spec, of, section.field()))
    };
    let section = Section::RequestHeaders;
    let changes = changed(request_headers, Message::Request, section);
    set(section, changes.map(|it| it.map(of_requests)));
    let section = Section::ResponseHeaders;
    let changes = changed(response_headers, Message::Response, section);
    set(section, changes.map(|it| it.map(of_responses)));
    let compression = compression.as_ref().map(|spec| {
        Ok(RouteDefaults {
            compression: Some(compression::read(spec)?),
            ..RouteDefaults::default()
        })
    });
    set(Section::Compression, compression);
    let mut page_servers = Vec::new();
    let pages = error_pages.as_ref();
    let pages = pages.map(|pages| error_pages::read(input, &name, pages, &mut page_servers));
    let unresolved = pages.as_ref().and_then(|pages| pages.as_ref().err());
    let unresolved = unresolved.filter(|fault| fault.reason == Reason::InvalidConfigMapRef);
    let unresolved = unresolved.cloned();
    set(
        Section::ErrorPages,
        pages.map(|pages| pages.map(of_error_pages)),
    );
    let mut policy = Policy::new(object, ConditionType::RoutePolicyAffected, sections);
    policy.protects = false;
    policy.unresolved.extend(unresolved);
    policy.page_servers = page_servers;
    policy
}

/// Returns the content of a section of a policy.
fn of_policy(name: &ObjectRef, section: Result<RouteDefaults, Fault>) -> Result<Content, Fault> {
    match section {
        Ok(mut defaults) => {
            defaults.policies.push(name.clone());
            Ok(Content::Route(Box::new(defaults)))
        }
        Err(fault) => Err(Fault::new(Reason::Invalid, fault.message)),
    }
}

fn request_body(section: &RequestBody) -> Result<RouteDefaults, Fault> {
    let RequestBody { max_size, buffer } = section;
    let field = "spec.requestBody.maxSize";
    let max_size = max_size.as_ref();
    let buffer = buffer.as_ref();
    Ok(RouteDefaults {
        max_body: max_size.map(|size| size::parse(size, field)).transpose()?,
        buffered_body: buffer.map(buffered_body).transpose()?,
        ..RouteDefaults::default()
    })
}

fn buffered_body(buffer: &BodyBuffer) -> Result<usize, Fault> {
    let BodyBuffer { limit } = buffer;
    let field = "spec.requestBody.buffer.limit";
    let bytes = size::parse(limit, field)?;
    let limit = usize::try_from(bytes).ok();
    let limit = limit.filter(|limit| (1..=MAX_BUFFERED_BODY).contains(limit));
    limit.ok_or_else(|| {
        let message = format!("{field}: {bytes} bytes are not 1 to {MAX_BUFFERED_BODY}");
        Fault::new(Reason::Invalid, message)
    })
}

fn timeouts(section: &RouteTimeouts) -> Result<RouteDefaults, Fault> {
    let RouteTimeouts {
        of_rules,
        stream_idle,
    } = section;
    let field = Section::RouteTimeouts.field();
    let idle = stream_idle.as_ref();
    let idle = idle.map(|text| duration::parse(text, &format!("{field}.streamIdle")));
    Ok(RouteDefaults {
        timeouts: timeouts::translate(of_rules, field)?,
        stream_idle: idle.transpose()?,
        ..RouteDefaults::default()
    })
}

fn of_error_pages(error_pages: Vec<ErrorPage>) -> RouteDefaults {
    RouteDefaults {
        error_pages,
        ..RouteDefaults::default()
    }
}

fn of_requests(changes: HeaderChanges) -> RouteDefaults {
    RouteDefaults {
        request_headers: Some(changes),
        ..RouteDefaults::default()
    }
}

fn of_responses(changes: HeaderChanges) -> RouteDefaults {
    RouteDefaults {
        response_headers: Some(changes),
        ..RouteDefaults::default()
    }
}
