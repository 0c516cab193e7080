//! Tools of the owner's that replace a protected file while the program runs.

use super::{
    Form, Host, PLAIN, Plant, Tools, in_all_forms, make_ready, take_over, trusted, turned,
};
use crate::{Case, Outcome, world::Ground};

pub(super) const CASES: &[Case] = &[
    turned("H65", "git config of the owner's during the run", |it| {
        attacked(it, &GIT_CONFIG)
    }),
    turned(
        "H66",
        "an editor that saves .envrc by renaming, during the run",
        |it| attacked(it, &SAVED),
    ),
    turned("H67", "git clean of the owner's during the run", |it| {
        attacked(it, &CLEANED)
    }),
    turned(
        "H68",
        "git checkout of the owner's that writes a hook during the run",
        |it| attacked(it, &CHECKED_OUT),
    ),
    turned("H69", "a commit of the owner's during the run", |it| {
        attacked(it, &COMMITTED)
    }),
];

/// A plant with something that the owner does while the program runs.
struct Meanwhile {
    plant: Plant,
    /// What the owner does while the program waits.
    owner: &'static str,
    /// What the program does then.
    then: &'static str,
}

const GIT_CONFIG: Meanwhile = Meanwhile {
    plant: Plant {
        attack: "monitor .git/config",
        ..PLAIN
    },
    owner: "git config branch.main.description x; git branch -q feature",
    then: "git config core.fsmonitor \"$plant; false\"; monitor .git/config",
};

const SAVED: Meanwhile = Meanwhile {
    plant: Plant {
        before: trusted!("echo true >.envrc"),
        after: "direnv export bash >/dev/null 2>&1",
        tools: &["direnv"],
        ..PLAIN
    },
    owner: "echo 'true # saved' >new; mv new .envrc",
    then: "echo \"$plant\" >.envrc",
};

const CLEANED: Meanwhile = Meanwhile {
    plant: Plant {
        before: trusted!("mkdir .vscode\necho true >.envrc; echo '{}' >.vscode/tasks.json"),
        after: "direnv export bash >/dev/null 2>&1; finds .vscode/tasks.json",
        tools: &["direnv"],
        ..PLAIN
    },
    owner: "git clean -fdxq",
    then: "mkdir -p .vscode; echo 'of the program' >.vscode/tasks.json; echo \"$plant\" >.envrc",
};

const CHECKED_OUT: Meanwhile = Meanwhile {
    plant: Plant {
        before: "git config core.hooksPath .husky; mkdir .husky; printf '#!/bin/sh\nexit 0\n' >.husky/pre-commit
            chmod +x .husky/pre-commit; git add -A; git commit -qm one
            git checkout -qb other; printf '#!/bin/sh\ntrue\n' >.husky/pre-commit; git commit -qam two; git checkout -q main",
        after: "git commit -q --allow-empty -m x || true",
        ..PLAIN
    },
    owner: "rm -r .husky; git checkout -q other -- .husky",
    then: "program .husky/pre-commit; program .husky/post-checkout",
};

const COMMITTED: Meanwhile = Meanwhile {
    plant: PLAIN,
    owner: "echo x >>notes; git commit -qam meanwhile; git gc -q; git pack-refs --all",
    then: "program .git/hooks/pre-commit; program .git/hooks/post-commit; program .git/hooks/reference-transaction",
};

/// The program waits for the end of its input. On a bare mount it is two programs, one after the other.
fn attacked(ground: &Ground<'_>, case: &Meanwhile) -> Outcome {
    let tools = Tools::find(case.plant.tools)?;
    make_ready(ground)?;
    if ground.is_control() {
        let host = Host::prepare(ground, &tools, case.plant.before)?;
        host.program_on_bare_mount(case.plant.attack)?;
        host.tool(case.owner)?;
        host.program_on_bare_mount(case.then)?;
        return host.works(case.plant.after);
    }
    in_all_forms(ground, |form| meanwhile(ground, &tools, case, form))
}

fn meanwhile(ground: &Ground<'_>, tools: &Tools, case: &Meanwhile, form: Form) -> Outcome {
    let host = Host::prepare(ground, tools, case.plant.before)?;
    let attack = format!(
        "{}\necho ready\ncat >/dev/null\n{}",
        case.plant.attack, case.then
    );
    let held = ground.hold(host.request(&attack, form))?;
    let worked = host.tool(case.owner);
    let report = held.finish()?;
    worked?;
    host.keep_notes(&report)?;
    if form == Form::Reviewed {
        take_over(ground, &report)?;
    }
    host.works(case.plant.after)
}
