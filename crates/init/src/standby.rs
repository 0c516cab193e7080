//! A program's process, made ahead of its program: everything is given up already, what to run is told later.
//! It has memory of its own, unlike the child of a vfork: what runs in its box already may stop or kill it, and nobody
//! but its own program waits for it then.

use crate::{
    keeper,
    plan::Errand,
    program::{self, Launch, Start},
    protocol::{self, Command, Report},
    step::{Failure, Step},
    sys,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Gives everything up, says so, and waits for the errand. Only exec leads out of here alive.
pub(crate) fn live(mut launch: Launch<'_>, channel: &OwnedFd) -> ! {
    let failed = match program::give_up_power(&mut launch) {
        Ok(()) => run_when_told(&mut launch, channel),
        Err((step, error)) => failure(step, &error),
    };
    // Nobody to tell means that the engine is gone, and so are we.
    _ = protocol::send(channel, &Report::Failed(failed), &[]);
    sys::exit(127)
}

fn failure(step: Step, error: &io::Error) -> Failure {
    Failure {
        step,
        errno: errno(error),
        detail: "a process that stands by".into(),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn run_when_told(launch: &mut Launch<'_>, channel: &OwnedFd) -> Failure {
    let exact = launch.plan.steps.has(Step::EmptyEnvironment);
    if exact {
        launch.done.add(Step::EmptyEnvironment);
    }
    // The launcher's descriptors came along; the limit of open files counts them.
    let listener: Vec<_> = launch.listener.into_iter().map(sys::borrow).collect();
    let kept: Vec<_> = [channel.as_fd()]
        .into_iter()
        .chain(listener.iter().copied())
        .collect();
    let told = keeper::keep_only(&kept)
        .and_then(|()| protocol::send(channel, &Report::Started(launch.done), &listener));
    drop((kept, listener));
    if let Err((step, error)) = launch.limit_open_files() {
        return failure(step, &error);
    }
    match told.and_then(|()| receive(channel)) {
        Ok((errand, [input, output, error])) => {
            let start = Start::new(&errand, [input.as_fd(), output.as_fd(), error.as_fd()]);
            let (step, error) = match start.take_streams(launch.plan.terminal) {
                Ok(()) => (Step::Exec, start.exec(exact)),
                Err(error) => (Step::Descriptors, error),
            };
            let detail = errand
                .argv
                .first()
                .map(|name| name.to_string_lossy().into_owned());
            Failure {
                step,
                errno: errno(&error),
                detail: detail.unwrap_or_default(),
            }
        }
        Err(error) => Failure {
            step: Step::Descriptors,
            errno: errno(&error),
            detail: "its errand".to_owned(),
        },
    }
}

fn receive(channel: &OwnedFd) -> io::Result<(Errand, [OwnedFd; 3])> {
    let Some((Command::Exec(errand), mut files)) = protocol::receive(channel)? else {
        sys::exit(0)
    };
    let errand = errand.read(&mut files)?;
    let streams = <[OwnedFd; 3]>::try_from(files);
    Ok((
        errand,
        streams.map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?,
    ))
}
