//! The query of a document: which of many items it has, and in which order.

use serde_json::Value;

/// What a query asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Text that items must contain, in lower case.
    filter: String,
    /// Number of matching items that are skipped.
    offset: usize,
    /// Maximum number of items; `None` for all.
    limit: Option<usize>,
    /// Order of the items.
    pub(super) sort: Sort,
    /// The object that the document is about.
    pub(super) name: String,
}

/// The order of routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// By kind and name.
    #[default]
    Name,
    /// Those with the most requests or connections first.
    Requests,
    /// Those with the most responses of status 5xx, or failed connections, first.
    Errors,
}

/// A part of a list.
pub(super) struct Part {
    /// The items.
    pub(super) items: Vec<Value>,
    /// Number of all items that match the filter.
    pub(super) total: usize,
}

impl Query {
    /// Parses a query, whose size the server bounds.
    ///
    /// # Errors
    /// When a parameter is unknown, or has a value that it cannot have.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let mut parsed = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let wrong = || format!("`{value}` is not a value of the parameter `{name}`");
            match &*name {
                "filter" => parsed.filter = value.trim().to_lowercase(),
                "offset" => parsed.offset = value.parse().map_err(|_| wrong())?,
                "limit" => parsed.limit = Some(value.parse().map_err(|_| wrong())?),
                "sort" => parsed.sort = Sort::parse(&value).ok_or_else(wrong)?,
                "name" => parsed.name = value.into_owned(),
                _ => return Err(format!("there is no parameter `{name}`")),
            }
        }
        Ok(parsed)
    }

    /// Returns the items whose text matches the filter, as far as the query asks for them. Only these are viewed.
    pub(super) fn part<T>(
        &self,
        all: impl Iterator<Item = T>,
        text: impl Fn(&T) -> String,
        view: impl Fn(T) -> Value,
    ) -> Part {
        let matches = |item: &T| {
            self.filter.is_empty() || text(item).to_lowercase().contains(self.filter.as_str())
        };
        let end = self.limit.map(|limit| self.offset.saturating_add(limit));
        let (mut items, mut total) = (Vec::new(), 0);
        for item in all.filter(matches) {
            if total >= self.offset && end.is_none_or(|end| total < end) {
                items.push(view(item));
            }
            total += 1;
        }
        Part { items, total }
    }
}

impl Sort {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "name" => Self::Name,
            "requests" => Self::Requests,
            "errors" => Self::Errors,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(query: &str) -> (Vec<Value>, usize) {
        let all = ["Alpha", "beta", "alphabet", "gamma"].into_iter();
        let query = Query::parse(query).unwrap();
        let part = query.part(all, |it| (*it).to_owned(), Value::from);
        (part.items, part.total)
    }

    #[test]
    fn parts_are_those_of_the_matching_items() {
        assert_eq!(part("").1, 4);
        assert_eq!(part("filter=ALPHA").0, ["Alpha", "alphabet"]);
        let (items, total) = part("filter=alpha&offset=1&limit=1");
        assert_eq!((items, total), (vec!["alphabet".into()], 2));
        assert_eq!(part("offset=9&limit=18446744073709551615").0.len(), 0);
        assert_eq!(part("limit=0"), (vec![], 4));
    }

    #[test]
    fn says_what_is_wrong_with_a_query() {
        for (query, part) in [
            ("limit=-1", "`-1` is not a value of the parameter `limit`"),
            ("offset=x", "`x` is not a value"),
            ("sort=age", "`age` is not a value"),
            ("page=1", "no parameter `page`"),
        ] {
            assert!(Query::parse(query).unwrap_err().contains(part), "{query}");
        }
    }
}
