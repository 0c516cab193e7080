//! What a parked sandbox holds while it waits, and what a live run of an image adds.

use crate::runs::{
    Options,
    footprint::{self, Each, FEW, What},
    measure::wanted,
    report::{IdleSandbox, ImageRuns, NotRun, Report},
    ways::{Reason, image},
};

const PARKED: usize = FEW + 64;
const LIVE: usize = FEW + 100;

pub(crate) fn measure(options: &Options, report: &mut Report) {
    let mut attempt = |name: &str, measured: &mut dyn FnMut(&mut Report) -> Result<(), Reason>| {
        if wanted(options, name) {
            (options.progress)(name);
            if let Err(reason) = measured(report) {
                report.not_run.push(NotRun {
                    name: name.to_owned(),
                    reason,
                });
            }
        }
    };
    attempt("idle-sandbox", &mut |report| {
        let Each { count, held } = footprint::each(What::Parked, PARKED, options)?;
        let (charged_bytes, pss_bytes) = (held.charged, held.pss);
        report.idle_sandbox = Some(IdleSandbox {
            parked: count,
            charged_bytes,
            pss_bytes,
        });
        Ok(())
    });
    attempt("hundred-image", &mut |report| {
        let archive = image::make(&[image::ANSWERS.into()], options)?;
        let Each { count, held } = footprint::each(What::Live(&archive), LIVE, options)?;
        let (charged_bytes, pss_bytes, disk_bytes) = (held.charged, held.pss, held.disk);
        report.image_runs = Some(ImageRuns {
            runs: count,
            charged_bytes,
            pss_bytes,
            disk_bytes,
        });
        Ok(())
    });
}
