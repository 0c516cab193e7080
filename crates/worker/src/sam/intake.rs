//! What arrives: read, looked up, and taken to the desk.

use super::{
    Calls,
    noted::{Noted, Which},
    post::{self, Asker, LARGE, Letter},
    service::{Posted, Service, TOO_MANY, Turn, now_ms},
};
use crate::{
    call::profile::Profile,
    desk::{Arrival, Before, Cancelled, Ticket},
    tools::Tool,
    transport::{Arrived, Receipt},
    wire::{
        answer,
        code::{Code, Refusal},
        request::{
            self, InitRequest, Invoke, LONGEST_TIMEOUT, Message, Refused, Reply, Request,
            SHORTEST_TIMEOUT, Unread,
        },
        topic::Topic,
    },
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Copies of one request that wait for its answer. Of older ones the broker has been told, or their connection is gone.
const MOST_HELD: usize = 8;
const BY_ASKER: &str = "its asker wants no answer any more";

impl<C: Calls> Service<C> {
    pub(super) fn arrived(&mut self, arrived: Arrived) {
        let Arrived {
            topic,
            payload,
            properties,
            receipt,
        } = arrived;
        let message = Message {
            topic: &topic,
            payload: &payload,
            properties: &properties,
        };
        match request::read(&self.settings.base, message, self.settings.defaults.largest) {
            Ok(Request::Invoke(invoke)) => self.invoked(invoke, receipt, request::weight(&payload)),
            Ok(Request::Init(asked)) => self.asked(*asked, receipt, request::weight(&payload)),
            Ok(Request::Cancel(name)) => {
                self.settle(vec![receipt]);
                self.cancel(&name);
            }
            Err(Unread::NotARequest) => self.settle(vec![receipt]),
            Err(Unread::Refused(refused)) => self.misunderstood(&topic, *refused, receipt),
            Err(Unread::Unanswerable(refusal)) => {
                self.note(Noted::Unanswerable { topic, refusal });
                self.settle(vec![receipt]);
            }
        }
    }

    fn invoked(&mut self, invoke: Box<Invoke>, receipt: Receipt, weight: usize) {
        let which = Which::of(&invoke);
        self.was_asked();
        self.note(Noted::Received(which.clone()));
        let (id, reply) = (invoke.id.clone(), invoke.reply.clone());
        let key = format!("{}\n{}\n{id}", invoke.tool, reply.to);
        let asker = Asker {
            key,
            id,
            reply,
            which,
            receipt,
            arrived: Instant::now(),
        };
        let now = now_ms();
        // Whoever sends a request a hundred times has the same answer a few times.
        if self.answering.contains(&asker.key) {
            return self.hold(asker);
        }
        // Before all else: a call goes on though its tool is gone, and one that is refused now is not run later.
        match self.desk.before(&asker.key, now) {
            Some(Before::Answered(answer)) => return self.answer_again(asker, answer),
            Some(Before::UnderWay) => return self.hold(asker),
            None => {}
        }
        let Some(tool) = self.tool(&invoke.tool) else {
            return self.stray(&invoke.tool, asker);
        };
        let ticket = Ticket {
            id: asker.key.clone(),
            names: [asker.id.clone(), asker.reply.correlation.clone()],
            party: format!("{}\n{}", invoke.app_name, invoke.user_id),
            tool: invoke.tool.clone(),
            sent_ms: asker
                .reply
                .sent_ms
                .map_or(now, |sent| self.clocks.by_ours(&invoke.app_name, sent, now)),
            timeout: self.time(&invoke, &tool),
            weight,
            what: Turn { asker, invoke },
        };
        match self.desk.arrive(ticket, now) {
            Arrival::Waits => {}
            Arrival::Answered(turn, answer) => self.answer_again(turn.asker, answer),
            Arrival::Known(turn) => self.hold(turn.asker),
            Arrival::Cancelled(turn) => self.refuse_cancelled(turn.asker),
            Arrival::Refused(turn, refusal) => self.refuse_or_leave(turn.asker, &refusal),
        }
    }

    /// As it is now, if it is here.
    pub(super) fn tool(&self, name: &str) -> Option<Arc<Tool>> {
        self.settings.catalog.borrow().get(name).cloned()
    }

    /// What the request says, or its tool, or nobody.
    pub(super) fn time(&self, invoke: &Invoke, tool: &Tool) -> Duration {
        let said = invoke
            .timeout
            .or(tool.timeout)
            .unwrap_or(self.settings.defaults.timeout);
        said.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT)
    }

    /// What its entry insists on; otherwise what the request wishes, which may be narrower than what the operator says, and
    /// no wider: whoever asks does not choose how far a tool is shut in.
    pub(super) fn profile(&self, invoke: &Invoke, tool: &Tool, which: &Arc<Which>) -> Profile {
        let widest = self.settings.defaults.profile;
        let wished = || {
            let Some(name) = invoke.profile.as_deref() else {
                return widest;
            };
            let (known, which, name) = (Profile::named(name), which.clone(), name.to_owned());
            match known {
                Some(wished) if wished <= widest => return wished,
                Some(_) => self.note(Noted::ProfileTooWide {
                    which,
                    name,
                    instead: widest,
                }),
                None => self.note(Noted::UnknownProfile {
                    which,
                    name,
                    instead: widest,
                }),
            }
            widest
        };
        tool.profile.unwrap_or_else(wished)
    }

    /// A tool that is gone, or one of a subscription that outlived another worker.
    pub(super) fn stray(&mut self, tool: &str, asker: Asker) {
        // When many wait to be unsubscribed, this one will come again.
        _ = self.strays.try_send(tool.to_owned());
        let refusal = Refusal::new(
            Code::ToolNotAvailable,
            format!("there is no tool `{tool}` here"),
        );
        self.refuse_or_leave(asker, &refusal);
    }

    fn answer_again(&mut self, asker: Asker, answer: Bytes) {
        self.note(Noted::Duplicate {
            which: asker.which.clone(),
            is_answered: true,
        });
        self.dispatch(asker, answer);
    }

    /// One answer is for both. Should we die before it, the copy is the one that comes again: the first may be of a
    /// connection that is gone.
    fn hold(&mut self, asker: Asker) {
        self.note(Noted::Duplicate {
            which: asker.which,
            is_answered: false,
        });
        // Of those whose answer is delayed one each: a broker gives only so many before some are settled, and they are many.
        let most = if self.desk.is_delayed(&asker.key) {
            1
        } else {
            MOST_HELD
        };
        let held = self.held.entry(asker.key).or_default();
        held.push(asker.receipt);
        let surplus = held.len().saturating_sub(most);
        let surplus = held.drain(..surplus).collect();
        self.settle(surplus);
    }

    /// Nobody but the owner of a tool knows what it is: about others there is silence.
    fn asked(&mut self, asked: InitRequest, receipt: Receipt, weight: usize) {
        let Some(tool) = self.tool(&asked.tool) else {
            return self.settle(vec![receipt]);
        };
        let InitRequest {
            id,
            tool: name,
            tool_config,
            words,
            reply,
        } = asked;
        let (which, largest) = (which(&id, &name, &reply), self.post.largest);
        let too_many = || Refusal::new(Code::ResourceExhausted, TOO_MANY);
        if tool_config.is_empty() {
            let answer = answer::init_answer(&id, &tool.card, words, largest);
            return match self.has_room(answer.len()) {
                true => self.send(
                    Letter::new(which, id, reply, Bytes::from(answer), vec![receipt]),
                    None,
                ),
                false => self.decline(
                    which,
                    Refused {
                        id,
                        reply,
                        refusal: too_many(),
                    },
                    receipt,
                ),
            };
        }
        // Then it may be another: it is asked itself, and nobody knows how much it says.
        let weight = weight.max(LARGE);
        if !self.has_room(weight) {
            return self.decline(
                which,
                Refused {
                    id,
                    reply,
                    refusal: too_many(),
                },
                receipt,
            );
        }
        let (calls, post) = (self.settings.calls.clone(), self.post.clone());
        self.background(Posted { weight, key: None }, async move {
            let answer = match calls.describe(tool, tool_config).await {
                Ok(card) => answer::init_answer(&id, &card, words, largest),
                Err(refusal) => answer::error(&id, &refusal),
            };
            post.answer_once(Letter::new(
                which,
                id,
                reply,
                Bytes::from(answer),
                vec![receipt],
            ))
            .await;
        });
    }

    fn misunderstood(&mut self, topic: &str, refused: Refused, receipt: Receipt) {
        let tool = match self.settings.base.read(topic) {
            Some(Topic::InitRequest(tool) | Topic::Init(tool)) => {
                // Whoever has the tool says so.
                if !self.settings.catalog.borrow().contains_key(tool) {
                    return self.settle(vec![receipt]);
                }
                tool
            }
            Some(Topic::Invoke(tool)) => tool,
            _ => "",
        };
        self.decline(which(&refused.id, tool, &refused.reply), refused, receipt);
    }

    /// What is no call is not remembered.
    fn decline(&mut self, which: Arc<Which>, refused: Refused, receipt: Receipt) {
        let Refused { id, reply, refusal } = refused;
        let answer = Bytes::from(answer::error(&id, &refusal));
        self.note(Noted::Refused {
            which: which.clone(),
            refusal,
        });
        self.send(Letter::new(which, id, reply, answer, vec![receipt]), None);
    }

    fn cancel(&mut self, name: &str) {
        match self.desk.cancel(name, now_ms()) {
            Cancelled::Waited(ticket) => self.refuse_cancelled(ticket.what.asker),
            Cancelled::UnderWay(key) => self.stop(&key, BY_ASKER),
            Cancelled::Nobody => {
                // One that was left to others, whom nobody may tell.
                let is_meant = |asker: &Asker| asker.id == name || asker.reply.correlation == name;
                if let Some(at) = self.left.iter().position(is_meant) {
                    let asker = self.left.swap_remove(at);
                    self.refuse_cancelled(asker);
                }
            }
        }
    }

    fn refuse_cancelled(&mut self, asker: Asker) {
        self.note(Noted::Cancelled(asker.which.clone()));
        self.refuse(asker, &post::cancelled(BY_ASKER));
    }
}

fn which(id: &str, tool: &str, reply: &Reply) -> Arc<Which> {
    Arc::new(Which {
        id: id.to_owned(),
        tool: tool.to_owned(),
        task: String::new(),
        correlation: reply.correlation.clone(),
        trace: reply.echoed.get("traceId").cloned(),
    })
}
