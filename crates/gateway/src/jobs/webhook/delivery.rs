//! Delivers notices that wait: a few at a time, of every tenant some, and one of each job. A receiver whose last attempt failed
//! has one at a time, and all of those together no more than half: receivers that never answer hold up nobody else, nor others
//! of the same tenant. What fails is tried again after a pause that doubles, until it is given up.
//!
//! That a notice was taken is written down afterwards: after a crash in between it goes out once more, with the same
//! `webhook-id`.

use crate::{Gateway, say};
use bytes::Bytes;
use engine::Undelivered;
use ring::rand::{SecureRandom, SystemRandom};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::webhooks::{self, Choice, Notice, Round, Settled, Waiting};
use tokio::{sync::Notify, task::JoinSet};

/// Notices under way at a time, and those of one tenant: a receiver that is slow holds nobody else up.
const MOST_UNDER_WAY: usize = 32;
const MOST_OF_ONE: usize = 4;
/// Those to receivers whose last attempt failed, of all tenants.
const MOST_IN_DOUBT: usize = MOST_UNDER_WAY / 2;
/// Receivers of a tenant that are remembered so; who has that many is in doubt altogether.
const MOST_DOUBTED: usize = 16;
/// Between two looks at what waits.
const BETWEEN_LOOKS: Duration = Duration::from_millis(200);
/// Where the database cannot be used.
const AFTER_TROUBLE: Duration = Duration::from_secs(5);
const FIRST_PAUSE_MS: u64 = 1000;
const LONGEST_PAUSE_MS: u64 = 3_600_000;
/// Settled notices are forgotten after so long, and that is looked after now and then.
const REMEMBERED_MS: u64 = 32 * 24 * 3_600_000;
const BETWEEN_TIDYINGS_MS: u64 = 3_600_000;

/// What is under way.
#[derive(Clone, Debug, Default)]
struct Sky {
    /// Jobs, with whose they are, and the receiver.
    jobs: HashMap<String, (String, String)>,
    /// Receivers of a tenant whose last attempt failed, the oldest first.
    doubted: HashMap<String, Vec<String>>,
}

/// Who takes notices at this address: its host, with the port if it says one.
fn receiver(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split(['/', '?'])
        .next()
        .unwrap_or_default()
        .to_ascii_lowercase()
}

/// What one has of what all have together, by the house's rule: no more than half of what the others leave.
fn has_room(most: usize, all: usize, own: usize) -> bool {
    own < MOST_OF_ONE.min(most.saturating_sub(all - own).div_ceil(2))
}

impl Sky {
    fn is_doubted(&self, tenant: &str, receiver: &str) -> bool {
        let of_one = self.doubted.get(tenant);
        of_one.is_some_and(|all| all.len() >= MOST_DOUBTED || all.iter().any(|one| one == receiver))
    }

    /// Whether this one is sent now; then it is under way.
    fn choose(&mut self, waiting: Waiting<'_>) -> Choice {
        let Waiting { job, tenant, url } = waiting;
        let (doubted, well): (Vec<_>, Vec<_>) = self
            .jobs
            .values()
            .partition(|(of, receiver)| self.is_doubted(of, receiver));
        let own = |all: &[&(String, String)]| all.iter().filter(|(of, _)| of == tenant).count();
        // What others have in doubt is not free, either.
        let others = doubted.len() - own(&doubted);
        let may_be_well = has_room(MOST_UNDER_WAY - others, well.len(), own(&well));
        let may_be_in_doubt = has_room(MOST_IN_DOUBT, doubted.len(), own(&doubted));
        if !may_be_well && !may_be_in_doubt {
            return Choice::NoRoom;
        }
        let to = (tenant.to_owned(), receiver(url));
        let may = match self.is_doubted(&to.0, &to.1) {
            true => may_be_in_doubt && !doubted.contains(&&to),
            false => may_be_well,
        };
        if !may || self.jobs.contains_key(job) {
            return Choice::PassedOver;
        }
        self.jobs.insert(job.to_owned(), to);
        Choice::Taken
    }

    fn landed(&mut self, notice: &Notice, well: bool) {
        self.jobs.remove(&notice.job);
        let (doubted, receiver) = (
            self.doubted.entry(notice.tenant.clone()).or_default(),
            receiver(&notice.url),
        );
        let known = doubted.iter().position(|one| *one == receiver);
        match (well, known) {
            (true, Some(place)) => drop(doubted.remove(place)),
            // One who takes notices after all speaks for the tenant.
            (true, None) if doubted.len() >= MOST_DOUBTED => drop(doubted.remove(0)),
            (false, None) if doubted.len() < MOST_DOUBTED => doubted.push(receiver),
            (true | false, _) => {}
        }
        self.doubted.retain(|_, doubted| !doubted.is_empty());
    }
}

type UnderWay = Arc<Mutex<Sky>>;

/// Delivers for ever.
pub(crate) async fn deliver(gateway: Gateway) {
    let (under_way, landed) = (UnderWay::default(), Arc::new(Notify::new()));
    let (mut flights, mut round, mut tidied) = (JoinSet::new(), Round::default(), 0);
    loop {
        while flights.try_join_next().is_some() {}
        match due(&gateway, &under_way, &mut round).await {
            Ok(notices) => {
                for notice in notices {
                    let to = (notice.tenant.clone(), receiver(&notice.url));
                    lock(&under_way).jobs.insert(notice.job.clone(), to);
                    flights.spawn(fly(
                        gateway.clone(),
                        notice,
                        under_way.clone(),
                        landed.clone(),
                    ));
                }
            }
            Err(()) => tokio::time::sleep(AFTER_TROUBLE).await,
        }
        let now = engine::now().0;
        if now > tidied + BETWEEN_TIDYINGS_MS {
            tidied = now;
            tidy(&gateway, now).await;
        }
        // A look costs little; who changes a job has nobody to tell that a notice waits.
        _ = tokio::time::timeout(BETWEEN_LOOKS, landed.notified()).await;
    }
}

async fn tidy(gateway: &Gateway, now: u64) {
    let before = now.saturating_sub(REMEMBERED_MS);
    // What could not be forgotten now is later.
    _ = gateway
        .writer()
        .write(move |writing| webhooks::forget(writing, before))
        .await;
}

fn lock(under_way: &UnderWay) -> std::sync::MutexGuard<'_, Sky> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What can be sent now.
async fn due(
    gateway: &Gateway,
    under_way: &UnderWay,
    round: &mut Round,
) -> Result<Vec<Notice>, ()> {
    let mut busy = lock(under_way).clone();
    let room = MOST_UNDER_WAY.saturating_sub(busy.jobs.len());
    if room == 0 {
        return Ok(Vec::new());
    }
    let (mut next, now) = (round.clone(), engine::now().0);
    let found = gateway.look_up(move |served| {
        let found = served.due_notices(now, &mut next, room, |waiting| busy.choose(waiting))?;
        Ok((found, next))
    });
    let (found, next) = found.await.map_err(drop)?;
    *round = next;
    Ok(found)
}

/// One notice, to the end of its attempt.
async fn fly(gateway: Gateway, notice: Notice, under_way: UnderWay, landed: Arc<Notify>) {
    let settled = attempt(&gateway, &notice).await;
    if let Settled::GivenUp(why) = &settled {
        say(format_args!(
            "airlock: the webhook of the job {} is given up: {}",
            notice.job,
            why.escape_debug()
        ));
    }
    let landing = notice.clone();
    let (well, written) = (settled == Settled::Delivered, settled);
    let done = gateway
        .writer()
        .write(move |writing| webhooks::settle(writing, &notice, &written))
        .await;
    if done.is_err() {
        // It waits as before, and is due at once.
        tokio::time::sleep(AFTER_TROUBLE).await;
    }
    lock(&under_way).landed(&landing, well);
    landed.notify_one();
}

async fn attempt(gateway: &Gateway, notice: &Notice) -> Settled {
    let webhooks = gateway.webhooks();
    let receiver = match webhooks.courier.check(&notice.url) {
        Ok(receiver) => receiver,
        Err(bad) => return Settled::GivenUp(bad.message),
    };
    let headers = match signed(gateway, notice).await {
        Ok(headers) => headers,
        // A key that cannot be read may be brought back.
        Err(why) => return judge(notice, webhooks.attempts, Err(Undelivered::Failed(why))),
    };
    let body = Bytes::from(notice.body.clone());
    judge(
        notice,
        webhooks.attempts,
        webhooks.courier.deliver(&receiver, headers, body).await,
    )
}

async fn signed(gateway: &Gateway, notice: &Notice) -> Result<http::HeaderMap, String> {
    let (gateway, notice) = (gateway.clone(), notice.clone());
    let signing = tokio::task::spawn_blocking(move || {
        let generation = gateway
            .served()
            .webhook_generation(&notice.tenant)
            .map_err(|error| error.to_string())?;
        let sent = (notice.id.as_str(), notice.body.as_str());
        let signed =
            gateway
                .webhooks()
                .signer
                .headers(&notice.tenant, generation, sent, engine::now().0);
        signed.map_err(|error| {
            say(format_args!(
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

/// What an answer means.
fn judge(notice: &Notice, most: u32, answer: Result<u16, Undelivered>) -> Settled {
    let why = match answer {
        Ok(200..=299) => return Settled::Delivered,
        Ok(410) => {
            return Settled::GivenUp("the receiver answered 410: it wants no more".to_owned());
        }
        Ok(status @ 300..=399) => {
            format!("the receiver answered {status}, and redirects are not followed")
        }
        Ok(status) => format!("the receiver answered {status}"),
        Err(Undelivered::Refused(why)) => return Settled::GivenUp(why),
        Err(Undelivered::Failed(why)) => why,
    };
    match notice.attempts + 1 >= most {
        true => Settled::GivenUp(format!("{why}; given up after {most} attempts")),
        false => put_off(notice, why),
    }
}

fn put_off(notice: &Notice, problem: String) -> Settled {
    let due_ms = engine::now()
        .0
        .saturating_add(pause_ms(notice.attempts, chance()));
    Settled::PutOff { due_ms, problem }
}

/// A second, doubled for each attempt before, up to an hour; a fifth of it more or less by chance, so that what failed
/// together does not come again together.
fn pause_ms(attempts: u32, chance: u8) -> u64 {
    let doubled = FIRST_PAUSE_MS.saturating_mul(1 << attempts.min(20));
    let pause = doubled.min(LONGEST_PAUSE_MS);
    (pause * (800 + u64::from(chance) * 400 / 255) / 1000).min(LONGEST_PAUSE_MS)
}

fn chance() -> u8 {
    let mut byte = [128];
    // Without chance the middle will do.
    _ = SystemRandom::new().fill(&mut byte);
    byte[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notice(attempts: u32) -> Notice {
        let text = String::new;
        Notice {
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
            (pause_ms(0, 0), pause_ms(0, 128), pause_ms(0, 255)),
            (800, 1000, 1200)
        );
        assert_eq!((pause_ms(3, 128), pause_ms(10, 128)), (8000, 1_024_000));
        for attempts in [12, 40, u32::MAX] {
            assert!((2_880_000..=LONGEST_PAUSE_MS).contains(&pause_ms(attempts, 0)));
            assert_eq!(pause_ms(attempts, 255), LONGEST_PAUSE_MS);
        }
    }

    fn to(tenant: &str, job: &str, host: &str) -> Notice {
        let url = format!("https://{host}/x");
        Notice {
            tenant: tenant.to_owned(),
            job: job.to_owned(),
            url,
            ..notice(0)
        }
    }

    /// How many of so many more are taken.
    fn fill(sky: &mut Sky, tenant: &str, host: &str, count: usize) -> usize {
        let all = sky.jobs.len();
        for number in 0..count.min(MOST_UNDER_WAY - all) {
            let job = format!("{tenant}{host}{number}");
            let url = format!("https://{host}/{number}");
            sky.choose(Waiting {
                job: &job,
                tenant,
                url: &url,
            });
        }
        sky.jobs.len() - all
    }

    #[test]
    fn receivers_that_never_answer_hold_nobody_else_up() {
        let mut sky = Sky::default();
        assert_eq!(fill(&mut sky, "a", "a", 9), 4);
        let dead: Vec<_> = (0..40).map(|number| format!("dead{number}")).collect();
        dead.iter()
            .for_each(|tenant| sky.landed(&to(tenant, "", "dead"), false));
        assert_eq!(
            dead.iter()
                .map(|tenant| fill(&mut sky, tenant, "dead", 9))
                .sum::<usize>(),
            16
        );
        assert_eq!(
            ["b", "c", "d", "e", "f"].map(|tenant| fill(&mut sky, tenant, tenant, 9)),
            [4, 4, 2, 1, 1]
        );
        sky.landed(&to(&dead[0], "", "DEAD"), true);
        assert!(!sky.is_doubted(&dead[0], "dead"), "one yes is enough");
    }

    #[test]
    fn a_receiver_that_is_down_takes_nothing_from_others_of_its_tenant() {
        let mut sky = Sky::default();
        sky.landed(&to("a", "", "down"), false);
        assert_eq!(
            [("down", 9), ("up", 9), ("down", 9)]
                .map(|(host, count)| fill(&mut sky, "a", host, count)),
            [1, 4, 0]
        );
        let full = sky.choose(Waiting {
            job: "x",
            tenant: "a",
            url: "https://up/",
        });
        assert_eq!(
            full,
            Choice::PassedOver,
            "another that is in doubt could go"
        );
        let many: Vec<_> = (0..99).map(|number| format!("host{number}")).collect();
        many.iter()
            .for_each(|host| sky.landed(&to("b", "", host), false));
        assert_eq!(
            (sky.doubted["b"].len(), sky.is_doubted("b", "new")),
            (MOST_DOUBTED, true)
        );
        assert_eq!(
            many.iter()
                .map(|host| fill(&mut sky, "b", host, 9))
                .sum::<usize>(),
            4
        );
        sky.landed(&to("b", "", "new"), true);
        assert!(!sky.is_doubted("b", "new") && sky.is_doubted("b", "host5"));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn who_waits_for_later_takes_nothing_from_whoever_is_due() {
        let place = crate::workspaces::tests::Place::new("webhooks-due", &[]);
        let (gateway, under_way) = (place.gateway(Vec::new()), UnderWay::default());
        let later = engine::now().0 + 3_600_000;
        let tenants: Vec<_> = (0..20).map(|number| format!("dead{number}")).collect();
        let add = |writing: &store::served::Writing<'_>| {
            let all = tenants
                .iter()
                .map(|tenant| (tenant.as_str(), later))
                .chain([("well", 1)]);
            all.into_iter().try_for_each(|(tenant, at_ms)| {
                let (url, event, body) = ("https://host/", "final", "{}");
                let (id, job) = (tenant, tenant);
                webhooks::enqueue(
                    writing,
                    &webhooks::NewNotice {
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
        gateway.served().together_durably(add).unwrap();
        let all = tenants.iter().map(String::as_str).chain(["well"]);
        all.for_each(|tenant| lock(&under_way).landed(&to(tenant, "", "host"), false));
        let found = due(&gateway, &under_way, &mut Round::default())
            .await
            .unwrap();
        assert_eq!(
            found
                .into_iter()
                .map(|notice| notice.tenant)
                .collect::<Vec<_>>(),
            ["well"]
        );
    }

    #[test]
    fn only_a_yes_is_one() {
        for status in [200, 204, 299] {
            assert_eq!(judge(&notice(0), 3, Ok(status)), Settled::Delivered);
        }
        for status in [100, 199, 301, 307, 400, 404, 429, 500, 503] {
            assert!(
                matches!(judge(&notice(0), 3, Ok(status)), Settled::PutOff { .. }),
                "{status}"
            );
            let Settled::GivenUp(why) = judge(&notice(2), 3, Ok(status)) else {
                panic!("{status}")
            };
            assert!(why.ends_with("; given up after 3 attempts"), "{why}");
        }
        assert!(matches!(judge(&notice(0), 3, Ok(410)), Settled::GivenUp(_)));
        let refused = Undelivered::Refused("private".into());
        assert_eq!(
            judge(&notice(0), 3, Err(refused)),
            Settled::GivenUp("private".into())
        );
        let failed = Undelivered::Failed("down".into());
        assert!(matches!(
            judge(&notice(0), 3, Err(failed)),
            Settled::PutOff { .. }
        ));
    }
}
