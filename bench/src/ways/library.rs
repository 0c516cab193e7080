//! Ours, called as a library. A sample counts only if the run succeeded behind the same barriers as the first one.

use super::Reason;
use crate::Options;
use engine::{Engine, Settings};
use spec::{Barrier, Policy, RunRequest, RunResult, RunSpec, Status};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// How many sandboxes are parked ahead in the warm rows.
pub(crate) const POOL: usize = 8;
/// These contradict the others or belong to another kind of box.
const OF_OTHERS: [Barrier; 2] = [Barrier::DoorsOnly, Barrier::OwnKernel];

/// An engine and the run it is given.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    engine: Engine,
    spec: RunSpec,
    warm: bool,
    /// What stood in the first run.
    barriers: Option<Vec<Barrier>>,
}

impl Library {
    /// Nothing made ahead but the launcher, which the engine starts once.
    pub(crate) fn cold(command: &[OsString], options: &Options) -> Result<Library, Reason> {
        let engine = open(settings(options, "cold-state"))?;
        let spec = admit(RunRequest { command: command.to_vec(), ..RunRequest::default() })?;
        Ok(Library { engine, spec, warm: false, barriers: None })
    }

    /// The same with a folder of the host as workspace and one more mount.
    pub(crate) fn with_mounts(command: &[OsString], options: &Options) -> Result<Library, Reason> {
        let engine = open(settings(options, "mounts-state"))?;
        let (workspace, data) = (folder(options, "workspace")?, folder(options, "data")?);
        let mut mount = data.into_os_string();
        mount.push(":/data");
        let (workspace, mounts) = (Some(workspace), vec![mount]);
        let spec =
            admit(RunRequest { command: command.to_vec(), workspace, mounts, ..RunRequest::default() })?;
        Ok(Library { engine, spec, warm: false, barriers: None })
    }

    /// From a pool that the engine refills on the same processors.
    pub(crate) fn warm(command: &[OsString], options: &Options) -> Result<Library, Reason> {
        let engine = open(pooled(settings(options, "warm-state"), POOL)?)?;
        let spec = admit(RunRequest { command: command.to_vec(), ..RunRequest::default() })?;
        Ok(Library { engine, spec, warm: true, barriers: None })
    }

    pub(crate) async fn once(&mut self) -> Result<Duration, Reason> {
        let spec = self.spec.clone();
        let start = Instant::now();
        let result = self.engine.run(spec).await;
        let took = start.elapsed();
        let expected = self.barriers.get_or_insert_with(|| result.barriers.clone());
        succeeded(&result, expected).map(|()| took)
    }

    /// Fills the pool, if there is one.
    pub(crate) async fn settle(&self) {
        if self.warm {
            fill(&self.engine, &self.spec).await;
        }
    }

    /// What this host can put up.
    pub(crate) async fn barriers_here(mut self) -> Result<Vec<Barrier>, Reason> {
        self.once().await?;
        Ok(self.barriers.unwrap_or_default())
    }

    pub(crate) fn missing_barriers(&self) -> Option<Vec<&'static str>> {
        let up = self.barriers.as_ref()?;
        let missing = Barrier::ALL.iter().filter(|one| !OF_OTHERS.contains(one) && !up.contains(one));
        Some(missing.map(|barrier| barrier.name()).collect())
    }

    /// For measurements that drive runs by themselves.
    pub(crate) fn parts(&self) -> (&Engine, &RunSpec) {
        (&self.engine, &self.spec)
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
        return Err(format!("it ran behind other barriers: {:?}", result.barriers));
    }
    Ok(())
}

fn settings(options: &Options, name: &str) -> Settings {
    Settings { state: options.scratch.join(name) }
}

fn open(settings: Settings) -> Result<Engine, Reason> {
    Engine::open(settings).map_err(|error| error.to_string())
}

/// Settings with a pool of this many parked sandboxes. The one place that knows how a pool is asked for.
pub(crate) fn pooled(_settings: Settings, _parked: usize) -> Result<Settings, Reason> {
    Err("the engine of this build has no pool".to_owned())
}

/// Returns when the pool is full for runs of this kind.
pub(crate) async fn fill(_engine: &Engine, _spec: &RunSpec) {}

pub(crate) fn admit(request: RunRequest) -> Result<RunSpec, Reason> {
    Policy::default().admit(request).map_err(|error| error.message)
}

fn folder(options: &Options, name: &str) -> Result<PathBuf, Reason> {
    let path: &Path = &options.scratch.join(name);
    fs::create_dir_all(path).map_err(|error| format!("cannot make `{}`: {error}", path.display()))?;
    Ok(path.to_owned())
}
