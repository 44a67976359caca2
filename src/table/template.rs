//! What observers see of a rule: path templates and backends. It comes from the configuration only, so that it never has data
//! of a request, nor the values of headers, which may be credentials.

use super::rule::Rule;
use crate::ir::canonical_path::CanonicalPath;
use crate::ir::route::{Action, BackendTarget, PathMatch, ValueMatch, WeightedBackend};

impl Rule {
    /// Returns the path template of the first match that this path meets: the path for an exact one, `/*` behind a
    /// prefix, and a regular expression as it is.
    pub fn path_template(&self, path: CanonicalPath<'_>) -> Option<String> {
        let mut paths = self.ir.matches.iter().map(|it| &it.path);
        paths.find(|it| it.matches(path)).map(template)
    }

    /// Returns method and path template of each match; `*` is any method. Without headers and query parameters.
    pub fn match_texts(&self) -> impl Iterator<Item = String> {
        self.ir.matches.iter().map(|it| {
            let method = it
                .others
                .method
                .as_ref()
                .map_or("*", |method| method.as_str());
            let has_more = !it.others.headers.is_empty() || !it.others.query.is_empty();
            let more = if has_more { " with conditions" } else { "" };
            format!("{method} {}{more}", template(&it.path))
        })
    }

    /// Returns the backends with their weights. A backend to which nothing can be sent is `invalid`, with the reason.
    pub fn shares(&self) -> Vec<(String, u32)> {
        match &self.ir.action {
            Action::Invalid(why) => vec![(format!("invalid: {why}"), 0)],
            Action::Forward(shares) => {
                let share = |it: &WeightedBackend| match &it.target {
                    BackendTarget::Backend(id) => (id.to_string(), it.weight),
                    BackendTarget::Invalid(why) => (format!("invalid: {why}"), it.weight),
                };
                shares.iter().map(share).collect()
            }
        }
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
        PathMatch::Prefix(prefix) => [&**prefix, "/*"].concat(),
        PathMatch::Regex(pattern) => pattern.source().to_owned(),
        PathMatch::Call(call) => format!("/{}/{}", part(&call.service), part(&call.method)),
    }
}
