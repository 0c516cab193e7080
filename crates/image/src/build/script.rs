//! The steps of a recipe as one shell script, which `mmdebstrap` runs in the finished base system.

use super::{BuildError, BuildPlan, CERTIFICATES, environment::BuildEnvironment};
use crate::recipe::BuildStep;
use std::path::PathBuf;

/// Prefix of the output line that reports the start of a step.
pub(super) const STEP_MARK: &str = "airlock-step:";

/// Common start of the script. No path of the host may be followed: everything is done inside the
/// tree. A separate /tmp keeps the files of `mmdebstrap` from a recipe that cleans /tmp.
const SCRIPT_START: &str = "\
set -eu
exec >&2 < /dev/null
root=$1
mount -t tmpfs -o mode=1777 tmpfs \"$root/tmp\"
enter() { chroot \"$root\" /usr/bin/env -i \"$@\"; }
";

/// Removes what must not stay in the image: this machine's name, name server and package sources,
/// and what differs between builds.
const SCRIPT_END: &str = "\
enter /bin/sh -c '
    rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/ldconfig/aux-cache /var/log/apt /var/log/*.log /etc/hostname
    : > /etc/resolv.conf
    rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*
    cat > /etc/apt/sources.list.d/debian.sources' << 'EOF'
Types: deb
URIs: http://deb.debian.org/debian
Suites: bookworm bookworm-updates
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://deb.debian.org/debian-security
Suites: bookworm-security
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
EOF
";

/// Writes the script and the files that it copies into the build environment.
pub(super) fn write(
    plan: &BuildPlan,
    environment: &BuildEnvironment,
) -> Result<PathBuf, BuildError> {
    let mut text = SCRIPT_START.to_owned();
    if let Some(bundle) = &plan.certificates {
        let staged = environment.write_input(
            &format!("certificates-{}", plan.platform.architecture()),
            bundle,
        )?;
        text.push_str(&copy(&staged.to_string_lossy(), CERTIFICATES, false));
    }
    for (number, step) in plan.recipe.steps.iter().enumerate() {
        text.push_str(&format!("echo {STEP_MARK}{number}\n"));
        text.push_str(&match step {
            BuildStep::Run { .. } => run(plan, step),
            BuildStep::Folder(path) => format!("enter /bin/mkdir -p {}\n", quoted(path)),
            BuildStep::Copy { from, to } => {
                let (bytes, executable) = plan
                    .files
                    .get(from)
                    .map_or((&[][..], false), |(b, x)| (b, *x));
                let staged = environment.write_input(
                    &format!("copy-{}-{number}", plan.platform.architecture()),
                    bytes,
                )?;
                copy(&staged.to_string_lossy(), to, executable)
            }
        });
    }
    text.push_str(SCRIPT_END);
    environment.write_input(
        &format!("steps-{}", plan.platform.architecture()),
        text.as_bytes(),
    )
}

fn run(plan: &BuildPlan, step: &BuildStep) -> String {
    let BuildStep::Run {
        script,
        folder,
        env,
        arguments,
    } = step
    else {
        return String::new();
    };
    let given = plan
        .arguments
        .iter()
        .filter(|(name, _)| arguments.contains(name));
    let given = given.map(|(name, value)| format!("{name}={value}"));
    let fetching = plan
        .environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"));
    let ours = [
        format!("SOURCE_DATE_EPOCH={}", plan.epoch),
        "DEBIAN_FRONTEND=noninteractive".to_owned(),
        "HOME=/root".to_owned(),
    ];
    let variables: Vec<_> = ours
        .into_iter()
        .chain(fetching)
        .chain(env.iter().cloned())
        .chain(given)
        .map(|text| quoted(&text))
        .collect();
    format!(
        "enter --chdir={} {} /bin/sh -c {}\n",
        quoted(folder),
        variables.join(" "),
        quoted(script)
    )
}

/// The shell redirects outside the tree; everything else is done by the tree's own programs, so a
/// symbolic link in the tree cannot lead outside.
fn copy(staged: &str, to: &str, executable: bool) -> String {
    let mode = if executable { "755" } else { "644" };
    let script = format!("mkdir -p \"${{0%/*}}/\" && cat > \"$0\" && chmod {mode} \"$0\"");
    format!(
        "enter /bin/sh -c {} {} < {}\n",
        quoted(&script),
        quoted(to),
        quoted(staged)
    )
}

/// Quotes a text as one word of the shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn a_quoted_word_is_one_word_whatever_is_in_it(text in "[ -~äß\\n'\"$`\\\\]{0,40}") {
            let shown = Command::new("/bin/sh").arg("-c").arg(format!("printf %s {}", quoted(&text))).output();
            prop_assert_eq!(String::from_utf8(shown.unwrap().stdout).unwrap(), text);
        }
    }
}
