use super::*;
use proptest::prelude::*;

fn scope(app: &str, user: &str, session: &str) -> ArtifactScope {
    ArtifactScope {
        app: app.to_owned(),
        user: user.to_owned(),
        session: session.to_owned(),
    }
}

fn namespace(name: &str) -> Sharing {
    Sharing::Namespace(name.to_owned())
}

fn folder(sharing: &Sharing, scope: &ArtifactScope, filename: &str) -> Result<String, String> {
    let names = ArtifactNames {
        sharing,
        scope,
        filename,
    };
    names
        .folder()
        .map(|parts| parts.join("/"))
        .map_err(|error| error.0)
}

fn s3(sharing: &Sharing, scope: &ArtifactScope, filename: &str) -> Result<String, String> {
    ArtifactNames {
        sharing,
        scope,
        filename,
    }
    .s3()
    .map_err(|error| error.0)
}

fn gcs(sharing: &Sharing, scope: &ArtifactScope, filename: &str) -> Result<String, String> {
    ArtifactNames {
        sharing,
        scope,
        filename,
    }
    .gcs()
    .map_err(|error| error.0)
}

#[test]
fn names_come_out_as_agents_write_them() {
    let (shared, ana) = (namespace("myorg/dev"), scope("PhotoAgent", "ana", "web-77"));
    assert_eq!(
        folder(&shared, &ana, "cat.png").unwrap(),
        "dev/ana/web-77/cat.png"
    );
    assert_eq!(
        folder(&shared, &ana, "deep/cat.png").unwrap(),
        "dev/ana/web-77/cat.png"
    );
    assert_eq!(
        folder(&shared, &ana, "user:cat.png").unwrap(),
        "dev/ana/user/cat.png"
    );
    assert_eq!(
        folder(&Sharing::App, &ana, "cat.png").unwrap(),
        "PhotoAgent/ana/web-77/cat.png"
    );
    // Compatibility characters: a ligature, a full-width letter, a narrow space.
    assert_eq!(
        folder(&shared, &ana, "ﬁle Ａ\u{202f}1").unwrap(),
        "dev/ana/web-77/file A 1"
    );

    assert_eq!(
        s3(&shared, &ana, "cat.png").unwrap(),
        "myorg/dev/ana/web-77/cat.png"
    );
    assert_eq!(
        s3(&namespace("/myorg/dev/"), &ana, "a").unwrap(),
        "myorg/dev/ana/web-77/a"
    );
    assert_eq!(
        s3(&shared, &ana, "user:ﬁle").unwrap(),
        "myorg/dev/ana/user/file"
    );
    assert_eq!(
        s3(&Sharing::App, &ana, "c #?%.png").unwrap(),
        "PhotoAgent/ana/web-77/c #?%.png"
    );

    assert_eq!(
        gcs(&shared, &ana, "ﬁle").unwrap(),
        "myorg/dev/ana/web-77/ﬁle"
    );
    assert_eq!(
        gcs(&shared, &ana, "user:cat.png").unwrap(),
        "myorg/dev/ana/user/user:cat.png"
    );
}

#[test]
fn what_would_land_elsewhere_is_refused() {
    let (shared, ana) = (namespace("dev"), scope("agent", "ana", "s"));
    // The last two become `..` and `a/..` when they are normalised.
    for bad in [
        "",
        ".",
        "..",
        "a/",
        "a/..",
        "user:",
        "user:..",
        "a\0b",
        "a\nb",
        "\u{2025}",
        "a\u{ff0f}\u{2025}",
    ] {
        for made in [folder(&shared, &ana, bad), s3(&shared, &ana, bad)] {
            assert!(
                made.as_ref()
                    .is_err_and(|why| why.starts_with("the file name")),
                "{bad:?}: {made:?}"
            );
        }
    }
    for bad in [
        "",
        ".",
        "..",
        "a/b",
        "../ana",
        "/ana",
        "ana/",
        "an\0a",
        "an\na",
        &"x".repeat(256),
    ] {
        for strange in [scope("agent", bad, "s"), scope("agent", "ana", bad)] {
            for made in [
                folder(&shared, &strange, "f"),
                s3(&shared, &strange, "f"),
                gcs(&shared, &strange, "f"),
            ] {
                assert!(made.is_err(), "{strange:?}: {made:?}");
            }
        }
        let agent = scope(bad, "ana", "s");
        for made in [
            folder(&Sharing::App, &agent, "f"),
            s3(&Sharing::App, &agent, "f"),
        ] {
            assert!(made.is_err(), "{agent:?}: {made:?}");
        }
    }
    assert!(
        folder(&namespace("dev/"), &ana, "f").is_err(),
        "agents would leave the namespace out"
    );
    assert!(
        folder(&namespace(".airlock-drafts-0"), &ana, "f").is_err(),
        "ours"
    );
    assert!(gcs(&shared, &scope("agent", "ana", " s"), "f").is_err());
    for made in [s3, gcs] {
        // Could be in another namespace, `dev/ana`, or among tools.
        assert!(made(&shared, &ana, "u/f").is_err());
        assert!(made(&shared, &scope("agent", "str-runtime", "python"), "f").is_err());
        assert!(
            made(&shared, &scope("agent", "str-runtimes", "python"), "f").is_ok(),
            "the control"
        );
        // The scope, with the user or the session after it, may be another's namespace.
        assert!(made(&shared, &scope("agent", "ana", "str-runtime"), "f").is_err());
        assert!(made(&shared, &scope("agent", "ana", "s"), "str-runtime").is_err());
        assert!(
            made(&shared, &scope("agent", "ana", "str-runtimes"), "f").is_ok(),
            "the control"
        );
    }
    assert!(
        s3(&shared, &ana, &"ü".repeat(512)).is_err(),
        "longer than a key"
    );
    assert!(
        folder(&shared, &ana, &"x".repeat(255)).is_ok(),
        "the longest"
    );
    assert!(folder(&shared, &ana, &"x".repeat(256)).is_err());
}

#[test]
fn versions_are_written_in_one_way_only() {
    assert_eq!(version_number("0"), Some(0));
    assert_eq!(version_number("9223372036854775807"), Some(i64::MAX));
    for bad in [
        "",
        "-1",
        "+1",
        "00",
        "01",
        "1.meta",
        "9223372036854775808",
        "１",
        " 1",
    ] {
        assert_eq!(version_number(bad), None, "{bad:?}");
    }
}

#[test]
fn metadata_is_ascii_as_python_escapes_it() {
    // python3 -c 'print("é€😀a".encode("ascii", "backslashreplace").decode())'
    assert_eq!(escape_ascii("é€😀a", 100), "\\xe9\\u20ac\\U0001f600a");
    assert_eq!(
        escape_ascii("é€😀a", 10),
        "\\xe9\\u20ac",
        "no half of an escape"
    );
}

#[test]
fn a_mime_type_can_be_a_header() {
    assert!(mime_type("text/plain; charset=utf-8").is_ok());
    for bad in [
        "",
        " text/plain",
        "text/plain\r\nx-amz-acl: public-read",
        "té/xt",
        &"x".repeat(256),
    ] {
        assert!(mime_type(bad).is_err(), "{bad:?}");
        assert_eq!(mime_type_or_any(Some(bad)), "application/octet-stream");
    }
}

#[test]
fn a_strangers_word_does_not_flood_a_message() {
    assert_eq!(shown("a\n\u{1b}[2J"), "`a\\n\\u{1b}[2J`");
    assert!(shown(&"x".repeat(100_000)).len() < 100);
}

fn strange() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("..".to_owned()),
        Just("/".to_owned()),
        Just("user:".to_owned()),
        Just("\u{2025}".to_owned()),
        Just("\u{ff0f}".to_owned()),
        Just("\0".to_owned()),
        ".{0,8}",
    ];
    proptest::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn anything_is_refused_or_has_its_place(app in strange(), user in strange(), session in strange(), name in strange()) {
        let scope = ArtifactScope { app, user, session };
        for sharing in [Sharing::App, Sharing::Namespace("my/org".to_owned())] {
            let names = ArtifactNames { sharing: &sharing, scope: &scope, filename: &name };
            if let Ok(parts) = names.folder() {
                for part in &parts {
                    prop_assert!(unsafe_name(part).is_none(), "{parts:?}");
                }
                prop_assert_eq!(&parts[1], &scope.user);
                prop_assert!(parts[2] == scope.session || parts[2] == "user");
            }
            let owned = format!("{}/{}/", if sharing == Sharing::App { &scope.app } else { "my/org" }, scope.user);
            for key in [names.s3(), names.gcs()].into_iter().flatten() {
                prop_assert!(key.starts_with(&owned), "{key:?}");
                prop_assert!(key.split('/').all(|part| unsafe_name(part).is_none()), "{key:?}");
                prop_assert!(key.len() < MAX_KEY_BYTES);
            }
        }
    }
}
