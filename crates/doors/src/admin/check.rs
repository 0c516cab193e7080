//! What would be decided about a call, without making it: the same questions in the same order as when it is made.

use super::{problem::Problem, words::Check};
use crate::{
    dialect::{NoRoute, Route, route},
    session::{Kind, Session},
};
use http::{Method, Uri};
use serde_json::{Value, json};

/// The decision and the rule that made it.
pub(super) fn decide(session: &Session, asked: &Check) -> Result<Value, Problem> {
    let method: Method = asked
        .method
        .parse()
        .map_err(|_| Problem::invalid("`method` is no method"))?;
    let uri: Uri = asked
        .path
        .parse()
        .map_err(|_| Problem::invalid("`path` is no path"))?;
    let found = match route(&method, uri.path(), uri.query()) {
        Ok(found) => found,
        Err(NoRoute::NotFound) => return Ok(denied("routes", "this path is not served")),
        Err(NoRoute::WrongMethod) => {
            return Ok(denied("routes", "this path is not served with this method"));
        }
    };
    let speaks = session.upstream.provider.dialect;
    if found.dialect.is_some_and(|dialect| dialect != speaks) {
        return Ok(denied(
            "dialect",
            "the provider behind this session speaks another dialect",
        ));
    }
    Ok(judge(session, &found, asked.model.as_deref()))
}

fn judge(session: &Session, found: &Route, model: Option<&str>) -> Value {
    let Some(model) = found.model.as_deref().or(model) else {
        return json!({ "decision": "allow", "rule": null, "detail": "as far as can be said without a model" });
    };
    let Some(targets) = session.targets(model) else {
        return denied("allow_models", "this session may not use the model");
    };
    let prices = &session.doors.catalogue.prices;
    let has_price = targets
        .iter()
        .any(|target| prices.price(&target.provider, &target.model).is_some());
    if session.kind == Kind::Llm && !has_price {
        return denied("unknown_price", "the price of the model is not known");
    }
    let (used, budget) = (session.used(), &session.terms.budget);
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
