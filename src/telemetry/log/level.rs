//! The level of the log: the configured one, or another one for a limited time. Must not know who sets it and who watches
//! the time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::ParseError;

/// Libraries that log errors which the process logs itself, or events that any client can cause,
/// such as rustls' warnings about server names. Explicit directives override this.
const NOISY: &str = "kube_client=off,kube_runtime=off,notify=error,rustls::msgs=error";
/// Maximum length of directives that a running process accepts, in bytes.
const MAX_DIRECTIVES: usize = 1024;
/// Maximum time for which a level can be set.
const MAX_TIME: Duration = Duration::from_secs(24 * 60 * 60);

/// The level of the log, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The level or directives in effect.
    pub current: String,
    /// Those that the process was started with.
    pub configured: String,
    /// When the configured ones are in effect again; `None` if they are.
    pub until: Option<Instant>,
}

/// Why a level cannot be set.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LevelError {
    /// The text is no level.
    #[error(
        "`{0}` is not a level: write error, warn, info, debug, trace or off, or directives such as info,portcullis::proxy=debug"
    )]
    Invalid(String),
    /// The time is zero or too long.
    #[error("a level can be set for 1 s to 24 h")]
    Time,
    /// The process has no log.
    #[error("the log of this process is not started")]
    NotStarted,
}

/// Puts a filter into effect.
pub(super) type Apply = Box<dyn Fn(EnvFilter) + Send + Sync>;

/// Sets the level of a log.
pub(super) struct LevelControl {
    configured: String,
    apply: Apply,
    temporary: Mutex<Option<Temporary>>,
}

struct Temporary {
    directives: String,
    until: Instant,
}

impl LevelControl {
    /// Controls a log whose filter was made of `configured`.
    pub(super) fn new(configured: &str, apply: Apply) -> Self {
        Self {
            configured: configured.to_owned(),
            apply,
            temporary: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Temporary>> {
        self.temporary
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn level(&self, temporary: &Option<Temporary>) -> Level {
        let current = temporary.as_ref().map(|it| &it.directives);
        Level {
            current: current.unwrap_or(&self.configured).clone(),
            configured: self.configured.clone(),
            until: temporary.as_ref().map(|it| it.until),
        }
    }

    /// Returns the level.
    pub(super) fn get(&self) -> Level {
        self.level(&self.lock())
    }

    /// Sets a level for a time from `now`.
    pub(super) fn set(
        &self,
        directives: &str,
        time: Duration,
        now: Instant,
    ) -> Result<Level, LevelError> {
        if time.is_zero() || time > MAX_TIME {
            return Err(LevelError::Time);
        }
        let filter = checked(directives)?;
        let mut temporary = self.lock();
        (self.apply)(filter);
        *temporary = Some(Temporary {
            directives: directives.to_owned(),
            until: now + time,
        });
        Ok(self.level(&temporary))
    }

    /// Puts the configured level into effect if the time of another one is over. Returns whether it was.
    pub(super) fn expire(&self, now: Instant) -> bool {
        let mut temporary = self.lock();
        if temporary.as_ref().is_none_or(|it| it.until > now) {
            return false;
        }
        // These directives were read at the start.
        if let Ok(filter) = directives(&self.configured) {
            (self.apply)(filter);
        }
        *temporary = None;
        true
    }
}

/// Reads directives, after those for libraries.
pub(super) fn directives(filter: &str) -> Result<EnvFilter, ParseError> {
    EnvFilter::builder().parse(format!("{NOISY},{filter}"))
}

/// Reads directives of a running process: each is a level, or a module with a level. Unlike those of the command line,
/// they have no spans and no fields, and a single word is a level.
fn checked(text: &str) -> Result<EnvFilter, LevelError> {
    let invalid = || LevelError::Invalid(text.chars().take(80).collect());
    let is_level = |text: &str| text.parse::<LevelFilter>().is_ok() && !text.is_empty();
    let is_module = |text: &str| {
        let is_part = |it: char| it.is_ascii_alphanumeric() || matches!(it, '_' | ':' | '-');
        !text.is_empty() && text.chars().all(is_part)
    };
    let is_directive = |text: &str| match text.split_once('=') {
        None => is_level(text),
        Some((module, level)) => is_module(module) && is_level(level),
    };
    if text.len() > MAX_DIRECTIVES || !text.split(',').all(is_directive) {
        return Err(invalid());
    }
    directives(text).map_err(|_| invalid())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const TIME: Duration = Duration::from_secs(600);

    /// A control, and the filters that it puts into effect.
    fn control() -> (LevelControl, Arc<Mutex<Vec<String>>>) {
        let applied = Arc::<Mutex<Vec<String>>>::default();
        let filters = applied.clone();
        let apply = move |filter: EnvFilter| filters.lock().unwrap().push(filter.to_string());
        (LevelControl::new("info", Box::new(apply)), applied)
    }

    #[test]
    fn level_returns_to_the_configured_one_after_its_time() {
        let (control, applied) = control();
        let start = Instant::now();
        let level = control
            .set("info,portcullis::proxy=debug", TIME, start)
            .unwrap();
        assert_eq!(level.current, "info,portcullis::proxy=debug");
        assert_eq!(level.until, Some(start + TIME));
        assert!(!control.expire(start + TIME / 2));
        assert_eq!(control.get(), level);
        assert!(control.expire(start + TIME));
        assert!(!control.expire(start + TIME));
        let level = control.get();
        assert_eq!((&*level.current, level.until), ("info", None));
        let applied = applied.lock().unwrap();
        assert!(
            applied[0].contains("portcullis::proxy=debug"),
            "{applied:?}"
        );
        assert!(!applied[1].contains("proxy"), "{applied:?}");
    }

    #[test]
    fn a_later_level_replaces_an_earlier_one_and_its_time() {
        let (control, _) = control();
        let start = Instant::now();
        control.set("trace", TIME, start).unwrap();
        control.set("debug", TIME, start + TIME / 2).unwrap();
        assert!(!control.expire(start + TIME));
        assert_eq!(control.get().current, "debug");
    }

    #[test]
    fn texts_that_are_no_levels_change_nothing() {
        let (control, applied) = control();
        let long = "info,".repeat(300) + "info";
        for text in [
            "",
            "verbose",
            "info,",
            "a=",
            "=debug",
            "a=loud",
            "[span]=debug",
            "a[b{c=d}]=debug",
            "info,\n",
            &long,
        ] {
            let error = control.set(text, TIME, Instant::now()).unwrap_err();
            assert!(matches!(error, LevelError::Invalid(_)), "{text}");
        }
        for time in [Duration::ZERO, MAX_TIME + Duration::from_secs(1)] {
            let error = control.set("debug", time, Instant::now());
            assert_eq!(error, Err(LevelError::Time));
        }
        assert!(applied.lock().unwrap().is_empty());
    }
}
