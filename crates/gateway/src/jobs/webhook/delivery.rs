//! Webhook delivery: concurrency limits, retries with exponential backoff. One notice per job at a
//! time, and a few per tenant. A receiver whose last attempt failed gets one notice at a time, and
//! all failing receivers together at most half of the slots: they delay neither other tenants nor
//! other receivers of their tenant. A failed notice is retried with a doubled pause until it is
//! given up.
//!
//! Success is written after the delivery: after a crash in between, the notice is sent again with
//! the same `webhook-id`.

use crate::{Gateway, log_warning};
use bytes::Bytes;
use engine::DeliveryError;
use ring::rand::{SecureRandom, SystemRandom};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::webhooks::{
    self, DeliveryOutcome, DeliveryRound, DueNotice, NoticeChoice, WebhookNotice,
};
use tokio::{sync::Notify, task::JoinSet};

/// Concurrent deliveries in total, and of one tenant.
const MAX_IN_FLIGHT: usize = 32;
const MAX_IN_FLIGHT_PER_TENANT: usize = 4;
/// Concurrent deliveries to failing receivers, of all tenants.
const MAX_FAILING_IN_FLIGHT: usize = MAX_IN_FLIGHT / 2;
/// Failing receivers that are remembered per tenant; at this number all of its receivers count as
/// failing.
const MAX_FAILING_PER_TENANT: usize = 16;
/// Poll interval of the queue.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Pause when the database is unavailable.
const DATABASE_RETRY_PAUSE: Duration = Duration::from_secs(5);
const MIN_BACKOFF_MS: u64 = 1000;
const MAX_BACKOFF_MS: u64 = 3_600_000;
/// Retention of settled notices, and how often it is applied.
const RETENTION_MS: u64 = 32 * 24 * 3_600_000;
const PRUNE_INTERVAL_MS: u64 = 3_600_000;

/// Deliveries in flight, and failing receivers.
#[derive(Clone, Debug, Default)]
struct DeliveryState {
    /// Jobs in flight, with tenant and receiver.
    jobs: HashMap<String, (String, String)>,
    /// Failing receivers of each tenant, oldest first.
    failing: HashMap<String, Vec<String>>,
}

/// The receiver of an address: host, with the port if given.
fn receiver(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?'])
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase()
}

/// Fair share: at most half of what the other tenants leave.
fn has_capacity(max: usize, all: usize, own: usize) -> bool {
    own < MAX_IN_FLIGHT_PER_TENANT.min(max.saturating_sub(all - own).div_ceil(2))
}

impl DeliveryState {
    fn is_failing(&self, tenant: &str, receiver: &str) -> bool {
        let of_one = self.failing.get(tenant);
        of_one.is_some_and(|all| {
            all.len() >= MAX_FAILING_PER_TENANT || all.iter().any(|one| one == receiver)
        })
    }

    /// Decides whether to send a notice now, and marks it as in flight.
    fn choose(&mut self, waiting: DueNotice<'_>) -> NoticeChoice {
        let DueNotice { job, tenant, url } = waiting;
        let (failing, healthy): (Vec<_>, Vec<_>) = self
            .jobs
            .values()
            .partition(|(of, receiver)| self.is_failing(of, receiver));
        let own = |all: &[&(String, String)]| all.iter().filter(|(of, _)| of == tenant).count();
        // Slots of other tenants' failing receivers are not free for healthy ones.
        let others = failing.len() - own(&failing);
        let healthy_has_capacity =
            has_capacity(MAX_IN_FLIGHT - others, healthy.len(), own(&healthy));
        let failing_has_capacity =
            has_capacity(MAX_FAILING_IN_FLIGHT, failing.len(), own(&failing));
        if !healthy_has_capacity && !failing_has_capacity {
            return NoticeChoice::SkipTenant;
        }
        let to = (tenant.to_owned(), receiver(url));
        let is_allowed = if self.is_failing(&to.0, &to.1) {
            failing_has_capacity && !failing.contains(&&to)
        } else {
            healthy_has_capacity
        };
        if !is_allowed || self.jobs.contains_key(job) {
            return NoticeChoice::Skip;
        }
        self.jobs.insert(job.to_owned(), to);
        NoticeChoice::Send
    }

    fn finished(&mut self, notice: &WebhookNotice, healthy: bool) {
        self.jobs.remove(&notice.job);
        let failing = self.failing.entry(notice.tenant.clone()).or_default();
        let receiver = receiver(&notice.url);
        let known = failing.iter().position(|one| *one == receiver);
        match (healthy, known) {
            (true, Some(place)) => drop(failing.remove(place)),
            // A success at the limit removes the oldest failing receiver.
            (true, None) if failing.len() >= MAX_FAILING_PER_TENANT => drop(failing.remove(0)),
            (false, None) if failing.len() < MAX_FAILING_PER_TENANT => failing.push(receiver),
            (true | false, _) => {}
        }
        self.failing.retain(|_, failing| !failing.is_empty());
    }
}

type SharedState = Arc<Mutex<DeliveryState>>;

/// Delivers notices until the server ends.
pub(crate) async fn deliver(gateway: Gateway) {
    let state = SharedState::default();
    let done_signal = Arc::new(Notify::new());
    let mut tasks = JoinSet::new();
    let mut rotation = DeliveryRound::default();
    let mut pruned_at = 0;
    loop {
        while tasks.try_join_next().is_some() {}
        match due(&gateway, &state, &mut rotation).await {
            Ok(notices) => {
                for notice in notices {
                    let to = (notice.tenant.clone(), receiver(&notice.url));
                    lock(&state).jobs.insert(notice.job.clone(), to);
                    tasks.spawn(deliver_one(
                        gateway.clone(),
                        notice,
                        state.clone(),
                        done_signal.clone(),
                    ));
                }
            }
            Err(()) => tokio::time::sleep(DATABASE_RETRY_PAUSE).await,
        }
        let now = engine::now().0;
        if now > pruned_at + PRUNE_INTERVAL_MS {
            pruned_at = now;
            prune(&gateway, now).await;
        }
        // Polling is cheap; a transaction that queues a notice does not signal this task.
        _ = tokio::time::timeout(POLL_INTERVAL, done_signal.notified()).await;
    }
}

async fn prune(gateway: &Gateway, now: u64) {
    let before = now.saturating_sub(RETENTION_MS);
    // Retried later.
    _ = gateway
        .writer()
        .write(move |transaction| webhooks::prune_notices(transaction, before))
        .await;
}

fn lock(state: &SharedState) -> std::sync::MutexGuard<'_, DeliveryState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The notices that can be sent now.
async fn due(
    gateway: &Gateway,
    state: &SharedState,
    rotation: &mut DeliveryRound,
) -> Result<Vec<WebhookNotice>, ()> {
    let mut busy = lock(state).clone();
    let room = MAX_IN_FLIGHT.saturating_sub(busy.jobs.len());
    if room == 0 {
        return Ok(Vec::new());
    }
    let mut next = rotation.clone();
    let now = engine::now().0;
    let notices = gateway.query_database(move |database| {
        let notices = database.due_notices(now, &mut next, room, |waiting| busy.choose(waiting))?;
        Ok((notices, next))
    });
    let (notices, next) = notices.await.map_err(drop)?;
    *rotation = next;
    Ok(notices)
}

/// Delivers one notice once.
async fn deliver_one(
    gateway: Gateway,
    notice: WebhookNotice,
    state: SharedState,
    done_signal: Arc<Notify>,
) {
    let settled = attempt(&gateway, &notice).await;
    if let DeliveryOutcome::GivenUp(why) = &settled {
        log_warning(format_args!(
            "airlock: the webhook of the job {} is given up: {}",
            notice.job,
            why.escape_debug()
        ));
    }
    let finished_notice = notice.clone();
    let healthy = settled == DeliveryOutcome::Delivered;
    let written = settled;
    let done = gateway
        .writer()
        .write(move |transaction| webhooks::settle(transaction, &notice, &written))
        .await;
    if done.is_err() {
        // The notice stays queued and due.
        tokio::time::sleep(DATABASE_RETRY_PAUSE).await;
    }
    lock(&state).finished(&finished_notice, healthy);
    done_signal.notify_one();
}

async fn attempt(gateway: &Gateway, notice: &WebhookNotice) -> DeliveryOutcome {
    let webhooks = gateway.webhooks();
    let receiver = match webhooks.courier.check(&notice.url) {
        Ok(receiver) => receiver,
        Err(bad) => return DeliveryOutcome::GivenUp(bad.message),
    };
    let headers = match signed(gateway, notice).await {
        Ok(headers) => headers,
        // A key that cannot be read may be restored: retry.
        Err(why) => return classify(notice, webhooks.attempts, Err(DeliveryError::Failed(why))),
    };
    let body = Bytes::from(notice.body.clone());
    let courier = &webhooks.courier;
    let delivered = courier.deliver(&notice.tenant, &receiver, headers, body);
    classify(notice, webhooks.attempts, delivered.await)
}

async fn signed(gateway: &Gateway, notice: &WebhookNotice) -> Result<http::HeaderMap, String> {
    let gateway = gateway.clone();
    let notice = notice.clone();
    let signing = tokio::task::spawn_blocking(move || {
        let generation = gateway
            .database()
            .webhook_generation(&notice.tenant)
            .map_err(|error| error.to_string())?;
        let sent = (notice.id.as_str(), notice.body.as_str());
        let signed =
            gateway
                .webhooks()
                .signer
                .headers(&notice.tenant, generation, sent, engine::now().0);
        signed.map_err(|error| {
            log_warning(format_args!(
                "airlock: no webhook can be signed: {}",
                error.message
            ));
            "it cannot be signed; the operator is told why".to_owned()
        })
    });
    signing
        .await
        .unwrap_or_else(|_| Err("it cannot be signed now".to_owned()))
}

/// Classifies the response of a receiver.
fn classify(
    notice: &WebhookNotice,
    max: u32,
    answer: Result<u16, DeliveryError>,
) -> DeliveryOutcome {
    let why = match answer {
        Ok(200..=299) => return DeliveryOutcome::Delivered,
        Ok(410) => {
            return DeliveryOutcome::GivenUp(
                "the receiver answered 410: it wants no more".to_owned(),
            );
        }
        Ok(status @ 300..=399) => {
            format!("the receiver answered {status}, and redirects are not followed")
        }
        Ok(status) => format!("the receiver answered {status}"),
        Err(DeliveryError::Refused(why)) => return DeliveryOutcome::GivenUp(why),
        Err(DeliveryError::Failed(why)) => why,
    };
    if notice.attempts + 1 >= max {
        DeliveryOutcome::GivenUp(format!("{why}; given up after {max} attempts"))
    } else {
        retry_later(notice, why)
    }
}

fn retry_later(notice: &WebhookNotice, problem: String) -> DeliveryOutcome {
    let due_ms = engine::now()
        .0
        .saturating_add(backoff_ms(notice.attempts, random_byte()));
    DeliveryOutcome::Deferred { due_ms, problem }
}

/// Exponential backoff: one second, doubled per attempt, up to an hour, with 20 % jitter so that
/// notices that failed together are not retried together.
fn backoff_ms(attempts: u32, jitter: u8) -> u64 {
    let doubled = MIN_BACKOFF_MS.saturating_mul(1 << attempts.min(20));
    let pause = doubled.min(MAX_BACKOFF_MS);
    (pause * (800 + u64::from(jitter) * 400 / 255) / 1000).min(MAX_BACKOFF_MS)
}

fn random_byte() -> u8 {
    let mut byte = [128];
    // Without randomness the middle is used.
    _ = SystemRandom::new().fill(&mut byte);
    byte[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(attempts: u32) -> WebhookNotice {
        let text = String::new;
        WebhookNotice {
            n: 1,
            id: text(),
            job: text(),
            tenant: text(),
            url: text(),
            body: text(),
            attempts,
        }
    }

    #[test]
    fn pauses_double_from_a_second_to_an_hour() {
        assert_eq!(
            (backoff_ms(0, 0), backoff_ms(0, 128), backoff_ms(0, 255)),
            (800, 1000, 1200)
        );
        assert_eq!((backoff_ms(3, 128), backoff_ms(10, 128)), (8000, 1_024_000));
        for attempts in [12, 40, u32::MAX] {
            assert!((2_880_000..=MAX_BACKOFF_MS).contains(&backoff_ms(attempts, 0)));
            assert_eq!(backoff_ms(attempts, 255), MAX_BACKOFF_MS);
        }
    }

    fn to(tenant: &str, job: &str, host: &str) -> WebhookNotice {
        let url = format!("https://{host}/x");
        WebhookNotice {
            tenant: tenant.to_owned(),
            job: job.to_owned(),
            url,
            ..notice(0)
        }
    }

    /// How many of so many more are taken.
    fn fill(state: &mut DeliveryState, tenant: &str, host: &str, count: usize) -> usize {
        let all = state.jobs.len();
        for number in 0..count.min(MAX_IN_FLIGHT - all) {
            let job = format!("{tenant}{host}{number}");
            let url = format!("https://{host}/{number}");
            state.choose(DueNotice {
                job: &job,
                tenant,
                url: &url,
            });
        }
        state.jobs.len() - all
    }

    #[test]
    fn receivers_that_never_answer_hold_nobody_else_up() {
        let mut state = DeliveryState::default();
        assert_eq!(fill(&mut state, "a", "a", 9), 4);
        let dead: Vec<_> = (0..40).map(|number| format!("dead{number}")).collect();
        dead.iter()
            .for_each(|tenant| state.finished(&to(tenant, "", "dead"), false));
        assert_eq!(
            dead.iter()
                .map(|tenant| fill(&mut state, tenant, "dead", 9))
                .sum::<usize>(),
            16
        );
        assert_eq!(
            ["b", "c", "d", "e", "f"].map(|tenant| fill(&mut state, tenant, tenant, 9)),
            [4, 4, 2, 1, 1]
        );
        state.finished(&to(&dead[0], "", "DEAD"), true);
        assert!(!state.is_failing(&dead[0], "dead"), "one yes is enough");
    }

    #[test]
    fn a_receiver_that_is_down_takes_nothing_from_others_of_its_tenant() {
        let mut state = DeliveryState::default();
        state.finished(&to("a", "", "down"), false);
        assert_eq!(
            [("down", 9), ("up", 9), ("down", 9)]
                .map(|(host, count)| fill(&mut state, "a", host, count)),
            [1, 4, 0]
        );
        let full = state.choose(DueNotice {
            job: "x",
            tenant: "a",
            url: "https://up/",
        });
        assert_eq!(
            full,
            NoticeChoice::Skip,
            "another that is in doubt could go"
        );
        let many: Vec<_> = (0..99).map(|number| format!("host{number}")).collect();
        many.iter()
            .for_each(|host| state.finished(&to("b", "", host), false));
        assert_eq!(
            (state.failing["b"].len(), state.is_failing("b", "new")),
            (MAX_FAILING_PER_TENANT, true)
        );
        assert_eq!(
            many.iter()
                .map(|host| fill(&mut state, "b", host, 9))
                .sum::<usize>(),
            4
        );
        state.finished(&to("b", "", "new"), true);
        assert!(!state.is_failing("b", "new") && state.is_failing("b", "host5"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_waits_for_later_takes_nothing_from_whoever_is_due() {
        let place = crate::workspaces::tests::Fixture::new("webhooks-due", &[]);
        let (gateway, state) = (place.gateway(Vec::new()), SharedState::default());
        let later = engine::now().0 + 3_600_000;
        let tenants: Vec<_> = (0..20).map(|number| format!("dead{number}")).collect();
        let add = |transaction: &store::server_database::WriteTransaction<'_>| {
            let all = tenants
                .iter()
                .map(|tenant| (tenant.as_str(), later))
                .chain([("well", 1)]);
            all.into_iter().try_for_each(|(tenant, at_ms)| {
                let (url, event, body) = ("https://host/", "final", "{}");
                let (id, job) = (tenant, tenant);
                webhooks::enqueue(
                    transaction,
                    &webhooks::NewWebhookNotice {
                        id,
                        job,
                        tenant,
                        url,
                        event,
                        at_ms,
                        body,
                    },
                )
            })
        };
        gateway.database().transact_durably(add).unwrap();
        let all = tenants.iter().map(String::as_str).chain(["well"]);
        all.for_each(|tenant| lock(&state).finished(&to(tenant, "", "host"), false));
        let notices = due(&gateway, &state, &mut DeliveryRound::default())
            .await
            .unwrap();
        assert_eq!(
            notices
                .into_iter()
                .map(|notice| notice.tenant)
                .collect::<Vec<_>>(),
            ["well"]
        );
    }

    #[test]
    fn only_a_yes_is_one() {
        for status in [200, 204, 299] {
            assert_eq!(
                classify(&notice(0), 3, Ok(status)),
                DeliveryOutcome::Delivered
            );
        }
        for status in [100, 199, 301, 307, 400, 404, 429, 500, 503] {
            assert!(
                matches!(
                    classify(&notice(0), 3, Ok(status)),
                    DeliveryOutcome::Deferred { .. }
                ),
                "{status}"
            );
            let DeliveryOutcome::GivenUp(why) = classify(&notice(2), 3, Ok(status)) else {
                panic!("{status}")
            };
            assert!(why.ends_with("; given up after 3 attempts"), "{why}");
        }
        assert!(matches!(
            classify(&notice(0), 3, Ok(410)),
            DeliveryOutcome::GivenUp(_)
        ));
        let refused = DeliveryError::Refused("private".into());
        assert_eq!(
            classify(&notice(0), 3, Err(refused)),
            DeliveryOutcome::GivenUp("private".into())
        );
        let failed = DeliveryError::Failed("down".into());
        assert!(matches!(
            classify(&notice(0), 3, Err(failed)),
            DeliveryOutcome::Deferred { .. }
        ));
    }
}
