//! Claims about the allow-list of images, with several processes at once and when they are killed.

use super::*;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

const A: &str = "sha256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
const B: &str = "sha256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";

struct StateFolder(PathBuf);

impl StateFolder {
    fn new() -> StateFolder {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        StateFolder(
            std::env::temp_dir().join(format!("airlock-allowed-{}-{count}", std::process::id())),
        )
    }

    fn images(&self) -> AllowedImages {
        AllowedImages::open(&self.0).unwrap()
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn me() -> LocalUser {
    LocalUser {
        uid: rustix::process::geteuid().as_raw(),
        name: Some("me".into()),
    }
}

fn on() -> ImagePolicy {
    ImagePolicy {
        rule: ImageRule::Allowed,
        ..ImagePolicy::default()
    }
}

fn new(pattern: &str) -> NewAllowedImage {
    NewAllowedImage {
        pattern: pattern.parse().expect(pattern),
        pin: None,
        capabilities: BTreeSet::new(),
        marked: None,
        note: String::new(),
    }
}

fn pinned(pattern: &str, pin: &str) -> NewAllowedImage {
    NewAllowedImage {
        pin: Digest::new(pin),
        ..new(pattern)
    }
}

fn allow(images: &AllowedImages, entry: &NewAllowedImage) {
    images.allow(&on(), entry, &me()).unwrap();
}

fn facts(reference: &str) -> CandidateImage {
    CandidateImage {
        reference: Some(reference.parse().unwrap()),
        ..CandidateImage::default()
    }
}

fn names(images: &AllowedImages) -> Vec<String> {
    images
        .list()
        .unwrap()
        .into_iter()
        .map(|entry| entry.pattern.to_string())
        .collect()
}

fn trail(images: &AllowedImages) -> Vec<(String, String, String)> {
    images
        .trail()
        .unwrap()
        .into_iter()
        .map(|line| (line.what, line.image, line.about))
        .collect()
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let place = StateFolder::new();
    let before = now();
    let entry = NewAllowedImage {
        capabilities: ["go-tools", "python-tools"]
            .iter()
            .filter_map(|word| Capability::new(word))
            .collect(),
        marked: Some(true),
        note: "for ci\u{1b}[2J; DROP TABLE allowed_image; --'".into(),
        ..pinned("python:3.12", A)
    };
    allow(&place.images(), &entry);
    let list = place.images().list().unwrap();
    let written = AllowedImage {
        pattern: entry.pattern,
        pin: entry.pin,
        capabilities: entry.capabilities,
        marked: entry.marked,
        note: entry.note,
        added_by: format!("me (uid {})", me().uid),
        added_at: list[0].added_at,
    };
    assert_eq!(list, [written]);
    assert!(i64::try_from(list[0].added_at.0).unwrap() >= before);
}

#[test]
fn one_name_may_have_several_pins_and_each_can_be_taken_off() {
    let place = StateFolder::new();
    let images = place.images();
    for entry in [
        new("python"),
        pinned("python", A),
        pinned("python", B),
        new("node"),
    ] {
        allow(&images, &entry);
    }
    let pattern = new("python").pattern;
    assert_eq!(
        images
            .disallow(&on(), &pattern, Digest::new(B).as_ref(), &me())
            .unwrap(),
        1
    );
    assert_eq!(images.disallow(&on(), &pattern, None, &me()).unwrap(), 2);
    assert_eq!(names(&images), ["docker.io/library/node"]);
    let missing = images.disallow(&on(), &pattern, None, &me()).unwrap_err();
    let said = "there is no entry `docker.io/library/python` on the list of allowed images";
    assert_eq!(missing.to_string(), said);
}

#[test]
fn an_entry_allowed_again_takes_the_place_of_the_old_one() {
    let place = StateFolder::new();
    let images = place.images();
    for note in ["first", "second"] {
        allow(
            &images,
            &NewAllowedImage {
                note: note.into(),
                ..new("python")
            },
        );
    }
    let notes: Vec<_> = images
        .list()
        .unwrap()
        .into_iter()
        .map(|entry| entry.note)
        .collect();
    assert_eq!(notes, ["second"]);
    assert_eq!(images.trail().unwrap().len(), 2);
}

#[test]
fn entries_that_make_no_sense_or_have_no_end_are_refused() {
    let place = StateFolder::new();
    let images = place.images();
    let many = (0..65)
        .filter_map(|number| Capability::new(&format!("c{number}")))
        .collect();
    let cases = [
        (
            pinned("a/*", A),
            "cannot allow `docker.io/a/*`: a digest selects one image, but this pattern matches many",
        ),
        (
            NewAllowedImage {
                note: "x".repeat(1001),
                ..new("a")
            },
            "cannot allow `docker.io/library/a`: its note is longer than 1000 bytes",
        ),
        (
            NewAllowedImage {
                capabilities: many,
                ..new("a")
            },
            "cannot allow `docker.io/library/a`: it has more than 64 capabilities",
        ),
    ];
    for (entry, why) in cases {
        assert_eq!(
            images.allow(&on(), &entry, &me()).unwrap_err().to_string(),
            why
        );
    }
    allow(
        &images,
        &NewAllowedImage {
            note: "x".repeat(1000),
            ..new("a")
        },
    );
    assert_eq!(names(&images), ["docker.io/library/a"]);
}

#[test]
fn a_full_list_takes_no_more_but_lets_entries_be_changed() {
    let place = StateFolder::new();
    let images = place.images();
    let fill = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
                INSERT INTO allowed_image SELECT 'docker.io/library/n' || i, '', '', NULL, '', 'x', 0 FROM n";
    images
        .database
        .write(|transaction| transaction.execute(fill, [MAX_ENTRIES]))
        .unwrap();
    let refused = images
        .allow(&on(), &new("one-more"), &me())
        .unwrap_err()
        .to_string();
    assert_eq!(
        refused,
        "cannot allow `docker.io/library/one-more`: the list is full with 10000 entries"
    );
    allow(
        &images,
        &NewAllowedImage {
            note: "changed".into(),
            ..new("n7")
        },
    );
    images
        .disallow(&on(), &new("n8").pattern, None, &me())
        .unwrap();
    allow(&images, &new("one-more"));
    assert!(
        images
            .check(&on(), &facts("one-more"), ImageUse::Run)
            .is_ok()
    );
}

#[test]
fn the_list_is_changed_only_by_those_who_may() {
    let place = StateFolder::new();
    let images = place.images();
    let stranger = LocalUser {
        uid: me().uid + 1,
        name: None,
    };
    allow(&images, &new("python"));
    let refused = images.allow(&on(), &new("evil"), &stranger).unwrap_err();
    assert_eq!(
        refused.to_string(),
        format!(
            "uid {} may not change the list of allowed images",
            stranger.uid
        )
    );
    assert!(
        images
            .disallow(&on(), &new("python").pattern, None, &stranger)
            .is_err()
    );
    assert_eq!(names(&images), ["docker.io/library/python"]);
    let named = ImagePolicy {
        may_add: Some(vec![stranger.uid.to_string()]),
        ..on()
    };
    images.allow(&named, &new("node"), &stranger).unwrap();
    assert!(images.allow(&named, &new("go"), &me()).is_err());
}

#[test]
fn an_image_is_checked_against_the_list_as_it_is_now() {
    let place = StateFolder::new();
    let images = place.images();
    let other = place.images();
    let check = |policy: &ImagePolicy| images.check(policy, &facts("python:3.12"), ImageUse::Run);
    assert_eq!(check(&ImagePolicy::default()), Ok(()), "the policy is off");
    assert!(
        check(&on())
            .unwrap_err()
            .message
            .contains("is not on the list of allowed images")
    );
    allow(&other, &new("python"));
    assert_eq!(check(&on()), Ok(()));
    assert!(
        images
            .check(&on(), &facts("python:3.12"), ImageUse::Session)
            .is_err()
    );
    assert!(
        images
            .check(&on(), &CandidateImage::default(), ImageUse::Run)
            .is_err()
    );
    let told: Vec<_> = trail(&images)
        .into_iter()
        .map(|(what, image, _)| (what, image))
        .collect();
    let line = |what: &str, image: &str| (what.to_owned(), image.to_owned());
    assert_eq!(
        told,
        [
            line("refused", "a folder"),
            line("refused", "docker.io/library/python:3.12"),
            line("allowed", "docker.io/library/python"),
            line("refused", "docker.io/library/python:3.12"),
        ]
    );
}

#[test]
fn the_trail_tells_who_did_what_and_is_only_added_to() {
    let place = StateFolder::new();
    let images = place.images();
    allow(
        &images,
        &NewAllowedImage {
            note: "why".into(),
            ..pinned("python", A)
        },
    );
    images
        .disallow(&on(), &new("python").pattern, None, &me())
        .unwrap();
    let entry = "docker.io/library/python".to_owned();
    assert_eq!(
        trail(&images),
        [
            ("disallowed".into(), entry.clone(), String::new()),
            ("allowed".into(), entry, format!("{A} why"))
        ]
    );
    assert_eq!(
        images.trail().unwrap()[0].who,
        format!("me (uid {})", me().uid)
    );
    for forbidden in [
        "UPDATE image_trail SET who = 'x'",
        "DELETE FROM image_trail",
    ] {
        let refused = images
            .database
            .write(|transaction| transaction.execute(forbidden, []))
            .unwrap_err();
        assert!(
            refused.to_string().ends_with("the trail is only added to"),
            "{refused}"
        );
    }
    assert_eq!(trail(&images).len(), 2);
}

#[test]
fn refusals_do_not_fill_the_disk_and_the_last_one_says_so() {
    let place = StateFolder::new();
    let images = place.images();
    let near = "INSERT INTO image_trail VALUES (?, 0, '', 'refused', '', '')";
    images
        .database
        .write(|transaction| transaction.execute(near, [MAX_TRAIL_ENTRIES - 2]))
        .unwrap();
    for _ in 0..4 {
        assert!(images.check(&on(), &facts("evil"), ImageUse::Run).is_err());
    }
    let about: Vec<_> = trail(&images)
        .into_iter()
        .map(|(_, _, about)| about)
        .collect();
    let why = "image `docker.io/library/evil:latest` is not on the list of allowed images";
    assert_eq!(
        about,
        [
            &format!("{why} (the trail is full: later refusals are not recorded)"),
            why,
            ""
        ]
    );
    allow(&images, &new("python"));
    assert_eq!(trail(&images)[0].0, "allowed", "changes are always noted");
}

#[test]
fn an_entry_that_cannot_be_read_lets_nothing_in() {
    let place = StateFolder::new();
    let images = place.images();
    allow(&images, &new("python"));
    assert!(images.check(&on(), &facts("python"), ImageUse::Run).is_ok());
    for (pattern, pin, words) in [("a\n*", "", ""), ("a", "md5:0", ""), ("a", "", "Upper")] {
        let insert = "INSERT INTO allowed_image VALUES (?, ?, ?, NULL, '', '', 0)";
        images
            .database
            .write(|t| t.execute(insert, [pattern, pin, words]))
            .unwrap();
        let refused = images
            .check(&on(), &facts("python"), ImageUse::Run)
            .unwrap_err();
        assert!(
            refused
                .message
                .starts_with("cannot tell which images are allowed: "),
            "{refused}"
        );
        assert!(!refused.message.contains('\n'));
        images
            .database
            .write(|t| t.execute("DELETE FROM allowed_image WHERE pattern = ?", [pattern]))
            .unwrap();
    }
    assert!(images.check(&on(), &facts("python"), ImageUse::Run).is_ok());
}

/// Adds `PREFIX-0`, `PREFIX-1`, … and prints each once it is stored.
#[test]
#[ignore = "a child of other tests"]
fn child_adds() {
    let variable = |name| std::env::var(name).unwrap();
    let prefix = variable("AIRLOCK_TEST_PREFIX");
    let count = variable("AIRLOCK_TEST_COUNT").parse::<u32>().unwrap();
    let images = AllowedImages::open(Path::new(&variable("AIRLOCK_TEST_FOLDER"))).unwrap();
    for number in 0..count {
        let name = format!("{prefix}-{number}");
        allow(
            &images,
            &NewAllowedImage {
                note: name.repeat(20),
                ..pinned(&name, A)
            },
        );
        println!("\nadded docker.io/library/{name}");
    }
}

fn child(place: &StateFolder, prefix: &str, count: u32) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--nocapture",
            "--exact",
            "allowed_images::tests::child_adds",
        ])
        .env("AIRLOCK_TEST_FOLDER", &place.0)
        .env("AIRLOCK_TEST_PREFIX", prefix)
        .env("AIRLOCK_TEST_COUNT", count.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Every entry is complete and has its trail entry, and the database is intact.
fn check_whole(images: &AllowedImages) -> Vec<String> {
    let list = images.list().unwrap();
    for entry in &list {
        let name = entry.pattern.to_string();
        let name = name.strip_prefix("docker.io/library/").unwrap();
        assert_eq!(
            (entry.note.as_str(), entry.pin.as_ref()),
            (&*name.repeat(20), Digest::new(A).as_ref())
        );
    }
    let ask = |sql: &str| {
        images
            .database
            .read(|c| c.query_row(sql, [], |row| row.get::<_, i64>(0)))
            .unwrap()
    };
    assert_eq!(ask("SELECT count(*) FROM image_trail"), list.len() as i64);
    let integrity: String = images
        .database
        .read(|c| c.pragma_query_value(None, "integrity_check", |row| row.get(0)))
        .unwrap();
    assert_eq!(integrity, "ok");
    list.into_iter()
        .map(|entry| entry.pattern.to_string())
        .collect()
}

#[test]
fn eight_processes_add_at_once_and_everything_is_there() {
    let place = StateFolder::new();
    let mut children: Vec<_> = (0..8)
        .map(|number| child(&place, &format!("p{number}"), 20))
        .collect();
    for child in &mut children {
        let said = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(
            said.map_while(Result::ok)
                .filter(|line| line.starts_with("added "))
                .count(),
            20
        );
        assert!(child.wait().unwrap().success());
    }
    assert_eq!(check_whole(&place.images()).len(), 160);
}

#[test]
fn a_killed_writer_leaves_whole_entries_and_all_that_it_confirmed() {
    let place = StateFolder::new();
    let mut confirmed = Vec::new();
    for round in 0..20 {
        let mut child = child(&place, &format!("r{round}"), 1000);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let added = |line: Result<String, std::io::Error>| {
            line.ok()?.strip_prefix("added ").map(str::to_owned)
        };
        let told: Vec<_> = lines
            .by_ref()
            .filter_map(added)
            .take(round % 7 + 1)
            .collect();
        child.kill().unwrap();
        assert!(
            !child.wait().unwrap().success(),
            "it was killed while it wrote"
        );
        confirmed.extend(told);
        confirmed.extend(lines.filter_map(added));
        let there = check_whole(&place.images());
        assert!(
            confirmed.iter().all(|name| there.contains(name)),
            "round {round}"
        );
    }
    assert!(confirmed.len() >= 70, "{}", confirmed.len());
}

#[test]
fn a_process_killed_while_it_makes_the_database_leaves_one_that_opens() {
    for round in 0..20 {
        let place = StateFolder::new();
        let mut child = child(&place, "r", 3);
        // The kill lands anywhere between start and end of the process.
        std::thread::sleep(Duration::from_micros(round * 700));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(check_whole(&place.images()).len() <= 3);
    }
}
