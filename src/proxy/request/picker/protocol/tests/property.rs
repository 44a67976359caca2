//! Random messages.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    Data(Side),
    End(Side),
    Head(Side),
    Part(Side, bool),
    Other,
    Immediate,
    Close(Close),
    Take(Side),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let side = || prop::sample::select(SIDES.to_vec());
    let close = prop::sample::select(vec![Close::Clean, Close::Failed]);
    let step = prop_oneof![
        4 => side().prop_map(Step::Data),
        2 => side().prop_map(Step::End),
        4 => side().prop_map(Step::Head),
        8 => (side(), any::<bool>()).prop_map(|(side, ends)| Step::Part(side, ends)),
        1 => Just(Step::Other),
        1 => Just(Step::Immediate),
        1 => close.prop_map(Step::Close),
        6 => side().prop_map(Step::Take),
    ];
    prop::collection::vec(step, 0..40)
}

proptest! {
    /// Whatever a picker says, a body ends only if its sender and the picker have ended it, and all that was returned was
    /// taken; and an original goes on only if no other bytes were taken, and of a response none were returned.
    #[test]
    fn no_body_ends_that_is_not_whole(steps in steps(), fails_open in any::<bool>()) {
        let mut protocol = Protocol::new(fails_open);
        protocol.request_head(HeaderList::default(), true);
        protocol.response_head(HeaderList::default(), true, None);
        let index = |side: Side| usize::from(side == Side::Response);
        let (mut ended, mut returned, mut got) = ([false; 2], [0; 2], [0; 2]);
        for step in steps {
            match step {
                Step::Data(side) => protocol.data(side, Bytes::from_static(b"x"), false),
                Step::End(side) => {
                    ended[index(side)] |= protocol.is_read(side);
                    protocol.end(side, None);
                }
                Step::Head(side) => protocol.answer(head_answer(side)),
                Step::Part(side, ends) => {
                    let before = protocol.queued(side);
                    protocol.answer(part(side, "y", ends));
                    returned[index(side)] += usize::from(protocol.queued(side) > before);
                }
                Step::Other => protocol.answer(ProcessingResponse::default()),
                Step::Immediate => protocol.answer(immediate()),
                Step::Close(close) => protocol.close(close),
                Step::Take(side) => {
                    let (text, last) = taken(&mut protocol, side);
                    got[index(side)] += text.len();
                    protocol.is_request_changed |= side == Side::Request && !text.is_empty();
                    if last == Part::Ended {
                        prop_assert!(ended[index(side)]);
                        prop_assert_eq!(got[index(side)], returned[index(side)]);
                    }
                    if last == Part::Passed {
                        prop_assert_eq!(got[index(side)], 0);
                        prop_assert!(side == Side::Request || returned[index(side)] == 0);
                    }
                }
            }
            while protocol.next_message().is_some() {}
        }
    }
}
