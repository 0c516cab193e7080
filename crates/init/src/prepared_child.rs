//! A prepared child: the process of a program, forked before the program is known. Its privileges
//! are dropped already; its exec arguments arrive later. It has memory of its own, unlike a vfork
//! child: programs that run in its sandbox may stop or kill it, and then only its own program is
//! delayed.

use crate::{
    containment::{self, ChildContext, ExecTarget},
    pid1,
    plan::ExecArgs,
    protocol::{self, Report, SandboxCommand},
    step::{Step, StepFailure},
    sys,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
};

/// Drops all privileges, reports that, and waits for the exec arguments. Ends by exec or exit.
pub(crate) fn run(mut context: ChildContext<'_>, channel: &OwnedFd) -> ! {
    let failed = match containment::contain(&mut context) {
        Ok(()) => wait_and_exec(&mut context, channel),
        Err((step, error)) => failure(step, &error),
    };
    // Without a reader the engine is gone, and this process ends anyway.
    _ = protocol::send(channel, &Report::Failed(failed), &[]);
    sys::exit(127)
}

fn failure(step: Step, error: &io::Error) -> StepFailure {
    StepFailure {
        step,
        errno: errno(error),
        detail: "a prepared child".into(),
    }
}

fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

fn wait_and_exec(context: &mut ChildContext<'_>, channel: &OwnedFd) -> StepFailure {
    let exact = context.plan.steps.has(Step::EmptyEnvironment);
    if exact {
        context.done.add(Step::EmptyEnvironment);
    }
    // The launcher's descriptors are open here; the limit of open files would count them.
    let listener: Vec<_> = context.listener.into_iter().map(sys::borrow).collect();
    let kept: Vec<_> = [channel.as_fd()]
        .into_iter()
        .chain(listener.iter().copied())
        .collect();
    let reported = pid1::close_all_except(&kept)
        .and_then(|()| protocol::send(channel, &Report::Started(context.done), &listener));
    drop((kept, listener));
    if let Err((step, error)) = context.limit_open_files() {
        return failure(step, &error);
    }
    match reported.and_then(|()| receive(channel)) {
        Ok((exec_args, [input, output, error])) => {
            let start = ExecTarget::new(&exec_args, [input.as_fd(), output.as_fd(), error.as_fd()]);
            let (step, error) = match start.take_standard_streams(context.plan.terminal) {
                Ok(()) => (Step::Exec, start.exec(exact)),
                Err(error) => (Step::Descriptors, error),
            };
            let detail = exec_args
                .argv
                .first()
                .map(|name| name.to_string_lossy().into_owned());
            StepFailure {
                step,
                errno: errno(&error),
                detail: detail.unwrap_or_default(),
            }
        }
        Err(error) => StepFailure {
            step: Step::Descriptors,
            errno: errno(&error),
            detail: "its exec arguments".to_owned(),
        },
    }
}

fn receive(channel: &OwnedFd) -> io::Result<(ExecArgs, [OwnedFd; 3])> {
    let Some((SandboxCommand::Exec(exec_args), mut files)) = protocol::receive(channel)? else {
        sys::exit(0)
    };
    let exec_args = exec_args.read(&mut files)?;
    let streams = <[OwnedFd; 3]>::try_from(files);
    Ok((
        exec_args,
        streams.map_err(|_| io::Error::from_raw_os_error(libc::EBADF))?,
    ))
}
