//! The status page: files that the program contains. Has no data: its script gets them from `/api/v1/`.

use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_SECURITY_POLICY;

use super::response::{Reply, file};

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The files with their paths and types.
const FILES: [(&str, &str, &str); 7] = [
    ("/", HTML, include_str!("index.html")),
    ("/page.css", STYLE, include_str!("page.css")),
    ("/page.js", SCRIPT, include_str!("page.js")),
    ("/views.js", SCRIPT, include_str!("views.js")),
    ("/charts.js", SCRIPT, include_str!("charts.js")),
    ("/icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("/elements.js", SCRIPT, include_str!("elements.js")),
];

/// What a browser may load and run: files of this server, and nothing that is written in the page itself.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; \
                      form-action 'none'; frame-ancestors 'none'";

/// Reports whether a path is that of a file.
pub(super) fn is_part(path: &str) -> bool {
    FILES.iter().any(|(of, ..)| *of == path)
}

/// Returns the file of a path; `None` if there is none.
pub(super) fn asset(path: &str) -> Option<Reply> {
    let (_, content_type, text) = FILES.iter().find(|(of, ..)| *of == path)?;
    let mut response = file(content_type, Bytes::from_static(text.as_bytes()));
    let policy = HeaderValue::from_static(POLICY);
    response
        .headers_mut()
        .insert(CONTENT_SECURITY_POLICY, policy);
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_refer_to_each_other_and_to_nothing_else() {
        for (path, _, text) in FILES {
            for part in [
                "http://",
                "https://",
                "style=",
                "onclick",
                "innerHTML",
                "eval(",
            ] {
                let allowed = [
                    "`http://${text}`",
                    "https://shop.example.com",
                    "xmlns=",
                    "const SVG = \"http://www.w3.org/2000/svg\";",
                ];
                let mut lines = text.lines().filter(|line| line.contains(part));
                let found = lines.find(|line| !allowed.iter().any(|it| line.contains(it)));
                assert_eq!(found, None, "{part} in {path}");
            }
        }
        let (_, _, html) = FILES[0];
        assert!(html.contains("page.css") && html.contains("page.js"));
        assert!(!html.contains("<style") && !html.contains("<script>"));
    }

    #[test]
    fn browsers_may_load_only_files_of_the_server() {
        let response = asset("/").unwrap();
        let policy = response.headers()[CONTENT_SECURITY_POLICY]
            .to_str()
            .unwrap();
        assert!(policy.starts_with("default-src 'none'") && !policy.contains("unsafe"));
        assert!(asset("/other").is_none() && !is_part("/metrics"));
    }
}
