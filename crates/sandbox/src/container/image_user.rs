//! The ids of a user name of an image: read from its own `/etc/passwd` and `/etc/group`, in a
//! container that never runs.

use super::{EngineImage, api::escaped, engine::ContainerEngine, of_api, refused};
use crate::native::SandboxError;
use serde_json::{Map, json};
use spec::{ErrorCode, User};

/// Bytes of such a file that are read.
const MAX_FILE_BYTES: usize = 1 << 20;
const TAR_BLOCK_BYTES: usize = 512;

/// The ids of `USER[:GROUP]`.
pub(super) async fn look_up(
    engine: &ContainerEngine,
    image: &EngineImage,
    name: &str,
    labels: &[(&'static str, String)],
) -> Result<User, SandboxError> {
    let labels: Map<_, _> = labels
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let body = json!({
        "Image": image.id, "Entrypoint": ["/nothing"], "Labels": labels, "HostConfig": { "NetworkMode": "none" },
    });
    let made = engine
        .api
        .post("/containers/create", Some(&body))
        .await
        .map_err(of_api("open the image"))?;
    let id = made["Id"].as_str().unwrap_or_default();
    let passwd = file(engine, id, "/etc/passwd").await;
    let group = file(engine, id, "/etc/group").await;
    // The sweep finds by the labels what could not be removed.
    super::remove(engine, id)
        .await
        .map_err(of_api("remove a container"))?;
    find(name, &passwd, &group).ok_or_else(|| {
        refused(
            ErrorCode::ImageRefused,
            format!(
                "the image names the user `{}`, whom its /etc/passwd does not know",
                name.escape_debug()
            ),
            "choose one with --user UID:GID",
        )
    })
}

/// A file of the image; empty if it is absent or not a regular file.
async fn file(engine: &ContainerEngine, id: &str, path: &str) -> String {
    let archive = engine
        .api
        .read(&format!(
            "/containers/{}/archive?path={}",
            escaped(id),
            escaped(path)
        ))
        .await;
    archive
        .ok()
        .and_then(|bytes| only_file(&bytes))
        .unwrap_or_default()
}

/// The one regular file of a tar archive.
fn only_file(tar: &[u8]) -> Option<String> {
    let header = tar.get(..TAR_BLOCK_BYTES)?;
    let size = std::str::from_utf8(header.get(124..135)?)
        .ok()?
        .trim_matches(['\0', ' ']);
    let size = usize::from_str_radix(size, 8)
        .ok()
        .filter(|size| *size <= MAX_FILE_BYTES)?;
    let plain = [b'0', 0].contains(&header[156]);
    let bytes = tar
        .get(TAR_BLOCK_BYTES..TAR_BLOCK_BYTES + size)
        .filter(|_| plain)?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

fn find(name: &str, passwd: &str, group: &str) -> Option<User> {
    let (user, of_group) = name
        .split_once(':')
        .map_or((name, None), |(user, group)| (user, Some(group)));
    let row = |text: &str, name: &str| {
        let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
        text.lines()
            .map(fields)
            .find(|fields| fields.first().is_some_and(|first| first == name))
    };
    let number = |fields: &[String], place: usize| fields.get(place)?.parse::<u32>().ok();
    let (uid, own_gid) = match (user.parse::<u32>(), row(passwd, user)) {
        (Ok(uid), _) => (uid, uid),
        (Err(_), Some(fields)) => (number(&fields, 2)?, number(&fields, 3)?),
        (Err(_), None) => return None,
    };
    let gid = match of_group {
        None => own_gid,
        Some(group_name) => match group_name.parse() {
            Ok(gid) => gid,
            Err(_) => number(&row(group, group_name)?, 2)?,
        },
    };
    // The last two numbers have another meaning to the kernel.
    (uid < u32::MAX - 1 && gid < u32::MAX - 1).then_some(User { uid, gid })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0::/root:/bin/sh\nagent:x:1000:1001::/home:/bin/sh\nbroken:x\n";
    const GROUP: &str = "wheel:x:10:\n";

    #[test]
    fn names_are_those_of_the_image() {
        assert_eq!(
            find("agent", PASSWD, GROUP),
            Some(User {
                uid: 1000,
                gid: 1001
            })
        );
        assert_eq!(
            find("agent:wheel", PASSWD, GROUP),
            Some(User { uid: 1000, gid: 10 })
        );
        assert_eq!(
            find("agent:5", PASSWD, GROUP),
            Some(User { uid: 1000, gid: 5 })
        );
        assert_eq!(
            find("7:wheel", PASSWD, GROUP),
            Some(User { uid: 7, gid: 10 })
        );
        for unknown in ["nobody", "broken", "agent:none", "", "4294967295"] {
            assert_eq!(find(unknown, PASSWD, GROUP), None, "{unknown}");
        }
    }

    #[test]
    fn an_archive_that_is_none_is_no_file() {
        let mut tar = vec![0; 1024];
        tar[124..135].copy_from_slice(b"00000000003");
        tar[156] = b'0';
        tar[512..515].copy_from_slice(b"a:b");
        assert_eq!(only_file(&tar).as_deref(), Some("a:b"));
        tar[156] = b'2';
        assert_eq!(only_file(&tar), None);
        for cut in [0, 100, 511] {
            assert_eq!(only_file(&vec![b'0'; cut]), None);
        }
    }
}
