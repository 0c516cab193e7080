//! The checks of a request, and the specification that they produce.

use super::{
    MAX_ARGUMENT_BYTES, MAX_ENTRIES, Root, RunRequest, RunSpec, SandboxSpec, SpecError, WORKSPACE,
    backend::{backend_of, check_containers_only},
    doors,
    environment::environment,
    inputs::{artifacts, inputs, transient_inputs, workspace_paths},
    invalid,
    mounts::{check_mounts, check_volumes},
    root::root_of,
    user::check_user,
};
use crate::{
    Contract, Grants, HiddenFiles, Id, Limits, Network, PinnedPaths, Policy, Profile,
    ProtectedNames, TerminalSize,
};
use std::{collections::BTreeMap, ffi::OsString, os::unix::ffi::OsStrExt, path::PathBuf};

impl Policy {
    /// Checks everything about a request that needs no access to the machine.
    pub fn admit(&self, request: RunRequest) -> Result<RunSpec, SpecError> {
        check_lists(&request)?;
        let (name, profile) = self.profile_of(&request)?;
        let backend = backend_of(request.backend.as_deref())?;
        let root = root_of(request.image.as_deref())?;
        check_containers_only(&request, backend, &root)?;
        let (grants, network) = doors::granted(self, &request, profile)?;
        let mounts = check_mounts(&request.mounts)?;
        let doors = doors::ports(&[grants.ports(), request.doors.clone()].concat(), network)?;
        let transparent_ports = grants.egress.as_ref().map(|egress| egress.ports());
        let limits = self.limits_of(&request, profile)?;
        let env = environment(&request.env, &request.caller_env, &profile.env_inherit)?;
        let secrets = doors::secrets(&request.secrets, &env, &name, profile)?;
        let id = |text: &Option<String>, option| {
            let checked = text.as_deref().map(Id::new).transpose();
            checked.map_err(|bad| invalid(bad, format!("give {option} another value")))
        };
        let inputs = inputs(&request)?;
        let read_only_workspace = check_read_only_workspace(&request)?;
        let has_layer = check_layer(&request)?;
        let mut hide = self.hidden_files(&request)?;
        let transient_inputs = transient_inputs(&request, &inputs);
        let allowed = workspace_paths(&request.allow_protected, "--allow-protected")?;
        hide.show_git_settings_below(&allowed);
        Ok(RunSpec {
            run_id: id(&request.run_id, "--run-id")?,
            task_id: id(&request.task_id, "--task-id")?,
            job_id: id(&request.job_id, "--job-id")?,
            command: check_command(request.command, matches!(root, Root::Image(_)))?,
            entrypoint: request.entrypoint,
            image_chooses_user: request.user.is_none(),
            images: self.images.clone(),
            stdin: request.stdin && request.tty.is_none(),
            contract: check_contract(request.contract, request.tty)?,
            inputs,
            artifacts: artifacts(&request.artifacts)?,
            apply_changes: request.staged && !request.copy_on_write,
            keep_artifacts: true,
            grants: Grants { secrets, ..grants },
            owner: None,
            traceparent: None,
            sandbox: SandboxSpec {
                profile: name,
                backend,
                root,
                writable_root: request.writable_root,
                copy_on_write: has_layer,
                read_only_workspace,
                workspace: request.workspace,
                copy: self.workspace.copy,
                overlay: None,
                protected: ProtectedNames {
                    allowed,
                    ..self.workspace.protected.clone()
                },
                hide,
                transient_inputs,
                volumes: check_volumes(&request.volumes, &mounts)?,
                mounts,
                allowed_paths: request.allowed_paths,
                pinned: PinnedPaths::new(),
                git: PinnedPaths::new(),
                directory: PathBuf::from(WORKSPACE),
                image_env: BTreeMap::new(),
                extra_mounts: profile.extra_mounts,
                env,
                network,
                internal_network: id(&request.internal_network, "--internal-network")?,
                doors,
                transparent_ports,
                reaches_any_host: network == Network::Open || request.learn,
                limits,
                required: request.require.into_iter().collect(),
                user: check_user(request.user)?,
                named_user: None,
                tty: request.tty,
                outlives_programs: false,
            },
        })
    }

    /// A fresh workspace has no files to hide.
    fn hidden_files(&self, request: &RunRequest) -> Result<HiddenFiles, SpecError> {
        let all = self.workspace.hide.iter().chain(&request.hide);
        let hide = HiddenFiles::new(all.map(String::as_str))?;
        if request.workspace.is_some() {
            return Ok(hide);
        }
        if !request.hide.is_empty() {
            return Err(invalid(
                "--hide needs a folder in which to hide something",
                "add --workspace DIR, or leave --hide away",
            ));
        }
        Ok(HiddenFiles::none())
    }

    fn profile_of(&self, request: &RunRequest) -> Result<(String, &Profile), SpecError> {
        let name = request.profile.as_deref().unwrap_or(&self.default_profile);
        match self.profile(name) {
            Some(profile) => Ok((name.to_owned(), profile)),
            None => {
                let names: Vec<_> = self.profiles.keys().map(String::as_str).collect();
                Err(invalid(
                    format!("no profile is called `{}`", name.escape_debug()),
                    format!("the profiles are {}", names.join(", ")),
                ))
            }
        }
    }

    fn limits_of(&self, request: &RunRequest, profile: &Profile) -> Result<Limits, SpecError> {
        if let Some((name, requested, most)) = self.maximum.exceeded_by(&request.limits) {
            // Names the table of the configuration in which the limit that was exceeded stands.
            let of_keys = self.key_maximum.exceeded_by(&request.limits);
            let table = match of_keys.filter(|(of_key, ..)| *of_key == name) {
                Some((_, _, lowest)) if lowest == most => "[serve.maximum]",
                _ => "[maximum]",
            };
            return Err(invalid(
                format!("{name} of {requested} is over the operator's maximum of {most}"),
                format!(
                    "ask for {most} or less, or raise `{name}` under {table} in the configuration"
                ),
            ));
        }
        if request.limits.pids == Some(0) || request.limits.open_files == Some(0) {
            return Err(invalid(
                "a limit of 0 would let nothing run",
                "give --pids and --open-files at least 1",
            ));
        }
        let mut limits = profile.limits.clone();
        if request.tty.is_some() && !profile.limits_terminals {
            limits.wall_time = Limits::NO_WALL_TIME;
        }
        let limits = limits.with(&request.limits).at_most(&self.maximum);
        check_possible(&limits)?;
        Ok(limits)
    }
}

/// Bounds the lists of a request: each entry costs a check, some of them at every model call.
fn check_lists(request: &RunRequest) -> Result<(), SpecError> {
    let inputs = [
        request.inputs.len(),
        request.inline_inputs.len(),
        request.artifact_inputs.len(),
    ];
    let lists = [
        ("--input", inputs.iter().sum()),
        ("--allow-model", request.allow_models.len()),
        ("--allow-host", request.allow_hosts.len()),
        ("--secret", request.secrets.len()),
        ("--hide", request.hide.len()),
        ("--allow-protected", request.allow_protected.len()),
        ("--require", request.require.len()),
        ("--door", request.doors.len()),
    ];
    match lists.into_iter().find(|(_, count)| *count > MAX_ENTRIES) {
        Some((option, count)) => Err(invalid(
            format!("{count} times {option} is too much"),
            format!("give it at most {MAX_ENTRIES} times"),
        )),
        None => Ok(()),
    }
}

/// Refuses limits that the kernel does not take, or under which no program starts.
fn check_possible(limits: &Limits) -> Result<(), SpecError> {
    if limits.memory < Limits::MIN_MEMORY {
        return Err(invalid(
            format!(
                "memory of {} bytes is too little for a program to begin",
                limits.memory.0
            ),
            format!(
                "give it {} at least, with its unit, such as 64M",
                Limits::MIN_MEMORY
            ),
        ));
    }
    if limits.stack.is_some_and(|stack| stack < Limits::MIN_STACK) {
        let smallest = Limits::MIN_STACK;
        return Err(invalid(
            "the stack is too small for a program to begin",
            format!("give it {smallest} at least"),
        ));
    }
    match limits.nice {
        Some(nice) if nice > Limits::MAX_NICE => {
            let nicest = Limits::MAX_NICE;
            Err(invalid(
                format!("nice cannot be {nice}"),
                format!("give a number from 0 to {nicest}"),
            ))
        }
        Some(_) | None => Ok(()),
    }
}

/// Checks an argument list. It may be empty where the image can name the program.
pub(crate) fn check_command(
    command: Vec<OsString>,
    image_may_name_it: bool,
) -> Result<Vec<OsString>, SpecError> {
    let usage = "put the command after `--`: airlock run -- python3 -c 'print(1)'";
    if command
        .first()
        .map_or(!image_may_name_it, |program| program.is_empty())
    {
        return Err(invalid("there is no command to run", usage));
    }
    if command
        .iter()
        .any(|argument| argument.as_bytes().contains(&0))
    {
        return Err(invalid(
            "an argument contains a NUL byte",
            "no program can be given one",
        ));
    }
    let bytes: usize = command.iter().map(|argument| argument.len() + 1).sum();
    if bytes > MAX_ARGUMENT_BYTES || command.len() > MAX_ENTRIES {
        let hint = "put the data into a file (--input) or on standard input (--stdin)";
        return Err(invalid(
            format!(
                "the command is too long: {} arguments, {bytes} bytes",
                command.len()
            ),
            hint,
        ));
    }
    Ok(command)
}

/// A terminal changes the bytes that a program writes, so that a contract cannot be read from it.
fn check_contract(contract: Contract, tty: Option<TerminalSize>) -> Result<Contract, SpecError> {
    match (contract, tty) {
        (Contract::Raw, _) | (_, None) => Ok(contract),
        (Contract::Task | Contract::Envelope, Some(_)) => Err(invalid(
            format!("the contract `{contract}` cannot be read from a terminal"),
            "leave --tty or --contract away",
        )),
    }
}

/// A read-only workspace takes no inputs and needs no layer.
fn check_read_only_workspace(request: &RunRequest) -> Result<bool, SpecError> {
    if !request.read_only_workspace {
        return Ok(false);
    }
    let has_inputs = !request.inputs.is_empty()
        || !request.inline_inputs.is_empty()
        || !request.artifact_inputs.is_empty();
    let conflicts = [
        ("--copy-on-write", request.copy_on_write),
        ("--input", has_inputs),
    ];
    match conflicts.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(invalid(
            format!("a read-only workspace cannot be combined with {option}"),
            "leave `:ro` or that option away",
        )),
        None => Ok(true),
    }
}

/// Whether the program's changes go to a layer. A fresh workspace needs none: it is removed.
fn check_layer(request: &RunRequest) -> Result<bool, SpecError> {
    let options = [
        ("--copy-on-write", request.copy_on_write),
        ("a staged workspace", request.staged),
    ];
    match options.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(false),
        Some(_) if request.workspace.is_some() => Ok(true),
        Some((option, _)) => Err(invalid(
            format!("{option} needs a folder that is to stay as it is"),
            "add --workspace DIR, or leave that option away: \
             a fresh workspace changes nothing of yours",
        )),
    }
}
