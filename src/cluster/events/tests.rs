//! Tests of deduplication and of the rate of events.

use super::queue::QUEUE;
use super::*;

pub(super) fn notice(reason: EventReason, message: &str) -> Notice {
    Notice {
        object: ObjectRef::gateway_api("Gateway", "shop", "web"),
        version: "v1",
        served_as: None,
        uid: "1".to_owned(),
        reason,
        action: "Program",
        message: message.to_owned(),
    }
}

fn taken(message: &str) -> Notice {
    notice(EventReason::NameTaken, message)
}

fn notice_of(namespace: &str, name: &str) -> Notice {
    Notice {
        object: ObjectRef::gateway_api("Gateway", namespace, name),
        ..taken("a")
    }
}

/// Takes the queued changes, and then what is due.
fn due(publisher: &mut Publisher, now: Instant) -> Vec<Notice> {
    publisher.take_queued(now);
    let objects = publisher.objects.values_mut();
    let mut objects = objects.filter(|it| it.due(now).is_some_and(|due| due <= now));
    objects.next().map_or(Vec::new(), |it| it.take_due(now))
}

/// Publishes what is due, and returns its messages.
fn publish_due(publisher: &mut Publisher, now: Instant) -> Vec<String> {
    let notices = due(publisher, now);
    let messages = notices.iter().map(|it| it.message.clone()).collect();
    if let Some(first) = notices.first() {
        let object = publisher.objects.get_mut(&first.object).unwrap();
        object.published(notices, "name".to_owned(), now);
    }
    messages
}

#[test]
fn publishes_a_message_once_until_it_changes_or_is_cleared() {
    let (events, mut publisher) = channel("pod");
    let mut now = Instant::now();
    let mut published = |publisher: &mut Publisher| {
        now += INTERVAL;
        publish_due(publisher, now)
    };
    events.notify(taken("a"));
    events.notify(taken("a"));
    assert_eq!(published(&mut publisher), ["a"]);
    events.notify(taken("a"));
    assert!(published(&mut publisher).is_empty());
    events.notify(taken("b"));
    // Back to the published message.
    events.notify(taken("a"));
    assert!(published(&mut publisher).is_empty());
    events.notify(taken("b"));
    assert_eq!(published(&mut publisher), ["b"]);
    events.clear(&taken("b").object, EventReason::NameTaken);
    events.notify(taken("b"));
    assert_eq!(published(&mut publisher), ["b"]);
}

#[test]
fn an_object_has_one_event_a_minute_about_all_that_happened() {
    let (events, mut publisher) = channel("pod");
    let start = Instant::now();
    events.notify(notice(EventReason::NotProgrammed, "not programmed"));
    events.notify(notice(EventReason::NotAccepted, "not accepted"));
    let first = ["not accepted", "not programmed"];
    assert_eq!(publish_due(&mut publisher, start), first);
    events.notify(notice(EventReason::Programmed, "programmed"));
    events.notify(taken("taken"));
    let almost = start + INTERVAL - Duration::from_secs(1);
    assert!(due(&mut publisher, almost).is_empty());
    let second = publish_due(&mut publisher, start + INTERVAL);
    assert_eq!(second, ["taken", "programmed"]);
}

#[test]
fn what_has_ended_before_it_is_published_is_no_event() {
    let (events, mut publisher) = channel("pod");
    let start = Instant::now();
    events.notify(taken("first"));
    publish_due(&mut publisher, start);
    events.notify(notice(EventReason::NotAccepted, "not accepted"));
    events.notify(notice(EventReason::Accepted, "accepted"));
    assert!(publish_due(&mut publisher, start + INTERVAL).is_empty());
    // The end of what an earlier leader has published.
    events.notify(notice(EventReason::Accepted, "accepted"));
    let published = publish_due(&mut publisher, start + 2 * INTERVAL);
    assert_eq!(published, ["accepted"]);
}

#[test]
fn a_replica_must_lag_for_a_time() {
    let (events, mut publisher) = channel("pod");
    let start = Instant::now();
    let behind = |message| notice(EventReason::ReplicaBehind, message);
    events.notify(behind("1 of 2"));
    assert!(due(&mut publisher, start).is_empty());
    events.clear(&behind("").object, EventReason::ReplicaBehind);
    let later = start + INTERVAL;
    assert!(due(&mut publisher, later).is_empty());
    events.notify(behind("1 of 2"));
    assert!(due(&mut publisher, later).is_empty());
    // Another message does not begin anew.
    let end = later + EventReason::ReplicaBehind.patience();
    events.notify(behind("2 of 2"));
    assert_eq!(publish_due(&mut publisher, end), ["2 of 2"]);
}

#[test]
fn a_new_leader_counts_changes_again_but_not_states() {
    let repeat =
        |object: &OfObject, notice: &Notice| object.repeat(std::slice::from_ref(notice), "name");
    let (state, change) = (taken("a"), notice(EventReason::NotAccepted, "b"));
    let mut object = OfObject::default();
    assert_eq!(repeat(&object, &state), Repeat::Known);
    assert_eq!(repeat(&object, &change), Repeat::Counted(2));
    object.published(vec![state.clone()], "name".to_owned(), Instant::now());
    assert_eq!(repeat(&object, &state), Repeat::Counted(2));
    object.published(vec![state.clone()], "name".to_owned(), Instant::now());
    assert_eq!(repeat(&object, &state), Repeat::Counted(3));
}

#[test]
fn full_queue_drops_events_instead_of_blocking() {
    let (events, mut publisher) = channel("pod");
    for count in 0..QUEUE + 10 {
        events.notify(taken(&count.to_string()));
    }
    let (last, start) = ((QUEUE - 1).to_string(), Instant::now());
    assert_eq!(publish_due(&mut publisher, start), [last]);
    let warned = |publisher: &Publisher| (publisher.warned, publisher.dropped);
    assert_eq!(warned(&publisher), (Some(start), 0));
    for count in 0..QUEUE + 10 {
        events.notify(taken(&count.to_string()));
    }
    let almost = start + INTERVAL - Duration::from_secs(1);
    assert!(due(&mut publisher, almost).is_empty());
    assert_eq!(warned(&publisher), (Some(start), 10), "not so soon");
    publish_due(&mut publisher, start + INTERVAL);
    assert_eq!(warned(&publisher), (Some(start + INTERVAL), 0));
}

#[test]
fn namespace_that_fills_the_queue_takes_no_place_of_others() {
    let (events, mut publisher) = channel("pod");
    for count in 0..2 * QUEUE {
        events.notify(notice_of("hostile", &count.to_string()));
    }
    for count in 0..10 {
        events.notify(notice_of("shop", &count.to_string()));
        events.notify(notice_of("hostile", &count.to_string()));
    }
    publisher.take_queued(Instant::now());
    let namespaces = publisher.objects.keys().map(|it| &*it.namespace);
    let of_shop = namespaces.filter(|it| *it == "shop").count();
    assert_eq!((of_shop, publisher.objects.len()), (10, QUEUE));
}

#[test]
fn objects_of_a_namespace_that_wait_take_no_place_of_others() {
    let (events, mut publisher) = channel("pod");
    let start = Instant::now();
    events.notify(taken("a"));
    assert_eq!(publish_due(&mut publisher, start), ["a"]);
    for count in 0..REMEMBERED + 10 {
        let other = notice_of("hostile", &count.to_string());
        publisher.take(Change::Raise(vec![other]), start);
    }
    assert!(publisher.objects.len() <= REMEMBERED);
    let known = &publisher.objects[&taken("a").object];
    assert!(known.topics[&EventReason::NameTaken].published.is_some());
}

#[test]
fn no_more_of_a_message_is_kept_than_an_event_says() {
    let (events, mut publisher) = channel("pod");
    events.notify(taken(&"x".repeat(32_768)));
    let published = publish_due(&mut publisher, Instant::now());
    assert_eq!(published, [record::truncate(&"x".repeat(32_768))]);
    assert!(published[0].len() <= 1024, "{}", published[0].len());
}

#[test]
fn many_objects_take_no_event_of_one_that_waits() {
    let (_events, mut publisher) = channel("pod");
    let start = Instant::now();
    let behind = notice(EventReason::ReplicaBehind, "1 of 2");
    let waiting = behind.object.clone();
    publisher.take(Change::Raise(vec![behind]), start);
    for count in 0..REMEMBERED + 10 {
        let other = notice_of("hostile", &count.to_string());
        let object = other.object.clone();
        publisher.take(Change::Raise(vec![other]), start);
        let other = publisher.objects.get_mut(&object).unwrap();
        let notices = other.take_due(start);
        other.published(notices, "name".to_owned(), start);
    }
    assert!(publisher.objects.len() <= REMEMBERED);
    let end = start + EventReason::ReplicaBehind.patience();
    let waiting = publisher.objects.get_mut(&waiting).unwrap();
    assert_eq!(waiting.take_due(end).len(), 1);
}
