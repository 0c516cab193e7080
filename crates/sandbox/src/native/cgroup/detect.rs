//! Detection of the host's cgroups: which controller is in which tree, and if it is missing, why
//! and what would help. Read-only.

use super::{
    CgroupHost, Controller, MissingController, PREFIX, Subtree, Version, tree::CgroupTree,
    tree::CgroupTrees, tree::above_leaf, v2,
};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use std::{collections::BTreeMap, path::Path};

const MOUNT: &str = "mount a cgroup tree: `mount -t cgroup2 none /sys/fs/cgroup`";
const DELEGATE: &str = "start it in a scope of its own: `systemd-run --user --scope -p Delegate=yes airlock …` (as root without `--user`)";
const BE_ROOT: &str =
    "start it as root, or boot with `systemd.unified_cgroup_hierarchy=1` and use a delegated scope";

/// Keeps the usable trees.
pub(super) fn judge(trees: &CgroupTrees) -> CgroupHost {
    let missing = BTreeMap::new();
    let freezer = freezer(trees);
    let mut host = CgroupHost {
        v1: Vec::new(),
        v2: None,
        missing,
        freezer,
        prefix: PREFIX.to_owned(),
    };
    for tree in &trees.v1 {
        judge_v1(tree, &mut host);
    }
    if let Some(tree) = &trees.v2 {
        judge_v2(tree, &mut host);
    }
    for controller in Controller::ALL {
        if host.enforcer_of(controller).is_none() {
            let why = format!(
                "no mounted cgroup tree that reaches us has the controller `{}`",
                controller.name()
            );
            host.missing
                .entry(controller)
                .or_insert(MissingController { why, remedy: MOUNT });
        }
    }
    host
}

/// Where whole sandboxes can be frozen: in any v2 tree, even one without controllers, or in the v1
/// tree `freezer`.
fn freezer(trees: &CgroupTrees) -> Result<(Version, Subtree), MissingController> {
    let subtree = |top: &Path, own: &Path| Subtree {
        top: top.to_owned(),
        own: own.to_owned(),
        controllers: Vec::new(),
    };
    let second = trees.v2.as_ref().map(|tree| {
        let own = above_leaf(&tree.own, v2::LEAF);
        closed(&own).map_or_else(|| Ok((Version::V2, subtree(&tree.top, &own))), Err)
    });
    let first = trees
        .v1
        .iter()
        .find(|tree| tree.controllers.iter().any(|has| has == "freezer"));
    let first = first.map(|tree| {
        if writable(&tree.own, true) {
            Ok((Version::V1, subtree(&tree.top, &tree.own)))
        } else {
            Err(MissingController {
                why: not_ours(&tree.own),
                remedy: BE_ROOT,
            })
        }
    });
    match (second, first) {
        (Some(Ok(found)), _) | (_, Some(Ok(found))) => Ok(found),
        (Some(Err(missing)), _) | (None, Some(Err(missing))) => Err(missing),
        (None, None) => {
            let why = "no mounted cgroup tree that reaches us can freeze".to_owned();
            Err(MissingController { why, remedy: MOUNT })
        }
    }
}

fn judge_v1(tree: &CgroupTree, host: &mut CgroupHost) {
    let has = |name: &str| tree.controllers.iter().any(|has| has == name);
    let controllers: Vec<_> = Controller::ALL
        .into_iter()
        .filter(|wanted| has(wanted.v1_name()))
        .collect();
    if controllers.is_empty() {
        return;
    }
    let obstacle = match writable(&tree.own, true) {
        false => Some(MissingController {
            why: not_ours(&tree.own),
            remedy: BE_ROOT,
        }),
        // A new cpuset has no CPU, and no process can enter it before it is given some.
        true if has("cpuset") => Some(MissingController {
            why: format!("`{}` is shared with `cpuset`", tree.top.display()),
            remedy: BE_ROOT,
        }),
        true => None,
    };
    match obstacle {
        Some(missing) => host.miss(&controllers, missing),
        None => host.v1.push(Subtree {
            top: tree.top.clone(),
            own: tree.own.clone(),
            controllers,
        }),
    }
}

fn judge_v2(tree: &CgroupTree, host: &mut CgroupHost) {
    let own = above_leaf(&tree.own, v2::LEAF);
    let open: Vec<_> = Controller::ALL
        .into_iter()
        .filter(|wanted| host.enforcer_of(*wanted).is_none())
        .collect();
    if let Some(missing) = closed(&own) {
        let here: Vec<_> = open
            .into_iter()
            .filter(|wanted| in_v2(&own, *wanted))
            .collect();
        return host.miss(&here, missing);
    }
    let (mut controllers, refused): (Vec<_>, Vec<_>) =
        open.into_iter().partition(|wanted| in_v2(&own, *wanted));
    let why = format!(
        "the controller is not handed down to our cgroup `{}`",
        own.display()
    );
    host.miss(
        &refused,
        MissingController {
            why,
            remedy: DELEGATE,
        },
    );
    if let Some(missing) = crowded(&own, &controllers) {
        let (still, lost) = controllers
            .into_iter()
            .partition(|wanted| wanted.v2_name().is_none());
        controllers = still;
        host.miss(&lost, missing);
    }
    if !controllers.is_empty() {
        host.v2 = Some(Subtree {
            top: tree.top.clone(),
            own,
            controllers,
        });
    }
}

/// CPU time is counted in every v2 cgroup, with or without a controller.
fn in_v2(own: &Path, controller: Controller) -> bool {
    let handed = super::dir::read(own, "cgroup.controllers").unwrap_or_default();
    controller
        .v2_name()
        .is_none_or(|name| handed.split_whitespace().any(|handed| handed == name))
}

/// Why no cgroup can be created below our own v2 cgroup.
fn closed(own: &Path) -> Option<MissingController> {
    let ours = writable(own, true)
        && ["cgroup.procs", "cgroup.subtree_control"]
            .iter()
            .all(|file| writable(&own.join(file), false));
    let kind = super::dir::read(own, "cgroup.type").unwrap_or_else(|_| "domain".into());
    match (ours, kind.as_str()) {
        (false, _) => Some(MissingController {
            why: not_ours(own),
            remedy: DELEGATE,
        }),
        (true, "domain") => None,
        (true, kind) => {
            let why = format!(
                "our cgroup `{}` is of type `{kind}`, which limits no memory",
                own.display()
            );
            Some(MissingController {
                why,
                remedy: DELEGATE,
            })
        }
    }
}

/// Why our own v2 cgroup cannot delegate controllers.
fn crowded(own: &Path, controllers: &[Controller]) -> Option<MissingController> {
    if v2::is_root(own) || v2::hands_down(own, controllers) {
        return None;
    }
    let strangers = v2::strangers(own);
    let first = strangers.first()?;
    let cgroup = own.display();
    let others = strangers.len();
    let why =
        format!("our cgroup `{cgroup}` is shared: process {first} is not ours ({others} in all)");
    Some(MissingController {
        why,
        remedy: DELEGATE,
    })
}

fn not_ours(own: &Path) -> String {
    if own.exists() {
        format!("our cgroup `{}` is not ours to write in", own.display())
    } else {
        format!("our cgroup `{}` is gone or cannot be seen", own.display())
    }
}

fn writable(path: &Path, directory: bool) -> bool {
    let access = if directory {
        Access::WRITE_OK | Access::EXEC_OK
    } else {
        Access::WRITE_OK
    };
    accessat(CWD, path, access, AtFlags::EACCESS).is_ok()
}
