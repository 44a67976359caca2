//! The path template of the match that a request meets, for the names of spans. It comes from the configuration only, so
//! that it never has data of a request.

use super::matcher::path_fits;
use super::rule::Rule;
use crate::ir::route::{PathMatch, ValueMatch};

impl Rule {
    /// Returns the path template of the first match that this path meets: the path for an exact one, `/*` behind a
    /// prefix, and a regular expression as it is.
    pub fn path_template(&self, path: &str) -> Option<String> {
        let mut paths = self.ir.matches.iter().map(|it| &it.path);
        paths.find(|it| path_fits(it, path)).map(template)
    }
}

fn template(path: &PathMatch) -> String {
    let part = |part: &Option<ValueMatch>| match part {
        None => "*".to_owned(),
        Some(ValueMatch::Exact(exact)) => exact.to_string(),
        Some(ValueMatch::Regex(pattern)) => pattern.source().to_owned(),
    };
    match path {
        PathMatch::Exact(exact) => exact.to_string(),
        PathMatch::Prefix(prefix) => format!("{prefix}/*"),
        PathMatch::Regex(pattern) => pattern.source().to_owned(),
        PathMatch::Call(call) => format!("/{}/{}", part(&call.service), part(&call.method)),
    }
}
