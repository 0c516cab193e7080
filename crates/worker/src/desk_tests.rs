use super::*;

const NOW: u64 = 1_000_000_000;

fn desk(slots: usize, waiting: usize) -> Desk<()> {
    Desk::new(Bounds {
        slots,
        waiting,
        waiting_bytes: 1000,
    })
}

fn ticket(id: &str) -> Ticket<()> {
    Ticket {
        id: id.to_owned(),
        names: [format!("n-{id}"), format!("c-{id}")],
        party: "party".to_owned(),
        tool: "tool".to_owned(),
        sent_ms: NOW,
        timeout: Duration::from_secs(5),
        weight: 1,
        what: (),
    }
}

fn begin(desk: &mut Desk<()>, now: u64) -> Option<(String, Option<Duration>)> {
    desk.next(now).map(|(ticket, time)| (ticket.id, time))
}

fn why(arrival: Arrival<()>) -> String {
    match arrival {
        Arrival::Refused((), refusal) => {
            assert_eq!(refusal.code, Code::ResourceExhausted);
            refusal.message
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn they_begin_in_their_order_and_never_more_than_there_are_slots() {
    let mut desk = desk(2, 10);
    for id in ["a", "b", "c"] {
        assert!(matches!(desk.arrive(ticket(id), NOW), Arrival::Waits));
    }
    let five = Some(Duration::from_secs(5));
    assert_eq!(begin(&mut desk, NOW), Some(("a".to_owned(), five)));
    assert_eq!(begin(&mut desk, NOW), Some(("b".to_owned(), five)));
    assert_eq!(begin(&mut desk, NOW), None);
    desk.answered("b", Bytes::from_static(b"B"), None, NOW);
    assert_eq!(begin(&mut desk, NOW), Some(("c".to_owned(), five)));
    assert_eq!(desk.load(), (0, 2));
}

#[test]
fn whoever_comes_again_is_answered_once_and_the_same() {
    let mut desk = desk(1, 10);
    desk.arrive(ticket("a"), NOW);
    assert!(
        matches!(desk.arrive(ticket("a"), NOW), Arrival::Known(())),
        "it waits"
    );
    begin(&mut desk, NOW);
    assert!(
        matches!(desk.arrive(ticket("a"), NOW), Arrival::Known(())),
        "it is under way"
    );
    desk.answered("a", Bytes::from_static(b"A"), None, NOW);
    let soon = NOW + millis(REMEMBERED);
    assert!(
        matches!(desk.arrive(ticket("a"), soon), Arrival::Answered((), answer) if answer == "A")
    );
    let mut again = ticket("a");
    again.sent_ms = soon + 1;
    assert!(
        matches!(desk.arrive(again, soon + 1), Arrival::Waits),
        "at some time it is forgotten"
    );
    let mut lost = super::tests::desk(1, 1);
    lost.arrive(ticket("a"), NOW);
    begin(&mut lost, NOW);
    lost.given_up("a");
    assert!(
        matches!(lost.arrive(ticket("a"), NOW), Arrival::Waits),
        "what had no answer is served"
    );
}

#[test]
fn what_nobody_waits_for_is_not_begun() {
    let mut desk = desk(1, 10);
    // Five seconds for the tool, ten beyond, one on the way.
    assert!(matches!(
        desk.arrive(ticket("in time"), NOW + 13_999),
        Arrival::Waits
    ));
    assert_eq!(
        begin(&mut desk, NOW + 13_999),
        Some(("in time".to_owned(), Some(Duration::from_millis(1))))
    );
    let late = why(desk.arrive(ticket("late"), NOW + 14_000));
    assert!(
        late.contains("nobody waits for it") && late.contains("14 s old"),
        "{late}"
    );
    desk.answered("in time", Bytes::new(), None, NOW);
    desk.arrive(ticket("waits"), NOW);
    assert_eq!(
        begin(&mut desk, NOW + 14_000),
        Some(("waits".to_owned(), None)),
        "it waited too long"
    );
    assert_eq!(desk.load(), (0, 0), "and takes no slot");
}

#[test]
fn a_senders_clock_that_is_ahead_gives_no_more_time() {
    let mut desk = desk(1, 10);
    desk.arrive(
        Ticket {
            sent_ms: NOW + 3_600_000,
            ..ticket("a")
        },
        NOW,
    );
    assert_eq!(desk.deadline(), Some(NOW + 14_000));
}

#[test]
fn what_would_come_too_late_is_refused_at_once() {
    let mut desk = desk(2, 100);
    desk.arrive(ticket("a"), NOW);
    begin(&mut desk, NOW);
    desk.answered("a", Bytes::new(), Some(Duration::from_secs(5)), NOW);
    // Two are under way, then two a round of five seconds: the third round begins after 15 s, and 14 are left.
    let waits: Vec<_> = (0..7)
        .map(|n| matches!(desk.arrive(ticket(&n.to_string()), NOW), Arrival::Waits))
        .collect();
    assert_eq!(waits, [true, true, true, true, true, true, false]);
    assert!(why(desk.arrive(ticket("x"), NOW)).starts_with("its turn would come in about 15 s"));
}

#[test]
fn too_many_and_too_much_is_refused() {
    let mut desk = desk(1, 2);
    desk.arrive(ticket("a"), NOW);
    desk.arrive(ticket("b"), NOW);
    assert_eq!(why(desk.arrive(ticket("c"), NOW)), "2 calls wait already");
    let mut desk = super::tests::desk(1, 100);
    let heavy = |id: &str| Ticket {
        weight: 600,
        ..ticket(id)
    };
    assert!(matches!(desk.arrive(heavy("a"), NOW), Arrival::Waits));
    why(desk.arrive(heavy("b"), NOW));
    begin(&mut desk, NOW);
    assert!(
        matches!(desk.arrive(heavy("b"), NOW), Arrival::Waits),
        "what has begun waits no more"
    );
}

#[test]
fn a_cancellation_meets_a_call_wherever_it_is() {
    let mut desk = desk(1, 10);
    for id in ["a", "b"] {
        desk.arrive(ticket(id), NOW);
    }
    begin(&mut desk, NOW);
    assert!(matches!(desk.cancel("c-a", NOW), Cancelled::UnderWay(id) if id == "a"));
    assert!(matches!(desk.cancel("b", NOW), Cancelled::Waited(ticket) if ticket.id == "b"));
    assert_eq!(desk.load(), (0, 1));
    assert!(matches!(desk.cancel("c-early", NOW), Cancelled::Nobody));
    assert!(matches!(
        desk.arrive(ticket("early"), NOW),
        Arrival::Cancelled(())
    ));
    desk.arrive(ticket("c"), NOW);
    assert!(
        matches!(desk.cancel("n-a", NOW), Cancelled::UnderWay(id) if id == "a"),
        "by any name"
    );
    assert!(matches!(desk.cancel("n-c", NOW), Cancelled::Waited(ticket) if ticket.id == "c"));
    for number in 0..MOST_CANCELLED {
        desk.cancel(&number.to_string(), NOW);
    }
    assert_eq!(desk.cancelled.len(), MOST_CANCELLED);
}

#[test]
fn a_cancellation_that_comes_after_the_answer_waits_for_nobody() {
    let mut desk = desk(1, 10);
    desk.arrive(ticket("a"), NOW);
    begin(&mut desk, NOW);
    desk.answered("a", Bytes::from_static(b"A"), None, NOW);
    desk.refused("b", ticket("b").names, Bytes::from_static(b"B"), NOW);
    for name in ["a", "n-a", "c-a", "b", "n-b", "c-b"] {
        assert!(matches!(desk.cancel(name, NOW), Cancelled::Nobody));
        assert_eq!(desk.cancelled.len(), 0, "{name} was answered");
    }
    desk.cancel("c-other", NOW);
    assert_eq!(
        desk.cancelled.len(),
        1,
        "the control: one that nobody knows is waited for"
    );
}

#[test]
fn a_call_whose_answer_does_not_get_through_is_known_by_all_its_names_and_has_no_slot() {
    let mut desk = desk(1, 10);
    for id in ["a", "b"] {
        desk.arrive(ticket(id), NOW);
    }
    begin(&mut desk, NOW);
    assert_eq!(begin(&mut desk, NOW), None, "the control: it has the slot");
    desk.delay("a", Duration::from_secs(1));
    assert_eq!(
        begin(&mut desk, NOW).map(|(id, _)| id),
        Some("b".to_owned())
    );
    assert_eq!(desk.before("a", NOW), Some(Before::UnderWay));
    assert!(matches!(desk.cancel("n-a", NOW), Cancelled::UnderWay(id) if id == "a"));
    desk.answered("a", Bytes::from_static(b"A"), None, NOW);
    assert_eq!(
        desk.before("a", NOW),
        Some(Before::Answered(Bytes::from_static(b"A")))
    );
    assert!(matches!(desk.cancel("c-a", NOW), Cancelled::Nobody));
    assert_eq!(
        (desk.cancelled.len(), desk.delayed.len()),
        (0, 0),
        "it was answered, under its names"
    );
    desk.delay("b", Duration::from_secs(1));
    desk.given_up("b");
    assert_eq!((desk.before("b", NOW), desk.load()), (None, (0, 0)));
}

#[test]
fn a_closed_desk_begins_nothing_and_gives_back_what_waits() {
    let mut desk = desk(1, 10);
    for id in ["a", "b"] {
        desk.arrive(ticket(id), NOW);
    }
    begin(&mut desk, NOW);
    let left: Vec<_> = desk.close().into_iter().map(|ticket| ticket.id).collect();
    assert_eq!((left, desk.load()), (vec!["b".to_owned()], (0, 1)));
    assert_eq!(why(desk.arrive(ticket("c"), NOW)), "this worker is ending");
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut desk = desk(1, 10);
    let large = Bytes::from(vec![0; MOST_ANSWERED_BYTES / 4 + 1]);
    for id in ["1", "2", "3", "4"] {
        desk.answered(id, large.clone(), None, NOW);
    }
    assert!(desk.answered_bytes <= MOST_ANSWERED_BYTES);
    assert!(
        matches!(desk.arrive(ticket("1"), NOW), Arrival::Waits),
        "the oldest is forgotten first"
    );
    assert!(matches!(
        desk.arrive(ticket("4"), NOW),
        Arrival::Answered(..)
    ));
    for number in 0..2 * MOST_ANSWERED {
        desk.answered(&number.to_string(), Bytes::new(), None, NOW);
    }
    assert_eq!(
        (desk.order.len(), desk.answered.len()),
        (MOST_ANSWERED, MOST_ANSWERED)
    );
}

#[test]
fn it_is_known_whether_a_call_came_before() {
    let mut desk = desk(1, 10);
    assert_eq!(desk.before("a", NOW), None);
    desk.arrive(ticket("a"), NOW);
    assert_eq!(desk.before("a", NOW), Some(Before::UnderWay));
    begin(&mut desk, NOW);
    assert_eq!(desk.before("a", NOW), Some(Before::UnderWay));
    desk.answered("a", Bytes::from_static(b"A"), None, NOW);
    assert_eq!(
        desk.before("a", NOW),
        Some(Before::Answered(Bytes::from_static(b"A")))
    );
    assert_eq!(desk.before("a", NOW + millis(REMEMBERED) + 1), None);
}

#[test]
fn what_nobody_waits_for_leaves_its_place_at_once_though_no_slot_is_free() {
    let mut desk = desk(1, 2);
    desk.arrive(
        Ticket {
            timeout: Duration::from_secs(60),
            ..ticket("runs")
        },
        NOW,
    );
    begin(&mut desk, NOW);
    assert_eq!(desk.deadline(), None);
    desk.arrive(
        Ticket {
            timeout: Duration::from_secs(60),
            ..ticket("long")
        },
        NOW,
    );
    desk.arrive(ticket("short"), NOW);
    assert_eq!(desk.deadline(), Some(NOW + 14_000));
    assert_eq!(begin(&mut desk, NOW + 13_999), None);
    assert_eq!(
        begin(&mut desk, NOW + 14_000),
        Some(("short".to_owned(), None))
    );
    assert_eq!(
        (begin(&mut desk, NOW + 14_000), desk.load()),
        (None, (1, 1))
    );
    assert_eq!(desk.deadline(), Some(NOW + 69_000));
}

#[test]
fn how_long_a_slow_tool_takes_is_not_held_against_a_fast_one() {
    let of = |id: &str, tool: &str| Ticket {
        tool: tool.to_owned(),
        ..ticket(id)
    };
    let mut desk = desk(1, 100);
    for (tool, seconds) in [("slow", 20), ("fast", 1)] {
        desk.arrive(of(tool, tool), NOW);
        begin(&mut desk, NOW);
        desk.answered(tool, Bytes::new(), Some(Duration::from_secs(seconds)), NOW);
    }
    for id in ["1", "2", "3"] {
        assert!(matches!(desk.arrive(of(id, "fast"), NOW), Arrival::Waits));
    }
    assert!(
        matches!(desk.arrive(of("4", "slow"), NOW), Arrival::Waits),
        "it begins soon"
    );
    assert!(
        why(desk.arrive(of("5", "fast"), NOW)).starts_with("its turn would come in about 23 s")
    );
    let other = Ticket {
        party: "other".to_owned(),
        ..of("6", "fast")
    };
    assert!(
        matches!(desk.arrive(other, NOW), Arrival::Waits),
        "its line is shorter"
    );
    for number in 0..2 * MOST_TOOLS {
        desk.learn(number.to_string(), Duration::ZERO);
    }
    assert!(desk.usual.len() <= MOST_TOOLS);
}

#[test]
fn without_places_to_wait_calls_begin_as_long_as_there_are_slots() {
    let mut desk = desk(1, 0);
    assert!(matches!(desk.arrive(ticket("a"), NOW), Arrival::Waits));
    assert_eq!(
        begin(&mut desk, NOW).map(|(id, _)| id),
        Some("a".to_owned())
    );
    assert_eq!(why(desk.arrive(ticket("b"), NOW)), "0 calls wait already");
}
