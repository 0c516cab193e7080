use super::*;

const A: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

fn on() -> ImagePolicy {
    ImagePolicy {
        rule: ImageRule::Allowed,
        ..ImagePolicy::default()
    }
}

fn entry(pattern: &str, pin: Option<&str>) -> AllowedImage {
    AllowedImage {
        pattern: pattern.parse().expect(pattern),
        pin: pin.map(|pin| Digest::new(pin).unwrap()),
        capabilities: BTreeSet::new(),
        marked: None,
        note: String::new(),
        added_by: "root".into(),
        added_at: Timestamp(0),
    }
}

fn image(reference: &str, digest: Option<&str>) -> CandidateImage {
    CandidateImage {
        reference: Some(reference.parse().expect(reference)),
        digest: digest.map(|digest| Digest::new(digest).unwrap()),
        labels: BTreeMap::new(),
    }
}

fn run(entries: &[AllowedImage], image: &CandidateImage) -> Result<ImageAdmission, ImageRefusal> {
    admit_image(&on(), entries, image, ImageUse::Run, &[])
}

/// The pattern by which it came in, or why not.
fn outcome(entries: &[AllowedImage], image: &CandidateImage) -> Result<String, String> {
    match run(entries, image) {
        Ok(ImageAdmission::By(entry)) => Ok(entry.pattern.to_string()),
        Ok(ImageAdmission::Unrestricted) => Ok("every image".into()),
        Err(refused) => Err(refused.message),
    }
}

#[test]
fn without_the_policy_every_image_may_be_used() {
    let open = ImagePolicy {
        mark: LabelRequirement::Always,
        ..ImagePolicy::default()
    };
    let need = [Capability::new("python-tools").unwrap()];
    for image in [image("evil", None), CandidateImage::default()] {
        assert_eq!(
            admit_image(&open, &[], &image, ImageUse::Session, &need),
            Ok(ImageAdmission::Unrestricted)
        );
    }
}

#[test]
fn an_image_is_let_in_by_its_entry_and_refused_with_the_reason_without() {
    let list = [entry("python", None)];
    assert_eq!(
        outcome(&list, &image("python:3.12", None)),
        Ok("docker.io/library/python".into())
    );
    let refused = run(&list, &image("python-evil", None)).unwrap_err();
    assert_eq!(
        refused.message,
        "image `docker.io/library/python-evil:latest` is not on the list of allowed images"
    );
    assert_eq!(
        refused.hint,
        "`airlock image allowed` shows the list, `airlock image allow` adds to it"
    );
    assert_eq!(ErrorInfo::from(refused).code, ErrorCode::ImageRefused);
    assert!(outcome(&[], &image("python", None)).is_err());
}

#[test]
fn a_folder_has_no_name_and_is_refused() {
    let message = run(&[entry("python", None)], &CandidateImage::default())
        .unwrap_err()
        .message;
    assert_eq!(
        message,
        "this image is a folder, and only images on the list of allowed ones may be used"
    );
}

#[test]
fn a_pin_lets_only_that_digest_in() {
    let list = [entry("python", Some(A))];
    assert!(outcome(&list, &image("python", Some(A))).is_ok());
    let wrong = outcome(&list, &image("python", Some(B))).unwrap_err();
    assert_eq!(
        wrong,
        format!(
            "image `docker.io/library/python:latest` is not allowed: its digest is {B}, allowed is {A}"
        )
    );
    assert!(
        outcome(&list, &image("python", None))
            .unwrap_err()
            .contains("its digest is not known")
    );
}

#[test]
fn what_the_caller_writes_is_not_the_digest_of_the_image() {
    let asked = format!("python@{A}");
    assert!(outcome(&[entry("python", Some(A))], &image(&asked, None)).is_err());
    assert!(outcome(&[entry("python", Some(A))], &image(&asked, Some(B))).is_err());
    assert!(outcome(&[entry("python", Some(A))], &image(&asked, Some(A))).is_ok());
}

#[test]
fn several_pins_of_one_name_are_alternatives() {
    let list = [entry("python", Some(A)), entry("python", Some(B))];
    for digest in [A, B] {
        assert!(outcome(&list, &image("python", Some(digest))).is_ok());
    }
    let other = A.replace("aaaa", "cccc");
    let refused = outcome(&list, &image("python", Some(&other))).unwrap_err();
    assert!(
        refused.ends_with(&format!("allowed is {A} or {B}")),
        "{refused}"
    );
}

#[test]
fn a_refusal_stays_short_whatever_the_list_holds() {
    let pins = |count: usize| -> Vec<_> {
        (0..count)
            .map(|number| entry("python", Some(&format!("sha256:{number:064x}"))))
            .collect()
    };
    let refused = outcome(&pins(1000), &image("python", Some(A))).unwrap_err();
    assert!(
        refused.ends_with("02 or one of 997 more") && refused.len() < 600,
        "{refused}"
    );
    assert!(
        !outcome(&pins(3), &image("python", Some(A)))
            .unwrap_err()
            .contains("more")
    );
}

#[test]
fn the_nearest_entry_decides_in_whatever_order_they_stand() {
    let mut list = [
        entry("library/*", None),
        entry("python", None),
        entry("python:3.12", Some(A)),
    ];
    for _ in 0..list.len() {
        list.rotate_left(1);
        assert!(
            outcome(&list, &image("python:3.12", Some(B))).is_err(),
            "the wider ones have no pin"
        );
        assert_eq!(
            outcome(&list, &image("python:3.12", Some(A))).unwrap(),
            "docker.io/library/python:3.12"
        );
        assert_eq!(
            outcome(&list, &image("python:3.11", Some(B))).unwrap(),
            "docker.io/library/python"
        );
        assert_eq!(
            outcome(&list, &image("debian", None)).unwrap(),
            "docker.io/library/*"
        );
    }
}

#[test]
fn a_pin_holds_beside_the_same_entry_without_one() {
    for list in [
        [entry("python", None), entry("python", Some(A))],
        [entry("python", Some(A)), entry("python", None)],
    ] {
        assert!(outcome(&list, &image("python", Some(A))).is_ok());
        assert!(outcome(&list, &image("python", Some(B))).is_err());
    }
}

#[test]
fn a_tag_beside_a_digest_is_no_reason_to_let_it_in() {
    let asked = image(&format!("python:3.12@{B}"), Some(B));
    let refused = outcome(&[entry("python:3.12", None)], &asked).unwrap_err();
    assert!(
        refused.ends_with("`docker.io/library/python:3.12` is, but a digest may be any image"),
        "{refused}"
    );
    assert!(
        outcome(
            &[entry("python:3.12", None)],
            &image("python:3.12", Some(B))
        )
        .is_ok()
    );
    assert!(outcome(&[entry("python:3.12", Some(B))], &asked).is_ok());
    // Every digest of the repository is allowed, so that the tag is no matter.
    assert!(outcome(&[entry("python:3.12", None), entry("python", None)], &asked).is_ok());
}

#[test]
fn an_unmarked_image_is_refused_for_sessions_and_where_asked_for_runs() {
    let list = [entry("python", None)];
    let plain = image("python", None);
    let labelled = |value: &str| {
        let labels = [(AGENT_LABEL.to_owned(), value.to_owned())].into();
        CandidateImage {
            labels,
            ..plain.clone()
        }
    };
    let may = |mark, image: &CandidateImage, use_| {
        admit_image(&ImagePolicy { mark, ..on() }, &list, image, use_, &[]).is_ok()
    };
    for (mark, run, session) in [
        (LabelRequirement::Sessions, true, false),
        (LabelRequirement::Always, false, false),
        (LabelRequirement::Never, true, true),
    ] {
        for unmarked in [
            plain.clone(),
            labelled("false"),
            labelled("True"),
            labelled(""),
        ] {
            assert_eq!(may(mark, &unmarked, ImageUse::Run), run, "{mark:?}");
            assert_eq!(may(mark, &unmarked, ImageUse::Session), session, "{mark:?}");
        }
        assert!(
            may(mark, &labelled("true"), ImageUse::Run)
                && may(mark, &labelled("true"), ImageUse::Session)
        );
    }
    let refused = admit_image(&on(), &list, &plain, ImageUse::Session, &[]).unwrap_err();
    let why =
        "image `docker.io/library/python:latest` is not marked for agents, which sessions need";
    assert_eq!(refused.message, why);
    assert!(refused.hint.contains(AGENT_LABEL));
}

#[test]
fn what_the_list_remembers_of_a_mark_is_not_the_mark() {
    let remembered = [AllowedImage {
        marked: Some(true),
        ..entry("python", None)
    }];
    assert!(
        admit_image(
            &on(),
            &remembered,
            &image("python", None),
            ImageUse::Session,
            &[]
        )
        .is_err()
    );
}

#[test]
fn a_needed_capability_must_be_declared() {
    let word = |text| Capability::new(text).unwrap();
    let list = [AllowedImage {
        capabilities: [word("python-tools")].into(),
        ..entry("python", None)
    }];
    let need = |needed: &[Capability]| {
        admit_image(&on(), &list, &image("python", None), ImageUse::Run, needed)
    };
    assert!(need(&[word("python-tools")]).is_ok());
    let refused = need(&[word("python-tools"), word("go-tools")]).unwrap_err();
    assert_eq!(
        refused.message,
        "image `docker.io/library/python:latest` is not declared to have `go-tools`"
    );
}

#[test]
fn a_capability_is_one_plain_word() {
    for good in ["base-tools", "a", "3d", &"x".repeat(64)] {
        assert_eq!(Capability::new(good).unwrap().as_str(), good);
    }
    for bad in ["", "-a", "A", "a b", "a_b", "ä", &"x".repeat(65)] {
        assert_eq!(Capability::new(bad), None, "{bad}");
    }
}

#[test]
fn the_list_is_changed_by_those_named_else_by_the_owner() {
    let who = |uid, name: Option<&str>| LocalUser {
        uid,
        name: name.map(str::to_owned),
    };
    let owners = ImagePolicy::default();
    assert!(owners.may_change(&who(1000, None), 1000));
    assert!(!owners.may_change(&who(0, Some("root")), 1000));
    let named = ImagePolicy {
        may_add: Some(vec!["alice".into(), "7".into()]),
        ..ImagePolicy::default()
    };
    assert!(
        named.may_change(&who(5, Some("alice")), 1000) && named.may_change(&who(7, None), 1000)
    );
    assert!(
        !named.may_change(&who(1000, Some("bob")), 1000),
        "the owner is not on it"
    );
    let nobody = ImagePolicy {
        may_add: Some(Vec::new()),
        ..ImagePolicy::default()
    };
    assert!(!nobody.may_change(&who(0, Some("root")), 0));
}
