//! Lists of jobs, as much of them as their tenant has memory for.

use super::*;
use crate::workspaces::tests::Fixture;
use serde_json::json;

fn caller(name: &str) -> Caller {
    let validity = crate::key_watch::ActiveKeys::default().watch(name);
    Caller {
        key: name.to_owned(),
        tenant: name.to_owned(),
        scopes: vec![Scope::Runs],
        validity,
    }
}

/// Jobs of hers, with this label each, that are tried twice.
fn add(gateway: &Gateway, numbers: std::ops::Range<usize>, label: &str) {
    let labels = json!({ "label": label }).to_string();
    let room = gateway.job_limits("her");
    let add = |transaction: &WriteTransaction<'_>| {
        numbers.clone().try_for_each(|number| {
            let new = NewJob {
                id: &format!("job-{number}"),
                tenant: "her",
                key: "her",
                name: None,
                labels: &labels,
                priority: 0,
                at_ms: 1,
                not_before_ms: None,
                keep_ms: 1,
                max_attempts: 2,
                retry_on: "failed",
                pause_ms: 0,
                rerun: false,
                after: &[],
                webhook: None,
                order: "{}",
                idempotency_key: None,
            };
            assert_eq!(transaction.add_job(&new, &room)?, AddJobOutcome::Accepted);
            Ok(())
        })
    };
    gateway.database().transact_durably(add).unwrap();
}

async fn listed(gateway: &Gateway, name: &str, before: Option<String>) -> Answer<Value> {
    asked(
        gateway,
        name,
        JobsQuery {
            status: None,
            name: None,
            label: None,
            limit: Some(200),
            before,
        },
    )
    .await
}

async fn asked(gateway: &Gateway, name: &str, which: JobsQuery) -> Answer<Value> {
    let response = list(State(gateway.clone()), caller(name), Ok(Query(which))).await?;
    let body = axum::body::to_bytes(response.into_body(), usize::MAX)
        .await
        .unwrap();
    assert!(
        body.len() < json_response::MAX_ENTRY_BYTES * 11 / 10,
        "{}",
        body.len()
    );
    Ok(serde_json::from_slice(&body).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_does_not_fit_goes_on_behind_what_does() {
    let place = Fixture::new("jobs-page", &[]);
    let gateway = place.gateway(Vec::new());
    // As long as labels could be once.
    add(&gateway, 0..150, &"x".repeat(40_000));
    let (mut seen, mut before, mut pages) = (Vec::new(), None, 0);
    loop {
        let page = listed(&gateway, "her", before).await.unwrap();
        let jobs = page["jobs"].as_array().unwrap().iter();
        seen.extend(jobs.map(|job| job["job_id"].as_str().unwrap().to_owned()));
        (before, pages) = (page["before"].as_str().map(str::to_owned), pages + 1);
        if before.is_none() {
            break;
        }
    }
    let all: Vec<_> = (0..150)
        .rev()
        .map(|number| format!("job-{number}"))
        .collect();
    assert_eq!((seen, pages), (all, 2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_is_made_only_where_its_tenant_has_room_for_it() {
    let place = Fixture::new("jobs-room", &[]);
    let gateway = place.gateway(Vec::new());
    add(&gateway, 0..1, "");
    for (shares, amount) in [
        (gateway.response_bytes(), 60 << 20),
        (gateway.blocking_work(), 16),
    ] {
        let mut taken = shares.guard("her");
        shares.acquire(&mut taken, amount).unwrap();
        assert_eq!(
            listed(&gateway, "her", None).await.unwrap_err().status(),
            429
        );
        assert_eq!(
            listed(&gateway, "him", None).await.unwrap()["jobs"],
            json!([]),
            "others have theirs"
        );
    }
    assert_eq!(
        listed(&gateway, "her", None).await.unwrap()["jobs"][0]["job_id"],
        "job-0"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_by_label_goes_on_behind_what_was_looked_through() {
    let place = Fixture::new("jobs-label", &[]);
    let gateway = place.gateway(Vec::new());
    add(&gateway, 0..1, "wanted");
    add(&gateway, 1..2001, "other");
    let page = async |before| {
        let label = Some("label=wanted".to_owned());
        let which = JobsQuery {
            status: None,
            name: None,
            label,
            limit: None,
            before,
        };
        let page = asked(&gateway, "her", which).await.unwrap();
        let ids = page["jobs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|job| job["job_id"].clone())
            .collect::<Vec<_>>();
        (ids, page["before"].as_str().map(str::to_owned))
    };
    let (none, before) = page(None).await;
    assert_eq!(
        (none, before.is_some()),
        (vec![], true),
        "it goes on behind the oldest that was looked at"
    );
    assert_eq!(page(before).await, (vec![json!("job-0")], None));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_runs_when_all_is_cancelled_does_not_come_back_for_another_try() {
    let place = Fixture::new("jobs-all", &[]);
    let gateway = place.gateway(Vec::new());
    add(&gateway, 0..3, "");
    let write = |id: &'static str| {
        gateway.database().transact_durably(|transaction| {
            assert!(transaction.start_job(id, &format!("run-{id}"), "boot", 1)?);
            Ok(())
        })
    };
    let fail = |id: &'static str| {
        let end = store::jobs::AttemptEnd {
            status: "failed",
            result: None,
            error: None,
            at_ms: 2,
        };
        let changes = gateway
            .database()
            .transact_durably(|transaction| transaction.end_job(&format!("run-{id}"), &end));
        changes.unwrap()[0].status.clone()
    };
    ["job-0", "job-1"].iter().for_each(|id| write(id).unwrap());
    assert_eq!(
        fail("job-0"),
        "queued",
        "the control: it would be tried again"
    );
    let cancelled = change::cancel_all(&gateway, "admin").await.unwrap();
    assert_eq!(cancelled, ["job-2", "job-0"], "those that waited");
    assert_eq!(fail("job-1"), "failed");
}
