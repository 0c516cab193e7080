//! Claims about the checks of a request.

use super::{inputs::input, mounts::mount, *};
use crate::{Contract, ErrorCode, LimitSet, Policy, TerminalSize};
use proptest::prelude::*;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::Path,
};

fn request(command: &[&str]) -> RunRequest {
    RunRequest {
        command: command.iter().map(OsString::from).collect(),
        ..RunRequest::default()
    }
}

fn refused(change: impl FnOnce(&mut RunRequest)) -> SpecError {
    let mut request = request(&["true"]);
    change(&mut request);
    Policy::default()
        .admit(request)
        .expect_err("must be refused")
}

#[test]
fn a_plain_request_is_admitted_with_the_restrictive_profile() {
    let spec = Policy::default()
        .admit(request(&["echo", "a b", ";", "$(x)", "\n"]))
        .unwrap();
    assert_eq!(spec.command, ["echo", "a b", ";", "$(x)", "\n"]);
    assert_eq!(spec.sandbox.profile, "restrictive");
    assert_eq!(spec.sandbox.network, Network::None);
    assert_eq!(
        spec.sandbox.user,
        User {
            uid: 1000,
            gid: 1000
        }
    );
    assert!(spec.sandbox.env.is_empty());
}

#[test]
fn refusals_name_the_thing_and_the_remedy() {
    let cases: [(SpecError, &str); 7] = [
        (
            refused(|r| r.profile = Some("strict".into())),
            "no profile is called `strict`",
        ),
        (refused(|r| r.command.clear()), "there is no command to run"),
        (
            refused(|r| r.run_id = Some("../x".into())),
            "`../x` is not an identifier",
        ),
        (
            refused(|r| r.mounts = vec!["/x".into()]),
            "`/x` is not a mount",
        ),
        (
            refused(|r| r.env = vec![("HOME".into(), "/".into())]),
            "the variable `HOME` cannot be set",
        ),
        (
            refused(|r| r.inputs = vec!["../a=/x".into()]),
            "`../a` cannot be used as a path",
        ),
        (
            refused(|r| r.doors = vec![8080]),
            "a door needs the network mode `doors`",
        ),
    ];
    for (error, start) in cases {
        assert!(error.message.starts_with(start), "{}", error.message);
        assert!(!error.hint.is_empty() && !error.message.contains('\n'));
        assert_eq!(error.code, ErrorCode::InvalidSpec);
    }
}

#[test]
fn what_is_not_built_yet_is_refused_not_weakened() {
    assert_eq!(
        refused(|r| r.backend = Some("microvm".into())).code,
        ErrorCode::BackendUnavailable
    );
}

#[test]
fn only_named_variables_of_the_caller_pass() {
    let mut policy = Policy::default();
    policy.profiles.get_mut("restrictive").unwrap().env_inherit =
        vec!["LANG".into(), "ABSENT".into()];
    let mut asked = request(&["env"]);
    asked.caller_env = [
        ("LANG".into(), "C".into()),
        ("AWS_SECRET".into(), "x".into()),
    ]
    .into();
    asked.env = vec![("A".into(), "1".into())];
    let env = policy.admit(asked).unwrap().sandbox.env;
    let names: Vec<_> = env.keys().map(|name| name.as_os_str().to_owned()).collect();
    assert_eq!(names, ["A", "LANG"]);
}

#[test]
fn a_secret_is_let_in_by_name_and_never_by_the_restrictive_profile() {
    let asked = |profile: &str, secrets: &[&str]| RunRequest {
        profile: Some(profile.to_owned()),
        secrets: secrets.iter().map(OsString::from).collect(),
        env: vec![("TAKEN".into(), "x".into())],
        ..request(&["true"])
    };
    let policy = Policy::default();
    let denied = policy.admit(asked("restrictive", &["a=A"])).unwrap_err();
    assert_eq!(denied.code, ErrorCode::PolicyDenied);
    assert_eq!(
        denied.message,
        "the profile `restrictive` lets no secret in"
    );
    let grants = policy
        .admit(asked("agent", &["a=A", "a=B"]))
        .unwrap()
        .grants;
    let name = |text: &str| EnvName::new(OsStr::new(text)).unwrap();
    assert_eq!(
        grants.secrets,
        [("a".to_owned(), name("A")), ("a".to_owned(), name("B"))]
    );
    for (secrets, message) in [
        (&["a"][..], "`a` is not a secret with its variable"),
        (&["../a=A"], "`../a` is not an identifier"),
        (&["a="], "`` is not the name of a variable"),
        (&["a=PATH"], "the variable `PATH` cannot be set by a caller"),
        (&["a=A", "b=A"], "the variable `A` is set twice"),
        (&["a=TAKEN"], "the variable `TAKEN` is set twice"),
    ] {
        let refused = policy.admit(asked("agent", secrets)).unwrap_err();
        assert!(refused.message.starts_with(message), "{}", refused.message);
    }
}

#[test]
fn a_terminal_takes_the_place_of_standard_input() {
    let size = TerminalSize {
        rows: 24,
        columns: 80,
    };
    let asked = |tty| RunRequest {
        stdin: true,
        tty,
        ..request(&["sh"])
    };
    let plain = Policy::default().admit(asked(None)).unwrap();
    assert_eq!((plain.stdin, plain.sandbox.tty), (true, None));
    let terminal = Policy::default().admit(asked(Some(size))).unwrap();
    assert_eq!((terminal.stdin, terminal.sandbox.tty), (false, Some(size)));
}

#[test]
fn a_contract_is_not_read_from_a_terminal() {
    let tty = Some(TerminalSize {
        rows: 24,
        columns: 80,
    });
    for contract in [Contract::Task, Contract::Envelope] {
        let asked = |tty| RunRequest {
            contract,
            tty,
            ..request(&["sh"])
        };
        assert_eq!(
            Policy::default().admit(asked(None)).unwrap().contract,
            contract
        );
        let refused = Policy::default().admit(asked(tty)).unwrap_err();
        assert_eq!(
            refused.message,
            format!("the contract `{contract}` cannot be read from a terminal")
        );
    }
}

#[test]
fn a_refusal_stays_on_one_line_whatever_the_caller_wrote() {
    let mounts = |r: &mut RunRequest| r.mounts = vec!["/a\n\x1b[2J".into()];
    let twice = |r: &mut RunRequest| r.mounts = vec!["/a:/b\n".into(), "/c:/b\n".into()];
    let inputs = |r: &mut RunRequest| r.inputs = vec!["a\nb".into()];
    let names = |r: &mut RunRequest| r.env = vec![("a\n=".into(), "x".into())];
    let values = |r: &mut RunRequest| r.env = vec![("a\n".into(), "\0".into())];
    for change in [mounts as fn(&mut RunRequest), twice, inputs, names, values] {
        let message = refused(change).message;
        assert!(message.contains("\\n"), "{message:?}");
        assert!(!message.contains(char::is_control), "{message:?}");
    }
}

#[test]
fn a_colon_in_a_host_path_needs_no_escape() {
    let read = mount(OsStr::new("/a:b:/data:rw")).unwrap();
    assert_eq!(
        (read.host.as_path(), read.access),
        (Path::new("/a:b"), Access::ReadWrite)
    );
}

#[test]
fn nobody_gets_more_than_the_operators_maximum() {
    let maximum = LimitSet {
        memory: "256M".parse().ok(),
        ..LimitSet::default()
    };
    let policy = Policy {
        maximum,
        ..Policy::default()
    };
    assert_eq!(
        policy
            .admit(request(&["true"]))
            .unwrap()
            .sandbox
            .limits
            .memory,
        "256M".parse().unwrap()
    );
    let mut more = request(&["true"]);
    more.limits.memory = "512M".parse().ok();
    assert!(
        policy
            .admit(more)
            .unwrap_err()
            .message
            .contains("over the operator's maximum of 256M")
    );
}

proptest! {
    #[test]
    fn no_mount_or_input_text_makes_a_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
        let text = OsStr::from_bytes(&bytes);
        if let Ok(mount) = mount(text) {
            prop_assert!(mount.inside.as_path().is_absolute());
        }
        if let Ok((name, _)) = input(text) {
            prop_assert!(name.as_path().is_relative());
        }
    }
}

#[test]
fn closed_egress_leaves_the_doors_to_models_and_nothing_else() {
    for profile in ["restrictive", "standard", "permissive", "agent"] {
        for (llm, network) in [(None, Network::None), (Some(None), Network::Doors)] {
            let request = RunRequest {
                profile: Some(profile.to_owned()),
                llm,
                command: vec!["true".into()],
                ..RunRequest::default()
            };
            let mut spec = Policy::default().admit(request).unwrap();
            assert_eq!(
                spec.reaches_out(),
                ["standard", "permissive"].contains(&profile),
                "{profile}"
            );
            spec.close_egress();
            assert!(
                !spec.reaches_out()
                    && spec.sandbox.transparent_ports.is_none()
                    && !spec.sandbox.reaches_any_host
            );
            assert_eq!(
                (spec.sandbox.network, &spec.sandbox.doors),
                (network, &spec.grants.ports())
            );
        }
    }
}
