//! What is promised to askers.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_call_is_answered_where_its_asker_listens_with_its_trace_and_then_settled() {
    let world = World::usual().await;
    world.invoke("echo", "a");
    world.idle().await;
    let answer = world.answer("a");
    assert_eq!(
        (&answer["id"], &answer["result"]["tool_result"]),
        (&json!("a"), &json!({"text": "a"}))
    );
    assert_eq!(answer["result"]["timed_out"], false);
    let sent = world
        .broker
        .log()
        .into_iter()
        .find(|message| message.topic == reply_topic("a"))
        .unwrap();
    assert_eq!(
        sent.properties.get("traceId").map(String::as_str),
        Some("trace-a")
    );
    assert!(sent.properties.contains_key("timestamp"));
    assert_eq!((world.broker.unsettled(), world.broker.settled()), (0, 1));
    assert_eq!(
        world.count(|event| matches!(event, WorkerEvent::Answered { .. })),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn nothing_is_settled_before_the_broker_has_the_answer() {
    let world = World::usual().await;
    world.broker.silent(true);
    world.invoke("echo", "a");
    world.invoke("nobody", "b");
    world.idle().await;
    assert_eq!(
        (world.answers("a").len(), world.broker.settled()),
        (1, 0),
        "it was sent"
    );
    world.broker.silent(false);
    world.idle().await;
    assert_eq!(world.broker.settled(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_copy_of_what_is_under_way_is_run_once_and_both_are_settled_with_the_answer() {
    let world = World::usual().await;
    for _ in 0..12 {
        world.invoke("hang", "a");
    }
    world.idle().await;
    assert_eq!(world.calls.begun(), ["a"]);
    assert_eq!(world.broker.unsettled(), 9, "the first, and eight copies");
    world.calls.let_go("a");
    world.idle().await;
    assert_eq!(world.answers("a").len(), 1);
    assert_eq!(world.broker.unsettled(), 0);
    world.invoke("hang", "a");
    world.idle().await;
    let answers = world.answers("a");
    assert_eq!(
        (answers.len(), &answers[0]),
        (2, &answers[1]),
        "the same again"
    );
    assert_eq!(
        (world.calls.begun().len(), world.broker.unsettled()),
        (1, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_id_of_somebody_elses_gets_nothing_of_theirs() {
    let world = World::usual().await;
    world.invoke("echo", "a");
    world.idle().await;
    let body = json!({"id": "a", "params": {"task_id": "t", "tool_name": "echo", "app_name": "thief",
        "user_id": "u", "session_id": "s"}});
    world
        .broker
        .deliver(&topic("invoke/echo"), &body, Properties::new());
    world.idle().await;
    assert_eq!(world.calls.begun(), ["a", "a"], "it is another call");
    assert_eq!(world.answers("a").len(), 1);
    assert_eq!(world.broker.published(&topic("response/thief/a")).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn never_more_run_than_there_are_slots_and_all_are_answered_once() {
    let world = World::usual().await;
    let ids: Vec<_> = (0..50).map(|number| format!("n{number}")).collect();
    ids.iter().for_each(|id| world.invoke("hang", id));
    world.idle().await;
    assert_eq!(world.calls.running(), (2, 2));
    for id in &ids {
        world.calls.let_go(id);
        world.idle().await;
    }
    ids.iter()
        .for_each(|id| assert_eq!(world.answer(id)["result"]["tool_result"]["text"], **id));
    assert_eq!(
        (world.calls.running(), world.broker.unsettled()),
        ((0, 2), 0)
    );
}

#[tokio::test(start_paused = true)]
async fn whoever_finds_no_place_is_refused() {
    let world = World::new(Setup {
        slots: 1,
        waiting: 1,
        ..Setup::default()
    })
    .await;
    for id in ["a", "b", "c"] {
        world.invoke("hang", id);
        world.idle().await;
    }
    assert_eq!(world.code("c"), "RESOURCE_EXHAUSTED");
    assert_eq!(world.broker.unsettled(), 2);
    world.calls.let_go("a");
    world.calls.let_go("b");
    world.idle().await;
    assert_eq!((world.answers("a").len(), world.answers("b").len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn without_room_on_the_disk_nothing_is_begun() {
    let world = World::new(Setup {
        slots: 1,
        is_disk_full: true,
        ..Setup::default()
    })
    .await;
    for id in ["a", "b"] {
        world.invoke("echo", id);
        world.idle().await;
        assert_eq!(world.code(id), "RESOURCE_EXHAUSTED", "and no slot is lost");
    }
    assert!(world.calls.begun().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_panic_is_an_internal_error_and_its_slot_is_free_again() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    world.invoke("panic", "a");
    world.invoke("echo", "b");
    world.idle().await;
    assert_eq!(world.code("a"), "INTERNAL_ERROR");
    assert_eq!(world.answer("b")["result"]["tool_result"]["text"], "b");
    assert_eq!(world.broker.unsettled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_never_ends_is_given_up() {
    let world = World::new(Setup {
        slots: 1,
        tools: vec!["stuck", "echo"],
        ..Setup::default()
    })
    .await;
    world.invoke("stuck", "a");
    world.idle().await;
    sleep(Duration::from_secs(91)).await;
    assert_eq!(world.code("a"), "INTERNAL_ERROR");
    assert_eq!(world.calls.running().0, 0, "it was dropped");
    world.invoke("echo", "b");
    world.idle().await;
    assert_eq!(world.answers("b").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_large_for_us_or_for_the_broker_is_an_error_that_names_sizes() {
    let world = World::usual().await;
    world.invoke("large", "a");
    world.idle().await;
    let message = world.answer("a")["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(
        message.contains("have 10000") && message.contains("has 201"),
        "{message}"
    );
    let is_error = |event: &WorkerEvent| {
        matches!(
            event,
            WorkerEvent::Answered {
                how: AnswerStatus::Error(_),
                ..
            }
        )
    };
    assert_eq!(world.count(is_error), 1, "what was said is noted");
    let world = World::new(Setup {
        largest: 100_000,
        ..Setup::default()
    })
    .await;
    world.broker.refuses_larger(15_000);
    world.invoke("large", "a");
    world.idle().await;
    assert_eq!(world.code("a"), "EXECUTION_ERROR");
    assert_eq!((world.broker.unsettled(), world.count(is_error)), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn what_a_tool_says_goes_out_in_order_and_before_the_answer() {
    let world = World::usual().await;
    world.invoke("chat", "a");
    world.idle().await;
    let said = world.broker.published(&status_topic("a"));
    let texts: Vec<_> = said
        .iter()
        .map(|one| one["params"]["status_text"].clone())
        .collect();
    assert_eq!(
        texts,
        (0..40)
            .map(|number| json!(format!("status {number}")))
            .collect::<Vec<_>>()
    );
    assert!(said.iter().all(|one| one["params"]["task_id"] == "task-a"));
    let topics = world.broker.topics();
    assert_eq!(topics.last(), Some(&reply_topic("a")));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_is_a_result_and_time_and_profile_come_from_whoever_says_something() {
    let world = World::usual().await;
    let mut entry = (*tool("echo", "d")).clone();
    entry.timeout = Some(Duration::from_secs(77));
    let strict = Arc::new(entry.clone());
    entry.profile = Some(ToolProfile::Permissive);
    let mut tools = (*catalog(&["late"])).clone();
    tools.insert("echo".to_owned(), strict);
    tools.insert(
        "hang".to_owned(),
        Arc::new(Tool {
            name: "hang".to_owned(),
            ..entry
        }),
    );
    world.catalog.send_replace(Arc::new(tools));
    world.invoke_with("late", "a", json!({"timeout_seconds": 2}));
    world.idle().await;
    sleep(Duration::from_secs(2)).await;
    let answer = world.answer("a");
    assert_eq!(
        (&answer["result"]["timed_out"], &answer["error"]),
        (&json!(true), &Value::Null)
    );
    world.invoke_with("echo", "b", json!({"sandbox_profile": "no such thing"}));
    world.invoke_with(
        "hang",
        "c",
        json!({"sandbox_profile": "standard", "timeout_seconds": 5}),
    );
    world.invoke_with("late", "d", json!({}));
    world.idle().await;
    let seen = |id: &str, seconds, profile| {
        let expected = fake_executor::SeenCall {
            id: id.to_owned(),
            time: Duration::from_secs(seconds),
            profile,
        };
        assert_eq!(world.calls.seen(id), expected);
    };
    seen("b", 77, ToolProfile::Restrictive);
    seen("c", 5, ToolProfile::Permissive);
    world.calls.let_go("c");
    world.idle().await;
    seen("d", 30, ToolProfile::Restrictive);
    // A request may be stricter than its operator, and no laxer; only an entry may.
    world.invoke_with("late", "e", json!({"sandbox_profile": "permissive"}));
    world.idle().await;
    seen("e", 30, ToolProfile::Restrictive);
    assert_eq!(
        world.count(|event| matches!(event, WorkerEvent::ProfileTooWide { .. })),
        1
    );
    assert_eq!(
        world.count(|event| matches!(event, WorkerEvent::UnknownProfile { .. })),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn it_can_be_cancelled_before_it_comes_while_it_waits_while_it_runs_and_after() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    world.cancel("early");
    world.idle().await;
    for id in ["early", "runs", "waits"] {
        world.invoke("hang", id);
        world.idle().await;
    }
    assert_eq!(world.code("early"), "EXECUTION_ERROR");
    world.cancel("waits");
    world.idle().await;
    assert_eq!(world.code("waits"), "EXECUTION_ERROR");
    world.cancel("runs");
    world.idle().await;
    let message = world.answer("runs")["error"]["message"]
        .as_str()
        .unwrap()
        .to_owned();
    assert!(message.starts_with("cancelled"), "{message}");
    world.cancel("runs");
    world.cancel("waits");
    world.idle().await;
    assert_eq!(world.calls.begun(), ["runs"]);
    assert_eq!(
        (world.answers("runs").len(), world.answers("waits").len()),
        (1, 1)
    );
    assert_eq!(world.broker.unsettled(), 0);
}

#[tokio::test(start_paused = true)]
async fn bad_requests_are_answered_if_they_say_where_and_settled_in_any_case() {
    let world = World::usual().await;
    let reply = Properties::from([("replyTo".to_owned(), reply_topic("bad"))]);
    world
        .broker
        .deliver_bytes(&topic("invoke/echo"), Bytes::from_static(b"{"), reply);
    world.broker.deliver_bytes(
        &topic("invoke/echo"),
        Bytes::from_static(b"{"),
        Properties::new(),
    );
    world.idle().await;
    assert_eq!(
        (world.code("bad"), world.broker.unsettled()),
        ("INVALID_REQUEST".to_owned(), 0)
    );
    assert_eq!(
        world.count(|event| matches!(event, WorkerEvent::Unanswerable { .. })),
        1
    );
}

fn ask(world: &World, kind: &str, tool: &str, id: &str, params: Value) {
    let body = json!({"jsonrpc": "2.0", "id": id, "params": params});
    let reply = Properties::from([("replyTo".to_owned(), reply_topic(id))]);
    world
        .broker
        .deliver(&topic(&format!("{kind}/{tool}")), &body, reply);
}

#[tokio::test(start_paused = true)]
async fn it_is_told_what_own_tools_are_in_the_words_of_whoever_asks_and_of_others_nothing() {
    let world = World::usual().await;
    ask(&world, "init_request", "echo", "today", json!({}));
    ask(&world, "init", "echo", "old", json!({}));
    ask(&world, "init_request", "theirs", "other", json!({}));
    ask(
        &world,
        "init_request",
        "theirs",
        "other",
        json!({"tool_config": 7}),
    );
    ask(
        &world,
        "init_request",
        "echo",
        "wrong",
        json!({"tool_config": 7}),
    );
    world.idle().await;
    let card = json!({"tool_name": "echo", "description": "d", "parameters": {"type": "object"}});
    assert_eq!(world.answer("today")["result"], card);
    let card = json!({"tool_name": "echo", "tool_description": "d", "parameters_schema": {"type": "object"}});
    assert_eq!(world.answer("old")["result"], card);
    assert_eq!(world.code("wrong"), "INVALID_REQUEST");
    assert_eq!(world.answers("other"), Vec::<Value>::new());
    assert_eq!(world.broker.unsettled(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_is_gone_is_not_available_and_not_listened_to() {
    let world = World::usual().await;
    world.broker.silent(true);
    world.catalog.send_replace(catalog(&["hang"]));
    world.idle().await;
    // While everybody is being told, it is already so.
    world.invoke("echo", "a");
    world.idle().await;
    world.broker.silent(false);
    world.idle().await;
    assert_eq!(world.code("a"), "TOOL_NOT_AVAILABLE");
    let listened = [
        topic("cancel/>"),
        topic("init/hang"),
        topic("init_request/>"),
        topic("invoke/hang"),
    ];
    assert_eq!(world.broker.patterns(), listened);
    for tool in ["echo", "panic", "large", "chat", "late"] {
        assert_eq!(
            world
                .broker
                .published(&topic(&format!("removed/{tool}")))
                .len(),
            1,
            "{tool}"
        );
    }
    assert_eq!(world.broker.published(&topic("removed/hang")).len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waited_begins_by_what_the_manifest_says_then() {
    let tools = vec!["hang", "same", "strict", "gone"];
    let world = World::new(Setup {
        slots: 1,
        tools: tools.clone(),
        ..Setup::default()
    })
    .await;
    let entry = |name: &str, profile, seconds| {
        let timeout = Some(Duration::from_secs(seconds));
        (
            name.to_owned(),
            Arc::new(Tool {
                profile: Some(profile),
                timeout,
                ..(*tool(name, "d")).clone()
            }),
        )
    };
    let wide = tools
        .iter()
        .map(|name| entry(name, ToolProfile::Permissive, 20));
    world.catalog.send_replace(Arc::new(wide.collect()));
    for name in &tools {
        world.invoke(name, name);
        world.idle().await;
    }
    assert_eq!(world.calls.begun(), ["hang"], "the others wait");
    let narrow = [
        entry("same", ToolProfile::Permissive, 40),
        entry("strict", ToolProfile::Restrictive, 5),
    ];
    world.catalog.send_replace(Arc::new(narrow.into()));
    world.calls.let_go("hang");
    world.idle().await;
    assert_eq!(world.code("gone"), "TOOL_NOT_AVAILABLE");
    for (id, seconds, profile) in [
        ("same", 20, ToolProfile::Permissive),
        ("strict", 5, ToolProfile::Restrictive),
    ] {
        let expected = fake_executor::SeenCall {
            id: id.to_owned(),
            time: Duration::from_secs(seconds),
            profile,
        };
        assert_eq!(world.calls.seen(id), expected);
    }
    assert_eq!(world.calls.begun(), ["hang", "same", "strict"]);
    assert_eq!(
        (world.answers("hang").len(), world.broker.unsettled()),
        (1, 0),
        "one that runs goes on"
    );
    world.invoke("same", "after");
    world.idle().await;
    assert_eq!(world.answers("after").len(), 1, "no slot is lost");
}

#[tokio::test(start_paused = true)]
async fn everybody_is_told_of_tools_at_the_start_when_they_change_after_a_connection_and_again() {
    let world = World::new(Setup {
        tools: vec!["echo"],
        is_subscribed: false,
        ..Setup::default()
    })
    .await;
    let listened = [
        topic("cancel/>"),
        topic("init/echo"),
        topic("init_request/>"),
        topic("invoke/echo"),
    ];
    assert_eq!(
        world.broker.patterns(),
        listened,
        "whatever the link was begun with"
    );
    let told = |tool: &str| {
        world
            .broker
            .published(&topic(&format!("init/{tool}")))
            .len()
    };
    assert_eq!(told("echo"), 1);
    world.catalog.send_replace(Arc::new(BTreeMap::from([
        ("echo".to_owned(), tool("echo", "d")),
        ("hang".to_owned(), tool("hang", "d")),
    ])));
    world.idle().await;
    assert_eq!((told("echo"), told("hang")), (1, 1), "only of the new one");
    world.catalog.send_replace(Arc::new(BTreeMap::from([
        ("echo".to_owned(), tool("echo", "other")),
        ("hang".to_owned(), tool("hang", "d")),
    ])));
    world.idle().await;
    assert_eq!(
        (told("echo"), told("hang")),
        (2, 1),
        "only of the changed one"
    );
    world.broker.cut();
    sleep(Duration::from_secs(4)).await;
    assert_eq!((told("echo"), told("hang")), (3, 2));
    sleep(announce::ANNOUNCE_INTERVAL).await;
    assert_eq!((told("echo"), told("hang")), (4, 3));
    world
        .undiscovered
        .send(UndiscoveredTool {
            tool: "odd".to_owned(),
            why: "it says no".to_owned(),
        })
        .await
        .unwrap();
    world.idle().await;
    let failed = world.broker.published(&topic("failed_discovery/odd"));
    assert_eq!(
        failed[0]["params"],
        json!({"tool_name": "odd", "error": "it says no"})
    );
}

#[tokio::test(start_paused = true)]
async fn what_comes_again_after_a_lost_connection_is_not_run_again() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    world.invoke("hang", "a");
    world.invoke("hang", "b");
    world.idle().await;
    world.broker.cut();
    sleep(Duration::from_secs(4)).await;
    assert_eq!(world.broker.unsettled(), 2);
    world.calls.let_go("a");
    world.calls.let_go("b");
    world.idle().await;
    assert_eq!((world.answers("a").len(), world.answers("b").len()), (1, 1));
    assert_eq!(
        (world.calls.begun(), world.broker.unsettled()),
        (vec!["a".to_owned(), "b".to_owned()], 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_asker_is_told_in_time_that_its_call_is_not_begun_though_no_slot_is_free() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    world.invoke("hang", "runs");
    world.idle().await;
    // By the clock of the day, which no test stops: of one second for the tool and nine beyond little is left.
    let sent = service::now_ms() - 9_900;
    let body = json!({"id": "waits", "params": {"task_id": "t", "tool_name": "hang", "app_name": "agent",
        "user_id": "u", "session_id": "s", "timeout_seconds": 1}});
    let properties = Properties::from([
        ("replyTo".to_owned(), reply_topic("waits")),
        ("timestamp".to_owned(), sent.to_string()),
    ]);
    world
        .broker
        .deliver(&topic("invoke/hang"), &body, properties);
    world.idle().await;
    while service::now_ms() < sent + 12_000 && world.answers("waits").is_empty() {
        world.idle().await;
    }
    assert_eq!(world.code("waits"), "RESOURCE_EXHAUSTED");
    assert_eq!(
        (world.calls.begun(), world.broker.unsettled()),
        (vec!["runs".to_owned()], 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_waits_is_cancelled_by_its_id_though_its_answer_is_called_otherwise() {
    let world = World::new(Setup {
        slots: 1,
        ..Setup::default()
    })
    .await;
    world.invoke("hang", "runs");
    world.idle().await;
    let body = json!({"id": "its-id", "params": {"task_id": "t", "tool_name": "hang", "app_name": "agent",
        "user_id": "u", "session_id": "s"}});
    let properties = Properties::from([("replyTo".to_owned(), reply_topic("other"))]);
    world
        .broker
        .deliver(&topic("invoke/hang"), &body, properties);
    world.idle().await;
    world.cancel("its-id");
    world.idle().await;
    assert_eq!(world.code("other"), "EXECUTION_ERROR");
}

#[tokio::test(start_paused = true)]
async fn one_user_who_asks_for_much_does_not_keep_others_from_their_turn() {
    let world = World::new(Setup {
        slots: 1,
        waiting: 8,
        ..Setup::default()
    })
    .await;
    for number in 0..20 {
        world.invoke("hang", &format!("n{number}"));
    }
    world.invoke_with("hang", "other", json!({"user_id": "v"}));
    world.idle().await;
    assert!(world.answers("other").is_empty(), "it has a place");
    assert_eq!(world.code("n19"), "RESOURCE_EXHAUSTED");
    for id in ["n0", "n1"] {
        world.calls.let_go(id);
        world.idle().await;
    }
    assert_eq!(world.calls.begun(), ["n0", "n1", "other"]);
}

#[tokio::test(start_paused = true)]
async fn what_needs_no_answer_is_settled_though_too_many_answers_wait() {
    let world = World::usual().await;
    world.broker.silent(true);
    let reply = Properties::from([("replyTo".to_owned(), reply_topic("bad"))]);
    for _ in 0..4100 {
        world.broker.deliver_bytes(
            &topic("invoke/echo"),
            Bytes::from_static(b"{"),
            reply.clone(),
        );
    }
    (0..50).for_each(|number| world.cancel(&number.to_string()));
    world.idle().await;
    assert_eq!(world.broker.settled(), 0);
    world.broker.silent(false);
    sleep(Duration::from_secs(5)).await;
    let unanswered = world.count(|event| matches!(event, WorkerEvent::PublishFailed { .. }));
    assert_eq!(
        (unanswered, world.broker.unsettled()),
        (4, 0),
        "by this connection nothing comes again"
    );
}

#[tokio::test(start_paused = true)]
async fn copies_of_a_call_with_a_large_answer_do_not_make_a_worker_deaf() {
    let tools = vec!["huge", "echo"];
    let world = World::new(Setup {
        largest: 10_000_000,
        tools,
        ..Setup::default()
    })
    .await;
    let sent = |id| {
        world
            .broker
            .topics()
            .into_iter()
            .filter(|topic| *topic == reply_topic(id))
            .count()
    };
    world.broker.window(32);
    world.invoke("huge", "a");
    world.idle().await;
    assert_eq!((sent("a"), world.broker.unsettled()), (1, 0));
    world.broker.silent(true);
    for _ in 0..200 {
        world.invoke("huge", "a");
    }
    world.invoke("echo", "b");
    world.idle().await;
    assert_eq!(
        (sent("a"), sent("b")),
        (2, 1),
        "it is answered again, and others are heard"
    );
    assert_eq!(
        world.broker.unsettled(),
        1 + 8 + 1,
        "some copies wait for that"
    );
    world.broker.silent(false);
    world.idle().await;
    assert_eq!(sent("a"), 2, "one answer was for all of them");
    assert_eq!(
        (world.calls.begun(), world.broker.unsettled()),
        (vec!["a".to_owned(), "b".to_owned()], 0)
    );
}

#[tokio::test(start_paused = true)]
async fn whoever_asks_what_a_tool_is_while_too_much_waits_for_the_broker_is_told_that() {
    let world = World::new(Setup {
        largest: 100_000,
        ..Setup::default()
    })
    .await;
    let large = tool("echo", &"d".repeat(20_000));
    world
        .catalog
        .send_replace(Arc::new(BTreeMap::from([("echo".to_owned(), large)])));
    world.idle().await;
    world.broker.silent(true);
    // More than 64 MiB, and what the last card leaves of those is less than all errors take.
    for number in 0..4000 {
        ask(
            &world,
            "init_request",
            "echo",
            &format!("n{number}"),
            json!({}),
        );
    }
    ask(
        &world,
        "init_request",
        "echo",
        "other",
        json!({"tool_config": {"description": "short"}}),
    );
    world.idle().await;
    world.broker.silent(false);
    world.idle().await;
    assert!(
        world.answer("n0")["result"].is_object(),
        "there was room for some"
    );
    for id in ["n3999", "other"] {
        assert_eq!(world.code(id), "RESOURCE_EXHAUSTED", "{id}");
    }
    let answers = topic("response/");
    assert_eq!(
        world
            .broker
            .topics()
            .iter()
            .filter(|topic| topic.starts_with(&answers))
            .count(),
        4001
    );
    assert_eq!(world.broker.unsettled(), 0);
    ask(&world, "init_request", "echo", "later", json!({}));
    world.idle().await;
    assert!(
        world.answer("later")["result"].is_object(),
        "there is room again"
    );
}
