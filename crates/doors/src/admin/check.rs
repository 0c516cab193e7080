//! `POST /v1/check`: a dry run of the policy. Evaluates the same rules in the same order as a real
//! call, without calling the provider.

use super::{problem::AdminProblem, requests::CheckBody};
use crate::{
    dialect::{Route, RouteError},
    session::{DoorKind, DoorSession},
};
use http::{Method, Uri};
use serde_json::{Value, json};

/// Returns the decision and the rule that made it.
pub(super) fn decide(session: &DoorSession, request: &CheckBody) -> Result<Value, AdminProblem> {
    let method: Method = request
        .method
        .parse()
        .map_err(|_| AdminProblem::invalid("`method` is no method"))?;
    let uri: Uri = request
        .path
        .parse()
        .map_err(|_| AdminProblem::invalid("`path` is no path"))?;
    let route = match crate::dialect::route(&method, uri.path(), uri.query()) {
        Ok(route) => route,
        Err(RouteError::NotFound) => return Ok(denied("routes", "this path is not served")),
        Err(RouteError::WrongMethod) => {
            return Ok(denied("routes", "this path is not served with this method"));
        }
    };
    let speaks = session.upstream.provider.dialect;
    if route.dialect.is_some_and(|dialect| dialect != speaks) {
        return Ok(denied(
            "dialect",
            "the provider behind this session speaks another dialect",
        ));
    }
    Ok(evaluate(session, &route, request.model.as_deref()))
}

fn evaluate(session: &DoorSession, route: &Route, model: Option<&str>) -> Value {
    let Some(model) = route.model.as_deref().or(model) else {
        return json!({ "decision": "allow", "rule": null, "detail": "as far as can be said without a model" });
    };
    let Some(targets) = session.targets(model) else {
        return denied("allow_models", "this session may not use the model");
    };
    let prices = &session.doors.catalogue.prices;
    let has_price = targets
        .iter()
        .any(|target| prices.price(&target.provider, &target.model).is_some());
    if session.kind == DoorKind::Llm && !has_price {
        return denied("unknown_price", "the price of the model is not known");
    }
    let used = session.used();
    let budget = &session.terms.budget;
    if budget
        .money
        .is_some_and(|money| money <= used.money.plus(used.held))
    {
        return denied("budget", "the budget is spent");
    }
    let targets: Vec<_> = targets
        .iter()
        .map(|target| format!("{}/{}", target.provider, target.model))
        .collect();
    json!({ "decision": "allow", "rule": null, "targets": targets })
}

fn denied(rule: &str, detail: &str) -> Value {
    json!({ "decision": "deny", "rule": rule, "detail": detail })
}
