//! Intake: messages are parsed, looked up, and passed to admission control.

use super::{
    Executor,
    events::{RequestIds, WorkerEvent},
    responder::{self, LARGE_ANSWER_BYTES, Requester, Response},
    service::{QueuedCall, SendTask, Service, TOO_MANY, now_ms},
};
use crate::{
    admission::{Arrival, CancelOutcome, PendingCall, PriorCall},
    call::profile::ToolProfile,
    tools::Tool,
    transport::{IncomingMessage, Receipt},
    wire::{
        answer,
        code::{CallRefusal, MeshErrorCode},
        request::{
            self, AddressedRefusal, InitRequest, Invoke, MAX_TIMEOUT, MIN_TIMEOUT, RawMessage,
            ReplyAddress, RequestError, WorkerRequest,
        },
        topic::Topic,
    },
};
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use tokio::time::Instant;

/// Receipts kept per request that waits for its answer. Older ones are settled.
const MAX_HELD: usize = 8;
const ENDED_BY_REQUESTER: &str = "its asker wants no answer any more";

impl<C: Executor> Service<C> {
    pub(super) fn arrived(&mut self, arrived: IncomingMessage) {
        let IncomingMessage {
            topic,
            payload,
            properties,
            receipt,
        } = arrived;
        let message = RawMessage {
            topic: &topic,
            payload: &payload,
            properties: &properties,
        };
        match request::read(&self.settings.base, message, self.settings.defaults.largest) {
            Ok(WorkerRequest::Invoke(invoke)) => {
                self.handle_invoke(invoke, receipt, request::weight(&payload))
            }
            Ok(WorkerRequest::Init(asked)) => {
                self.handle_describe(*asked, receipt, request::weight(&payload))
            }
            Ok(WorkerRequest::Cancel(name)) => {
                self.settle(vec![receipt]);
                self.cancel(&name);
            }
            Err(RequestError::NotARequest) => self.settle(vec![receipt]),
            Err(RequestError::Refused(refused)) => self.refuse_invalid(&topic, *refused, receipt),
            Err(RequestError::Unanswerable(refusal)) => {
                self.emit(WorkerEvent::Unanswerable { topic, refusal });
                self.settle(vec![receipt]);
            }
        }
    }

    fn handle_invoke(&mut self, invoke: Box<Invoke>, receipt: Receipt, weight: usize) {
        let request = RequestIds::of(&invoke);
        self.was_asked();
        self.emit(WorkerEvent::Received(request.clone()));
        let id = invoke.id.clone();
        let reply = invoke.reply.clone();
        let key = format!("{}\n{}\n{id}", invoke.tool, reply.to);
        let requester = Requester {
            key,
            id,
            reply,
            request,
            receipt,
            arrived: Instant::now(),
        };
        let now = now_ms();
        // A request that is sent a hundred times gets the same answer only a few times.
        if self.answering.contains(&requester.key) {
            return self.hold_copy(requester);
        }
        // First of all: a call goes on though its tool is gone, and a refused one is not run later.
        match self.admission.find_prior(&requester.key, now) {
            Some(PriorCall::Answered(answer)) => return self.answer_again(requester, answer),
            Some(PriorCall::Active) => return self.hold_copy(requester),
            None => {}
        }
        let Some(tool) = self.tool(&invoke.tool) else {
            return self.refuse_unknown_tool(&invoke.tool, requester);
        };
        let pending = PendingCall {
            id: requester.key.clone(),
            names: [requester.id.clone(), requester.reply.correlation.clone()],
            client: format!("{}\n{}", invoke.app_name, invoke.user_id),
            tool: invoke.tool.clone(),
            sent_ms: requester.reply.sent_ms.map_or(now, |sent| {
                self.clocks.estimate_local_time(&invoke.app_name, sent, now)
            }),
            timeout: self.time(&invoke, &tool),
            weight,
            payload: QueuedCall { requester, invoke },
        };
        match self.admission.admit(pending, now) {
            Arrival::Queued => {}
            Arrival::Answered(queued_call, answer) => {
                self.answer_again(queued_call.requester, answer)
            }
            Arrival::Known(queued_call) => self.hold_copy(queued_call.requester),
            Arrival::Cancelled(queued_call) => self.refuse_cancelled(queued_call.requester),
            Arrival::Refused(queued_call, refusal) => {
                self.refuse_or_leave(queued_call.requester, &refusal)
            }
        }
    }

    /// The current version of a tool.
    pub(super) fn tool(&self, name: &str) -> Option<Arc<Tool>> {
        self.settings.catalog.borrow().get(name).cloned()
    }

    /// Timeout of the request, of its tool, or the default.
    pub(super) fn time(&self, invoke: &Invoke, tool: &Tool) -> Duration {
        let timeout = invoke
            .timeout
            .or(tool.timeout)
            .unwrap_or(self.settings.defaults.timeout);
        timeout.clamp(MIN_TIMEOUT, MAX_TIMEOUT)
    }

    /// The profile of the tool's entry; otherwise that of the request, which may be narrower than
    /// the operator's default but not wider: a requester does not choose how strictly a tool is
    /// confined.
    pub(super) fn profile(
        &self,
        invoke: &Invoke,
        tool: &Tool,
        request: &Arc<RequestIds>,
    ) -> ToolProfile {
        let widest = self.settings.defaults.profile;
        let wished = || {
            let Some(name) = invoke.profile.as_deref() else {
                return widest;
            };
            let known = ToolProfile::named(name);
            let request = request.clone();
            let name = name.to_owned();
            match known {
                Some(wished) if wished <= widest => return wished,
                Some(_) => self.emit(WorkerEvent::ProfileTooWide {
                    request,
                    name,
                    instead: widest,
                }),
                None => self.emit(WorkerEvent::UnknownProfile {
                    request,
                    name,
                    instead: widest,
                }),
            }
            widest
        };
        tool.profile.unwrap_or_else(wished)
    }

    /// The tool is gone, or the subscription is a leftover of another worker.
    pub(super) fn refuse_unknown_tool(&mut self, tool: &str, requester: Requester) {
        // If the queue is full, another request will bring it up again.
        _ = self.strays.try_send(tool.to_owned());
        let refusal = CallRefusal::new(
            MeshErrorCode::ToolNotAvailable,
            format!("there is no tool `{tool}` here"),
        );
        self.refuse_or_leave(requester, &refusal);
    }

    fn answer_again(&mut self, requester: Requester, answer: Bytes) {
        self.emit(WorkerEvent::Duplicate {
            request: requester.request.clone(),
            is_answered: true,
        });
        self.dispatch(requester, answer);
    }

    /// One answer serves all copies. The newest receipt is kept for the case that we die before it:
    /// older ones may belong to a lost connection.
    fn hold_copy(&mut self, requester: Requester) {
        self.emit(WorkerEvent::Duplicate {
            request: requester.request,
            is_answered: false,
        });
        // One receipt for each delayed answer: a broker sends only so many unsettled messages, and
        // delayed ones may be many.
        let limit = if self.admission.is_delayed(&requester.key) {
            1
        } else {
            MAX_HELD
        };
        let held = self.held.entry(requester.key).or_default();
        held.push(requester.receipt);
        let surplus = held.len().saturating_sub(limit);
        let surplus = held.drain(..surplus).collect();
        self.settle(surplus);
    }

    /// Only the owner of a tool answers a describe request; others stay silent.
    fn handle_describe(&mut self, asked: InitRequest, receipt: Receipt, weight: usize) {
        let Some(tool) = self.tool(&asked.tool) else {
            return self.settle(vec![receipt]);
        };
        let InitRequest {
            id,
            tool: name,
            tool_config,
            format,
            reply,
        } = asked;
        let request = request(&id, &name, &reply);
        let largest = self.responder.largest;
        let too_many = || CallRefusal::new(MeshErrorCode::ResourceExhausted, TOO_MANY);
        if tool_config.is_empty() {
            let answer = answer::init_answer(&id, &tool.card, format, largest);
            return if self.has_room(answer.len()) {
                self.send(
                    Response::new(request, id, reply, Bytes::from(answer), vec![receipt]),
                    None,
                )
            } else {
                self.decline(
                    request,
                    AddressedRefusal {
                        id,
                        reply,
                        refusal: too_many(),
                    },
                    receipt,
                )
            };
        }
        // With a configuration the tool itself is asked, and the size of its answer is unknown.
        let weight = weight.max(LARGE_ANSWER_BYTES);
        if !self.has_room(weight) {
            return self.decline(
                request,
                AddressedRefusal {
                    id,
                    reply,
                    refusal: too_many(),
                },
                receipt,
            );
        }
        let calls = self.settings.calls.clone();
        let responder = self.responder.clone();
        self.background(SendTask { weight, key: None }, async move {
            let answer = match calls.describe(tool, tool_config).await {
                Ok(card) => answer::init_answer(&id, &card, format, largest),
                Err(refusal) => answer::error(&id, &refusal),
            };
            responder
                .respond_once(Response::new(
                    request,
                    id,
                    reply,
                    Bytes::from(answer),
                    vec![receipt],
                ))
                .await;
        });
    }

    fn refuse_invalid(&mut self, topic: &str, refused: AddressedRefusal, receipt: Receipt) {
        let tool = match self.settings.base.read(topic) {
            Some(Topic::InitRequest(tool) | Topic::Init(tool)) => {
                // The owner of the tool reports the error.
                if !self.settings.catalog.borrow().contains_key(tool) {
                    return self.settle(vec![receipt]);
                }
                tool
            }
            Some(Topic::Invoke(tool)) => tool,
            _ => "",
        };
        self.decline(request(&refused.id, tool, &refused.reply), refused, receipt);
    }

    /// Refuses a request that is not a call; it is not remembered.
    fn decline(&mut self, request: Arc<RequestIds>, refused: AddressedRefusal, receipt: Receipt) {
        let AddressedRefusal { id, reply, refusal } = refused;
        let answer = Bytes::from(answer::error(&id, &refusal));
        self.emit(WorkerEvent::Refused {
            request: request.clone(),
            refusal,
        });
        self.send(
            Response::new(request, id, reply, answer, vec![receipt]),
            None,
        );
    }

    fn cancel(&mut self, name: &str) {
        match self.admission.cancel(name, now_ms()) {
            CancelOutcome::Removed(pending) => self.refuse_cancelled(pending.payload.requester),
            CancelOutcome::Active(key) => self.stop(&key, ENDED_BY_REQUESTER),
            CancelOutcome::Unknown => {
                // The request was left to other workers, which cannot be told.
                let is_meant = |requester: &Requester| {
                    requester.id == name || requester.reply.correlation == name
                };
                if let Some(at) = self.left.iter().position(is_meant) {
                    let requester = self.left.swap_remove(at);
                    self.refuse_cancelled(requester);
                }
            }
        }
    }

    fn refuse_cancelled(&mut self, requester: Requester) {
        self.emit(WorkerEvent::Cancelled(requester.request.clone()));
        self.refuse(requester, &responder::cancelled(ENDED_BY_REQUESTER));
    }
}

fn request(id: &str, tool: &str, reply: &ReplyAddress) -> Arc<RequestIds> {
    Arc::new(RequestIds {
        id: id.to_owned(),
        tool: tool.to_owned(),
        task: String::new(),
        correlation: reply.correlation.clone(),
        trace: reply.echoed.get("traceId").cloned(),
    })
}
