//! Roots from a folder, honest and hostile. A tiny one is made of busybox, which must be static.

use crate::{runner::Proof, world::World};
use spec::{ErrorCode, RunRequest, RunResult, Status};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
};

pub(crate) fn proofs() -> Vec<Proof> {
    crate::proofs![
        a_program_runs_in_a_root_of_its_own,
        an_image_is_read_only,
        links_in_an_image_lead_nowhere_outside,
        images_that_are_none_are_refused,
    ]
}

pub(crate) fn image(world: &World) -> PathBuf {
    let image = world.fresh_folder("image");
    fs::create_dir(image.join("bin")).expect("a folder");
    let places = ["/bin/busybox", "/usr/bin/busybox"];
    let busybox = places
        .iter()
        .find(|path| Path::new(path).exists())
        .expect("prerequisite: busybox (static)");
    fs::copy(busybox, image.join("bin/busybox")).expect("a copy");
    fs::set_permissions(image.join("bin/busybox"), fs::Permissions::from_mode(0o755))
        .expect("mode");
    for name in ["sh", "ls", "cat"] {
        symlink("busybox", image.join("bin").join(name)).expect("a link");
    }
    image
}

fn run_in(world: &World, image: &Path, script: &str) -> RunResult {
    let image = Some(image.to_owned());
    world.run(RunRequest {
        image,
        ..world.command(&["sh", "-c", script])
    })
}

fn shown(result: &RunResult) -> (Status, String) {
    (
        result.status,
        String::from_utf8_lossy(&result.stdout).into_owned(),
    )
}

fn a_program_runs_in_a_root_of_its_own(world: &World) {
    let image = image(world);
    fs::write(image.join("of-the-image"), "hello").expect("a file");
    let result = run_in(world, &image, "cat /of-the-image; echo; ls /");
    let expected = "hello\nbin\ndev\netc\nhome\nof-the-image\nproc\nrun\nsys\ntmp\nworkspace\n";
    assert_eq!(
        shown(&result),
        (Status::Succeeded, expected.to_owned()),
        "{result:?}"
    );
    assert_eq!(result.barriers, world.usual_barriers());
}

fn an_image_is_read_only(world: &World) {
    let image = image(world);
    let script = "for place in /made /bin/made /etc/made /tmp/made made; do \
                  if echo x 2> /dev/null > $place; then echo $place; fi; done";
    assert_eq!(
        shown(&run_in(world, &image, script)),
        (Status::Succeeded, "/tmp/made\nmade\n".to_owned())
    );
    let names = |folder: &Path| {
        let mut names: Vec<_> = fs::read_dir(folder)
            .expect("a folder")
            .flatten()
            .map(|entry| entry.file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(&image), ["bin"]);
    assert_eq!(names(&image.join("bin")), ["busybox", "cat", "ls", "sh"]);
}

/// In place of each of our own folders a link to a folder of the host's, and to the host's root.
fn links_in_an_image_lead_nowhere_outside(world: &World) {
    for target in ["/", "canary"] {
        let (image, canary) = (image(world), world.fresh_folder("canary"));
        fs::set_permissions(&canary, fs::Permissions::from_mode(0o777)).expect("mode");
        let to = if target == "canary" {
            canary.as_path()
        } else {
            Path::new(target)
        };
        for name in ["dev", "proc", "tmp", "workspace", "sys", "run", "etc"] {
            symlink(to, image.join(name)).expect("a link");
        }
        let script = "echo x > /tmp/made; echo x > /workspace/made; echo x > /dev/shm/made; \
                      ls /tmp /workspace /dev/shm; test -r /proc/self/status && echo proc";
        let result = run_in(world, &image, script);
        let expected = "/dev/shm:\nmade\n\n/tmp:\nmade\n\n/workspace:\nmade\nproc\n";
        assert_eq!(
            shown(&result),
            (Status::Succeeded, expected.to_owned()),
            "{result:?}"
        );
        assert_eq!(
            fs::read_dir(&canary).expect("a folder").count(),
            0,
            "nothing outside was touched"
        );
    }
    assert!(!Path::new("/made").exists() && !Path::new("/tmp/made").exists());
}

fn images_that_are_none_are_refused(world: &World) {
    let refusal = |path: &Path| {
        let result = run_in(world, path, "true");
        (
            result.status,
            result.exit_status,
            result.error.map(|error| error.code),
        )
    };
    let refused = |code| (Status::NotStarted, 125, Some(code));
    // The state folder lies in it.
    assert_eq!(refusal(Path::new("/")), refused(ErrorCode::PolicyDenied));
    assert_eq!(
        refusal(&world.probe_folder.join("probe")),
        refused(ErrorCode::ImageRefused)
    );
    assert_eq!(
        refusal(&world.folder.join("absent")),
        refused(ErrorCode::ImageMissing)
    );
}
