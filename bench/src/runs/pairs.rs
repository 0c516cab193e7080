//! What our container backend adds to a container engine: runs by us and by the bare API of the same engine, with the
//! same image and the same walls, in pairs. What disturbs the machine disturbs both of a pair; the median of the
//! differences is ours.

use crate::runs::{
    Options,
    measure::{WARM_UP, wanted},
    report::{NotRun, Pairs, Report},
    schedule::Random,
    statistics::{microseconds, middle},
    ways::{Reason, docker::Docker, fresh_folder, image, library::Library},
};
use engine::EngineSockets;
use serde_json::json;
use std::{ffi::OsString, fs, path::Path, time::Duration};

/// However few rounds there are: fewer pairs say nothing about milliseconds of a container's hundreds.
const FEWEST: usize = 40;

/// Both ways of one engine.
struct Both {
    ours: Library,
    bare: Docker,
}

pub(crate) async fn measure(options: &Options, random: &mut Random, report: &mut Report) {
    let engines = [
        ("docker", Some(&*options.docker_socket)),
        ("podman", options.podman_socket.as_deref()),
    ];
    for (backend, socket) in engines {
        let name = format!("container-{backend}");
        if !wanted(options, &name) {
            continue;
        }
        (options.progress)(&name);
        match of_engine(backend, socket, options, random).await {
            Ok(pairs) => report.pairs.push(pairs),
            Err(reason) => report.not_run.push(NotRun { name, reason }),
        }
    }
}

async fn of_engine(
    backend: &'static str,
    socket: Option<&Path>,
    options: &Options,
    random: &mut Random,
) -> Result<Pairs, Reason> {
    let socket = socket.ok_or("no socket of it is known; CONTAINER_HOST names one")?;
    let command = options
        .command
        .clone()
        .unwrap_or_else(|| vec!["/bin/true".into()]);
    let mut both = Both::prepare(backend, socket, &command, options)?;
    let measured = both
        .pairs(backend, options.rounds.max(FEWEST), random)
        .await;
    both.bare.end();
    both.ours.end().await;
    measured
}

impl Both {
    fn prepare(
        backend: &str,
        socket: &Path,
        command: &[OsString],
        options: &Options,
    ) -> Result<Both, Reason> {
        let archive = image::make(command, options)?;
        let filter = filter(backend, options)?;
        let bare = Docker::with_image(command, &archive, socket, Some(&filter))?;
        let at = vec![socket.to_string_lossy().into_owned()];
        let hosts = match backend {
            "podman" => EngineSockets {
                podman: at,
                ..EngineSockets::default()
            },
            _ => EngineSockets {
                docker: at,
                ..EngineSockets::default()
            },
        };
        Ok(Both {
            ours: Library::contained(command, backend, hosts, options)?,
            bare,
        })
    }

    async fn pairs(
        &mut self,
        backend: &'static str,
        count: usize,
        random: &mut Random,
    ) -> Result<Pairs, Reason> {
        for _ in 0..WARM_UP {
            self.pair(random).await?;
        }
        let (mut pairs, mut errors) = (Vec::new(), Vec::new());
        for _ in 0..count {
            match self.pair(random).await {
                Ok(pair) => pairs.push(pair),
                Err(reason) => errors.push(reason),
            }
        }
        let first_error = errors.first().cloned();
        match (pairs.is_empty(), first_error) {
            (true, Some(reason)) => Err(reason),
            (_, first_error) => Ok(summary(backend, &pairs, errors.len(), first_error)),
        }
    }

    /// One by us and one bare, in random order.
    async fn pair(&mut self, random: &mut Random) -> Result<(Duration, Duration), Reason> {
        let of_ours = |reason| format!("ours: {reason}");
        match random.order(2)[0] {
            0 => {
                let ours = self.ours.once().await.map_err(of_ours)?;
                Ok((ours, self.bare.once()?))
            }
            _ => {
                let bare = self.bare.once()?;
                Ok((self.ours.once().await.map_err(of_ours)?, bare))
            }
        }
    }
}

/// As little of a filter as our backend has the engine put up: the engines' own ones take milliseconds to compile, which
/// would be in our favour. Docker wants the text, Podman the path of a file.
fn filter(backend: &str, options: &Options) -> Result<String, Reason> {
    let refused = [
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "reboot",
        "swapon",
        "swapoff",
        "acct",
        "bpf",
    ];
    let profile = json!({
        "defaultAction": "SCMP_ACT_ALLOW",
        "syscalls": [{ "names": refused, "action": "SCMP_ACT_ERRNO", "errnoRet": 1 }],
    });
    if backend != "podman" {
        return Ok(profile.to_string());
    }
    let file = fresh_folder(options, "filter")?.join("seccomp.json");
    fs::write(&file, profile.to_string())
        .map_err(|error| format!("cannot write a filter: {error}"))?;
    Ok(file.to_string_lossy().into_owned())
}

fn summary(
    backend: &'static str,
    pairs: &[(Duration, Duration)],
    errors: usize,
    first_error: Option<String>,
) -> Pairs {
    let all = |of: fn(&(Duration, Duration)) -> f64| pairs.iter().map(of).collect::<Vec<_>>();
    let differences = all(|(ours, bare)| microseconds(*ours) - microseconds(*bare));
    Pairs {
        backend,
        n: pairs.len(),
        errors,
        first_error,
        ours_p50_us: middle(&all(|(ours, _)| microseconds(*ours))),
        bare_p50_us: middle(&all(|(_, bare)| microseconds(*bare))),
        difference_p50_us: middle(&differences),
        differences_us: differences,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_that_of_the_differences_not_the_difference_of_the_medians() {
        let pairs = [(10, 9), (30, 10), (21, 20)]
            .map(|(ours, bare)| (Duration::from_micros(ours), Duration::from_micros(bare)));
        let pairs = summary("docker", &pairs, 0, None);
        assert_eq!(
            (
                pairs.ours_p50_us,
                pairs.bare_p50_us,
                pairs.difference_p50_us
            ),
            (21.0, 10.0, 1.0)
        );
        assert_eq!((pairs.n, pairs.differences_us), (3, vec![1.0, 20.0, 1.0]));
    }
}
