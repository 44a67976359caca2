//! Faults: a reason with a message, and its conversion into a condition. Must not know what was checked.

use crate::status::Condition;
pub(super) use crate::status::{ConditionType, Reason};

/// Maximum number of messages of a merged fault.
const MAX_MESSAGES: usize = 16;
/// Length from which on a merged fault gets no other message.
const MAX_LENGTH: usize = 4096;

/// A problem of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) reason: Reason,
    pub(super) message: String,
}

impl Fault {
    pub(super) fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }

    /// Returns the condition with status False.
    pub(super) fn against(&self, kind: ConditionType, generation: i64) -> Condition {
        Condition::fails(kind, self.reason, &self.message, generation)
    }
}

/// Returns the fault of a field whose value cannot be used.
pub(super) fn invalid<T>(message: String) -> Result<T, Fault> {
    Err(Fault::new(Reason::Invalid, message))
}

/// Returns the fault of a field whose value is not supported.
pub(super) fn unsupported(field: &str, message: &str) -> Fault {
    Fault::new(Reason::UnsupportedValue, format!("{field}: {message}"))
}

/// Merges several faults: the first reason, and each message once, up to [`MAX_MESSAGES`].
pub(super) fn merge(faults: &[Fault]) -> Option<Fault> {
    let first = faults.first()?;
    let (mut messages, mut length, mut more) = (Vec::new(), 0, 0);
    for message in faults.iter().map(|fault| &fault.message) {
        if messages.contains(&message) {
            continue;
        }
        // A message may be merged itself.
        if messages.len() == MAX_MESSAGES || length > MAX_LENGTH {
            more += 1;
            continue;
        }
        length += message.len();
        messages.push(message);
    }
    let mut text = String::with_capacity(length);
    for (index, message) in messages.into_iter().enumerate() {
        if index > 0 {
            text.push_str("; ");
        }
        text.push_str(message);
    }
    if more > 0 {
        text.push_str(&format!("; and {more} more"));
    }
    Some(Fault::new(first.reason, text))
}

/// The faults of an object so far: the values after a faulty one are read too, so that its author learns of all faults at
/// once.
#[derive(Debug, Default)]
pub(super) struct Faults(Vec<Fault>);

impl Faults {
    /// Returns the value, or retains its fault.
    pub(super) fn keep<T>(&mut self, result: Result<T, Fault>) -> Option<T> {
        result.map_err(|fault| self.0.push(fault)).ok()
    }

    /// Returns the value if there is no fault.
    pub(super) fn finish<T>(self, value: T) -> Result<T, Fault> {
        merge(&self.0).map_or(Ok(value), Err)
    }
}

/// Collects values, or the faults of all values that have one.
pub(super) fn all<T, C: FromIterator<T>>(
    results: impl IntoIterator<Item = Result<T, Fault>>,
) -> Result<C, Fault> {
    let mut faults = Faults::default();
    let values = results.into_iter();
    let values = values.filter_map(|result| faults.keep(result)).collect();
    faults.finish(values)
}

/// Returns both values, or the faults of both.
pub(super) fn both<A, B>(one: Result<A, Fault>, other: Result<B, Fault>) -> Result<(A, B), Fault> {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok((one, other)),
        (Err(fault), Ok(_)) | (Ok(_), Err(fault)) => Err(fault),
        (Err(one), Err(other)) => {
            let merged = merge(&[one.clone(), other]);
            Err(merged.unwrap_or(one))
        }
    }
}

/// Returns a condition that is True, or False with the fault.
pub(super) fn judge(
    kind: ConditionType,
    good: Reason,
    fault: Option<&Fault>,
    generation: i64,
) -> Condition {
    match fault {
        Some(fault) => fault.against(kind, generation),
        None => Condition::holds(kind, good, generation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(message: &str) -> Fault {
        Fault::new(Reason::Invalid, message)
    }

    #[test]
    fn merged_faults_have_each_message_once_and_a_limit() {
        assert_eq!(merge(&[]), None);
        let few = ["a", "b", "a"].map(fault);
        assert_eq!(merge(&few), Some(fault("a; b")));
        let many: Vec<_> = (0..MAX_MESSAGES + 3)
            .map(|index| fault(&format!("m{index}")))
            .collect();
        let merged = merge(&many).unwrap().message;
        assert!(merged.starts_with("m0; m1; "), "{merged}");
        assert!(merged.ends_with("; m15; and 3 more"), "{merged}");
        let long = fault(&"x".repeat(MAX_LENGTH + 1));
        let merged = merge(&[long.clone(), fault("a"), fault("b")]).unwrap();
        assert_eq!(merged.message, format!("{}; and 2 more", long.message));
    }

    #[test]
    fn all_faults_of_a_list_are_collected() {
        let read = |list: &[u8]| -> Result<Vec<u8>, Fault> {
            let one = |it: &u8| match it {
                0 => Err(fault("zero")),
                1 => Err(fault("one")),
                other => Ok(*other),
            };
            all(list.iter().map(one))
        };
        assert_eq!(read(&[2, 3]), Ok(vec![2, 3]));
        assert_eq!(read(&[2, 1, 0, 1]), Err(fault("one; zero")));
        assert_eq!(both(read(&[2]), read(&[3])), Ok((vec![2], vec![3])));
        assert_eq!(both(read(&[2]), read(&[0])), Err(fault("zero")));
        assert_eq!(both(read(&[1]), read(&[0])), Err(fault("one; zero")));
    }
}
