//! The plan of a container in words, for `--explain`.

use super::{ContainerBackend, EngineImage, create_request::ScratchSizes};
use crate::{
    native::{ExplainLine, Program, SandboxError, explain, plan},
    transparent_proxy::{self, NetworkOwner},
};
use init::{plan::Ids, step::Step};
use spec::{Access, Enforcer, SandboxSpec};

impl ContainerBackend {
    /// What a run would do, step by step, without doing it.
    pub async fn explain(
        &self,
        spec: &SandboxSpec,
        image: &EngineImage,
        program: &Program,
    ) -> Result<Vec<ExplainLine>, SandboxError> {
        let engine = self.engine(spec.backend).await?;
        super::check(&engine, spec, image).await?;
        let line = |step, detail: String| ExplainLine { step, detail };
        let (limits, sizes) = (&spec.limits, ScratchSizes::of(spec.limits.disk.0));
        let network = spec
            .internal_network
            .as_ref()
            .map_or("none".to_owned(), |name| format!("{name}, internal"));
        let holds = [
            ("memory", engine.holds.memory),
            ("pids", engine.holds.pids),
            ("cpu", engine.holds.cpu),
        ];
        let mut lines = vec![
            line(
                "engine",
                format!("{} at {}", engine.name(), engine.api.socket().display()),
            ),
            line("image", image.id.clone()),
            line("network", network),
            line("user", user(spec)),
            line(Step::ReadOnlyRoot.name(), "the image".to_owned()),
            line(
                "first process",
                "ours, mounted read-only; connects to us and checks every barrier before the program"
                    .to_owned(),
            ),
        ];
        lines.extend(holds.map(|(limit, held)| {
            let by = if held {
                "by the container's cgroup"
            } else {
                "for each process by resource limits"
            };
            line("cgroup", format!("{limit} {by}"))
        }));
        lines.push(line(
            Step::Scratch.name(),
            format!(
                "{} in parts: a fresh workspace or home {}, /tmp {}, /run {}, /dev/shm {} bytes",
                limits.disk, sizes.workspace, sizes.tmp, sizes.run, sizes.shm
            ),
        ));
        // The ways in the order in which they are tried; the network itself decides.
        let ways = if self.enter_networks && spec.internal_network.is_none() {
            &[
                (NetworkOwner::Airlock, ""),
                (NetworkOwner::ContainerEngine, "if that is not ours to do: "),
            ][..]
        } else {
            &[(NetworkOwner::ContainerEngine, "")]
        };
        for (power, when) in ways {
            let way = transparent_proxy::plan(spec, *power)?
                .as_ref()
                .map(explain::intercept);
            lines.extend(way.map(|way| line(way.step, format!("{when}{}", way.detail))));
        }
        let mounts = spec
            .mounts
            .iter()
            .map(|it| (it.host.display().to_string(), &it.inside, it.access));
        let volumes = spec
            .volumes
            .iter()
            .map(|it| (format!("volume {}", it.name), &it.inside, it.access));
        lines.extend(mounts.chain(volumes).map(|(what, inside, access)| {
            let access = if access == Access::ReadWrite {
                "read-write"
            } else {
                "read-only"
            };
            line(
                Step::Mounts.name(),
                format!("{what} at {}, {access}", inside.as_path().display()),
            )
        }));
        let uid = spec.user.uid;
        let gid = spec.user.gid;
        let ids = Ids {
            uid,
            gid,
            outer_uid: uid,
            outer_gid: gid,
            drop_groups: false,
        };
        let enforcers = holds
            .into_iter()
            .filter(|(_, held)| *held)
            .map(|(limit, _)| (limit, Enforcer::CgroupV2));
        let last = plan::program_plan(
            Some(program),
            spec,
            super::sandbox::LAST_STEPS,
            ids,
            &enforcers.collect(),
        )?;
        lines.extend(explain::program_plan(&last));
        Ok(lines)
    }
}

/// The user of the program; the ids of a name, and of an owner, are known when the container is
/// created.
fn user(spec: &SandboxSpec) -> String {
    match (&spec.workspace, &spec.named_user) {
        (Some(_), _) => "the owner of the workspace, with a rootful engine".to_owned(),
        (None, Some(name)) => format!("`{}` of the image's /etc/passwd", name.escape_debug()),
        (None, None) => format!("{}:{}", spec.user.uid, spec.user.gid),
    }
}
