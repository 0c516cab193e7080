//! The link task with a broker that says what a test wants, and writes down what it hears. Time stands still.

use super::*;
use std::sync::{Arc, Mutex};
use tokio::time::Instant;

/// What a connection was asked to do.
#[derive(Debug, PartialEq)]
enum Did {
    Subscribed(String),
    Unsubscribed(String),
    Published(u64, String),
    Settled(u64),
    Released(u64),
    Idled,
    Closed,
}

/// The test's end of a connection.
struct Broker {
    says: mpsc::UnboundedSender<Result<ConnectionEvent, ConnectionError>>,
    did: mpsc::UnboundedReceiver<Did>,
}

struct Scripted {
    hears: mpsc::UnboundedReceiver<Result<ConnectionEvent, ConnectionError>>,
    does: mpsc::UnboundedSender<Did>,
    refuses: Option<String>,
}

/// Each try takes the next answer of the script; without one it waits for ever.
struct Script {
    answers: mpsc::UnboundedReceiver<Result<Scripted, ConnectionError>>,
    tries: Arc<Mutex<Vec<Instant>>>,
}

impl Connector for Script {
    type Connection = Scripted;

    fn address(&self) -> String {
        "script".to_owned()
    }

    fn redelivers(&self) -> bool {
        true
    }

    fn releases(&self) -> bool {
        true
    }

    async fn connect(&mut self) -> Result<Scripted, ConnectionError> {
        self.tries.lock().unwrap().push(Instant::now());
        self.answers
            .recv()
            .await
            .unwrap_or_else(|| Err(trouble("no more script", true)))
    }
}

impl Scripted {
    fn does(&self, what: Did) {
        // A test may have seen enough.
        _ = self.does.send(what);
    }
}

impl Connection for Scripted {
    async fn next(&mut self) -> Result<ConnectionEvent, ConnectionError> {
        self.hears
            .recv()
            .await
            .unwrap_or_else(|| Err(trouble("the broker is gone", false)))
    }

    async fn idle(&mut self) -> ConnectionError {
        self.does(Did::Idled);
        std::future::pending().await
    }

    async fn subscribe(&mut self, to: &Subscription) -> Result<(), ConnectionError> {
        if self.refuses.as_ref() == Some(&to.pattern) {
            return Err(trouble("refused", false));
        }
        self.does(Did::Subscribed(to.pattern.clone()));
        Ok(())
    }

    async fn unsubscribe(&mut self, from: &Subscription) -> Result<(), ConnectionError> {
        self.does(Did::Unsubscribed(from.pattern.clone()));
        Ok(())
    }

    async fn publish(
        &mut self,
        number: u64,
        message: &OutgoingMessage,
    ) -> Result<(), ConnectionError> {
        self.does(Did::Published(number, message.topic.clone()));
        Ok(())
    }

    async fn settle(&mut self, tag: u64) -> Result<(), ConnectionError> {
        self.does(Did::Settled(tag));
        Ok(())
    }

    async fn release(&mut self, tag: u64) -> Result<(), ConnectionError> {
        self.does(Did::Released(tag));
        Ok(())
    }

    async fn close(self) {
        self.does(Did::Closed);
    }
}

impl Broker {
    fn message(&self, tag: u64, topic: &str) {
        let (topic, payload, properties) = (topic.to_owned(), Bytes::new(), Properties::new());
        self.says
            .send(Ok(ConnectionEvent::Message {
                tag: Some(tag),
                topic,
                payload,
                properties,
            }))
            .unwrap();
    }

    fn says(&self, event: ConnectionEvent) {
        self.says.send(Ok(event)).unwrap();
    }

    async fn did(&mut self) -> Did {
        // When all wait for ever, time moves on to this.
        let did = tokio::time::timeout(Duration::from_secs(3600), self.did.recv()).await;
        did.expect("something is done")
            .expect("the connection is there")
    }
}

fn trouble(message: &str, is_final: bool) -> ConnectionError {
    ConnectionError {
        message: message.to_owned(),
        is_final,
        is_timeout: false,
    }
}

/// The test's end of a link.
struct World {
    answers: mpsc::UnboundedSender<Result<Scripted, ConnectionError>>,
    tries: Arc<Mutex<Vec<Instant>>>,
    link: Link,
}

fn world(patterns: &[&str], tries: u64) -> World {
    let (answers, script) = mpsc::unbounded_channel();
    let made = Arc::new(Mutex::new(Vec::new()));
    let connector = Script {
        answers: script,
        tries: made.clone(),
    };
    let subscriptions = patterns
        .iter()
        .map(|pattern| subscription(pattern))
        .collect();
    let patience = ReconnectPolicy {
        tries,
        pause: Duration::from_secs(3),
    };
    World {
        answers,
        tries: made,
        link: Link::start(connector, subscriptions, patience),
    }
}

fn subscription(pattern: &str) -> Subscription {
    Subscription {
        pattern: pattern.to_owned(),
        is_shared: false,
    }
}

fn outgoing(topic: &str) -> OutgoingMessage {
    OutgoingMessage {
        topic: topic.to_owned(),
        payload: Bytes::new(),
        properties: Properties::new(),
    }
}

impl World {
    fn lets_in_but(&self, refuses: Option<&str>) -> Broker {
        let (says, hears) = mpsc::unbounded_channel();
        let (does, did) = mpsc::unbounded_channel();
        let refuses = refuses.map(str::to_owned);
        assert!(
            self.answers
                .send(Ok(Scripted {
                    hears,
                    does,
                    refuses
                }))
                .is_ok()
        );
        Broker { says, did }
    }

    fn lets_in(&self) -> Broker {
        self.lets_in_but(None)
    }

    fn refuses(&self, is_final: bool) {
        assert!(self.answers.send(Err(trouble("no", is_final))).is_ok());
    }

    async fn until(&mut self, wanted: LinkState) {
        let wait = self.link.state.wait_for(|state| *state == wanted);
        let reached = tokio::time::timeout(Duration::from_secs(3600), wait).await;
        reached
            .expect("it comes to that")
            .expect("the link is there");
    }

    async fn connected(&mut self) {
        self.until(LinkState::Connected).await;
    }
}

#[tokio::test(start_paused = true)]
async fn it_is_connected_when_everything_is_subscribed() {
    let mut world = world(&["a", "b"], 0);
    assert_eq!(
        *world.link.state.borrow(),
        LinkState::Connecting {
            why: String::new(),
            after: 0
        }
    );
    let mut broker = world.lets_in();
    world.connected().await;
    assert_eq!(broker.did().await, Did::Subscribed("a".to_owned()));
    assert_eq!(broker.did().await, Did::Subscribed("b".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn what_was_subscribed_and_not_confirmed_is_said_again_to_the_next_connection_in_its_order() {
    let mut world = world(&["a", "b"], 0);
    let mut first = world.lets_in();
    world.connected().await;
    world.link.publisher.unsubscribe(subscription("a")).await;
    world.link.publisher.subscribe(subscription("c")).await;
    let sends = ["x", "y", "z"].map(|topic| {
        let reach = world.link.publisher.clone();
        async move { reach.publish(outgoing(topic)).await }
    });
    let [x, y, z] = sends.map(tokio::spawn);
    for _ in 0..4 {
        first.did().await;
    }
    let sent = [first.did().await, first.did().await, first.did().await];
    let Did::Published(_, middle) = &sent[1] else {
        panic!("{sent:?}")
    };
    assert!(["x", "y", "z"].contains(&middle.as_str()));
    first.says(ConnectionEvent::Confirmed(2));
    drop(first);
    let mut second = world.lets_in();
    let begun = [second.did().await, second.did().await, second.did().await];
    assert_eq!(
        begun[..2],
        [
            Did::Subscribed("b".to_owned()),
            Did::Subscribed("c".to_owned())
        ]
    );
    assert_eq!(begun[2], sent[0]);
    second.says(ConnectionEvent::Confirmed(1));
    assert_eq!(
        second.did().await,
        sent[2],
        "what was confirmed is not sent again"
    );
    second.says(ConnectionEvent::Refused(3, "no room".to_owned()));
    let mut told = [x.await.unwrap(), y.await.unwrap(), z.await.unwrap()];
    told.sort_by_key(Result::is_err);
    assert_eq!(
        told,
        [
            Ok(()),
            Ok(()),
            Err(PublishError::Rejected("no room".to_owned()))
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_is_settled_where_it_came_from_and_nowhere_else() {
    let mut world = world(&[], 0);
    let mut first = world.lets_in();
    first.message(7, "old");
    let old = world.link.arrived.recv().await.unwrap();
    first.message(8, "older");
    let older = world.link.arrived.recv().await.unwrap();
    older.receipt.settle().await;
    assert_eq!(first.did().await, Did::Settled(8));
    first.message(9, "oldest");
    let oldest = world.link.arrived.recv().await.unwrap();
    assert!(oldest.receipt.can_release());
    oldest.receipt.release().await;
    assert_eq!(first.did().await, Did::Released(9));
    first.message(10, "other");
    let other = world.link.arrived.recv().await.unwrap();
    drop(first);
    let mut second = world.lets_in();
    second.message(7, "new");
    let new = world.link.arrived.recv().await.unwrap();
    assert_eq!((old.topic.as_str(), new.topic.as_str()), ("old", "new"));
    old.receipt.settle().await;
    other.receipt.release().await;
    new.receipt.settle().await;
    assert_eq!(second.did().await, Did::Settled(7));
    // If it had been told twice it would have been told before this.
    world.link.publisher.unsubscribe(subscription("end")).await;
    assert_eq!(second.did().await, Did::Unsubscribed("end".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn tries_are_counted_and_paused_and_begin_anew_after_a_good_connection() {
    let mut world = world(&[], 2);
    world.refuses(false);
    let broker = world.lets_in();
    world.connected().await;
    drop(broker);
    world.refuses(false);
    let broker = world.lets_in();
    world
        .until(LinkState::Connecting {
            why: "script: no".to_owned(),
            after: 1,
        })
        .await;
    world.connected().await;
    drop(broker);
    world.refuses(false);
    world.refuses(false);
    world
        .until(LinkState::Lost {
            why: "script: no".to_owned(),
        })
        .await;
    let tries = world.tries.lock().unwrap().clone();
    let pauses: Vec<_> = tries
        .windows(2)
        .map(|two| (two[1] - two[0]).as_secs())
        .collect();
    assert_eq!(pauses, [3; 5]);
    let over = world.link.publisher.publish(outgoing("x")).await;
    assert_eq!(over, Err(PublishError::LinkClosed));
    world.link.task.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_hope_it_is_not_tried_again() {
    let mut world = world(&[], 0);
    world.refuses(false);
    world.refuses(true);
    let waits = world.link.publisher.clone();
    let waits = tokio::spawn(async move { waits.publish(outgoing("x")).await });
    world
        .until(LinkState::Lost {
            why: "script: no".to_owned(),
        })
        .await;
    assert_eq!(world.tries.lock().unwrap().len(), 2);
    assert_eq!(waits.await.unwrap(), Err(PublishError::LinkClosed));
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_refuses_a_subscription_is_a_failure() {
    let mut world = world(&["a"], 2);
    let (first, second) = (world.lets_in_but(Some("a")), world.lets_in_but(Some("a")));
    world
        .until(LinkState::Lost {
            why: "script: refused".to_owned(),
        })
        .await;
    assert_eq!(world.tries.lock().unwrap().len(), 2);
    drop((first, second));
}

#[tokio::test(start_paused = true)]
async fn one_that_nobody_uses_says_farewell() {
    let mut world = world(&[], 0);
    let mut broker = world.lets_in();
    world.connected().await;
    broker.message(1, "held");
    let arrived = world.link.arrived.recv().await.unwrap();
    let Link {
        publisher: reach,
        task,
        arrived: receiver,
        ..
    } = world.link;
    drop(reach);
    arrived.receipt.settle().await;
    assert_eq!(broker.did().await, Did::Settled(1), "a receipt is a use");
    assert_eq!(broker.did().await, Did::Closed);
    task.await.unwrap();
    drop(receiver);
}

#[tokio::test(start_paused = true)]
async fn while_nobody_takes_what_came_orders_are_carried_out_and_nothing_is_read() {
    let mut world = world(&[], 0);
    let mut broker = world.lets_in();
    world.connected().await;
    let count = MAX_INCOMING as u64 + 3;
    (1..=count).for_each(|tag| broker.message(tag, "m"));
    assert_eq!(broker.did().await, Did::Idled, "it is kept alive");
    world.link.publisher.unsubscribe(subscription("x")).await;
    assert_eq!(broker.did().await, Did::Unsubscribed("x".to_owned()));
    // One waits in the keeper; the two behind it were not read.
    assert_eq!(world.link.arrived.len(), MAX_INCOMING);
    for expected in 1..=count {
        let arrived = world.link.arrived.recv().await.unwrap();
        assert_eq!(
            arrived.receipt.of.map(|(_, tag)| tag),
            Some(expected),
            "nothing is lost, nothing is out of order"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_broker_does_not_take_for_now_is_told_as_such_and_holds_back_nothing() {
    let mut world = world(&[], 0);
    let mut broker = world.lets_in();
    world.connected().await;
    for number in 1..=MAX_UNCONFIRMED as u64 + 5 {
        let reach = world.link.publisher.clone();
        let sends = tokio::spawn(async move { reach.publish(outgoing("x")).await });
        assert_eq!(broker.did().await, Did::Published(number, "x".to_owned()));
        broker.says(ConnectionEvent::NotNow(number, "quota exceeded".to_owned()));
        assert_eq!(
            sends.await.unwrap(),
            Err(PublishError::Temporary("quota exceeded".to_owned()))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn each_connection_that_ends_is_another_state_though_for_the_same_reason_and_unseen() {
    let mut world = world(&[], 0);
    for after in 1..=3 {
        // It is over before anybody can have looked.
        drop(world.lets_in());
        world
            .until(LinkState::Connecting {
                why: "script: the broker is gone".to_owned(),
                after,
            })
            .await;
    }
    world.refuses(false);
    world
        .until(LinkState::Connecting {
            why: "script: no".to_owned(),
            after: 3,
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_number_of_unconfirmed_messages_is_bounded() {
    let mut world = world(&[], 0);
    let mut broker = world.lets_in();
    world.connected().await;
    let sends: Vec<_> = (0..MAX_UNCONFIRMED + 5)
        .map(|_| {
            let reach = world.link.publisher.clone();
            tokio::spawn(async move { reach.publish(outgoing("x")).await })
        })
        .collect();
    for number in 1..=MAX_UNCONFIRMED as u64 {
        assert_eq!(broker.did().await, Did::Published(number, "x".to_owned()));
    }
    // Time stands still while anybody can do anything: it moves on only when all wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(broker.did.is_empty());
    (1..=MAX_UNCONFIRMED as u64 + 5)
        .for_each(|number| broker.says(ConnectionEvent::Confirmed(number)));
    for number in 1..=5 {
        let number = MAX_UNCONFIRMED as u64 + number;
        assert_eq!(broker.did().await, Did::Published(number, "x".to_owned()));
        broker.says(ConnectionEvent::Confirmed(number));
    }
    for send in sends {
        assert_eq!(send.await.unwrap(), Ok(()));
    }
}

fn sends(
    world: &World,
    topic: &'static str,
    audience: &str,
) -> JoinHandle<Result<(), PublishError>> {
    let (reach, family) = (
        world.link.publisher.clone(),
        MessageClass::Recipient(audience.to_owned()),
    );
    tokio::spawn(async move { reach.publish_class(family, outgoing(topic)).await })
}

/// Time moves on only when all wait.
async fn nothing_is_done(broker: &mut Broker) {
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(broker.did.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_message_over_which_the_broker_ends_two_connections_is_given_up_and_others_go() {
    let world = world(&["a"], 0);
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Subscribed("a".to_owned()));
    let poison = sends(&world, "poison", "one");
    assert_eq!(broker.did().await, Did::Published(1, "poison".to_owned()));
    let good = sends(&world, "good", "other");
    assert_eq!(broker.did().await, Did::Published(2, "good".to_owned()));
    drop(broker);
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Subscribed("a".to_owned()));
    assert_eq!(broker.did().await, Did::Published(1, "poison".to_owned()));
    let late = sends(&world, "late", "other");
    nothing_is_done(&mut broker).await;
    drop(broker);
    let told = poison.await.unwrap().unwrap_err();
    let why = "the broker ends each connection by which it is sent: the broker is gone. ";
    assert!(
        matches!(&told, PublishError::ConnectionEnded(told) if told.starts_with(why)),
        "{told:?}"
    );
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Subscribed("a".to_owned()));
    assert_eq!(broker.did().await, Did::Published(2, "good".to_owned()));
    nothing_is_done(&mut broker).await;
    broker.says(ConnectionEvent::Confirmed(2));
    assert_eq!(good.await.unwrap(), Ok(()));
    assert_eq!(broker.did().await, Did::Published(3, "late".to_owned()));
    broker.says(ConnectionEvent::Confirmed(3));
    assert_eq!(late.await.unwrap(), Ok(()));
    let tries = world.tries.lock().unwrap().clone();
    let pauses: Vec<_> = tries
        .windows(2)
        .map(|two| (two[1] - two[0]).as_secs())
        .collect();
    assert_eq!(
        pauses,
        [3, 0],
        "nothing is waited for when it is known over what it ended"
    );
}

#[tokio::test(start_paused = true)]
async fn after_one_that_was_given_up_others_of_its_family_rest_and_then_go_alone() {
    let world = world(&[], 0);
    let mut broker = world.lets_in();
    let (poison, same) = (sends(&world, "poison", "one"), sends(&world, "same", "one"));
    let first = [broker.did().await, broker.did().await];
    drop(broker);
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, first[0]);
    drop(broker);
    let mut both = [poison.await.unwrap(), same.await.unwrap()];
    both.sort_by_key(|told| matches!(told, Err(PublishError::BackedOff(_))));
    assert!(
        matches!(
            both,
            [
                Err(PublishError::ConnectionEnded(_)),
                Err(PublishError::BackedOff(_))
            ]
        ),
        "{both:?}"
    );
    let mut broker = world.lets_in();
    assert!(matches!(
        sends(&world, "again", "one").await.unwrap(),
        Err(PublishError::BackedOff(_))
    ));
    let other = sends(&world, "other", "other");
    assert_eq!(broker.did().await, Did::Published(3, "other".to_owned()));
    tokio::time::sleep(super::super::poison::INITIAL_BACKOFF).await;
    let later = sends(&world, "later", "one");
    nothing_is_done(&mut broker).await;
    broker.says(ConnectionEvent::Confirmed(3));
    assert_eq!(other.await.unwrap(), Ok(()));
    assert_eq!(broker.did().await, Did::Published(4, "later".to_owned()));
    broker.says(ConnectionEvent::Confirmed(4));
    assert_eq!(later.await.unwrap(), Ok(()));
    let [one, two] = ["x", "y"].map(|topic| sends(&world, topic, "one"));
    let both = [broker.did().await, broker.did().await];
    assert!(
        matches!(both[1], Did::Published(6, _)),
        "nothing is held against it any more"
    );
    [5, 6]
        .into_iter()
        .for_each(|number| broker.says(ConnectionEvent::Confirmed(number)));
    assert_eq!((one.await.unwrap(), two.await.unwrap()), (Ok(()), Ok(())));
}

#[tokio::test(start_paused = true)]
async fn what_goes_alone_goes_though_its_family_rests_and_costs_one_connection() {
    let world = world(&[], 0);
    for topic in ["poison", "poison"] {
        let mut broker = world.lets_in();
        let (reach, family) = (
            world.link.publisher.clone(),
            MessageClass::Recipient("one".to_owned()),
        );
        let alone = tokio::spawn(async move { reach.publish_alone(family, outgoing(topic)).await });
        assert!(matches!(broker.did().await, Did::Published(..)));
        drop(broker);
        assert!(matches!(
            alone.await.unwrap(),
            Err(PublishError::ConnectionEnded(_))
        ));
    }
}

#[tokio::test(start_paused = true)]
async fn a_broker_that_is_waited_for_in_vain_has_refused_nothing() {
    let world = world(&[], 0);
    let reach = world.link.publisher.clone();
    let send = tokio::spawn(async move { reach.publish(outgoing("x")).await });
    for is_timeout in [true, false, true, true, true] {
        let mut broker = world.lets_in();
        assert_eq!(broker.did().await, Did::Published(1, "x".to_owned()));
        broker
            .says
            .send(Err(ConnectionError {
                is_timeout,
                ..trouble("ended", false)
            }))
            .unwrap();
    }
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Published(1, "x".to_owned()));
    broker.says(ConnectionEvent::Confirmed(1));
    assert_eq!(send.await.unwrap(), Ok(()));
}

/// What whoever sends is told in the end.
async fn told(send: JoinHandle<Result<(), PublishError>>) -> Result<(), PublishError> {
    let told = tokio::time::timeout(Duration::from_secs(3600), send).await;
    told.expect("it is told").unwrap()
}

fn unanswered(number: u64) -> ConnectionEvent {
    ConnectionEvent::Unanswered(number, "no word".to_owned())
}

/// One after the other, under the next numbers, all for one audience.
async fn under_way(
    world: &World,
    broker: &mut Broker,
    from: u64,
    topics: &[&'static str],
) -> Vec<JoinHandle<Result<(), PublishError>>> {
    let mut sent = Vec::new();
    for (number, topic) in (from..).zip(topics) {
        sent.push(sends(world, topic, "one"));
        assert_eq!(
            broker.did().await,
            Did::Published(number, (*topic).to_owned())
        );
    }
    sent
}

async fn all_told(
    sends: Vec<JoinHandle<Result<(), PublishError>>>,
) -> Vec<Result<(), PublishError>> {
    let mut all = Vec::new();
    for send in sends {
        all.push(told(send).await);
    }
    all
}

fn given_back() -> Result<(), PublishError> {
    Err(PublishError::Temporary("no word".to_owned()))
}

#[tokio::test(start_paused = true)]
async fn what_a_good_connection_leaves_unanswered_is_given_back_and_nothing_is_held_against_others()
{
    let world = world(&[], 0);
    let mut broker = world.lets_in();
    let sent = under_way(&world, &mut broker, 1, &["silent", "slow", "good"]).await;
    broker.says(ConnectionEvent::Confirmed(3));
    broker.says(unanswered(1));
    let more = under_way(&world, &mut broker, 4, &["at once"]).await;
    [2, 4]
        .into_iter()
        .for_each(|number| broker.says(ConnectionEvent::Confirmed(number)));
    assert_eq!(all_told(sent).await, [given_back(), Ok(()), Ok(())]);
    assert_eq!(all_told(more).await, [Ok(())]);
    assert_eq!(
        world.tries.lock().unwrap().len(),
        1,
        "by the first connection"
    );
}

#[tokio::test(start_paused = true)]
async fn a_connection_by_which_nothing_is_answered_any_more_is_replaced_and_all_is_sent_again() {
    let world = world(&[], 0);
    let mut broker = world.lets_in();
    let sent = under_way(&world, &mut broker, 1, &["before", "x", "just now"]).await;
    broker.says(ConnectionEvent::Confirmed(1));
    broker.says(unanswered(2));
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Published(2, "x".to_owned()));
    assert_eq!(broker.did().await, Did::Published(3, "just now".to_owned()));
    let more = under_way(&world, &mut broker, 4, &["at once"]).await;
    [2, 3, 4]
        .into_iter()
        .for_each(|number| broker.says(ConnectionEvent::Confirmed(number)));
    assert_eq!(all_told(sent).await, [Ok(()), Ok(()), Ok(())]);
    assert_eq!(all_told(more).await, [Ok(())]);
}

#[tokio::test(start_paused = true)]
async fn what_two_connections_leave_unanswered_is_given_back_and_only_what_is_new_costs_another() {
    let world = world(&[], 0);
    let mut broker = world.lets_in();
    let sent = under_way(&world, &mut broker, 1, &["x", "y"]).await;
    broker.says(unanswered(1));
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Published(1, "x".to_owned()));
    assert_eq!(broker.did().await, Did::Published(2, "y".to_owned()));
    [1, 2]
        .into_iter()
        .for_each(|number| broker.says(unanswered(number)));
    assert_eq!(all_told(sent).await, [given_back(), given_back()]);
    let temporary = under_way(&world, &mut broker, 3, &["again"]).await;
    broker.says(unanswered(3));
    assert_eq!(all_told(temporary).await, [given_back()]);
    let new = sends(&world, "new", "another");
    assert_eq!(broker.did().await, Did::Published(4, "new".to_owned()));
    assert_eq!(world.tries.lock().unwrap().len(), 2);
    broker.says(unanswered(4));
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Published(4, "new".to_owned()));
    broker.says(ConnectionEvent::Confirmed(4));
    assert_eq!(told(new).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn of_an_audience_that_is_never_answered_few_are_under_way_until_one_is_answered() {
    let world = world(&[], 0);
    let mut broker = world.lets_in();
    let sent = under_way(&world, &mut broker, 1, &["silent", "good"]).await;
    broker.says(ConnectionEvent::Confirmed(2));
    broker.says(unanswered(1));
    assert_eq!(all_told(sent).await, [given_back(), Ok(())]);
    let mut few = under_way(&world, &mut broker, 3, &["few"; MAX_UNANSWERED]).await;
    assert!(matches!(
        sends(&world, "many", "one").await.unwrap(),
        Err(PublishError::BackedOff(_))
    ));
    let other = sends(&world, "other", "another");
    let mut last = 3 + MAX_UNANSWERED as u64;
    assert_eq!(
        broker.did().await,
        Did::Published(last, "other".to_owned()),
        "the control"
    );
    broker.says(ConnectionEvent::Confirmed(last));
    assert_eq!(told(other).await, Ok(()));
    broker.says(ConnectionEvent::Confirmed(3));
    assert_eq!(told(few.remove(0)).await, Ok(()));
    for _ in 0..2 {
        last += 1;
        few.push(sends(&world, "many", "one"));
        assert_eq!(broker.did().await, Did::Published(last, "many".to_owned()));
    }
}

#[tokio::test(start_paused = true)]
async fn suspects_that_were_unanswered_before_keep_nobody_waiting_one_by_one() {
    let world = world(&[], 0);
    let mut broker = world.lets_in();
    let sent = under_way(&world, &mut broker, 1, &["x", "y", "z"]).await;
    broker.says(unanswered(1));
    let mut broker = world.lets_in();
    for (number, topic) in [(1, "x"), (2, "y"), (3, "z")] {
        assert_eq!(broker.did().await, Did::Published(number, topic.to_owned()));
    }
    drop(broker);
    let mut broker = world.lets_in();
    assert_eq!(
        broker.did().await,
        Did::Published(1, "x".to_owned()),
        "alone"
    );
    nothing_is_done(&mut broker).await;
    broker.says(unanswered(1));
    let mut broker = world.lets_in();
    for (number, topic) in [(2, "y"), (3, "z")] {
        assert_eq!(broker.did().await, Did::Published(number, topic.to_owned()));
    }
    let other = sends(&world, "other", "another");
    assert_eq!(
        broker.did().await,
        Did::Published(4, "other".to_owned()),
        "orders are taken"
    );
    [2, 3, 4]
        .into_iter()
        .for_each(|number| broker.says(ConnectionEvent::Confirmed(number)));
    assert_eq!(all_told(sent).await, [given_back(), Ok(()), Ok(())]);
    assert_eq!(told(other).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn who_was_blamed_and_is_only_unanswered_then_goes_among_others_again() {
    let world = world(&[], 0);
    let mut broker = world.lets_in();
    let blamed = under_way(&world, &mut broker, 1, &["x"]).await;
    drop(broker);
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Published(1, "x".to_owned()));
    drop(broker);
    assert!(matches!(
        all_told(blamed).await[..],
        [Err(PublishError::ConnectionEnded(_))]
    ));
    let mut broker = world.lets_in();
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let doubtful = sends(&world, "doubtful", "one");
    assert_eq!(broker.did().await, Did::Published(2, "doubtful".to_owned()));
    let other = sends(&world, "other", "another");
    nothing_is_done(&mut broker).await;
    broker.says(unanswered(2));
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Published(2, "doubtful".to_owned()));
    assert_eq!(broker.did().await, Did::Published(3, "other".to_owned()));
    let next = sends(&world, "next", "one");
    assert_eq!(
        broker.did().await,
        Did::Published(4, "next".to_owned()),
        "beside the others"
    );
    [2, 3, 4]
        .into_iter()
        .for_each(|number| broker.says(ConnectionEvent::Confirmed(number)));
    assert_eq!(
        all_told(vec![doubtful, other, next]).await,
        [Ok(()), Ok(()), Ok(())]
    );
}

#[tokio::test(start_paused = true)]
async fn a_suspect_that_is_left_unanswered_goes_among_others_and_orders_are_taken_again() {
    let world = world(&[], 0);
    let mut broker = world.lets_in();
    let sent = under_way(&world, &mut broker, 1, &["silent", "good"]).await;
    drop(broker);
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Published(1, "silent".to_owned()));
    let late = sends(&world, "late", "other");
    nothing_is_done(&mut broker).await;
    broker.says(unanswered(1));
    let mut broker = world.lets_in();
    for (number, topic) in [(1, "silent"), (2, "good"), (3, "late")] {
        assert_eq!(broker.did().await, Did::Published(number, topic.to_owned()));
    }
    [2, 3]
        .into_iter()
        .for_each(|number| broker.says(ConnectionEvent::Confirmed(number)));
    broker.says(unanswered(1));
    assert_eq!(all_told(sent).await, [given_back(), Ok(())]);
    assert_eq!(told(late).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn connections_that_end_before_anything_was_sent_by_them_are_held_against_nothing() {
    let world = world(&["a"], 0);
    let reach = world.link.publisher.clone();
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Subscribed("a".to_owned()));
    let send = tokio::spawn(async move { reach.publish(outgoing("x")).await });
    assert_eq!(broker.did().await, Did::Published(1, "x".to_owned()));
    drop(broker);
    for _ in 0..5 {
        world.refuses(false);
        drop(world.lets_in_but(Some("a")));
    }
    let mut broker = world.lets_in();
    assert_eq!(broker.did().await, Did::Subscribed("a".to_owned()));
    assert_eq!(broker.did().await, Did::Published(1, "x".to_owned()));
    broker.says(ConnectionEvent::Confirmed(1));
    assert_eq!(send.await.unwrap(), Ok(()));
}
