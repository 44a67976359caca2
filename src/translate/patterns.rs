//! The regular expressions of routes: checks them, and limits what they may take in memory, per route and over all.

mod budgets;

use std::collections::BTreeMap;

use crate::ir::Pattern;

pub(in crate::translate) use self::budgets::PatternBudgets;

use crate::translate::reason::{Fault, Reason};

/// Maximum memory of the compiled patterns of one route, in bytes. Some 300 patterns such as `/api/v[0-9]+/[^/]+`.
const MAX_OF_ROUTE: usize = 1 << 20;

/// The patterns of a route while it is translated.
#[derive(Default)]
pub(in crate::translate) struct RoutePatterns {
    by_source: BTreeMap<Box<str>, Pattern>,
    cost: usize,
    /// Whether one did not fit. No further one is even checked then.
    is_full: bool,
}

impl RoutePatterns {
    /// Checks the pattern of a field. A pattern that occurs several times counts once.
    pub(in crate::translate) fn parse(
        &mut self,
        source: &str,
        field: &str,
    ) -> Result<Pattern, Fault> {
        if let Some(known) = self.by_source.get(source) {
            return Ok(known.clone());
        }
        if self.is_full {
            return Err(exceeded(field));
        }
        let pattern = Pattern::new(source).map_err(|problem| {
            let message =
                format!("{field}: {source:?} is not a usable regular expression: {problem}");
            Fault::new(Reason::UnsupportedValue, message)
        })?;
        let cost = self.cost + pattern.cost();
        if cost > MAX_OF_ROUTE {
            self.is_full = true;
            return Err(exceeded(field));
        }
        self.cost = cost;
        self.by_source.insert(source.into(), pattern.clone());
        Ok(pattern)
    }

    /// Returns an upper bound for the memory of all patterns, in bytes.
    pub(in crate::translate) fn cost(&self) -> usize {
        self.cost
    }
}

fn exceeded(field: &str) -> Fault {
    let message = format!(
        "{field}: the regular expressions of the route up to this one take more than {} KiB of memory, the limit for a \
         route; simplify them, or move rules to another route",
        MAX_OF_ROUTE / 1024
    );
    Fault::new(Reason::UnsupportedValue, message)
}
