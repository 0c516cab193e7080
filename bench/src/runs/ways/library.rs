//! Ours, called as a library. A sample counts only if the run succeeded behind the same barriers as the first one.

use super::{
    Reason, fresh_folder, image,
    pool::{self, Ahead},
};
use crate::runs::{Options, archive};
use engine::{Engine, EngineSockets, Run};
use spec::{Barrier, Policy, RunRequest, RunResult, RunSpec, Status};
use std::{
    ffi::OsString,
    fs, io,
    path::Path,
    time::{Duration, Instant},
};

/// These contradict the others or belong to another kind of box.
const OF_OTHERS: [Barrier; 2] = [Barrier::DoorsOnly, Barrier::OwnKernel];

/// An engine and the run it is given.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    engine: Engine,
    ahead: Ahead,
    spec: RunSpec,
    /// What stood in the first run.
    barriers: Option<Vec<Barrier>>,
}

impl Library {
    /// A run that needs nothing of the host's.
    pub(crate) fn plain(
        command: &[OsString],
        ahead: Ahead,
        options: &Options,
    ) -> Result<Library, Reason> {
        let request = RunRequest {
            command: command.to_vec(),
            ..RunRequest::default()
        };
        Library::new(request, ahead, options)
    }

    /// The same with a folder of the host as workspace and one more mount.
    pub(crate) fn with_mounts(
        command: &[OsString],
        ahead: Ahead,
        options: &Options,
    ) -> Result<Library, Reason> {
        let (workspace, data) = (
            fresh_folder(options, "workspace")?,
            fresh_folder(options, "data")?,
        );
        let mut mount = data.into_os_string();
        mount.push(":/data");
        let (workspace, mounts) = (Some(workspace), vec![mount]);
        let request = RunRequest {
            command: command.to_vec(),
            workspace,
            mounts,
            ..RunRequest::default()
        };
        Library::new(request, ahead, options)
    }

    /// The same with a folder of so many files as workspace, maybe with an empty repository.
    pub(crate) fn with_files(
        command: &[OsString],
        files: usize,
        is_repository: bool,
        ahead: Ahead,
        options: &Options,
    ) -> Result<Library, Reason> {
        let workspace = fresh_folder(options, "files")?;
        let make = || -> io::Result<()> {
            for number in 0..files {
                let folder = workspace.join(format!("folder-{}", number / 25));
                fs::create_dir_all(&folder)?;
                fs::write(folder.join(format!("file-{number}")), "a line\n")?;
            }
            if is_repository {
                let git = workspace.join(".git");
                fs::create_dir_all(git.join("refs/heads"))?;
                fs::create_dir_all(git.join("objects"))?;
                fs::write(git.join("HEAD"), "ref: refs/heads/main\n")?;
            }
            Ok(())
        };
        make().map_err(|error| Reason::from(error.to_string()))?;
        let request = RunRequest {
            command: command.to_vec(),
            workspace: Some(workspace),
            ..RunRequest::default()
        };
        Library::new(request, ahead, options)
    }

    /// The same with the image of an archive, which is loaded first.
    pub(crate) fn with_image(
        command: &[OsString],
        file: &Path,
        ahead: Ahead,
        options: &Options,
    ) -> Result<Library, Reason> {
        let state = fresh_folder(options, "state")?;
        image::load(file, &state, options)?;
        let engine = pool::open(state, ahead)?;
        Ok(Library {
            engine,
            ahead,
            spec: admit(of_image(command))?,
            barriers: None,
        })
    }

    /// The same by a container engine, which has the image already.
    pub(crate) fn contained(
        command: &[OsString],
        backend: &str,
        hosts: EngineSockets,
        options: &Options,
    ) -> Result<Library, Reason> {
        let engine = pool::open_with(fresh_folder(options, "state")?, Ahead::Nothing, hosts)?;
        let request = RunRequest {
            backend: Some(backend.to_owned()),
            ..of_image(command)
        };
        Ok(Library {
            engine,
            ahead: Ahead::Nothing,
            spec: admit(request)?,
            barriers: None,
        })
    }

    pub(crate) fn new(
        request: RunRequest,
        ahead: Ahead,
        options: &Options,
    ) -> Result<Library, Reason> {
        let engine = pool::open(fresh_folder(options, "state")?, ahead)?;
        Ok(Library {
            engine,
            ahead,
            spec: admit(request)?,
            barriers: None,
        })
    }

    pub(crate) async fn once(&mut self) -> Result<Duration, Reason> {
        let spec = self.spec.clone();
        let start = Instant::now();
        let result = self.engine.run(spec).await;
        let took = start.elapsed();
        let expected = self.barriers.get_or_insert_with(|| result.barriers.clone());
        succeeded(&result, expected).map(|()| took)
    }

    pub(crate) async fn settle(&self) {
        pool::settle(&self.engine, &self.spec, self.ahead).await;
    }

    pub(crate) async fn end(self) {
        pool::close(self.engine).await;
    }

    /// A run that the caller drives by himself.
    pub(crate) fn start(&self) -> Run {
        self.engine.start(self.spec.clone())
    }

    /// What this host can put up.
    pub(crate) async fn barriers_here(mut self) -> Result<Vec<Barrier>, Reason> {
        let ran = self.once().await;
        let barriers = self.barriers.take().unwrap_or_default();
        self.end().await;
        ran.map(|_| barriers)
    }

    pub(crate) fn missing_barriers(&self) -> Option<Vec<&'static str>> {
        let up = self.barriers.as_ref()?;
        let missing = Barrier::ALL
            .iter()
            .filter(|one| !OF_OTHERS.contains(one) && !up.contains(one));
        Some(missing.map(|barrier| barrier.name()).collect())
    }
}

fn succeeded(result: &RunResult, expected: &[Barrier]) -> Result<(), Reason> {
    if result.status != Status::Succeeded {
        let why = result.error.as_ref().map_or_else(
            || String::from_utf8_lossy(&result.stderr).trim().to_owned(),
            |error| error.message.clone(),
        );
        return Err(format!("{:?}: {why}", result.status));
    }
    if result.barriers != expected || !expected.contains(&Barrier::OwnNet) {
        return Err(format!(
            "it ran behind other barriers: {:?}",
            result.barriers
        ));
    }
    Ok(())
}

/// A run of this command on the image that is made for it.
pub(crate) fn of_image(command: &[OsString]) -> RunRequest {
    RunRequest {
        command: command.to_vec(),
        image: Some(archive::NAME.into()),
        ..RunRequest::default()
    }
}

pub(crate) fn admit(request: RunRequest) -> Result<RunSpec, Reason> {
    Policy::default()
        .admit(request)
        .map_err(|error| error.message)
}
