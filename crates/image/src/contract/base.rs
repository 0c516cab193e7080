//! Requirements that every image must meet.

use super::{
    ExpectedOutput::{Anything, Certificates, Exactly},
    Probe, ProbeBudget,
    ProbeCommand::{Direct, Shell},
    Requirement, RequirementLevel,
};

/// A script that must exit with 0; its first line of output is shown.
pub(super) const fn script(text: &'static str) -> Probe {
    Probe {
        command: Shell(text),
        status: 0,
        stdout: Anything,
        stderr: Anything,
    }
}

const fn ends_with(status: u8, text: &'static str) -> Probe {
    Probe {
        command: Shell(text),
        status,
        stdout: Anything,
        stderr: Anything,
    }
}

const fn prints(text: &'static str, stdout: &'static str, stderr: &'static str) -> Probe {
    Probe {
        command: Shell(text),
        status: 0,
        stdout: Exactly(stdout),
        stderr: Exactly(stderr),
    }
}

const fn must(name: &'static str, probes: &'static [Probe], mend: &'static str) -> Requirement {
    Requirement {
        name,
        level: RequirementLevel::Must,
        effort: ProbeBudget::Small,
        probes,
        mend,
    }
}

/// In display order.
pub(super) const REQUIREMENTS: &[Requirement] = &[
    must(
        "/bin/sh",
        &[Probe {
            command: Direct(&["/bin/sh", "-c", "echo shell"]),
            status: 0,
            stdout: Exactly("shell\n"),
            stderr: Anything,
        }],
        "install a shell at /bin/sh, such as dash or busybox",
    ),
    must(
        "shell commands",
        &[prints(SHELL_COMMANDS, "one two three\n", "")],
        "/bin/sh must know pipes, redirection and substitution: install dash, bash or busybox",
    ),
    must(
        "core utilities",
        &[script(CORE)],
        "install coreutils and findutils (or busybox)",
    ),
    must("tar", &[script(TAR)], "install tar"),
    must("gzip", &[script(GZIP)], "install gzip"),
    must("unzip", &[script(UNZIP)], "install unzip"),
    must(
        "CA certificates",
        &[Probe {
            command: Shell(BUNDLE),
            status: 0,
            stdout: Certificates,
            stderr: Anything,
        }],
        "install ca-certificates",
    ),
    must("ps", &[script(PS)], "install procps (or busybox)"),
    must(
        "env",
        &[script(ENV)],
        "install coreutils, for env or printenv",
    ),
    Requirement {
        name: "date",
        level: RequirementLevel::Should,
        effort: ProbeBudget::Small,
        probes: &[script(DATE)],
        mend: "install coreutils, for date",
    },
    must(
        "writable workspace",
        &[script(WORKSPACE)],
        "leave /workspace and /tmp to be mounted over: no files in their place",
    ),
    must(
        "exit codes",
        &[
            ends_with(0, "exit 0"),
            ends_with(7, "exit 7"),
            ends_with(126, NOT_EXECUTABLE),
            ends_with(127, "/no/such/program"),
        ],
        "/bin/sh must hand on the status of what it ran: replace a wrapper in its place by the shell itself",
    ),
    must(
        "stdout and stderr",
        &[prints("echo out; echo err >&2", "out\n", "err\n")],
        "nothing but the command may write: remove what prints at the start of a shell",
    ),
    must(
        "no listening port",
        &[script(LISTENING)],
        "start no server with the shell: look at profile files and wrappers",
    ),
    must(
        "exec",
        &[Probe {
            command: Direct(&["cat", "/proc/self/comm"]),
            status: 0,
            stdout: Exactly("cat\n"),
            stderr: Exactly(""),
        }],
        "programs must start without a shell around them: install coreutils in /bin or /usr/bin",
    ),
    must(
        "runs as non-root",
        &[script(NOT_ROOT)],
        "its files must be readable by other users than root",
    ),
];

// `set -e` ignores failures within `&&`, so each command has its own line.

const SHELL_COMMANDS: &str = r#"
set -e
printf 'two\n' > f
{ read line < f; printf '%s' "$line" >> g; }
last=$(printf 'three\n' | while read word; do printf '%s' "$word"; done)
echo one $(cat g) "$last"
"#;

const CORE: &str = r#"
for name in cat cp mv rm mkdir chmod chown find; do
    command -v "$name" > /dev/null || missing="$missing $name"
done
[ -z "$missing" ] || { echo "missing:$missing"; exit 1; }
set -e
while read key uid rest; do [ "$key" != Uid: ] || me=$uid; done < /proc/self/status
mkdir d
echo data > d/a
cp d/a d/b
mv d/b d/c
[ ! -e d/b ]
[ "$(cat d/c)" = data ]
chmod 600 d/c
chown "$me" d/c
[ "$(find d -name c)" = d/c ]
rm -r d
[ ! -e d ]
echo "cat cp mv rm mkdir chmod chown find"
"#;

const TAR: &str = r#"
set -e
mkdir in out
echo packed > in/a
tar -cf a.tar in
tar -xf a.tar -C out
[ "$(cat out/in/a)" = packed ]
echo "packs and unpacks"
"#;

const GZIP: &str = r#"
set -e
echo packed > a
gzip a
[ ! -e a ]
gzip -d a.gz
[ "$(cat a)" = packed ]
echo "packs and unpacks"
"#;

/// The bytes are an archive with the file `a.txt`.
const UNZIP: &str = r#"
set -e
printf '\120\113\003\004\024\000\000\000\000\000\000\000\041\120\103\340\101\057\007\000\000\000\007\000\000\000' > a.zip
printf '\005\000\000\000\141\056\164\170\164\160\141\143\153\145\144\012\120\113\001\002\024\003\024\000\000\000' >> a.zip
printf '\000\000\000\000\041\120\103\340\101\057\007\000\000\000\007\000\000\000\005\000\000\000\000\000\000\000' >> a.zip
printf '\000\000\000\000\244\001\000\000\000\000\141\056\164\170\164\120\113\005\006\000\000\000\000\001\000\001' >> a.zip
printf '\000\063\000\000\000\052\000\000\000\000\000' >> a.zip
unzip -q a.zip
[ "$(cat a.txt)" = packed ]
echo "unpacks"
"#;

const BUNDLE: &str = r#"
for file in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem \
    /etc/ssl/ca-bundle.pem /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem; do
    if [ -s "$file" ]; then exec cat "$file"; fi
done
echo "no bundle at a usual place" && exit 1
"#;

const PS: &str = r#"
ps > shown || exit 1
while read line; do
    case " $line " in *" $$ "*) echo "lists processes"; exit 0 ;; esac
done < shown
echo "does not list its own shell" && exit 1
"#;

const ENV: &str = r#"
for name in env printenv; do
    command -v "$name" > /dev/null || continue
    AIRLOCK_PROBE=seen "$name" > shown || exit 1
    while read line; do
        [ "$line" != AIRLOCK_PROBE=seen ] || { echo "$name"; exit 0; }
    done < shown
done
echo "neither env nor printenv shows variables" && exit 1
"#;

const DATE: &str = r#"
year=$(date +%Y) || exit 1
[ "$year" -ge 2020 ] && date
"#;

const WORKSPACE: &str = r#"
set -e
[ "$(pwd)" = /workspace ]
for folder in /workspace /tmp; do
    echo kept > "$folder/probe"
    read back < "$folder/probe"
    [ "$back" = kept ]
done
echo "/workspace and /tmp"
"#;

const NOT_EXECUTABLE: &str = "echo data > file && chmod 644 file && ./file";

/// State 0A is a listening socket.
const LISTENING: &str = r#"
for table in /proc/net/tcp /proc/net/tcp6 /proc/net/udp /proc/net/udp6; do
    [ -e "$table" ] || continue
    while read number here there state rest; do
        case "$table $state" in
            */tcp*' 0A' | */udp*' 07') echo "something listens: $here in $table"; exit 1 ;;
        esac
    done < "$table"
done
echo "and no network needed"
"#;

const NOT_ROOT: &str = r#"
while read key uid rest; do
    [ "$key" != Uid: ] || break
done < /proc/self/status
echo "uid $uid" && [ "$uid" -gt 0 ]
"#;
