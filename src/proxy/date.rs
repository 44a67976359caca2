//! The `Date` of responses, formatted once a second on each worker.

use std::cell::{Cell, RefCell};
use std::time::SystemTime;

use http::HeaderValue;

use crate::clock::Clock;

/// The current time as a header.
pub(crate) struct Date {
    /// The clock's time when the header was last compared with the system's.
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
    /// The header's value by this clock, as old as the clock's tick at most.
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
    fn says_the_time() {
        let (date, clock) = (Date::default(), Clock::new());
        for _ in 0..2 {
            let header = date.header(&clock);
            let text = header.to_str().expect("text");
            let said = httpdate::parse_http_date(text).expect("a date");
            assert!(said.elapsed().expect("past") < std::time::Duration::from_secs(60));
        }
    }
}
