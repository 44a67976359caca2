//! The ready pods in a copy.

use super::*;

#[test]
fn copy_has_the_ready_pods_and_not_where_they_serve_http3() {
    let pods = ReadyPods {
        own: "a".to_owned(),
        ready: [("a".to_owned(), [10, 0, 0, 1].into())].into(),
        http3: [443].into(),
    };
    let before = state(&["one"]);
    let mut now = before.clone();
    let mut intake = UpdateDecoder::default();
    let step = intake.take(Update::Pods(pods.clone()), &mut now);
    assert_eq!(step, Ok(Step::Pods));
    assert_eq!(now.pods.as_deref(), Some(&pods));
    let expected = ReadyPods {
        http3: BTreeSet::new(),
        ..pods
    };
    let whole: Vec<_> = now.updates().unwrap().collect();
    assert!(whole.contains(&Update::Pods(expected.clone())));
    let changes = now.updates_since(&before).unwrap();
    assert_eq!(changes, [Update::Pods(expected), commit(1)]);
}
