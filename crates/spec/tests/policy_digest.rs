//! The engine's `policy_hash` is the SHA-256 of the `Debug` output of these values. The output must
//! stay byte for byte the same when a type or a module gets another name: otherwise an artifact
//! that was stored before the change seems to come from a run with other permissions.

#![allow(
    clippy::unwrap_used,
    reason = "clippy takes only functions marked as tests for tests"
)]

use spec::{
    Access, EgressGrant, EgressLimits, EgressMode, EgressRule, EnvName, ImageRule, Mount, Policy,
    Ports, RefPattern, Repository, RunRequest, RunSpec, Size, WorkspacePath,
};
use std::{ffi::OsStr, path::Path};

/// A run on a container engine that uses every kind of permission.
fn container_run() -> RunSpec {
    let mut policy = Policy::default();
    policy.images.rule = ImageRule::Allowed;
    policy.images.may_add = Some(vec!["ops".to_owned()]);
    policy.images.registries = Some(vec!["ghcr.io".to_owned()]);
    policy.workspace.protected.added = vec![".tool".to_owned()];
    policy.workspace.protected.removed = vec![".idea".to_owned()];
    policy.workspace.protected.paths = vec![WorkspacePath::new(Path::new("hooks")).unwrap()];
    let mut request = RunRequest {
        command: vec!["true".into()],
        profile: Some("agent".to_owned()),
        backend: Some("docker".to_owned()),
        image: Some("ghcr.io/a/b:1".into()),
        workspace: Some("/w".into()),
        mounts: vec!["/h:/data:rw".into()],
        volumes: vec!["cache:/cache".into()],
        allow_protected: vec!["hooks/pre-commit".into()],
        hide: vec!["*.secret".to_owned()],
        allow_hosts: vec!["pypi.org".to_owned(), "*.a.com:22".to_owned()],
        allow_models: vec!["claude-*".to_owned()],
        llm: Some(Some("p".to_owned())),
        inference: true,
        secrets: vec!["s=TOKEN".into()],
        ..RunRequest::default()
    };
    request.limits.cpus = "1.5".parse().ok();
    request.limits.stack = "1M".parse().ok();
    request.limits.nice = Some(5);
    request.budget.money = "0.5".parse().ok();
    let mut spec = policy.admit(request).unwrap();
    spec.sandbox.hide.show_tracked(["test/.env".into()]);
    let mut grant = spec.grants.egress.take().unwrap();
    grant.rules.extend(further_rules());
    spec.grants.egress = Some(EgressGrant {
        limits: EgressLimits {
            per_minute: Some(3),
            sent: Some(Size(4)),
            received: None,
        },
        within: vec![vec!["*".parse().unwrap()]],
        ..grant
    });
    spec
}

fn further_rules() -> [EgressRule; 2] {
    let rule = EgressRule::tunnel("r", "10.0.0.1".parse().unwrap(), Ports::Any);
    let inspect = EgressMode::Inspect {
        allow: vec!["GET /v1/**".parse().unwrap()],
        credential: Some("c".to_owned()),
        allow_upgrade: true,
    };
    let push: RefPattern = "refs/heads/agent/*".parse().unwrap();
    let repositories = vec![Repository {
        path: "a/b".to_owned(),
        fetch: true,
        push: vec![push],
        update: true,
        delete: false,
        credential: None,
    }];
    let git = EgressMode::Git { repositories };
    [inspect, git].map(|mode| EgressRule {
        mode,
        ..rule.clone()
    })
}

#[test]
fn debug_output_keeps_the_digest_of_permissions() {
    let spec = container_run();
    let sandbox = &spec.sandbox;
    let shown = [
        format!("{:?}", sandbox.backend),
        format!("{:?}", sandbox.root),
        format!("{:?}", sandbox.protected),
        format!("{:?}", sandbox.hide),
        format!("{:?}", sandbox.mounts),
        format!("{:?}", sandbox.volumes),
        format!("{:?}", sandbox.extra_mounts),
        format!("{:?}", sandbox.network),
        format!("{:?}", sandbox.limits),
        format!("{:?}", sandbox.required),
        format!("{:?}", sandbox.user),
        format!("{:?}", spec.images),
        format!("{:?}", spec.grants),
    ];
    assert_eq!(shown.join("\n") + "\n", include_str!("policy_digest.txt"));
}

#[test]
fn the_control_another_permission_is_another_text() {
    let spec = container_run();
    let read_only = Mount {
        access: Access::ReadOnly,
        ..spec.sandbox.mounts[0].clone()
    };
    assert_ne!(
        format!("{read_only:?}"),
        format!("{:?}", spec.sandbox.mounts[0])
    );
    let variable = EnvName::new(OsStr::new("OTHER")).unwrap();
    let mut grants = spec.grants.clone();
    grants.secrets[0].1 = variable;
    assert_ne!(format!("{grants:?}"), format!("{:?}", spec.grants));
}
