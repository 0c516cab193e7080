//! Requirements of the profiles beyond `base-tools`. All probes work offline: they have no network.

use super::{Probe, ProbeBudget, Requirement, RequirementLevel, base::script};

const fn must(name: &'static str, probes: &'static [Probe], mend: &'static str) -> Requirement {
    Requirement {
        name,
        level: RequirementLevel::Must,
        effort: ProbeBudget::Large,
        probes,
        mend,
    }
}

pub(super) const PYTHON: &[&Requirement] = &[&PYTHON3, &PIP, &VENV, &GCC, &MAKE];
pub(super) const NODE: &[&Requirement] = &[&NODE_JS, &NODE_PACKAGES];
pub(super) const GO: &[&Requirement] = &[&GO_BUILDS];
pub(super) const SECOPS: &[&Requirement] = &[&SHELLCHECK, &SEMGREP];
pub(super) const AGENT: &[&Requirement] = &[
    &BASH,
    &CURL,
    &GIT,
    &SSH,
    &JQ,
    &PYTHON3,
    &NODE_JS,
    &NODE_PACKAGES,
    &AGENT_USER,
    &FIRST_PROCESS,
];
pub(super) const RUNTIME: &[&Requirement] = &[
    &BASH,
    &SOCAT,
    &GIT,
    &JQ,
    &CURL,
    &NODE_JS,
    &RUNTIME_USER,
    &FIRST_PROCESS,
];

const PYTHON3: Requirement = must(
    "python3",
    &[script("python3 -c 'import ssl, sys; print(sys.version)'")],
    "install python3",
);
const PIP: Requirement = must(
    "pip",
    &[script(
        "pip --version 2> /dev/null || pip3 --version 2> /dev/null || python3 -m pip --version",
    )],
    "install python3-pip",
);
const VENV: Requirement = must(
    "venv",
    &[script(
        "python3 -m venv v > told 2>&1 || { cat told; exit 1; }
         v/bin/python -c 'import sys; sys.exit(sys.prefix == sys.base_prefix)' && v/bin/pip --version > told && echo 'makes one, with pip in it'",
    )],
    "install python3-venv",
);
const GCC: Requirement = must(
    "gcc",
    &[script(
        "printf '#include <stdio.h>\\nint main(void) { puts(\"compiled\"); return 0; }\\n' > a.c && gcc -o a a.c && ./a",
    )],
    "install gcc and libc6-dev",
);
const MAKE: Requirement = must(
    "make",
    &[script(
        "printf 'all:\\n\\t@echo made\\n' > Makefile && make",
    )],
    "install make",
);
const NODE_JS: Requirement = must(
    "node",
    &[script("node -e 'console.log(\"node \" + process.version)'")],
    "install nodejs",
);
const NODE_PACKAGES: Requirement = must(
    "npm or pnpm",
    &[script(
        "for name in npm pnpm; do
             version=$(\"$name\" --version 2> /dev/null) && echo \"$name $version\" && exit 0
         done
         echo 'neither runs' && exit 1",
    )],
    "install npm, or pnpm",
);
const GO_BUILDS: Requirement = must(
    "go",
    &[script(
        "export GOCACHE=/workspace/cache GOPATH=/workspace/go GO111MODULE=off GOTOOLCHAIN=local GOPROXY=off
         printf 'package main\\n\\nfunc main() { println(\"built\") }\\n' > main.go
         go build -o hello main.go && ./hello 2>&1 && go version",
    )],
    "install golang-go",
);
const SHELLCHECK: Requirement = must(
    "shellcheck",
    &[script(
        "printf '#!/bin/sh\\necho $1\\n' > a.sh
         shellcheck --format=gcc a.sh > found; [ $? = 1 ] || { echo 'does not report a defect'; exit 1; }
         read line < found; case $line in *SC2086*) echo 'finds a defect' ;; *) echo \"$line\"; exit 1 ;; esac",
    )],
    "install shellcheck",
);
const SEMGREP: Requirement = must(
    "semgrep",
    &[script(
        "export SEMGREP_SEND_METRICS=off SEMGREP_ENABLE_VERSION_CHECK=0
         printf 'rules:\\n- id: probe\\n  languages: [python]\\n  severity: ERROR\\n  message: found-it\\n  pattern: eval(...)\\n' > rule.yml
         printf 'eval(x)\\n' > a.py
         semgrep scan --quiet --jobs 1 --no-git-ignore --config rule.yml a.py > found 2>&1 || { cat found; exit 1; }
         while read line; do case $line in *found-it*) echo 'finds by a rule of its own'; exit 0 ;; esac; done < found
         echo 'finds nothing' && exit 1",
    )],
    "install semgrep, such as with pip",
);
const BASH: Requirement = must(
    "bash",
    &[script("bash -c 'echo \"bash $BASH_VERSION\"'")],
    "install bash",
);
const CURL: Requirement = must("curl", &[script("curl --version")], "install curl");
const SSH: Requirement = must("ssh", &[script("ssh -V 2>&1")], "install openssh-client");
const JQ: Requirement = must(
    "jq",
    &[script(
        "[ \"$(echo '{\"a\":[1,2]}' | jq .a[1])\" = 2 ] && jq --version",
    )],
    "install jq",
);
const SOCAT: Requirement = must(
    "socat",
    &[script(
        "[ \"$(echo x | socat - EXEC:cat)\" = x ] && echo works",
    )],
    "install socat",
);
const GIT: Requirement = must(
    "git",
    &[script(
        "git init -q . && echo data > a && git add a &&
             git -c user.name=probe -c user.email=probe@localhost commit -q -m probe && git log --oneline > told &&
             git --version",
    )],
    "install git",
);
const AGENT_USER: Requirement = must(
    "user agent",
    &[script(
        "while IFS=: read name x uid gid rest; do [ \"$name\" = agent ] && break; done < /etc/passwd
         echo \"uid $uid\" && [ \"$name $uid\" = 'agent 1000' ]",
    )],
    "add the user: RUN useradd --uid 1000 --create-home agent",
);
const RUNTIME_USER: Requirement = must(
    "user sandboxer",
    &[script(
        "while IFS=: read name x uid gid rest; do [ \"$name\" = sandboxer ] && break; done < /etc/passwd
         echo \"uid $uid\" && [ \"$name $uid\" = 'sandboxer 1001' ]",
    )],
    "add the user: RUN useradd --uid 1001 --create-home sandboxer",
);
const FIRST_PROCESS: Requirement = must(
    "airlock-init",
    &[script(
        "[ -x /usr/local/bin/airlock-init ] && echo /usr/local/bin/airlock-init",
    )],
    "copy it: COPY airlock-init /usr/local/bin/airlock-init",
);
