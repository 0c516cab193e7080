//! Expectations are from the protocol's description, not from what the code says.

use super::*;
use proptest::prelude::*;

fn base() -> TopicBase {
    TopicBase::new("myorg/dev", "").unwrap()
}

#[test]
fn topics_are_those_of_the_mesh() {
    let base = base();
    for (topic, text) in [
        (
            Topic::Invoke("resize_image"),
            "myorg/dev/a2a/v1/sam_remote_tool/invoke/resize_image",
        ),
        (
            Topic::Response {
                agent: "PhotoAgent",
                correlation: "5f0c",
            },
            "myorg/dev/a2a/v1/sam_remote_tool/response/PhotoAgent/5f0c",
        ),
        (
            Topic::Status {
                agent: "PhotoAgent",
                correlation: "5f0c",
            },
            "myorg/dev/a2a/v1/sam_remote_tool/status/PhotoAgent/5f0c",
        ),
        (
            Topic::Init("db_query"),
            "myorg/dev/a2a/v1/sam_remote_tool/init/db_query",
        ),
        (
            Topic::InitRequest("db_query"),
            "myorg/dev/a2a/v1/sam_remote_tool/init_request/db_query",
        ),
        (
            Topic::Removed("db_query"),
            "myorg/dev/a2a/v1/sam_remote_tool/removed/db_query",
        ),
        (
            Topic::Cancel("5f0c"),
            "myorg/dev/a2a/v1/sam_remote_tool/cancel/5f0c",
        ),
        (
            Topic::FailedDiscovery("db_query"),
            "myorg/dev/a2a/v1/sam_remote_tool/failed_discovery/db_query",
        ),
        (
            Topic::Discovery("agentcards"),
            "myorg/dev/a2a/v1/discovery/agentcards",
        ),
    ] {
        assert_eq!(base.write(topic).unwrap(), text);
        assert_eq!(base.read(text), Some(topic));
    }
}

#[test]
fn patterns_are_those_of_the_mesh() {
    let base = base();
    assert_eq!(base.discovery(), "myorg/dev/a2a/v1/discovery/>");
    assert_eq!(
        base.init_requests(),
        "myorg/dev/a2a/v1/sam_remote_tool/init_request/>"
    );
    assert_eq!(
        base.cancellations(),
        "myorg/dev/a2a/v1/sam_remote_tool/cancel/>"
    );
}

#[test]
fn a_tools_name_is_everything_behind_the_kind() {
    let topic = "myorg/dev/a2a/v1/sam_remote_tool/invoke/images/resize";
    assert_eq!(base().read(topic), Some(Topic::Invoke("images/resize")));
}

#[test]
fn a_namespace_keeps_to_the_rules_of_the_mesh() {
    for (text, wanted) in [
        ("myorg/dev", "myorg/dev"),
        ("myorg/dev///", "myorg/dev"),
        ("a.b_c-9", "a.b_c-9"),
        ("", "solace-agent-mesh"),
    ] {
        assert_eq!(
            TopicBase::new(text, "solace-agent-mesh")
                .unwrap()
                .namespace(),
            wanted
        );
    }
    let long = "n".repeat(MAX_NAMESPACE_BYTES + 1);
    for (text, wanted) in [
        ("/a", BadNamespace::LeadingSlash),
        ("/", BadNamespace::LeadingSlash),
        ("a/../b", BadNamespace::TwoDots),
        ("a b", BadNamespace::Character(' ')),
        ("a/>", BadNamespace::Character('>')),
        ("a/+", BadNamespace::Character('+')),
        ("ä", BadNamespace::Character('ä')),
        ("a\n", BadNamespace::Character('\n')),
        (&long, BadNamespace::TooLong(161)),
    ] {
        assert_eq!(TopicBase::new(text, "default"), Err(wanted));
    }
    assert_eq!(TopicBase::new("", ""), Err(BadNamespace::Empty));
    assert!(TopicBase::new(&long[1..], "").is_ok());
}

#[test]
fn a_name_that_could_be_a_pattern_is_neither_written_nor_read() {
    let base = base();
    for letter in [
        '*',
        '>',
        '+',
        '#',
        '\0',
        '\n',
        '\u{7f}',
        '\u{85}',
        '\u{fdd0}',
        '\u{fdef}',
        '\u{fffe}',
        '\u{10ffff}',
    ] {
        let tool = format!("a{letter}b");
        assert_eq!(base.invoke(&tool), Err(BadTopic::Character(letter)));
        assert_eq!(
            base.response("agent", &tool),
            Err(BadTopic::Character(letter))
        );
        assert_eq!(base.response(&tool, "id"), Err(BadTopic::Character(letter)));
        assert_eq!(
            base.read(&format!("myorg/dev/a2a/v1/sam_remote_tool/invoke/{tool}")),
            None
        );
    }
    assert_eq!(
        base.response("two/levels", "id"),
        Err(BadTopic::Character('/'))
    );
    assert_eq!(base.invoke(""), Err(BadTopic::Empty));
}

#[test]
fn a_topic_is_as_long_as_a_broker_takes_it() {
    let base = base();
    let area = MAX_TOPIC_BYTES - base.invoke("x").unwrap().len() + 1;
    assert_eq!(base.invoke(&"x".repeat(area)).unwrap().len(), 250);
    assert_eq!(
        base.invoke(&"x".repeat(area + 1)),
        Err(BadTopic::TooLong(251))
    );
    let longest = base.invoke(&"x".repeat(area)).unwrap();
    assert!(base.read(&longest).is_some());
    assert_eq!(base.read(&format!("{longest}x")), None);
    assert_eq!(base.invoke(&"/".repeat(150)), Err(BadTopic::TooManyLevels));
}

#[test]
fn topics_of_others_are_not_heard() {
    for topic in [
        "",
        "myorg/dev/a2a/v1",
        "myorg/dev/a2a/v1/",
        "myorg/dev/a2a/v1/sam_remote_tool/invoke/",
        "myorg/dev/a2a/v1/sam_remote_tool/invoke",
        "myorg/dev/a2a/v1/sam_remote_tool/response/agent",
        "myorg/dev/a2a/v1/sam_remote_tool/response/agent/",
        "myorg/dev/a2a/v1/sam_remote_tool/response//id",
        "myorg/dev/a2a/v1/sam_remote_tool/unheard/of",
        "myorg/dev/a2a/v10/sam_remote_tool/invoke/tool",
        "myorg/a2a/v1/sam_remote_tool/invoke/tool",
        "x/myorg/dev/a2a/v1/sam_remote_tool/invoke/tool",
        "myorg/dev/a2a/v1/agent/request/tool",
    ] {
        assert_eq!(base().read(topic), None, "{topic}");
    }
}

#[test]
fn patterns_become_filters() {
    for (pattern, filter) in [
        ("a/*/c", "a/+/c"),
        ("a/>", "a/#"),
        (">", "#"),
        ("*", "+"),
        ("a/b", "a/b"),
        (
            "myorg/dev/a2a/v1/discovery/>",
            "myorg/dev/a2a/v1/discovery/#",
        ),
    ] {
        assert_eq!(mqtt_filter(pattern).unwrap(), filter);
    }
    for bad in [
        "",
        "a/b*",
        "a/>/b",
        "a>/b",
        "a/+",
        "a/#",
        "a\0b",
        &"a".repeat(251),
    ] {
        assert!(mqtt_filter(bad).is_err(), "{bad}");
    }
}

#[test]
fn patterns_mean_topics() {
    use TrailingWildcard::{AlsoNothing, OneLevelOrMore};
    for (pattern, topic, mesh, laptop) in [
        ("a/b", "a/b", true, true),
        ("a/b", "a/b/c", false, false),
        ("a/b", "a", false, false),
        ("a/*", "a/b", true, true),
        ("a/*", "a/b/c", false, false),
        ("a/*", "a/", false, false),
        ("a/*/c", "a/b/c", true, true),
        ("a/b*", "a/bcd", true, true),
        ("a/b*", "a/b", true, true),
        ("a/b*", "a/cb", false, false),
        ("a/>", "a/b", true, true),
        ("a/>", "a/b/c/d", true, true),
        ("a/>", "a", false, false),
        ("a/>", "a/", false, true),
        ("a/>", "ab/c", false, false),
        ("a/>/b", "a/x/b", false, false),
        (">", "a/b", true, true),
    ] {
        assert_eq!(
            matches(pattern, topic, OneLevelOrMore),
            mesh,
            "{pattern} {topic}"
        );
        assert_eq!(
            matches(pattern, topic, AlsoNothing),
            laptop,
            "{pattern} {topic}"
        );
    }
}

/// As MQTT says it, written without regard to the above.
fn is_filtered(filter: &[&str], topic: &[&str]) -> bool {
    match (filter, topic) {
        (["#"], _) | ([], []) => true,
        (["+", filter @ ..], [_, topic @ ..]) => is_filtered(filter, topic),
        ([same, filter @ ..], [level, topic @ ..]) => same == level && is_filtered(filter, topic),
        (_, _) => false,
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        namespace in "[A-Za-z0-9_-]{1,9}(/[A-Za-z0-9._-]{1,9}){0,3}", tool in "\\PC{1,60}", agent in "\\PC{1,60}",
    ) {
        let Ok(base) = TopicBase::new(&namespace, "") else { return Ok(()) };
        for topic in [
            Topic::Invoke(&tool), Topic::Init(&tool), Topic::InitRequest(&tool), Topic::Removed(&tool),
            Topic::Cancel(&tool), Topic::FailedDiscovery(&tool), Topic::Discovery(&tool),
            Topic::Response { agent: &agent, correlation: &tool }, Topic::Status { agent: &agent, correlation: &tool },
        ] {
            if let Ok(text) = base.write(topic) {
                prop_assert_eq!(base.read(&text), Some(topic));
            }
        }
    }

    #[test]
    fn what_is_read_is_written(rest in "(a2a|v1|sam_remote_tool|response|invoke|cancel|discovery|n|é|\\*|/){0,9}") {
        let base = TopicBase::new("n", "").unwrap();
        for text in [rest.clone(), format!("n/a2a/v1/{rest}"), format!("n/a2a/v1/sam_remote_tool/{rest}")] {
            if let Some(topic) = base.read(&text) {
                prop_assert_eq!(base.write(topic), Ok(text));
            }
        }
    }

    #[test]
    fn a_filter_means_what_its_pattern_means(pattern in "([ab*]/){0,4}[ab>*]", topic in "([ab]?/){0,4}[ab]?") {
        let filter = mqtt_filter(&pattern).unwrap();
        let (filter, levels): (Vec<_>, Vec<_>) = (filter.split('/').collect(), topic.split('/').collect());
        if matches(&pattern, &topic, TrailingWildcard::OneLevelOrMore) {
            prop_assert!(matches(&pattern, &topic, TrailingWildcard::AlsoNothing));
            prop_assert!(is_filtered(&filter, &levels));
        }
        // Wider only by the level above, and by levels that are empty.
        let is_wider = filter.last() == Some(&"#") && levels.len() < filter.len();
        if is_filtered(&filter, &levels) && !is_wider && levels.iter().all(|level| !level.is_empty()) {
            prop_assert!(matches(&pattern, &topic, TrailingWildcard::OneLevelOrMore));
        }
    }

    #[test]
    fn no_text_is_too_odd(pattern in "\\PC*", topic in ".*") {
        _ = (matches(&pattern, &topic, TrailingWildcard::AlsoNothing), mqtt_filter(&pattern), base().read(&topic));
        _ = TopicBase::new(&topic, &pattern);
    }
}
