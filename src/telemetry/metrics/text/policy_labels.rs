//! Labels of metrics that name a policy.

use crate::ir::ObjectRef;

/// Name and value of a label.
pub(super) type Label = (&'static str, String);

/// Returns the labels that name a policy, then `own`. An earlier version of a policy, which can be in force beside the present
/// one, has the label `earlier` in addition: its counters begin and end apart from those of the present one.
pub(super) fn policy_labels(
    policy: &ObjectRef,
    own: impl IntoIterator<Item = Label>,
) -> Vec<Label> {
    let (name, number) = match policy.earlier() {
        Some((name, number)) => (name, Some(number)),
        None => (&*policy.name, None),
    };
    let of_policy = [
        ("namespace", policy.namespace.to_string()),
        ("policy", name.to_owned()),
    ];
    let earlier = number.map(|number| ("earlier", number.to_owned()));
    of_policy.into_iter().chain(own).chain(earlier).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_version_has_the_name_of_its_policy() {
        let labels = |name: &str| {
            let policy = ObjectRef::new("portcullis.dev", "RateLimitPolicy", "shop", name);
            let labels = policy_labels(&policy, [("limit", "all".to_owned())]);
            let texts = labels.iter().map(|(name, value)| format!("{name}={value}"));
            texts.collect::<Vec<_>>().join(",")
        };
        assert_eq!(labels("one"), "namespace=shop,policy=one,limit=all");
        assert_eq!(
            labels(&ObjectRef::earlier_name("one", 3)),
            "namespace=shop,policy=one,limit=all,earlier=3"
        );
    }
}
