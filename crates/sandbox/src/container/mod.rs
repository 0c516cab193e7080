//! The container backend: sandboxes that Docker or Podman creates, held to the same spec.
//!
//! ```text
//! SandboxSpec ─▶ request ─▶ engine's API: create, start ─▶ our init as first process
//!                                                             │ connects to our socket, checks the barriers,
//!                                                             ▼ hands out workspace, listeners, terminal
//!                           streams, plan, signals ◀── the same protocol as in a native sandbox
//! ```
//!
//! The program's streams are our own pipes: no output passes through the container engine or its
//! logs. When the connection is closed, the first process ends, and with it the container; what is
//! left of it is removed by its id, or by its labels after a crash.

mod api;
mod create_request;
mod engine;
mod explain;
mod image_user;
mod sandbox;
mod staging_dir;

pub use engine::EngineSockets;
pub use sandbox::ContainerSandbox;

use crate::native::{SandboxError, plan, protect::Protection};
use api::{EngineApiError, escaped};
use create_request::CreateRequest;
use engine::ContainerEngine;
use sandbox::{END_TIMEOUT, StartedContainer};
use serde_json::{Value, json};
use spec::{Backend, Digest, ErrorCode, Id, ImageConfig, ImageRef, SandboxSpec, User};
use staging_dir::StagingDir;
use std::{
    collections::BTreeMap,
    fmt::Display,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

/// How long an engine may take to remove a container: the result waits for that.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(10);
const RUN: &str = "io.airlock.run";
const OWNER: &str = "io.airlock.owner";

/// What a container engine knows about an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineImage {
    /// The engine's own id of exactly this image.
    pub id: String,
    /// The digest by which it was pulled, if any.
    pub digest: Option<Digest>,
    /// Its configuration.
    pub config: ImageConfig,
    /// Paths for which the engine would create writable storage.
    pub volumes: Vec<String>,
}

/// Creates sandboxes by container engines.
#[derive(Debug)]
pub struct ContainerBackend {
    state: PathBuf,
    hosts: EngineSockets,
    known: Mutex<Vec<(Backend, Arc<ContainerEngine>)>>,
    enter_networks: bool,
}

pub(super) fn refused(code: ErrorCode, message: impl Display, hint: &str) -> SandboxError {
    SandboxError::Engine {
        code,
        message: message.to_string(),
        hint: hint.to_owned(),
    }
}

pub(super) fn unavailable(backend: Backend, tried: &[String]) -> SandboxError {
    let tried = if tried.is_empty() {
        "no socket is configured".to_owned()
    } else {
        tried.join("; ")
    };
    refused(
        ErrorCode::BackendUnavailable,
        format!(
            "no engine for the backend `{}` answers: {tried}",
            backend.name()
        ),
        "start dockerd or `podman system service`, name its socket in DOCKER_HOST or CONTAINER_HOST, or leave --backend away",
    )
}

fn of_api(what: &str) -> impl FnOnce(EngineApiError) -> SandboxError {
    let what = what.to_owned();
    move |error| match error {
        EngineApiError::Silent { .. } => refused(
            ErrorCode::BackendUnavailable,
            error,
            "look whether the container engine still runs",
        ),
        EngineApiError::Refused { .. } => refused(
            ErrorCode::StartFailed,
            format!("the container engine would not {what}: {error}"),
            "its own log may say more; the native backend needs no engine",
        ),
    }
}

impl ContainerBackend {
    /// A backend that keeps its crash records in `state`.
    pub fn new(state: PathBuf, hosts: EngineSockets) -> ContainerBackend {
        ContainerBackend {
            state,
            hosts,
            known: Mutex::default(),
            enter_networks: true,
        }
    }

    /// Leaves the networks of containers as their engines create them, as where we have no power
    /// over them.
    pub fn leave_networks(&mut self) {
        self.enter_networks = false;
    }

    async fn engine(&self, backend: Backend) -> Result<Arc<ContainerEngine>, SandboxError> {
        let known = |all: &Vec<(Backend, Arc<ContainerEngine>)>| {
            all.iter()
                .find(|(of, _)| *of == backend)
                .map(|(_, engine)| engine.clone())
        };
        if let Some(engine) = known(&self.known.lock().expect("no panic while held")) {
            return Ok(engine);
        }
        let engine = Arc::new(ContainerEngine::find(&self.hosts, backend).await?);
        self.known
            .lock()
            .expect("no panic while held")
            .push((backend, engine.clone()));
        Ok(engine)
    }

    /// The backend's name in results and its socket, for the record of a run.
    pub async fn identify(
        &self,
        backend: Backend,
    ) -> Result<(&'static str, PathBuf), SandboxError> {
        let engine = self.engine(backend).await?;
        Ok((engine.name(), engine.api.socket().to_owned()))
    }

    /// What the engine knows about an image. Never pulls one.
    pub async fn image(
        &self,
        backend: Backend,
        name: &ImageRef,
    ) -> Result<EngineImage, SandboxError> {
        let engine = self.engine(backend).await?;
        let path = format!("/images/{}/json", escaped(&name.to_string()));
        match engine.api.get(&path).await {
            Ok(answer) => facts(&answer, name),
            Err(error) if error.is_missing() => Err(refused(
                ErrorCode::ImageMissing,
                format!("{} has no image `{}`", engine.name(), name.familiar()),
                &format!("bring it there: {} pull {}", engine.name(), name.familiar()),
            )),
            Err(error) => Err(of_api("describe the image")(error)),
        }
    }

    /// Creates a sandbox. On an error nothing is left of it except what the sweep finds by the
    /// run's record.
    pub async fn create(
        &self,
        name: &Id,
        spec: &SandboxSpec,
        image: &EngineImage,
        ids: [(&'static str, Option<Id>); 2],
    ) -> Result<ContainerSandbox, SandboxError> {
        let engine = self.engine(spec.backend).await?;
        let mut labels = vec![(RUN, name.to_string()), (OWNER, crate::owner(&self.state)?)];
        labels.extend(
            ids.into_iter()
                .filter_map(|(label, id)| Some((label, id?.to_string()))),
        );
        check(&engine, spec, image).await?;
        let protection = spec
            .workspace
            .as_deref()
            .map(|path| self.protect(name, path, spec))
            .transpose()?;
        let made = self
            .start(&engine, name, spec, image, &labels, protection.as_ref())
            .await;
        match made {
            Ok((started, staging_dir, notes)) => {
                started
                    .into_sandbox(engine, spec.clone(), protection, staging_dir, notes)
                    .checked()
                    .await
            }
            Err(error) => {
                if let Some(protection) = protection {
                    protection.take_down();
                }
                Err(error)
            }
        }
    }

    async fn start(
        &self,
        engine: &ContainerEngine,
        name: &Id,
        spec: &SandboxSpec,
        image: &EngineImage,
        labels: &[(&'static str, String)],
        protection: Option<&Protection>,
    ) -> Result<(StartedContainer, StagingDir, Vec<String>), SandboxError> {
        let asked = match &spec.named_user {
            Some(name) => image_user::look_up(engine, image, name, labels).await?,
            None => spec.user,
        };
        let (user, mut notes) = user_of(spec, asked, protection, engine)?;
        let (workspace, mounts) = plan::host_paths(spec, false)?;
        notes.extend(create_request::submount_notes(
            workspace.iter().chain(&mounts),
        )?);
        let staging_dir = StagingDir::make(&self.state, name, &spec.limits).map_err(|source| {
            SandboxError::Look {
                path: self.state.join(staging_dir::FOLDER),
                source,
            }
        })?;
        let request = CreateRequest {
            engine,
            name: &format!("airlock-{}-{name}", crate::owner(&self.state)?),
            spec,
            image,
            user,
            labels,
            ours: staging_dir.path(),
            workspace: workspace.as_ref(),
            mounts: &mounts,
            enter_network: self.enter_networks,
            protection,
        };
        match sandbox::start(&request, &staging_dir).await {
            Ok(started) => Ok((started, staging_dir, notes)),
            Err(error) => {
                staging_dir.remove();
                Err(error)
            }
        }
    }

    fn protect(
        &self,
        name: &Id,
        workspace: &Path,
        spec: &SandboxSpec,
    ) -> Result<Protection, SandboxError> {
        let folder = plan::open_workspace(spec, workspace)?;
        Ok(Protection::of(&self.state, name, folder, spec)?)
    }

    /// The runs of this state folder that have containers at an engine, each with their ids.
    pub async fn left_over(
        &self,
        socket: &Path,
    ) -> Result<BTreeMap<String, Vec<String>>, SandboxError> {
        let engine = ContainerEngine::open(socket).await?;
        let filters =
            json!({ "label": [format!("{OWNER}={}", crate::owner(&self.state)?)] }).to_string();
        let path = format!("/containers/json?all=true&filters={}", escaped(&filters));
        let list = engine
            .api
            .get(&path)
            .await
            .map_err(of_api("list containers"))?;
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for one in list.as_array().map(Vec::as_slice).unwrap_or_default() {
            if let (Some(run), Some(id)) = (one["Labels"][RUN].as_str(), one["Id"].as_str()) {
                found.entry(run.to_owned()).or_default().push(id.to_owned());
            }
        }
        Ok(found)
    }

    /// Removes a container by its id, running or not.
    pub async fn remove(&self, socket: &Path, id: &str) -> Result<(), SandboxError> {
        let engine = ContainerEngine::open(socket).await?;
        let path = |what| format!("/containers/{}/{what}", escaped(id));
        let answer = engine.api.get(&path("json")).await.unwrap_or_default();
        // A thawed container notices the closed connection and ends; engines refuse to remove a
        // paused one.
        if answer["State"]["Paused"] == true
            && engine.api.post(&path("unpause"), None).await.is_ok()
        {
            _ = tokio::time::timeout(END_TIMEOUT, engine.api.post(&path("wait"), None)).await;
        }
        remove(&engine, id)
            .await
            .map_err(of_api("remove a container"))
    }

    /// Removes the staging folder of a run.
    pub fn remove_leftovers(&self, run: &Id) -> std::io::Result<()> {
        staging_dir::remove(&self.state, run)
    }
}

/// An absent container is fine. An engine that is still ending it may refuse at first.
async fn remove(engine: &ContainerEngine, id: &str) -> Result<(), EngineApiError> {
    if remove_at_once(engine, id).await.is_ok() {
        return Ok(());
    }
    let wait = format!("/containers/{}/wait", escaped(id));
    _ = tokio::time::timeout(END_TIMEOUT, engine.api.post(&wait, None)).await;
    remove_at_once(engine, id).await
}

async fn remove_at_once(engine: &ContainerEngine, id: &str) -> Result<(), EngineApiError> {
    let path = format!("/containers/{}?force=true&v=true", escaped(id));
    match tokio::time::timeout(REMOVAL_TIMEOUT, engine.api.delete(&path)).await {
        Ok(Err(error)) if !error.is_missing() => Err(error),
        Ok(_) => Ok(()),
        Err(_) => Err(EngineApiError::Silent {
            socket: engine.api.socket().to_owned(),
            source: std::io::ErrorKind::TimedOut.into(),
        }),
    }
}

fn facts(answer: &Value, name: &ImageRef) -> Result<EngineImage, SandboxError> {
    let texts = |value: &Value| {
        let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
        list.iter()
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let config = &answer["Config"];
    let labels = config["Labels"].as_object().into_iter().flatten();
    let labels = labels
        .filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())))
        .collect();
    let id = text(&answer["Id"]);
    // Of this repository: the same image may have other digests in others.
    let named = |text: &String| {
        let of: ImageRef = text.parse().ok()?;
        let same = (of.registry(), of.repository()) == (name.registry(), name.repository());
        of.digest().filter(|_| same).cloned()
    };
    let digests: Vec<_> = texts(&answer["RepoDigests"])
        .iter()
        .filter_map(named)
        .collect();
    let own = Digest::new(&id).or_else(|| Digest::new(&format!("sha256:{id}")));
    if let Some(wanted) = name.digest()
        && !digests.iter().chain(&own).any(|digest| digest == wanted)
    {
        let message = format!(
            "the image `{}` is not the one with that digest",
            name.familiar()
        );
        return Err(refused(
            ErrorCode::ImageRefused,
            message,
            "pull it again by its digest",
        ));
    }
    Ok(EngineImage {
        digest: digests.into_iter().next().or(own),
        config: ImageConfig {
            user: text(&config["User"]),
            env: texts(&config["Env"]),
            entrypoint: texts(&config["Entrypoint"]),
            cmd: texts(&config["Cmd"]),
            working_dir: text(&config["WorkingDir"]),
            labels,
        },
        volumes: config["Volumes"]
            .as_object()
            .into_iter()
            .flatten()
            .map(|(path, _)| path.clone())
            .collect(),
        id,
    })
}

/// Refuses what the engine cannot enforce, before anything is created.
async fn check(
    engine: &ContainerEngine,
    spec: &SandboxSpec,
    image: &EngineImage,
) -> Result<(), SandboxError> {
    let refuse = |code, message: String, hint: &str| Err(refused(code, message, hint));
    if spec.network == spec::Network::Host {
        let hint = "use --internal-network NAME, doors, or the native backend";
        return refuse(
            ErrorCode::BarrierMissing,
            "a container on the host's network is not made".to_owned(),
            hint,
        );
    }
    if spec.writable_root {
        let message =
            "nothing would limit what a container writes to its root (`disk_limit`)".to_owned();
        return refuse(
            ErrorCode::BarrierMissing,
            message,
            "use the native backend for --writable-root",
        );
    }
    let inside = |path: &str| {
        let path = Path::new(path);
        let mounts = spec.mounts.iter().map(|mount| mount.inside.as_path());
        mounts
            .chain(spec.volumes.iter().map(|volume| volume.inside.as_path()))
            .any(|it| it == path)
            || ["/tmp", "/run", spec::WORKSPACE]
                .map(Path::new)
                .contains(&path)
    };
    if let Some(place) = image.volumes.iter().find(|place| !inside(place)) {
        let message = format!(
            "the image wants storage at `{}` that nothing would limit",
            place.escape_debug()
        );
        let hint = "give that place a --mount or a --volume of your own, or use the native backend";
        return refuse(ErrorCode::ImageRefused, message, hint);
    }
    if !engine.holds.pids && !engine.rootless {
        let message = "the container engine cannot limit processes (`pids_limit`)".to_owned();
        return refuse(
            ErrorCode::BarrierMissing,
            message,
            "use the native backend, or a host with that cgroup",
        );
    }
    match &spec.internal_network {
        Some(network) => check_internal(engine, network).await,
        None => Ok(()),
    }
}

async fn check_internal(engine: &ContainerEngine, network: &Id) -> Result<(), SandboxError> {
    let answer = engine
        .api
        .get(&format!("/networks/{}", escaped(network.as_str())))
        .await;
    let answer = answer.map_err(of_api("describe the network"))?;
    match answer["Internal"].as_bool() {
        Some(true) => Ok(()),
        _ => Err(refused(
            ErrorCode::BarrierMissing,
            format!("the network `{network}` is not internal: it leads out"),
            &format!(
                "make one that is: {} network create --internal NAME",
                engine.name()
            ),
        )),
    }
}

/// The user of the program: with a mounted workspace its owner, so that files stay the owner's.
fn user_of(
    spec: &SandboxSpec,
    mut user: User,
    protection: Option<&Protection>,
    engine: &ContainerEngine,
) -> Result<(User, Vec<String>), SandboxError> {
    let mut notes = Vec::new();
    if let (Some(protection), Some(path), false) = (protection, &spec.workspace, engine.rootless) {
        let found =
            rustix::fs::fstat(protection.workspace()).map_err(|error| SandboxError::Look {
                path: path.clone(),
                source: error.into(),
            })?;
        if found.st_uid == 0 {
            return Err(SandboxError::RootsWorkspace { path: path.clone() });
        }
        let owner = User {
            uid: found.st_uid,
            gid: found.st_gid,
        };
        if owner != user {
            user = owner;
            notes.push(format!(
                "the program is the owner of its workspace, uid {}, inside and outside",
                user.uid
            ));
        }
    }
    if user.gid == 0 && !engine.rootless {
        user.gid = user.uid;
        notes.push(format!(
            "group 0 would be the host's root group; the program's is {}",
            user.gid
        ));
    }
    match user.uid {
        0 => Err(refused(
            ErrorCode::BarrierMissing,
            "a container's root would be the host's (`not_host_root`)",
            "choose another --user, or the native backend",
        )),
        _ => Ok((user, notes)),
    }
}
