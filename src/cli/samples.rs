//! Samples in pages of metrics, as the admin server writes them in the text format of Prometheus.

use std::collections::BTreeMap;

/// Labels of a sample by name.
pub(super) type Labels = BTreeMap<String, String>;

/// Returns the samples of a metric with their labels, in the order of the page. Cuts off fractions of values. Skips lines that
/// cannot be parsed.
pub(super) fn samples(page: &str, name: &str) -> impl Iterator<Item = (Labels, u64)> {
    page.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(labels) => read_labels(labels)?,
            None => (Labels::new(), rest),
        };
        // Without a space, this is another metric whose name begins with this one.
        let value = rest.strip_prefix(' ')?.split(' ').next()?;
        Some((labels, value.parse::<f64>().ok()? as u64))
    })
}

/// Parses labels up to the closing brace. Returns them and the rest of the text.
fn read_labels(text: &str) -> Option<(Labels, &str)> {
    let mut labels = Labels::new();
    let mut rest = text;
    loop {
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, quoted) = rest.trim_start_matches(',').split_once("=\"")?;
        let mut value = String::new();
        let mut characters = quoted.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        labels.insert(name.to_owned(), value);
        rest = &quoted[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_have_labels_and_values() {
        let page = concat!(
            "# TYPE a counter\n",
            "a_total{x=\"1\",y=\"a\\\"b\\\\c\\n\"} 7 # {trace_id=\"0\"} 1\n",
            "a_total{x=\"2\n",
            "a_total{x=\"3\"} none\n",
            "a_totals 8\n",
            "a_total 9.5\n",
        );
        let labels = [("x", "1"), ("y", "a\"b\\c\n")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let expected = [(Labels::from(labels), 7), (Labels::new(), 9)];
        assert_eq!(samples(page, "a_total").collect::<Vec<_>>(), expected);
    }
}
