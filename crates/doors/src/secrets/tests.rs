use super::*;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
};

/// A temporary folder.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Place {
        let path =
            std::env::temp_dir().join(format!("airlock-secrets-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Place(path)
    }

    fn secrets(&self) -> Secrets {
        Secrets {
            folder: self.0.join("state/secrets"),
            ..Secrets::default()
        }
    }

    fn write(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn secret(text: &str) -> Secret {
    Secret::new(text.into()).unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

fn names(secrets: &Secrets) -> Vec<String> {
    secrets
        .list()
        .unwrap()
        .iter()
        .map(|stored| stored.name.to_string())
        .collect()
}

#[tokio::test]
async fn a_secret_is_kept_encrypted_found_replaced_and_forgotten() {
    let place = Place::new("kept");
    let secrets = place.secrets();
    assert_eq!(
        (secrets.list(), secrets.remove("openai")),
        (Ok(vec![]), Ok(false))
    );
    assert!(!secrets.folder.exists(), "looking makes nothing");
    secrets.set("openai", &secret("sk-canary-1")).unwrap();
    secrets.set("openai", &secret("sk-canary-2")).unwrap();
    secrets.set("key", &secret("sk-canary-3\n\n")).unwrap();
    let source = KeySource::Stored("openai".to_owned());
    assert_eq!(
        secrets.find(&source).await.unwrap().expose(),
        b"sk-canary-2"
    );
    assert_eq!(
        secrets.stored("key").unwrap().expose(),
        b"sk-canary-3\n",
        "it comes back as it was kept"
    );
    assert_eq!(names(&secrets), ["key", "openai"]);
    for file in ["openai.secret", "key.secret", "key"] {
        let path = secrets.folder.join(file);
        assert_eq!(mode(&path), 0o600, "{file}");
        assert!(
            !String::from_utf8_lossy(&fs::read(&path).unwrap()).contains("canary"),
            "{file}"
        );
    }
    assert_eq!(
        (
            mode(&secrets.folder),
            fs::read_dir(&secrets.folder).unwrap().count()
        ),
        (0o700, 3)
    );
    assert_eq!(
        (secrets.remove("openai"), secrets.remove("openai")),
        (Ok(true), Ok(false))
    );
    let absent = secrets.find(&source).await.unwrap_err();
    assert_eq!(
        (absent.message.as_str(), absent.hint.as_str()),
        (
            "no secret is called `openai`",
            "keep it first: airlock secrets set openai"
        )
    );
}

#[tokio::test]
async fn a_key_that_could_begin_another_header_is_refused_from_everywhere() {
    let place = Place::new("header");
    let mut secrets = place.secrets();
    let forged = "sk-canary\r\nX-Other: b";
    secrets.set("forged", &secret(forged)).unwrap();
    secrets
        .variables
        .insert("FORGED".to_owned(), secret("schlüssel"));
    let file = place.write("forged", forged.as_bytes(), 0o600);
    for (source, start) in [
        (
            KeySource::Stored("forged".to_owned()),
            "the stored secret `forged` is no key: ",
        ),
        (
            KeySource::Variable("FORGED".to_owned()),
            "the variable `FORGED` is no key: ",
        ),
        (KeySource::File(file), "the file `"),
    ] {
        let refused = secrets.find(&source).await.unwrap_err();
        assert!(refused.message.starts_with(start), "{}", refused.message);
        assert!(
            refused.message.contains("no HTTP header can carry")
                && !refused.message.contains("canary")
        );
    }
    assert_eq!(
        secrets.stored("forged").unwrap().expose(),
        forged.as_bytes(),
        "a program may have it"
    );
}

#[test]
fn a_name_leads_nowhere_else() {
    let place = Place::new("names");
    let secrets = place.secrets();
    for name in ["", "..", "../x", "a/b", ".new-1", "a\nb", "ä"] {
        assert!(secrets.set(name, &secret("x")).is_err(), "{name:?}");
        assert!(
            secrets.stored(name).is_err() && secrets.remove(name).is_err(),
            "{name:?}"
        );
    }
    assert!(!secrets.folder.exists());
}

#[test]
fn files_cannot_be_swapped_and_links_are_not_followed() {
    let place = Place::new("swapped");
    let secrets = place.secrets();
    secrets.set("mine", &secret("sk-mine")).unwrap();
    secrets.set("yours", &secret("sk-yours")).unwrap();
    let file = |name: &str| secrets.folder.join(format!("{name}.secret"));
    fs::copy(file("mine"), file("yours")).unwrap();
    let refused = secrets.stored("yours").unwrap_err();
    assert!(
        refused.message.contains("the file was changed"),
        "{}",
        refused.message
    );
    fs::remove_file(file("yours")).unwrap();
    symlink(file("mine"), file("yours")).unwrap();
    assert!(secrets.stored("yours").is_err());
    assert_eq!(secrets.stored("mine").unwrap().expose(), b"sk-mine");
    let elsewhere = place.0.join("elsewhere");
    fs::rename(&secrets.folder, &elsewhere).unwrap();
    symlink(&elsewhere, &secrets.folder).unwrap();
    assert!(secrets.stored("mine").is_err(), "nor is the folder a link");
}

#[test]
fn a_store_that_others_can_look_into_is_refused() {
    let place = Place::new("open");
    let secrets = place.secrets();
    secrets.set("a", &secret("x")).unwrap();
    let open =
        |path: &Path, bits| fs::set_permissions(path, fs::Permissions::from_mode(bits)).unwrap();
    open(&secrets.folder, 0o750);
    let refused = secrets.stored("a").unwrap_err();
    assert!(
        refused.message.ends_with("is open to others") && refused.hint.starts_with("chmod 700 ")
    );
    open(&secrets.folder, 0o700);
    open(&secrets.folder.join("key"), 0o640);
    let refused = secrets.stored("a").unwrap_err();
    assert!(
        refused.message.ends_with("can be read by others")
            && refused.hint.starts_with("chmod 600 ")
    );
    open(&secrets.folder.join("key"), 0o600);
    assert_eq!(secrets.stored("a").unwrap().expose(), b"x");
}

#[test]
fn the_master_key_comes_from_where_it_is_configured_and_from_nowhere_else() {
    let place = Place::new("master");
    let text = "AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyA=";
    let raw: Vec<u8> = (1..=32).collect();
    let with = |master| Secrets {
        master,
        ..place.secrets()
    };
    let given = with(MasterKey::Given(secret(text)));
    given.set("a", &secret("x")).unwrap();
    assert!(
        !given.folder.join("key").exists(),
        "no key lies beside the data"
    );
    let file = place.write("raw", &raw, 0o600);
    for master in [
        MasterKey::File(file.clone()),
        MasterKey::Credential(place.write("credential", text.as_bytes(), 0o400)),
        MasterKey::File(place.write("line", format!("{text}\n").as_bytes(), 0o600)),
    ] {
        assert_eq!(with(master).stored("a").unwrap().expose(), b"x");
    }
    let why = |master| with(master).stored("a").unwrap_err().message;
    assert!(why(MasterKey::Beside).contains("its master key is gone"));
    assert!(
        why(MasterKey::Given(secret("AAAA"))).starts_with("`AIRLOCK_MASTER_KEY` is no master key")
    );
    assert!(
        why(MasterKey::File(place.write("short", &raw[1..], 0o600))).contains("is no master key")
    );
    assert!(
        why(MasterKey::File(place.write("open", &raw, 0o640))).ends_with("can be read by others")
    );
    assert!(
        why(MasterKey::File(place.write("world", &raw, 0o604))).ends_with("can be read by others")
    );
    assert!(why(MasterKey::File(place.0.join("absent"))).starts_with("cannot read `"));
    let other = place.write("other", &[9; 32], 0o600);
    assert!(why(MasterKey::File(other)).contains("the master key is another one"));
    assert_eq!(
        with(MasterKey::File(file)).stored("a").unwrap().expose(),
        b"x"
    );
}

#[test]
fn of_many_that_make_the_first_key_at_once_all_use_the_same() {
    let place = Place::new("race");
    let secrets = place.secrets();
    std::thread::scope(|scope| {
        for number in 0..16 {
            let secrets = &secrets;
            scope.spawn(move || {
                secrets
                    .set(&format!("s{number}"), &secret(&format!("v{number}")))
                    .unwrap()
            });
        }
    });
    for number in 0..16 {
        assert_eq!(
            secrets.stored(&format!("s{number}")).unwrap().expose(),
            format!("v{number}").as_bytes()
        );
    }
}

#[tokio::test]
async fn a_file_or_a_variable_gives_what_it_holds() {
    let place = Place::new("sources");
    let mut secrets = place.secrets();
    secrets
        .variables
        .insert("OPENAI_API_KEY".to_owned(), secret("sk-variable"));
    let find = async |source| secrets.find(&source).await;
    let variable = |name: &str| KeySource::Variable(name.to_owned());
    assert_eq!(
        find(variable("OPENAI_API_KEY")).await.unwrap().expose(),
        b"sk-variable"
    );
    let absent = find(variable("OTHER")).await.unwrap_err();
    assert_eq!(absent.message, "the variable `OTHER` is not set, or empty");
    let good = place.write("good", b"sk-file\n", 0o600);
    symlink(&good, place.0.join("link")).unwrap();
    for path in [good, place.0.join("link")] {
        assert_eq!(
            find(KeySource::File(path)).await.unwrap().expose(),
            b"sk-file"
        );
    }
    for (name, bytes, mode, why) in [
        ("empty", &b"\n"[..], 0o600, "the secret is empty"),
        ("everyone", b"x", 0o604, "can be read by everyone"),
        ("written", b"x", 0o620, "can be changed by others"),
        ("large", &[b'x'; 70_000], 0o600, "it is longer than 64 KiB"),
    ] {
        let refused = find(KeySource::File(place.write(name, bytes, mode)))
            .await
            .unwrap_err();
        assert!(refused.message.ends_with(why), "{}", refused.message);
    }
    let refused = find(KeySource::File(place.0.clone())).await.unwrap_err();
    assert!(
        refused.message.ends_with("it is not a regular file"),
        "{}",
        refused.message
    );
}

#[test]
fn who_may_read_a_file_decides_whether_it_is_a_place_for_a_secret() {
    let me = geteuid().as_raw();
    let (root, stranger) = (0, 4_000_000);
    for (owner, mode, guard, of_service, good) in [
        (me, 0o600, AllowedReaders::Owner, false, true),
        (me, 0o400, AllowedReaders::Owner, false, true),
        (root, 0o440, AllowedReaders::Owner, false, false),
        (root, 0o440, AllowedReaders::Service, false, true),
        (root, 0o444, AllowedReaders::Service, false, false),
        (root, 0o444, AllowedReaders::Service, true, true),
        (root, 0o666, AllowedReaders::Service, true, false),
        (stranger, 0o600, AllowedReaders::Service, false, false),
    ] {
        let refused = permission_problem(owner, mode, guard, of_service);
        assert_eq!(
            refused.is_none(),
            good,
            "{owner} {mode:o} {guard:?} {of_service} {refused:?}"
        );
    }
}
