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
CREATE INDEX webhook_notice_oldest ON webhook_notice (tenant, n) WHERE state = 'waiting';
CREATE INDEX webhook_notice_settled ON webhook_notice (at_ms) WHERE state <> 'waiting';

-- How many wait of each tenant, and their bytes. Kept by what follows, so that nobody ever counts rows.
CREATE TABLE webhook_tenant (
    tenant  TEXT NOT NULL PRIMARY KEY,
    waiting INTEGER NOT NULL,
    bytes   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER webhook_notice_comes AFTER INSERT ON webhook_notice WHEN NEW.state = 'waiting' BEGIN
    INSERT INTO webhook_tenant (tenant, waiting, bytes) VALUES (NEW.tenant, 1, length(CAST(NEW.body AS BLOB)))
        ON CONFLICT DO UPDATE SET waiting = waiting + 1, bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER webhook_notice_settles AFTER UPDATE OF state ON webhook_notice
        WHEN OLD.state = 'waiting' AND NEW.state <> 'waiting' BEGIN
    UPDATE webhook_tenant SET waiting = waiting - 1, bytes = bytes - length(CAST(OLD.body AS BLOB))
        WHERE tenant = OLD.tenant;
    DELETE FROM webhook_tenant WHERE tenant = OLD.tenant AND waiting = 0;
END;

-- What was told of a job is remembered as long as the job; what waits is still delivered.
CREATE TRIGGER webhook_job_goes AFTER DELETE ON job BEGIN
    DELETE FROM webhook_notice WHERE job = OLD.id AND state <> 'waiting';
END;

-- Which secret of a tenant's signs his notices. The secrets themselves are nowhere: they follow from a key of the node's.
CREATE TABLE webhook_secret (
    tenant     TEXT NOT NULL PRIMARY KEY,
    generation INTEGER NOT NULL,
    since_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
