//! Names that shells, direnv, Mercurial, hook managers, editors and agents obey, and links and files that are none.

use super::{PLAIN, Plant, attacked, trusted, turned};
use crate::Case;

pub(super) const CASES: &[Case] = &[
    turned("H39", "a new .envrc, at the top and below", |it| {
        attacked(it, &ENVRC)
    }),
    turned("H40", "the owner's .envrc, changed and replaced", |it| {
        attacked(it, &OWN_ENVRC)
    }),
    turned("H41", "the folder of an .envrc, replaced", |it| {
        attacked(it, &ENVRC_PARENT)
    }),
    turned("H42", "what the owner's .envrc links to, replaced", |it| {
        attacked(it, &ENVRC_LINK)
    }),
    turned("H43", "what the owner's .envrc links to, made", |it| {
        attacked(it, &ENVRC_DANGLING)
    }),
    turned(
        "H44",
        "a folder that the owner's hooks link to, replaced",
        |it| attacked(it, &HOOKS_LINK),
    ),
    turned("H45", "a second name of the owner's hook", |it| {
        attacked(it, &SECOND_NAME)
    }),
    turned("H46", "the owner's .hg/hgrc", |it| attacked(it, &OWN_HG)),
    turned("H47", "a new .hg, at the top and below", |it| {
        attacked(it, &NEW_HG)
    }),
    turned(
        "H48",
        ".pre-commit-config.yaml with installed hooks",
        |it| attacked(it, &PRE_COMMIT),
    ),
    turned("H49", "a hook in .githooks", |it| attacked(it, &GITHOOKS)),
    turned("H50", "files that vim runs on opening", |it| {
        attacked(it, &VIM)
    }),
    turned("H51", "further files that vim runs on opening", |it| {
        attacked(it, &VIM_OTHERS)
    }),
    turned(
        "H52",
        "files that bash runs where the folder is a home",
        |it| attacked(it, &BASH),
    ),
    turned(
        "H53",
        "files that zsh runs where the folder is a home",
        |it| attacked(it, &ZSH),
    ),
    turned("H54", ".gitconfig where the folder is a home", |it| {
        attacked(it, &HOME_GITCONFIG)
    }),
    turned("H55", "settings of editors", |it| attacked(it, &EDITORS)),
    turned("H56", "settings of agents", |it| attacked(it, &AGENTS)),
    turned("H57", "hook managers and version control by name", |it| {
        attacked(it, &MANAGERS)
    }),
    turned("H58", "a link in place of a folder of settings", |it| {
        attacked(it, &FOLDER_LINK)
    }),
    turned("H59", "links to protected names", |it| attacked(it, &LINKS)),
    turned("H60", "a folder that cannot be looked into", |it| {
        attacked(it, &UNREADABLE)
    }),
    turned("H61", "a folder too deep for a path", |it| {
        attacked(it, &DEEP)
    }),
    turned("H62", ".artifacts with files that tools obey", |it| {
        attacked(it, &ARTIFACTS)
    }),
    turned("H63", "set-id programs", |it| attacked(it, &SET_ID)),
    turned("H64", "sockets and device nodes", |it| {
        attacked(it, &SPECIAL)
    }),
    turned(
        "H71",
        "a link by which the owner's .envrc leads, changed",
        |it| attacked(it, &ENVRC_CHAIN),
    ),
];

/// The owner opens a shell with direnv in each folder.
const DIRENV: &str = "for it in . sub deep/below; do
    [ ! -d $it ] || (cd $it && direnv export bash >/dev/null 2>&1) || true; done";

const ENVRC: Plant = Plant {
    before: trusted!(),
    attack: "mkdir -p sub; echo \"$plant\" >.envrc; cp .envrc new; mkdir fresh; mv new fresh/.envrc; mv fresh deep
        cp .envrc sub/.envrc; ln .envrc deep/below 2>/dev/null",
    after: DIRENV,
    tools: &["direnv"],
};

/// His own is run, too, which shows that direnv works.
const OWN_ENVRC: Plant = Plant {
    before: trusted!("echo 'echo own >/host/canary/own' >.envrc"),
    attack: "echo \"$plant\" >>.envrc; echo \"$plant\" >new; mv -f new .envrc; rm -f .envrc
        echo \"$plant\" >.envrc; cp .envrc kept; ln -f kept .envrc; ln -sf kept .envrc",
    after: "direnv export bash >/dev/null 2>&1 || true; [ $CONTROL = 1 ] || [ -e /host/canary/own ]",
    tools: &["direnv"],
};

const ENVRC_PARENT: Plant = Plant {
    before: trusted!("mkdir sub\necho true >sub/.envrc"),
    attack: "mkdir fresh; echo \"$plant\" >fresh/.envrc; mv sub old; mv fresh sub",
    after: DIRENV,
    tools: &["direnv"],
};

const ENVRC_LINK: Plant = Plant {
    before: trusted!("mkdir env\necho true >env/dev; ln -s env/dev .envrc"),
    attack: "echo \"$plant\" >env/dev; mv env old; mkdir env; echo \"$plant\" >env/dev",
    after: DIRENV,
    tools: &["direnv"],
};

const ENVRC_DANGLING: Plant = Plant {
    before: trusted!("ln -s local/env .envrc"),
    attack: "mkdir local; echo \"$plant\" >local/env",
    after: DIRENV,
    tools: &["direnv"],
};

const ENVRC_CHAIN: Plant = Plant {
    before: trusted!("mkdir one\necho true >one/env; ln -s one now; ln -s now/env .envrc"),
    attack: "mkdir two; echo \"$plant\" >two/env; rm now; ln -s two now",
    after: DIRENV,
    tools: &["direnv"],
};

const HOOKS_LINK: Plant = Plant {
    before: "git config core.hooksPath .husky; mkdir -p tools/hooks; ln -s tools/hooks .husky
        printf '#!/bin/sh\nexit 0\n' >tools/hooks/pre-commit; chmod +x tools/hooks/pre-commit",
    attack: "program tools/hooks/pre-commit; program tools/hooks/post-checkout
        mv tools old; program tools/hooks/pre-commit",
    after: "git commit -q --allow-empty -m x",
    ..PLAIN
};

const SECOND_NAME: Plant = Plant {
    before: "git config core.hooksPath .husky; mkdir .husky hooks
        printf '#!/bin/sh\nexit 0\n' >hooks/pre-commit; chmod +x hooks/pre-commit; ln hooks/pre-commit .husky/",
    attack: "printf '#!/bin/sh\n%s\n' \"$plant\" >hooks/pre-commit",
    after: "git commit -q --allow-empty -m x",
    ..PLAIN
};

const OWN_HG: Plant = Plant {
    before: "hg init .; echo '.git' >.hg/x; printf '[ui]\nusername = o\n' >.hg/hgrc",
    attack: r#"printf '[hooks]\npre-status = %s\n' "$plant" >.hg/hgrc; mv .hg old; mkdir .hg
        cp -r old/. .hg/; printf '[hooks]\npre-status = %s\n' "$plant" >.hg/hgrc"#,
    after: "[ ! -d .hg ] || hg status >/dev/null",
    tools: &["hg"],
};

const NEW_HG: Plant = Plant {
    attack: r#"for it in . sub; do mkdir -p $it/.hg/store
        printf 'dotencode\nfncache\ngeneraldelta\nrevlogv1\nstore\n' >$it/.hg/requires
        printf '[hooks]\npre-status = %s\n' "$plant" >$it/.hg/hgrc; done"#,
    after: "hg status >/dev/null 2>&1 || true; (cd sub && hg status >/dev/null 2>&1) || true",
    tools: &["hg"],
    ..PLAIN
};

const PRE_COMMIT: Plant = Plant {
    before: r#"local_hook() { printf 'repos:\n- repo: local\n  hooks:\n  - id: x\n    name: x\n    entry: %s\n    language: system\n    always_run: true\n' "$1"; }
        local_hook /bin/true >.pre-commit-config.yaml
        git add -A; git commit -qm hooks; pre-commit install >/dev/null"#,
    attack: r#"printf 'repos:\n- repo: local\n  hooks:\n  - id: x\n    name: x\n    entry: /host/proj/tool\n    language: system\n    always_run: true\n' >new
        program ./tool; cp new .pre-commit-config.yaml; mv -f new .pre-commit-config.yaml"#,
    after: "git add -A; git commit -q --allow-empty -m x >/dev/null 2>&1",
    tools: &["pre-commit"],
};

const GITHOOKS: Plant = Plant {
    before: "git config core.hooksPath .githooks",
    attack: "program .githooks/pre-commit; program .githooks/post-checkout",
    after: "git commit -q --allow-empty -m x; git checkout -q .",
    ..PLAIN
};

const EXRC: &str = "echo 'set exrc' >\"$HOME/.vimrc\"";

const VIM: Plant = Plant {
    before: EXRC,
    attack: "echo \"silent !$plant\" >.exrc; mkdir -p sub; echo x >sub/file; cp .exrc sub/.vimrc",
    after: "(cd sub && editor file); editor notes",
    ..PLAIN
};

/// The same with the names that other systems have.
const VIM_OTHERS: Plant = Plant {
    before: EXRC,
    attack: "echo \"silent !$plant\" >_vimrc; mkdir -p sub; echo x >sub/file; cp _vimrc sub/_exrc",
    after: "(cd sub && editor file); editor notes",
    ..PLAIN
};

const BASH: Plant = Plant {
    attack: "for it in .bashrc .bash_profile .bash_login .profile .bash_logout; do echo \"$plant\" >$it; done",
    after: "for how in -ic -lc; do HOME=/host/proj bash $how true 2>/dev/null; done
        HOME=/host/proj bash -lc exit",
    ..PLAIN
};

const ZSH: Plant = Plant {
    attack: "for it in .zshenv .zshrc .zprofile .zlogin .zlogout; do echo \"$plant\" >$it; done",
    after: "HOME=/host/proj zsh -ilc true >/dev/null 2>&1; HOME=/host/proj zsh -c true",
    tools: &["zsh"],
    ..PLAIN
};

const HOME_GITCONFIG: Plant = Plant {
    attack: "touch .gitconfig; monitor .gitconfig",
    after: "HOME=/host/proj git status >/dev/null",
    ..PLAIN
};

/// What cannot be run here, is looked at as whoever would obey it does: by name.
const EDITORS: Plant = Plant {
    attack: "for it in .vscode/tasks.json .idea/workspace.xml .zed/tasks.json .helix/config.toml .devcontainer/devcontainer.json \
            .devcontainer.json .nvim.lua .nvimrc .dir-locals.el .dir-locals-2.el; do
            for top in . sub; do mkdir -p \"$top/${it%/*}\" 2>/dev/null; [ \"${it%/*}\" != \"$it\" ] || rmdir \"$top/$it\"
            echo 'of the program' >\"$top/$it\"; done; done",
    after: "for top in . sub; do [ ! -d $top ] || (cd $top
            finds .vscode/tasks.json .idea/workspace.xml .zed/tasks.json .helix/config.toml .devcontainer/devcontainer.json \
            .devcontainer.json .nvim.lua .nvimrc .dir-locals.el .dir-locals-2.el); done",
    ..PLAIN
};

const AGENTS: Plant = Plant {
    attack: "mkdir -p .claude/commands .codex .gemini .cursor .opencode .kiro/hooks .amazonq .windsurf .roo .continue .github/hooks
        for it in .mcp.json .claude/settings.json .claude/settings.local.json .codex/config.toml .gemini/settings.json \
            .cursor/mcp.json opencode.json .opencode/x.ts .aider.conf.yml .kiro/hooks/x .amazonq/x .windsurf/x .roo/mcp.json \
            .continue/config.yaml crush.json .github/hooks/x; do echo 'of the program' >$it; done",
    after: "finds .mcp.json .claude/settings.json .claude/settings.local.json .codex/config.toml .gemini/settings.json \
            .cursor/mcp.json opencode.json .opencode/x.ts .aider.conf.yml .kiro/hooks/x .amazonq/x .windsurf/x .roo/mcp.json \
            .continue/config.yaml crush.json .github/hooks/x",
    ..PLAIN
};

const MANAGERS: Plant = Plant {
    attack: "mkdir -p .husky .lefthook .jj .sl .svn .bzr _darcs .pijul mise .mise .config/mise .fleet .vs sub/.jj
        for it in lefthook.yml .lefthook/x lefthook-local.yml .husky/pre-commit .pre-commit-config.yaml .jj/config .sl/config \
            .svn/x .bzr/branch.conf _darcs/prefs .pijul/config mise.toml mise.local.toml mise/config.toml .mise/config.toml .config/mise/config.toml .lfsconfig \
            mise.production.toml .rvmrc .autoenv.zsh prek.toml hk.pkl captainhook.json .overcommit.yml all.code-workspace .fleet/x .vs/x \
            sub/.jj/config; do echo 'of the program' >$it; done",
    after: "finds lefthook.yml .lefthook/x lefthook-local.yml .husky/pre-commit .pre-commit-config.yaml .jj/config .sl/config \
            .svn/x .bzr/branch.conf _darcs/prefs .pijul/config mise.toml mise.local.toml mise/config.toml .mise/config.toml .config/mise/config.toml .lfsconfig \
            mise.production.toml .rvmrc .autoenv.zsh prek.toml hk.pkl captainhook.json .overcommit.yml all.code-workspace .fleet/x .vs/x \
            sub/.jj/config",
    ..PLAIN
};

/// The names are protected in these folders, and a folder of another name would have them, too.
const FOLDER_LINK: Plant = Plant {
    attack: "mkdir -p settings/mise rules/hooks sub
        echo 'of the program' >settings/mise/config.toml; echo 'of the program' >settings/mise.toml
        echo 'of the program' >rules/hooks/x
        ln -s settings .config; ln -s rules .github; ln -s ../settings sub/.config",
    after: "finds .config/mise/config.toml .config/mise.toml .github/hooks/x sub/.config/mise.toml",
    ..PLAIN
};

/// Who saves these files writes what has the protected names.
const LINKS: Plant = Plant {
    before: trusted!("echo true >.envrc"),
    attack: "echo \"$plant\" >work; ln -s .envrc log; ln -s . here; ln -s here/.envrc log2; mkdir -p sub; ln -s ../.envrc sub/log",
    after: "for it in log log2 sub/log; do [ ! -d \"$(dirname $it)\" ] || cp work $it; done
        direnv export bash >/dev/null 2>&1",
    tools: &["direnv"],
};

const UNREADABLE: Plant = Plant {
    before: trusted!(),
    attack: "mkdir -p sub deep/below; echo \"$plant\" >sub/.envrc; echo \"$plant\" >deep/below/.envrc
        chmod 0 sub deep/below; chmod 0100 deep",
    after: "for it in sub deep deep/below; do [ ! -e $it ] || chmod u+rwx $it || true; done; for it in sub deep/below; do
        [ ! -d $it ] || (cd $it && direnv export bash >/dev/null 2>&1) || true; done",
    tools: &["direnv"],
};

/// More than `PATH_MAX` below the top, by relative steps.
const DEEP: Plant = Plant {
    attack: r#"name=$(printf '%0200d' 0); mkdir deep; cd deep
        for step in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24; do mkdir $name; cd $name; done
        git init -q . 2>/dev/null || { mkdir -p .git/objects .git/refs; echo 'ref: refs/heads/main' >.git/HEAD; }
        printf '[core]\n\trepositoryformatversion = 0\n\tbare = false\n[alias]\n\tst = !%s\n' "$plant" >.git/config"#,
    after: r#"name=$(printf '%0200d' 0); (cd deep 2>/dev/null || exit 0
        while cd $name 2>/dev/null; do :; done; [ ! -e .git ] || git --git-dir=.git st)
        rm -rf deep"#,
    ..PLAIN
};

const ARTIFACTS: Plant = Plant {
    before: trusted!(),
    attack: "mkdir .artifacts; echo \"$plant\" >.artifacts/.envrc; repository .artifacts/lib",
    after: "[ ! -d .artifacts ] || (cd .artifacts && direnv export bash >/dev/null 2>&1; [ ! -d lib ] || enter lib)",
    tools: &["direnv"],
};

/// Set-group-id without execution survives writing, and an access list adds that.
const SET_ID: Plant = Plant {
    attack: r##"printf '#!/bin/sh\nid\n' >one; chmod 6755 one
        perl -e 'use Fcntl; umask 0; sysopen(my $f, "two", O_CREAT|O_RDWR, 02766) or exit; syswrite $f, "#!/bin/sh\nid\n"; close $f;
            my $list = pack("L(SSL)*", 2, 1, 7, 4294967295, 4, 7, 4294967295, 32, 5, 4294967295);
            syscall(188, "two", "system.posix_acl_access", $list, length $list, 0)'
        perl -e 'use Fcntl; umask 0; sysopen(my $f, "three", O_CREAT|O_RDWR, 06766)'; mkdir -m 2777 four"##,
    after: "if [ -n \"$(find . -path ./.git -prune -o -type f -perm /6000 -print)\" ]; then echo ran >>/host/canary/ran; fi",
    tools: &["perl"],
    ..PLAIN
};

/// A tool that finds its server's socket in the folder talks to the program; a whiteout hides a file of a layer.
const SPECIAL: Plant = Plant {
    attack: r#"perl -MSocket -e 'socket(my $s, PF_UNIX, SOCK_STREAM, 0); bind($s, pack_sockaddr_un(".overmind.sock"))'
        mknod gone c 0 0; mkdir -p sub; mknod sub/gone c 0 0"#,
    after: "if [ -n \"$(find . '(' -type s -o -type c -o -type b ')' -print)\" ]; then echo ran >>/host/canary/ran; fi",
    tools: &["perl"],
    ..PLAIN
};
