use super::*;

const NOW: u64 = 1_000_000_000;

fn admission(slots: usize, waiting: usize) -> Admission<()> {
    Admission::new(AdmissionLimits {
        slots,
        waiting,
        waiting_bytes: 1000,
    })
}

fn pending(id: &str) -> PendingCall<()> {
    PendingCall {
        id: id.to_owned(),
        names: [format!("n-{id}"), format!("c-{id}")],
        client: "party".to_owned(),
        tool: "tool".to_owned(),
        sent_ms: NOW,
        timeout: Duration::from_secs(5),
        weight: 1,
        payload: (),
    }
}

fn begin(admission: &mut Admission<()>, now: u64) -> Option<(String, Option<Duration>)> {
    admission
        .next(now)
        .map(|(pending, time)| (pending.id, time))
}

fn why(arrival: Arrival<()>) -> String {
    match arrival {
        Arrival::Refused((), refusal) => {
            assert_eq!(refusal.code, MeshErrorCode::ResourceExhausted);
            refusal.message
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn they_begin_in_their_order_and_never_more_than_there_are_slots() {
    let mut admission = admission(2, 10);
    for id in ["a", "b", "c"] {
        assert!(matches!(admission.admit(pending(id), NOW), Arrival::Queued));
    }
    let five = Some(Duration::from_secs(5));
    assert_eq!(begin(&mut admission, NOW), Some(("a".to_owned(), five)));
    assert_eq!(begin(&mut admission, NOW), Some(("b".to_owned(), five)));
    assert_eq!(begin(&mut admission, NOW), None);
    admission.record_answer("b", Bytes::from_static(b"B"), None, NOW);
    assert_eq!(begin(&mut admission, NOW), Some(("c".to_owned(), five)));
    assert_eq!(admission.load(), (0, 2));
}

#[test]
fn whoever_comes_again_is_answered_once_and_the_same() {
    let mut admission = admission(1, 10);
    admission.admit(pending("a"), NOW);
    assert!(
        matches!(admission.admit(pending("a"), NOW), Arrival::Known(())),
        "it waits"
    );
    begin(&mut admission, NOW);
    assert!(
        matches!(admission.admit(pending("a"), NOW), Arrival::Known(())),
        "it is under way"
    );
    admission.record_answer("a", Bytes::from_static(b"A"), None, NOW);
    let soon = NOW + millis(ANSWER_RETENTION);
    assert!(
        matches!(admission.admit(pending("a"), soon), Arrival::Answered((), answer) if answer == "A")
    );
    let mut again = pending("a");
    again.sent_ms = soon + 1;
    assert!(
        matches!(admission.admit(again, soon + 1), Arrival::Queued),
        "at some time it is forgotten"
    );
    let mut lost = super::tests::admission(1, 1);
    lost.admit(pending("a"), NOW);
    begin(&mut lost, NOW);
    lost.abandon("a");
    assert!(
        matches!(lost.admit(pending("a"), NOW), Arrival::Queued),
        "what had no answer is served"
    );
}

#[test]
fn what_nobody_waits_for_is_not_begun() {
    let mut admission = admission(1, 10);
    // Five seconds for the tool, ten beyond, one on the way.
    assert!(matches!(
        admission.admit(pending("in time"), NOW + 13_999),
        Arrival::Queued
    ));
    assert_eq!(
        begin(&mut admission, NOW + 13_999),
        Some(("in time".to_owned(), Some(Duration::from_millis(1))))
    );
    let late = why(admission.admit(pending("late"), NOW + 14_000));
    assert!(
        late.contains("nobody waits for it") && late.contains("14 s old"),
        "{late}"
    );
    admission.record_answer("in time", Bytes::new(), None, NOW);
    admission.admit(pending("waits"), NOW);
    assert_eq!(
        begin(&mut admission, NOW + 14_000),
        Some(("waits".to_owned(), None)),
        "it waited too long"
    );
    assert_eq!(admission.load(), (0, 0), "and takes no slot");
}

#[test]
fn a_senders_clock_that_is_ahead_gives_no_more_time() {
    let mut admission = admission(1, 10);
    admission.admit(
        PendingCall {
            sent_ms: NOW + 3_600_000,
            ..pending("a")
        },
        NOW,
    );
    assert_eq!(admission.deadline(), Some(NOW + 14_000));
}

#[test]
fn what_would_come_too_late_is_refused_at_once() {
    let mut admission = admission(2, 100);
    admission.admit(pending("a"), NOW);
    begin(&mut admission, NOW);
    admission.record_answer("a", Bytes::new(), Some(Duration::from_secs(5)), NOW);
    // Two are under way, then two a round of five seconds: the third round begins after 15 s, and 14 are left.
    let waits: Vec<_> = (0..7)
        .map(|n| {
            matches!(
                admission.admit(pending(&n.to_string()), NOW),
                Arrival::Queued
            )
        })
        .collect();
    assert_eq!(waits, [true, true, true, true, true, true, false]);
    assert!(
        why(admission.admit(pending("x"), NOW)).starts_with("its turn would come in about 15 s")
    );
}

#[test]
fn too_many_and_too_much_is_refused() {
    let mut admission = admission(1, 2);
    admission.admit(pending("a"), NOW);
    admission.admit(pending("b"), NOW);
    assert_eq!(
        why(admission.admit(pending("c"), NOW)),
        "2 calls wait already"
    );
    let mut admission = super::tests::admission(1, 100);
    let heavy = |id: &str| PendingCall {
        weight: 600,
        ..pending(id)
    };
    assert!(matches!(admission.admit(heavy("a"), NOW), Arrival::Queued));
    why(admission.admit(heavy("b"), NOW));
    begin(&mut admission, NOW);
    assert!(
        matches!(admission.admit(heavy("b"), NOW), Arrival::Queued),
        "what has begun waits no more"
    );
}

#[test]
fn a_cancellation_meets_a_call_wherever_it_is() {
    let mut admission = admission(1, 10);
    for id in ["a", "b"] {
        admission.admit(pending(id), NOW);
    }
    begin(&mut admission, NOW);
    assert!(matches!(admission.cancel("c-a", NOW), CancelOutcome::Active(id) if id == "a"));
    assert!(
        matches!(admission.cancel("b", NOW), CancelOutcome::Removed(pending) if pending.id == "b")
    );
    assert_eq!(admission.load(), (0, 1));
    assert!(matches!(
        admission.cancel("c-early", NOW),
        CancelOutcome::Unknown
    ));
    assert!(matches!(
        admission.admit(pending("early"), NOW),
        Arrival::Cancelled(())
    ));
    admission.admit(pending("c"), NOW);
    assert!(
        matches!(admission.cancel("n-a", NOW), CancelOutcome::Active(id) if id == "a"),
        "by any name"
    );
    assert!(
        matches!(admission.cancel("n-c", NOW), CancelOutcome::Removed(pending) if pending.id == "c")
    );
    for number in 0..MAX_CANCELLED {
        admission.cancel(&number.to_string(), NOW);
    }
    assert_eq!(admission.cancelled.len(), MAX_CANCELLED);
}

#[test]
fn a_cancellation_that_comes_after_the_answer_waits_for_nobody() {
    let mut admission = admission(1, 10);
    admission.admit(pending("a"), NOW);
    begin(&mut admission, NOW);
    admission.record_answer("a", Bytes::from_static(b"A"), None, NOW);
    admission.record_refusal("b", pending("b").names, Bytes::from_static(b"B"), NOW);
    for name in ["a", "n-a", "c-a", "b", "n-b", "c-b"] {
        assert!(matches!(
            admission.cancel(name, NOW),
            CancelOutcome::Unknown
        ));
        assert_eq!(admission.cancelled.len(), 0, "{name} was answered");
    }
    admission.cancel("c-other", NOW);
    assert_eq!(
        admission.cancelled.len(),
        1,
        "the control: one that nobody knows is waited for"
    );
}

#[test]
fn a_call_whose_answer_does_not_get_through_is_known_by_all_its_names_and_has_no_slot() {
    let mut admission = admission(1, 10);
    for id in ["a", "b"] {
        admission.admit(pending(id), NOW);
    }
    begin(&mut admission, NOW);
    assert_eq!(
        begin(&mut admission, NOW),
        None,
        "the control: it has the slot"
    );
    admission.delay("a", Duration::from_secs(1));
    assert_eq!(
        begin(&mut admission, NOW).map(|(id, _)| id),
        Some("b".to_owned())
    );
    assert_eq!(admission.find_prior("a", NOW), Some(PriorCall::Active));
    assert!(matches!(admission.cancel("n-a", NOW), CancelOutcome::Active(id) if id == "a"));
    admission.record_answer("a", Bytes::from_static(b"A"), None, NOW);
    assert_eq!(
        admission.find_prior("a", NOW),
        Some(PriorCall::Answered(Bytes::from_static(b"A")))
    );
    assert!(matches!(
        admission.cancel("c-a", NOW),
        CancelOutcome::Unknown
    ));
    assert_eq!(
        (admission.cancelled.len(), admission.delayed.len()),
        (0, 0),
        "it was answered, under its names"
    );
    admission.delay("b", Duration::from_secs(1));
    admission.abandon("b");
    assert_eq!(
        (admission.find_prior("b", NOW), admission.load()),
        (None, (0, 0))
    );
}

#[test]
fn a_closed_desk_begins_nothing_and_gives_back_what_waits() {
    let mut admission = admission(1, 10);
    for id in ["a", "b"] {
        admission.admit(pending(id), NOW);
    }
    begin(&mut admission, NOW);
    let left: Vec<_> = admission
        .close()
        .into_iter()
        .map(|pending| pending.id)
        .collect();
    assert_eq!((left, admission.load()), (vec!["b".to_owned()], (0, 1)));
    assert_eq!(
        why(admission.admit(pending("c"), NOW)),
        "this worker is ending"
    );
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut admission = admission(1, 10);
    let large = Bytes::from(vec![0; MAX_ANSWERED_BYTES / 4 + 1]);
    for id in ["1", "2", "3", "4"] {
        admission.record_answer(id, large.clone(), None, NOW);
    }
    assert!(admission.answered_bytes <= MAX_ANSWERED_BYTES);
    assert!(
        matches!(admission.admit(pending("1"), NOW), Arrival::Queued),
        "the oldest is forgotten first"
    );
    assert!(matches!(
        admission.admit(pending("4"), NOW),
        Arrival::Answered(..)
    ));
    for number in 0..2 * MAX_ANSWERED {
        admission.record_answer(&number.to_string(), Bytes::new(), None, NOW);
    }
    assert_eq!(
        (admission.order.len(), admission.answered.len()),
        (MAX_ANSWERED, MAX_ANSWERED)
    );
}

#[test]
fn it_is_known_whether_a_call_came_before() {
    let mut admission = admission(1, 10);
    assert_eq!(admission.find_prior("a", NOW), None);
    admission.admit(pending("a"), NOW);
    assert_eq!(admission.find_prior("a", NOW), Some(PriorCall::Active));
    begin(&mut admission, NOW);
    assert_eq!(admission.find_prior("a", NOW), Some(PriorCall::Active));
    admission.record_answer("a", Bytes::from_static(b"A"), None, NOW);
    assert_eq!(
        admission.find_prior("a", NOW),
        Some(PriorCall::Answered(Bytes::from_static(b"A")))
    );
    assert_eq!(
        admission.find_prior("a", NOW + millis(ANSWER_RETENTION) + 1),
        None
    );
}

#[test]
fn what_nobody_waits_for_leaves_its_place_at_once_though_no_slot_is_free() {
    let mut admission = admission(1, 2);
    admission.admit(
        PendingCall {
            timeout: Duration::from_secs(60),
            ..pending("runs")
        },
        NOW,
    );
    begin(&mut admission, NOW);
    assert_eq!(admission.deadline(), None);
    admission.admit(
        PendingCall {
            timeout: Duration::from_secs(60),
            ..pending("long")
        },
        NOW,
    );
    admission.admit(pending("short"), NOW);
    assert_eq!(admission.deadline(), Some(NOW + 14_000));
    assert_eq!(begin(&mut admission, NOW + 13_999), None);
    assert_eq!(
        begin(&mut admission, NOW + 14_000),
        Some(("short".to_owned(), None))
    );
    assert_eq!(
        (begin(&mut admission, NOW + 14_000), admission.load()),
        (None, (1, 1))
    );
    assert_eq!(admission.deadline(), Some(NOW + 69_000));
}

#[test]
fn how_long_a_slow_tool_takes_is_not_held_against_a_fast_one() {
    let of = |id: &str, tool: &str| PendingCall {
        tool: tool.to_owned(),
        ..pending(id)
    };
    let mut admission = admission(1, 100);
    for (tool, seconds) in [("slow", 20), ("fast", 1)] {
        admission.admit(of(tool, tool), NOW);
        begin(&mut admission, NOW);
        admission.record_answer(tool, Bytes::new(), Some(Duration::from_secs(seconds)), NOW);
    }
    for id in ["1", "2", "3"] {
        assert!(matches!(
            admission.admit(of(id, "fast"), NOW),
            Arrival::Queued
        ));
    }
    assert!(
        matches!(admission.admit(of("4", "slow"), NOW), Arrival::Queued),
        "it begins soon"
    );
    assert!(
        why(admission.admit(of("5", "fast"), NOW)).starts_with("its turn would come in about 23 s")
    );
    let other = PendingCall {
        client: "other".to_owned(),
        ..of("6", "fast")
    };
    assert!(
        matches!(admission.admit(other, NOW), Arrival::Queued),
        "its line is shorter"
    );
    for number in 0..2 * MAX_TOOLS {
        admission.record_duration(number.to_string(), Duration::ZERO);
    }
    assert!(admission.typical_durations.len() <= MAX_TOOLS);
}

#[test]
fn without_places_to_wait_calls_begin_as_long_as_there_are_slots() {
    let mut admission = admission(1, 0);
    assert!(matches!(
        admission.admit(pending("a"), NOW),
        Arrival::Queued
    ));
    assert_eq!(
        begin(&mut admission, NOW).map(|(id, _)| id),
        Some("a".to_owned())
    );
    assert_eq!(
        why(admission.admit(pending("b"), NOW)),
        "0 calls wait already"
    );
}
