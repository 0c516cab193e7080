//! Which claim proves which line of the acceptance list of the system whose worker API this is. A claim that was renamed
//! or removed is missed here.

use std::{collections::BTreeSet, fs};

/// A line's number, what it asks for, and the claims that hold it: file and function.
type Requirement = (u32, &'static str, &'static [(&'static str, &'static str)]);

/// All of them.
const LINES: &[Requirement] = &[
    (
        1,
        "no key, a wrong one, an expired one",
        &[
            (
                "node/tests/worker.rs",
                "without_a_good_key_nothing_is_let_in",
            ),
            (
                "gateway/tests/keys.rs",
                "a_key_that_is_revoked_or_has_expired_is_good_for_nothing_at_once",
            ),
        ],
    ),
    (
        2,
        "ready, or not and why",
        &[
            (
                "node/tests/worker.rs",
                "it_says_that_it_lives_and_is_ready_and_shows_nobody_else_s_routes",
            ),
            ("node/tests/yaml.rs", "a_missing_runtime_is_named"),
        ],
    ),
    (
        3,
        "a body over the bound",
        &[
            ("node/tests/worker.rs", "a_body_over_ten_mebibytes_is_413"),
            ("node/tests/yaml.rs", "bounds_of_the_file_hold"),
        ],
    ),
    (
        4,
        "versions, ids and commands that are missing",
        &[(
            "node/tests/worker.rs",
            "what_is_missing_or_unknown_is_named",
        )],
    ),
    (
        5,
        "internal paths on the public port",
        &[(
            "node/tests/worker.rs",
            "it_says_that_it_lives_and_is_ready_and_shows_nobody_else_s_routes",
        )],
    ),
    (
        6,
        "a result, also of one that failed",
        &[(
            "node/tests/worker.rs",
            "a_job_has_every_field_of_its_result_whether_or_not_it_succeeds",
        )],
    ),
    (
        7,
        "no network",
        &[(
            "node/tests/worker.rs",
            "there_is_no_network_by_either_policy",
        )],
    ),
    (
        8,
        "its variables",
        &[(
            "node/tests/worker.rs",
            "its_own_variables_are_there_and_cannot_be_forged",
        )],
    ),
    (
        9,
        "a timeout, never longer than the node's",
        &[
            ("node/tests/worker.rs", "a_job_whose_time_is_over_is_gone"),
            ("node/tests/yaml.rs", "bounds_of_the_file_hold"),
        ],
    ),
    (
        10,
        "streams that are cut, in bounded memory",
        &[
            (
                "node/tests/worker.rs",
                "both_streams_are_cut_at_a_character_and_say_so",
            ),
            (
                "node/tests/worker.rs",
                "who_writes_without_end_takes_no_memory_of_the_server",
            ),
            (
                "node/tests/telemetry.rs",
                "endless_output_is_bounded_and_what_is_missing_is_said",
            ),
        ],
    ),
    (
        11,
        "a workspace for each job",
        &[("node/tests/worker.rs", "a_workspace_is_one_job_s")],
    ),
    (
        12,
        "no secret inside or in the answer",
        &[(
            "node/tests/worker.rs",
            "nothing_of_the_server_is_in_a_job_or_its_result",
        )],
    ),
    (
        13,
        "hostile ids",
        &[(
            "node/tests/worker.rs",
            "hostile_identifiers_are_refused_and_nothing_is_deleted",
        )],
    ),
    (
        14,
        "what cannot start",
        &[(
            "node/tests/worker.rs",
            "what_cannot_start_has_failed_with_its_cause",
        )],
    ),
    (
        19,
        "job specs that are refused",
        &[(
            "node/tests/steps.rs",
            "a_job_is_checked_whole_before_anything_is_carried_out",
        )],
    ),
    (
        20,
        "the fields of a result",
        &[(
            "node/tests/steps.rs",
            "a_job_is_checked_whole_before_anything_is_carried_out",
        )],
    ),
    (
        21,
        "from a file, and by streams",
        &[(
            "node/tests/steps.rs",
            "steps_are_carried_out_in_their_order_and_say_what_they_wrote",
        )],
    ),
    (
        22,
        "too much output",
        &[("node/tests/steps.rs", "output_and_time_are_held")],
    ),
    (
        23,
        "paths that leave the workspace",
        &[("node/tests/steps.rs", "no_path_leaves_the_workspace")],
    ),
    (
        24,
        "callbacks",
        &[(
            "node/tests/steps.rs",
            "the_caller_is_told_of_the_beginning_and_the_end",
        )],
    ),
    (
        34,
        "telemetry, its shape and its records",
        &[
            (
                "node/tests/telemetry.rs",
                "the_node_tells_what_it_is_and_how_it_is",
            ),
            (
                "node/tests/telemetry.rs",
                "a_run_is_a_container_with_its_events_and_its_lines",
            ),
            (
                "node/tests/telemetry.rs",
                "starts_and_ends_of_the_server_are_seen_and_what_was_killed_is_lost",
            ),
        ],
    ),
    (
        35,
        "pages, bounds and bad questions",
        &[
            (
                "node/tests/telemetry.rs",
                "lines_come_in_pages_of_a_count_and_of_a_size",
            ),
            (
                "node/tests/telemetry.rs",
                "bad_questions_are_refused_in_the_words_of_the_worker_api",
            ),
        ],
    ),
    (
        36,
        "from queued to a result, by name; cancel ends the program",
        &[
            (
                "node/tests/jobs.rs",
                "a_job_is_accepted_runs_and_has_a_result",
            ),
            (
                "node/tests/jobs.rs",
                "jobs_are_listed_newest_first_filtered_and_paged",
            ),
            (
                "node/tests/jobs.rs",
                "cancelling_ends_a_job_that_waits_and_one_that_runs",
            ),
        ],
    ),
    (
        37,
        "one holder of a task at a time",
        &[
            (
                "node/tests/workflow.rs",
                "a_task_has_one_holder_at_a_time_who_can_go_on_after_a_crash",
            ),
            (
                "node/tests/workflow.rs",
                "a_lease_that_is_over_can_be_taken_with_its_checkpoint",
            ),
        ],
    ),
    // Its own mediated call is a stub there; here it is a rule of the egress door with a credential.
    (
        38,
        "calls of others' services by rules, with the key put in outside",
        &[
            (
                "../security/egress/tests/inspect.rs",
                "the_key_is_put_in_outside_whatever_the_program_sends",
            ),
            (
                "../security/egress/tests/inspect.rs",
                "only_requests_that_the_rule_allows_pass",
            ),
        ],
    ),
    (
        39,
        "create, exec, files, logs, destroy",
        &[
            (
                "node/tests/sessions.rs",
                "programs_of_a_session_share_what_they_write_until_it_is_ended",
            ),
            (
                "node/tests/sessions.rs",
                "what_a_program_writes_is_followed_while_it_runs",
            ),
            (
                "gateway/tests/sandboxes/files.rs",
                "a_file_comes_back_as_it_was_put",
            ),
        ],
    ),
    (
        40,
        "idle and lifetime",
        &[(
            "node/tests/sessions.rs",
            "a_session_ends_by_itself_when_its_time_is_over_or_nobody_uses_it",
        )],
    ),
    (
        41,
        "images keep their contract",
        &[
            ("images/tests/contract.rs", "every_utility_is_missed_alone"),
            (
                "images/tests/contract.rs",
                "the_mended_twin_of_them_all_keeps_the_contract",
            ),
        ],
    ),
    (
        42,
        "images that are not allowed",
        &[
            (
                "../cli/images.rs",
                "an_image_that_is_not_allowed_is_refused_with_the_reason",
            ),
            (
                "../cli/allowed.rs",
                "a_digest_and_a_mark_are_asked_for_with_the_reason",
            ),
            (
                "node/tests/yaml.rs",
                "images_that_are_not_listed_and_models_that_are_not_given_are_refused",
            ),
        ],
    ),
    (
        43,
        "artifacts with their checksum, no more of them than may be",
        &[
            (
                "node/tests/quotas.rs",
                "a_tenant_stores_what_it_may_and_no_more",
            ),
            (
                "gateway/tests/artifacts.rs",
                "what_is_put_comes_back_whole_in_parts_and_in_versions",
            ),
            (
                "gateway/tests/artifacts.rs",
                "bytes_with_another_digest_than_announced_are_not_kept",
            ),
            (
                "gateway/tests/artifacts.rs",
                "names_that_lead_elsewhere_are_refused",
            ),
        ],
    ),
    (
        44,
        "a restart of the node",
        &[
            (
                "node/tests/worker.rs",
                "a_job_can_be_sent_without_waiting_and_is_lost_with_its_node",
            ),
            (
                "node/tests/jobs.rs",
                "a_server_that_is_killed_leaves_every_job_with_what_was_asked_for",
            ),
            (
                "soak/tests/kills.rs",
                "a_server_killed_at_any_moment_leaves_nothing_and_loses_no_word_that_it_gave",
            ),
        ],
    ),
    (
        45,
        "the same job twice",
        &[(
            "node/tests/worker.rs",
            "the_same_job_is_never_run_twice_also_after_a_restart",
        )],
    ),
];

#[test]
fn every_line_of_the_list_has_claims_that_there_are() {
    let wanted: BTreeSet<u32> = (1..=14).chain(19..=24).chain(34..=45).collect();
    let listed: BTreeSet<u32> = LINES.iter().map(|(line, ..)| *line).collect();
    assert_eq!(listed, wanted);
    for (line, what, claims) in LINES {
        assert!(!claims.is_empty(), "{line}, {what}");
        for (file, claim) in *claims {
            let text = fs::read_to_string(cli::repository().join("tests/server").join(file));
            let text = text.unwrap_or_else(|error| panic!("{line}, {what}: {file}: {error}"));
            assert!(
                text.contains(&format!("fn {claim}(")),
                "{line}, {what}: {file} has no `{claim}`"
            );
        }
    }
}
