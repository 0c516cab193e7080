-- Notices about jobs that wait to be delivered, or were. Written with the change that they tell of, so that none is lost.
CREATE TABLE webhook_notice (
    n        INTEGER PRIMARY KEY AUTOINCREMENT, -- the order in which a job's notices arrive
    id       TEXT NOT NULL UNIQUE,              -- the receiver knows it again by this
    job      TEXT NOT NULL,
    tenant   TEXT NOT NULL,
    url      TEXT NOT NULL,
    event    TEXT NOT NULL,
    at_ms    INTEGER NOT NULL,
    body     TEXT NOT NULL,                     -- empty once nobody needs it any more
    state    TEXT NOT NULL,                     -- waiting, delivered, given_up
    attempts INTEGER NOT NULL,
    due_ms   INTEGER NOT NULL,                  -- never before that of an earlier one of its job
    problem  TEXT                               -- why the last attempt failed
) STRICT;
CREATE INDEX webhook_notice_job ON webhook_notice (job, n);
CREATE INDEX webhook_notice_waiting ON webhook_notice (tenant, due_ms, n) WHERE state = 'waiting';
CREATE INDEX webhook_notice_settled ON webhook_notice (at_ms) WHERE state <> 'waiting';

-- Which secret of a tenant's signs his notices. The secrets themselves are nowhere: they follow from a key of the node's.
CREATE TABLE webhook_secret (
    tenant     TEXT NOT NULL PRIMARY KEY,
    generation INTEGER NOT NULL,
    since_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
