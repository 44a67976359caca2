//! Which requests a tap shows.

use std::time::Duration;

use crate::ir::ObjectRef;
use crate::telemetry::access_log::{Begun, Completion};

/// Which requests a tap shows: those that meet all that is set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TapFilter {
    /// Route, as `NAMESPACE/NAME`, also with its kind before it.
    pub route: Option<String>,
    /// Host, in lower case and without port; `*.` stands for one label or more.
    pub host: Option<String>,
    /// Method.
    pub method: Option<String>,
    /// Begin of the path.
    pub path: Option<String>,
    /// Status.
    pub status: Option<StatusFilter>,
    /// Minimum duration.
    pub min_duration: Option<Duration>,
}

/// A status, or a class of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusFilter {
    /// This status.
    Is(u16),
    /// All from a hundred on, as 5 stands for 500 to 599.
    Class(u16),
}

impl StatusFilter {
    /// Reads a status such as `503`, or a class such as `5xx`.
    pub fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix("xx") {
            Some(class) => {
                let class = class.parse().ok();
                class.filter(|it| (1..=5).contains(it)).map(Self::Class)
            }
            None => {
                let status = text.parse().ok();
                status.filter(|it| (100..=599).contains(it)).map(Self::Is)
            }
        }
    }

    fn admits(self, status: u16) -> bool {
        match self {
            Self::Is(wanted) => status == wanted,
            Self::Class(class) => status / 100 == class,
        }
    }
}

impl TapFilter {
    /// Whether a request that ended so is shown, apart from its begin.
    pub(super) fn admits_end(&self, end: &Completion<'_>) -> bool {
        self.status.is_none_or(|it| it.admits(end.status))
            && self.min_duration.is_none_or(|it| end.duration >= it)
            && self.admits_route(end.rule.map(|(route, _)| route))
    }

    /// Whether a request of this route is shown, apart from the rest. Does not allocate.
    pub(super) fn admits_route(&self, route: Option<&ObjectRef>) -> bool {
        let Some(wanted) = &self.route else {
            return true;
        };
        route.is_some_and(|route| {
            let (kind, name) = match wanted.split_once(' ') {
                Some((kind, name)) => (Some(kind), name),
                None => (None, &**wanted),
            };
            kind.is_none_or(|kind| *kind == *route.kind)
                && name.split_once('/') == Some((&*route.namespace, &*route.name))
        })
    }

    /// Whether the begin of a request matters.
    pub(super) fn needs_begin(&self) -> bool {
        self.host.is_some() || self.method.is_some() || self.path.is_some()
    }

    /// Whether a request that began so is shown, apart from its end.
    pub(super) fn admits_begin(&self, begun: &Begun) -> bool {
        let is_host = |wanted: &String| match wanted.strip_prefix('*') {
            Some(suffix) => {
                let label = begun.host.strip_suffix(suffix);
                label.is_some_and(|label| !label.is_empty())
            }
            None => begun.host == *wanted,
        };
        self.host.as_ref().is_none_or(is_host)
            && self.method.as_ref().is_none_or(|it| begun.method == *it)
            && (self.path.as_ref()).is_none_or(|it| begun.path.starts_with(&**it))
    }
}
