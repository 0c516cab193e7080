use super::*;
use spec::{Id, Timestamp};

fn result(status: u8, stdout: &str, stderr: &str) -> RunResult {
    let blank = RunResult::blank(
        Id::new("probe").unwrap(),
        "restrictive".to_owned(),
        Timestamp(0),
    );
    let ended = if status == 0 {
        Status::Succeeded
    } else {
        Status::Failed
    };
    RunResult {
        status: ended,
        exit_status: status,
        stdout: stdout.into(),
        stderr: stderr.into(),
        ..blank
    }
}

fn requirement(name: &str) -> &'static Requirement {
    let all = requirements(&ImageProfile::ALL);
    all.into_iter()
        .find(|one| one.name == name)
        .unwrap_or_else(|| panic!("{name}"))
}

#[test]
fn a_profile_includes_the_base_and_names_no_requirement_twice() {
    let all = requirements(&ImageProfile::ALL);
    let names: std::collections::BTreeSet<_> = all.iter().map(|one| one.name).collect();
    assert_eq!(names.len(), all.len());
    for profile in ImageProfile::ALL {
        assert_eq!(ImageProfile::named(profile.name()), Some(profile));
        assert_eq!(requirements(&[profile])[0].name, "/bin/sh");
    }
}

#[test]
fn the_profile_is_what_the_label_declares() {
    let of = |purpose: &str| {
        let labels = [(PURPOSE_LABEL.to_owned(), purpose.to_owned())].into();
        ImageProfile::declared(&ImageConfig {
            labels,
            ..ImageConfig::default()
        })
    };
    assert_eq!(
        ImageProfile::declared(&ImageConfig::default()),
        [ImageProfile::BaseTools]
    );
    assert_eq!(of("run,dev"), [ImageProfile::BaseTools]);
    assert_eq!(
        of("node-tools, python-tools,run"),
        [ImageProfile::PythonTools, ImageProfile::NodeTools]
    );
}

#[test]
fn streams_are_compared_whole_and_statuses_are_all_looked_at() {
    let streams = requirement("stdout and stderr");
    assert_eq!(
        streams.evaluate(&[result(0, "out\n", "err\n")]).outcome,
        RequirementOutcome::Pass
    );
    let mixed = streams.evaluate(&[result(0, "out\nerr\n", "")]);
    assert_eq!(
        (mixed.outcome, mixed.seen.as_str()),
        (
            RequirementOutcome::Fail,
            "stdout is \"out\\nerr\\n\" and not \"out\\n\""
        )
    );
    let codes = requirement("exit codes");
    let of = |statuses: [u8; 4]| {
        codes
            .evaluate(&statuses.map(|status| result(status, "", "")))
            .outcome
    };
    assert_eq!(of([0, 7, 126, 127]), RequirementOutcome::Pass);
    for wrong in [
        [1, 7, 126, 127],
        [0, 0, 126, 127],
        [0, 7, 1, 127],
        [0, 7, 126, 0],
    ] {
        assert_eq!(of(wrong), RequirementOutcome::Fail, "{wrong:?}");
    }
    assert_eq!(
        codes.evaluate(&[result(0, "", "")]).outcome,
        RequirementOutcome::Fail,
        "a probe that was not run"
    );
}

#[test]
fn what_only_should_be_is_a_warning_and_what_is_missed_says_how_to_mend_it() {
    let date = requirement("date").evaluate(&[result(127, "", "date: not found\n")]);
    assert_eq!(date.outcome, RequirementOutcome::Warn);
    assert_eq!(date.seen, "exit status 127: date: not found");
    assert!(date.mend.is_some_and(|mend| mend.contains("coreutils")));
}

#[test]
fn only_whole_certificates_count() {
    let one = "-----BEGIN CERTIFICATE-----\nMIIB\nAAA=\n-----END CERTIFICATE-----\n";
    assert_eq!(
        certificates(format!("# a comment\n{one}{one}").as_bytes()),
        2
    );
    for broken in [
        &one[..40],
        "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----",
        &one.replace("MII", "M\u{fc}I"),
        "",
    ] {
        assert_eq!(certificates(broken.as_bytes()), 0, "{broken}");
    }
}

#[test]
fn an_image_for_root_without_a_purpose_is_warned_about() {
    let outcomes = |user: &str, purpose: Option<&str>| {
        let labels = purpose
            .map(|text| (PURPOSE_LABEL.to_owned(), text.to_owned()))
            .into_iter()
            .collect();
        let config = ImageConfig {
            user: user.to_owned(),
            labels,
            ..ImageConfig::default()
        };
        declarations(&config)
            .iter()
            .map(|line| line.outcome)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        outcomes("", None),
        [RequirementOutcome::Warn, RequirementOutcome::Warn]
    );
    assert_eq!(
        outcomes("root:root", Some("run,nonsense")),
        [RequirementOutcome::Warn, RequirementOutcome::Warn]
    );
    assert_eq!(
        outcomes("1000:1000", Some("base-tools,run")),
        [RequirementOutcome::Pass, RequirementOutcome::Pass]
    );
}
