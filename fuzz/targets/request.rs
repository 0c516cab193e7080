//! Requests, as any front may pass them on. No bytes make `admit` or a parser panic, and what is admitted holds
//! to what the rest of Airlock no longer checks.
//!
//! Records are separated by the byte 30. The first byte of each says which option it is, the rest is its value.

#![no_main]

use libfuzzer_sys::fuzz_target;
use spec::{
    Cpus, Id, InputSource, InsidePath, Network, Policy, Root, RunRequest, RunSpec, Size, SpecError,
    Time, WorkspacePath,
};
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fmt::{Debug, Display},
    os::unix::ffi::OsStrExt,
    path::{Component, Path},
    str::FromStr,
};

fuzz_target!(|input: &[u8]| {
    let mut request = RunRequest::default();
    for record in input.split(|byte| *byte == 30) {
        if let Some((option, value)) = record.split_first() {
            parse_alone(value);
            set(&mut request, *option, value);
        }
    }
    match Policy::default().admit(request) {
        Ok(spec) => check_admitted(&spec),
        Err(error) => check_refusal(&error),
    }
});

/// One value of a request. What does not parse as its type is left out: it could not have reached a request.
fn set(request: &mut RunRequest, option: u8, value: &[u8]) {
    let raw = || OsStr::from_bytes(value).to_owned();
    let text = || str::from_utf8(value).ok().map(str::to_owned);
    fn parsed<T: FromStr>(value: &[u8]) -> Option<T> {
        str::from_utf8(value).ok()?.parse().ok()
    }
    match option {
        b'c' => request.command.push(raw()),
        b'm' => request.mounts.push(raw()),
        b'i' => request.inputs.push(raw()),
        b'a' => request.artifacts.push(raw().into()),
        b'p' => request.allow_protected.push(raw().into()),
        b'w' => request.workspace = Some(raw().into()),
        b'I' => request.image = Some(raw().into()),
        b'E' => request.entrypoint = Some(raw()),
        b'v' => request.volumes.push(raw()),
        b'k' => request.internal_network = text(),
        b'e' => request.env.push(variable(value)),
        b'r' => request.run_id = text(),
        b't' => request.task_id = text(),
        b'j' => request.job_id = text(),
        b'P' => request.profile = text(),
        b'b' => request.backend = text(),
        b'n' => request.network = parsed(value),
        b'u' => request.user = parsed(value),
        b'd' => request.doors.extend(parsed::<u16>(value)),
        b'q' => request.require.extend(parsed::<spec::Barrier>(value)),
        b'M' => request.limits.memory = parsed(value),
        b'T' => request.limits.wall_time = parsed(value),
        b'C' => request.limits.cpus = parsed(value),
        b'N' => request.limits.pids = parsed(value),
        _ => {}
    }
}

fn variable(value: &[u8]) -> (OsString, OsString) {
    // At the last `=`, so that names come up that have one themselves.
    let middle = value
        .iter()
        .rposition(|byte| *byte == b'=')
        .unwrap_or(value.len());
    let (name, rest) = value.split_at(middle);
    (
        OsStr::from_bytes(name).to_owned(),
        OsStr::from_bytes(rest.get(1..).unwrap_or_default()).to_owned(),
    )
}

fn parse_alone(value: &[u8]) {
    let path = Path::new(OsStr::from_bytes(value));
    if let Ok(inside) = InsidePath::new(path) {
        check_inside(inside.as_path());
    }
    if let Ok(below) = WorkspacePath::new(path) {
        check_below(below.as_path());
    }
    if let Ok(text) = str::from_utf8(value) {
        if let Ok(id) = Id::new(text) {
            check_id(&id);
        }
        check_reads_back::<Size>(text);
        check_reads_back::<Time>(text);
        check_reads_back::<Cpus>(text);
    }
}

fn check_reads_back<T: FromStr<Err: Debug> + Display + PartialEq + Debug>(text: &str) {
    if let Ok(value) = text.parse::<T>() {
        assert_eq!(
            value
                .to_string()
                .parse::<T>()
                .expect("what is shown can be read"),
            value
        );
    }
}

fn check_admitted(spec: &RunSpec) {
    [&spec.run_id, &spec.task_id, &spec.job_id]
        .into_iter()
        .flatten()
        .for_each(check_id);
    // Only an image may say by itself what runs.
    let of_image = matches!(spec.sandbox.root, Root::Image(_));
    assert!(
        spec.command
            .first()
            .map_or(of_image, |program| !program.is_empty())
    );
    assert!(
        spec.command
            .iter()
            .all(|argument| !argument.as_bytes().contains(&0))
    );
    spec.artifacts
        .iter()
        .chain(&spec.sandbox.protected.allowed)
        .for_each(|path| check_below(path.as_path()));
    for (name, source) in &spec.inputs {
        check_below(name.as_path());
        if let InputSource::Artifact { name, .. } = source {
            check_below(name.as_path());
        }
    }
    let mounts = spec
        .sandbox
        .mounts
        .iter()
        .map(|mount| mount.inside.as_path());
    let volumes = spec
        .sandbox
        .volumes
        .iter()
        .map(|volume| volume.inside.as_path());
    let places: BTreeSet<_> = mounts.chain(volumes).collect();
    let count = spec.sandbox.mounts.len() + spec.sandbox.volumes.len();
    assert_eq!(places.len(), count, "two mounts at one place");
    places.into_iter().for_each(check_inside);
    for (name, value) in &spec.sandbox.env {
        let name = name.as_os_str().as_bytes();
        assert!(!name.is_empty() && !name.contains(&b'=') && !name.contains(&0) && name != b"PATH");
        assert!(!value.as_bytes().contains(&0));
    }
    let walled = matches!(spec.sandbox.network, Network::Doors | Network::Open);
    assert!(walled || spec.sandbox.doors.is_empty() && spec.sandbox.transparent_ports.is_none());
    assert!(walled || spec.grants.egress.is_none());
}

fn check_refusal(error: &SpecError) {
    for text in [&error.message, &error.hint] {
        assert!(
            !text.is_empty() && !text.contains(char::is_control),
            "{text:?}"
        );
    }
}

fn check_id(id: &Id) {
    assert!(matches!(
        Path::new(id.as_str()).components().collect::<Vec<_>>()[..],
        [Component::Normal(_)]
    ));
}

fn check_below(path: &Path) {
    assert!(!path.as_os_str().is_empty());
    check_names(path);
}

fn check_inside(path: &Path) {
    let names = path.strip_prefix("/").expect("absolute");
    assert!(!names.as_os_str().is_empty() && names != Path::new("workspace"));
    assert!(
        !["proc", "sys", "dev", "tmp", "run"]
            .iter()
            .any(|place| names.starts_with(place)),
        "{path:?}"
    );
    check_names(names);
}

/// By bytes, not by components: those would hide what they normalise.
fn check_names(path: &Path) {
    for name in path.as_os_str().as_bytes().split(|byte| *byte == b'/') {
        assert!(
            !name.is_empty() && name != b"." && name != b".." && !name.contains(&0),
            "{path:?}"
        );
    }
}
