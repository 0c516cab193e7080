//! Delivers notices that wait: a few at a time, of every tenant some, and one of each job. Whose last attempt failed has one
//! at a time, and all of those together no more than half: receivers that never answer hold nobody else up. What fails is tried again after
//! a pause that doubles, until it is given up.
//!
//! That a notice was taken is written down afterwards: after a crash in between it goes out once more, with the same
//! `webhook-id`.

use crate::{Gateway, say};
use bytes::Bytes;
use engine::Undelivered;
use ring::rand::{SecureRandom, SystemRandom};
use std::{
    cell::Cell,
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use store::webhooks::{self, Notice, Settled};
use tokio::{sync::Notify, task::JoinSet};

/// Notices under way at a time, and those of one tenant: a receiver that is slow holds nobody else up.
const MOST_UNDER_WAY: usize = 32;
const MOST_OF_ONE: usize = 4;
/// Those of all tenants whose last attempt failed.
const MOST_IN_DOUBT: usize = MOST_UNDER_WAY / 2;
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
    /// Jobs, with whose they are.
    jobs: HashMap<String, String>,
    /// Tenants whose last attempt failed.
    doubted: HashSet<String>,
}

impl Sky {
    /// How many more a tenant may send, where those in doubt may have so many more together.
    fn room(&self, tenant: &str, doubts: usize) -> usize {
        let own = self.jobs.values().filter(|owner| *owner == tenant).count();
        if self.doubted.contains(tenant) {
            return 1_usize.saturating_sub(own).min(doubts);
        }
        let left = MOST_UNDER_WAY.saturating_sub(self.jobs.len() - own);
        MOST_OF_ONE.min(left.div_ceil(2)).saturating_sub(own)
    }

    /// How many more there may be of those in doubt.
    fn doubts(&self) -> usize {
        let under_way = self.jobs.values().filter(|owner| self.doubted.contains(*owner)).count();
        MOST_IN_DOUBT.saturating_sub(under_way)
    }

    fn landed(&mut self, notice: &Notice, well: bool) {
        match well {
            true => self.doubted.remove(&notice.tenant),
            false => self.doubted.insert(notice.tenant.clone()),
        };
    }
}

type UnderWay = Arc<Mutex<Sky>>;

/// Delivers for ever.
pub(crate) async fn deliver(gateway: Gateway) {
    let (under_way, landed) = (UnderWay::default(), Arc::new(Notify::new()));
    let (mut flights, mut last, mut tidied) = (JoinSet::new(), String::new(), 0);
    loop {
        while flights.try_join_next().is_some() {}
        match due(&gateway, &under_way, &last).await {
            Ok(notices) => {
                for notice in notices {
                    last.clone_from(&notice.tenant);
                    lock(&under_way).jobs.insert(notice.job.clone(), notice.tenant.clone());
                    flights.spawn(fly(gateway.clone(), notice, under_way.clone(), landed.clone()));
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
    _ = gateway.writer().write(move |writing| webhooks::forget(writing, before)).await;
}

fn lock(under_way: &UnderWay) -> std::sync::MutexGuard<'_, Sky> {
    under_way.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What can be sent now. Tenants behind the last one come first.
async fn due(gateway: &Gateway, under_way: &UnderWay, last: &str) -> Result<Vec<Notice>, ()> {
    let busy = lock(under_way).clone();
    let room = MOST_UNDER_WAY.saturating_sub(busy.jobs.len());
    if room == 0 {
        return Ok(Vec::new());
    }
    let (last, now) = (last.to_owned(), engine::now().0);
    let found = gateway.look_up(move |served| {
        let doubts = Cell::new(busy.doubts());
        let of_one = |tenant: &str| {
            let room = busy.room(tenant, doubts.get());
            // Whether it has something to send or not: the next look is soon.
            if busy.doubted.contains(tenant) {
                doubts.set(doubts.get() - room);
            }
            room as u32
        };
        served.due_notices(now, (&last, room), of_one, |job| busy.jobs.contains_key(job))
    });
    found.await.map_err(drop)
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
    let done = gateway.writer().write(move |writing| webhooks::settle(writing, &notice, &written)).await;
    if done.is_err() {
        // It waits as before, and is due at once.
        tokio::time::sleep(AFTER_TROUBLE).await;
    }
    let mut sky = lock(&under_way);
    sky.jobs.remove(&landing.job);
    sky.landed(&landing, well);
    drop(sky);
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
    judge(notice, webhooks.attempts, webhooks.courier.deliver(&receiver, headers, body).await)
}

async fn signed(gateway: &Gateway, notice: &Notice) -> Result<http::HeaderMap, String> {
    let (gateway, notice) = (gateway.clone(), notice.clone());
    let signing = tokio::task::spawn_blocking(move || {
        let generation =
            gateway.served().webhook_generation(&notice.tenant).map_err(|error| error.to_string())?;
        let sent = (notice.id.as_str(), notice.body.as_str());
        let signed = gateway.webhooks().signer.headers(&notice.tenant, generation, sent, engine::now().0);
        signed.map_err(|error| {
            say(format_args!("airlock: no webhook can be signed: {}", error.message));
            "it cannot be signed; the operator is told why".to_owned()
        })
    });
    signing.await.unwrap_or_else(|_| Err("it cannot be signed now".to_owned()))
}

/// What an answer means.
fn judge(notice: &Notice, most: u32, answer: Result<u16, Undelivered>) -> Settled {
    let why = match answer {
        Ok(200..=299) => return Settled::Delivered,
        Ok(410) => return Settled::GivenUp("the receiver answered 410: it wants no more".to_owned()),
        Ok(status @ 300..=399) => format!("the receiver answered {status}, and redirects are not followed"),
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
    let due_ms = engine::now().0.saturating_add(pause_ms(notice.attempts, chance()));
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
        Notice { n: 1, id: text(), job: text(), tenant: text(), url: text(), body: text(), attempts }
    }

    #[test]
    fn pauses_double_from_a_second_to_an_hour() {
        assert_eq!((pause_ms(0, 0), pause_ms(0, 128), pause_ms(0, 255)), (800, 1000, 1200));
        assert_eq!((pause_ms(3, 128), pause_ms(10, 128)), (8000, 1_024_000));
        for attempts in [12, 40, u32::MAX] {
            assert!((2_880_000..=LONGEST_PAUSE_MS).contains(&pause_ms(attempts, 0)));
            assert_eq!(pause_ms(attempts, 255), LONGEST_PAUSE_MS);
        }
    }

    #[test]
    fn receivers_that_never_answer_hold_nobody_else_up() {
        let mut sky = Sky::default();
        let fill = |sky: &mut Sky, tenant: &str| {
            let room = sky.room(tenant, sky.doubts()).min(MOST_UNDER_WAY - sky.jobs.len());
            for number in 0..room {
                sky.jobs.insert(format!("{tenant}{number}"), tenant.to_owned());
            }
            room
        };
        assert_eq!(fill(&mut sky, "a"), 4);
        let dead: Vec<_> = (0..40).map(|number| format!("dead{number}")).collect();
        dead.iter().for_each(|tenant| sky.landed(&Notice { tenant: tenant.clone(), ..notice(0) }, false));
        assert_eq!(dead.iter().map(|tenant| fill(&mut sky, tenant)).sum::<usize>(), 16);
        assert_eq!(["b", "c", "d", "e", "f"].map(|tenant| fill(&mut sky, tenant)), [4, 4, 2, 1, 1]);
        sky.landed(&Notice { tenant: dead[0].clone(), ..notice(0) }, true);
        assert!(!sky.doubted.contains(&dead[0]), "one yes is enough");
    }

    #[test]
    fn only_a_yes_is_one() {
        for status in [200, 204, 299] {
            assert_eq!(judge(&notice(0), 3, Ok(status)), Settled::Delivered);
        }
        for status in [100, 199, 301, 307, 400, 404, 429, 500, 503] {
            assert!(matches!(judge(&notice(0), 3, Ok(status)), Settled::PutOff { .. }), "{status}");
            let Settled::GivenUp(why) = judge(&notice(2), 3, Ok(status)) else { panic!("{status}") };
            assert!(why.ends_with("; given up after 3 attempts"), "{why}");
        }
        assert!(matches!(judge(&notice(0), 3, Ok(410)), Settled::GivenUp(_)));
        let refused = Undelivered::Refused("private".into());
        assert_eq!(judge(&notice(0), 3, Err(refused)), Settled::GivenUp("private".into()));
        let failed = Undelivered::Failed("down".into());
        assert!(matches!(judge(&notice(0), 3, Err(failed)), Settled::PutOff { .. }));
    }
}
