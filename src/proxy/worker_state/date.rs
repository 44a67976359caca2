//! The `Date` header of responses, formatted once a second per worker.

use std::cell::{Cell, RefCell};
use std::time::SystemTime;

use http::HeaderValue;

use crate::runtime::clock::Clock;

/// Cached `Date` header.
pub(crate) struct Date {
    /// Clock time of the last comparison with the system time.
    checked: Cell<u64>,
    header: RefCell<HeaderValue>,
}

impl Default for Date {
    fn default() -> Self {
        Self {
            checked: Cell::new(u64::MAX),
            header: RefCell::new(HeaderValue::from_static("")),
        }
    }
}

impl Date {
    /// Returns the header value, at most one tick of the clock old.
    pub(crate) fn header(&self, clock: &Clock) -> HeaderValue {
        if self.checked.replace(clock.now()) != clock.now() {
            let text = httpdate::fmt_http_date(SystemTime::now());
            if let Ok(header) = HeaderValue::try_from(text) {
                *self.header.borrow_mut() = header;
            }
        }
        self.header.borrow().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_the_current_time() {
        let (date, clock) = (Date::default(), Clock::new());
        for _ in 0..2 {
            let header = date.header(&clock);
            let text = header.to_str().expect("text");
            let parsed = httpdate::parse_http_date(text).expect("a date");
            assert!(parsed.elapsed().expect("past") < std::time::Duration::from_secs(60));
        }
    }
}
