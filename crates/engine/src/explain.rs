//! The lines of `--explain` beside the steps of the sandbox: profile, wall time, network, budget,
//! hosts and protected names.

use crate::PlanLine;
use spec::{Budget, EgressMode, EgressRule, Limits, PROTECTED, Ports, RunSpec};

/// The lines for a run; `provider` is the one of its LLM door.
pub(crate) fn plan_lines(spec: &RunSpec, provider: Option<&str>) -> Vec<PlanLine> {
    let sandbox = &spec.sandbox;
    let limit = sandbox.limits.wall_time;
    let wall_time = if limit == Limits::NO_WALL_TIME {
        "no limit".to_owned()
    } else {
        limit.to_string()
    };
    let mut lines = vec![
        line("profile", &sandbox.profile),
        line("wall time", wall_time),
        line("network", sandbox.network.name()),
    ];
    lines.extend(provider.map(|name| line("llm provider", name)));
    let has_models = spec.grants.llm.is_some() || spec.grants.inference.is_some();
    if has_models {
        lines.push(line("budget", budget(&spec.grants.budget)));
    }
    if let Some(egress) = &spec.grants.egress {
        lines.extend(egress.rules.iter().map(|rule| line("host", host(rule))));
        if egress.learn {
            lines.push(line("host", "every public one, written down: --learn"));
        } else if egress.rules.is_empty() {
            lines.push(line("host", "none yet; `airlock grant` adds some"));
        }
    }
    let is_changed = sandbox.workspace.is_some() && !sandbox.read_only_workspace;
    if is_changed {
        lines.push(line("protected names", protected(spec)));
    }
    lines
}

fn line(step: &str, detail: impl Into<String>) -> PlanLine {
    PlanLine {
        step: step.to_owned(),
        detail: detail.into(),
    }
}

fn budget(budget: &Budget) -> String {
    let parts = [
        budget.money.map(|money| format!("{money} USD")),
        budget.call.map(|money| format!("{money} USD a call")),
        budget.tokens.map(|tokens| format!("{tokens} tokens")),
        budget.requests.map(|most| format!("{most} calls")),
        budget.concurrent.map(|most| format!("{most} at once")),
    ];
    let said: Vec<_> = parts.into_iter().flatten().collect();
    if said.is_empty() {
        "no limit".to_owned()
    } else {
        said.join(", ")
    }
}

fn host(rule: &EgressRule) -> String {
    let ports = match &rule.ports {
        Ports::Any => "every port".to_owned(),
        Ports::These(ports) => {
            let ports: Vec<_> = ports.iter().map(u16::to_string).collect();
            format!("port {}", ports.join(" "))
        }
    };
    let mode = match &rule.mode {
        EgressMode::Deny => "denied",
        EgressMode::Tunnel => "a tunnel",
        EgressMode::Inspect { .. } => "requests looked at",
        EgressMode::Git { .. } => "git only",
    };
    format!("{}, {ports}: {mode}", rule.host)
}

/// The default protected names without the removed ones, the added names, and the paths that may be
/// written.
fn protected(spec: &RunSpec) -> String {
    let names = &spec.sandbox.protected;
    let usual = PROTECTED
        .iter()
        .map(|protected| protected.name)
        .filter(|name| !names.removed.iter().any(|removed| removed == name));
    let added = names.added.iter().map(String::as_str);
    let all = usual.chain(added).collect::<Vec<_>>().join(" ");
    let allowed: Vec<_> = names
        .allowed
        .iter()
        .map(|path| path.as_path().to_string_lossy())
        .collect();
    if allowed.is_empty() {
        all
    } else {
        format!("{all}; but may be written: {}", allowed.join(" "))
    }
}
