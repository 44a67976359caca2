//! What error pages need of a request, as its client has sent it, and the page that a server has given for it. Must not know
//! how pages are fetched.

use http::header::{ACCEPT_LANGUAGE, HOST};
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, request};

use crate::filter::error_page::{self, Accept};
use crate::ir::error_page::{ErrorPage, PageContent, PageServer, Responder};
use crate::proxy::body::page_body::PageBody;
use crate::proxy::body::response_body::BodySource;

/// What decides about the error page for a request.
pub(in crate::proxy) struct WantedPage {
    /// The media types that the client accepts.
    pub(in crate::proxy) accept: Accept,
    /// What servers of pages get of the request; `None` if no page has a server. Boxed, since few policies have it.
    pub(in crate::proxy) original: Option<Box<OriginalRequest>>,
    /// The page of a server.
    fetched: Option<Box<FetchedPage>>,
}

/// A request before filters change it.
pub(in crate::proxy) struct OriginalRequest {
    pub(in crate::proxy) uri: Uri,
    pub(in crate::proxy) host: Option<HeaderValue>,
    pub(in crate::proxy) language: Option<HeaderValue>,
    pub(in crate::proxy) is_head: bool,
}

/// A page that a server has given.
pub(in crate::proxy) struct FetchedPage {
    /// The status of the response.
    pub(in crate::proxy) status: StatusCode,
    /// Headers about the page.
    pub(in crate::proxy) headers: HeaderMap,
    /// The page.
    pub(in crate::proxy) body: Box<PageBody>,
}

impl WantedPage {
    /// Reads the request of a client.
    pub(in crate::proxy) fn of(pages: &[ErrorPage], parts: &request::Parts) -> Self {
        let has_server = |page: &ErrorPage| matches!(page.content, PageContent::Server(_));
        let headers = &parts.headers;
        let original = || OriginalRequest {
            uri: parts.uri.clone(),
            host: headers.get(HOST).cloned(),
            language: headers.get(ACCEPT_LANGUAGE).cloned(),
            is_head: parts.method == Method::HEAD,
        };
        Self {
            accept: Accept::of(headers),
            original: pages.iter().any(has_server).then(|| Box::new(original())),
            fetched: None,
        }
    }

    /// Returns the page for a response and its server, if it has one that was not asked yet.
    pub(in crate::proxy) fn server<'a>(
        &self,
        pages: &'a [ErrorPage],
        response: (StatusCode, Responder),
    ) -> Option<(&'a ErrorPage, &'a PageServer)> {
        self.original.as_ref()?;
        let page = error_page::find(pages, response)?;
        match &page.content {
            PageContent::Server(server) => Some((page, server)),
            PageContent::Variants(_) => None,
        }
    }

    /// Uses the page of a server for the response.
    pub(in crate::proxy) fn fetched(&mut self, page: Option<Box<FetchedPage>>) {
        self.fetched = page;
    }

    /// Returns the status and body of the page that replaces a response, and changes the headers to those of the page.
    pub(in crate::proxy) fn replace(
        &mut self,
        pages: &[ErrorPage],
        response: (StatusCode, Responder),
        headers: &mut HeaderMap,
    ) -> Option<(StatusCode, BodySource)> {
        if let Some(page) = self.fetched.take() {
            let FetchedPage {
                status,
                headers: of_page,
                body,
            } = *page;
            error_page::replace_by_fetched(headers, of_page);
            return Some((status, BodySource::Page(body)));
        }
        let page = error_page::replace(pages, response, &self.accept, headers);
        page.map(|(status, body)| (status, BodySource::Memory(body)))
    }
}
