-- Jobs: what was accepted, and all that is needed to run it after a crash.
CREATE TABLE job (
    n             INTEGER PRIMARY KEY AUTOINCREMENT, -- newest last; never used twice, so that it can be a cursor
    id            TEXT NOT NULL UNIQUE,
    tenant        TEXT NOT NULL,
    key           TEXT NOT NULL, -- by which it was asked for; its rights are looked at again at every start
    name          TEXT,
    labels        TEXT NOT NULL, -- JSON
    status        TEXT NOT NULL,
    waits_for     TEXT NOT NULL CHECK (waits_for IN ('turn', 'time', 'jobs', '')),
    version       INTEGER NOT NULL DEFAULT 1, -- of its state; grows with every change
    priority      INTEGER NOT NULL,
    accepted_ms   INTEGER NOT NULL,
    not_before_ms INTEGER,
    due_ms        INTEGER NOT NULL, -- not before this: as asked for, or by the pause of a retry
    started_ms    INTEGER,
    ended_ms      INTEGER,
    keep_until    INTEGER,
    keep_ms       INTEGER NOT NULL,
    attempt       INTEGER NOT NULL DEFAULT 0, -- tries that count, with the present one
    most_attempts INTEGER NOT NULL,
    reruns        INTEGER NOT NULL DEFAULT 0, -- tries that did not count: their server ended
    retry_on      TEXT NOT NULL, -- names of statuses, with spaces between
    pause_ms      INTEGER NOT NULL,
    on_lost       TEXT NOT NULL CHECK (on_lost IN ('rerun', 'lost')),
    boot          TEXT, -- the server that has it under way: its lease
    run           TEXT, -- of the present try, or the last
    cancelled     INTEGER NOT NULL DEFAULT 0, -- somebody asked for its end
    webhook       TEXT, -- JSON
    error         TEXT, -- JSON
    bytes         INTEGER NOT NULL, -- of its order and result
    behind        INTEGER NOT NULL DEFAULT 0, -- jobs that come right after it
    CHECK ((status = 'queued') = (waits_for <> '')),
    CHECK ((status = 'running') = (boot IS NOT NULL)),
    CHECK ((status IN ('queued', 'running')) = (ended_ms IS NULL)),
    CHECK ((ended_ms IS NULL) = (keep_until IS NULL))
) STRICT;
CREATE INDEX job_turn ON job (tenant, priority DESC, n) WHERE waits_for = 'turn';
CREATE INDEX job_time ON job (due_ms) WHERE waits_for = 'time';
CREATE INDEX job_running ON job (run) WHERE status = 'running';
CREATE INDEX job_of ON job (tenant, n);
CREATE INDEX job_status ON job (tenant, status, n);
CREATE INDEX job_ended ON job (tenant, n) WHERE ended_ms IS NOT NULL;
CREATE INDEX job_named ON job (tenant, name, n) WHERE name IS NOT NULL;
CREATE INDEX job_kept ON job (keep_until) WHERE keep_until IS NOT NULL;

-- What is large of a job, apart, so that its row is small.
CREATE TABLE job_order (n INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT;
CREATE TABLE job_result (n INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT;

-- Its tries.
CREATE TABLE job_run (
    job   INTEGER NOT NULL,
    place INTEGER NOT NULL,
    run   TEXT NOT NULL,
    PRIMARY KEY (job, place)
) STRICT, WITHOUT ROWID;

-- What must have succeeded before it.
CREATE TABLE job_after (
    job   INTEGER NOT NULL,
    place INTEGER NOT NULL,
    needs TEXT NOT NULL,
    done  INTEGER NOT NULL CHECK (done IN (0, 1)),
    PRIMARY KEY (job, place)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_behind ON job_after (needs, job);

-- Jobs that have ended, and behind which not everything has followed yet: a few at a time, so that nobody waits long.
CREATE TABLE job_followed (
    n         INTEGER PRIMARY KEY AUTOINCREMENT,
    id        TEXT NOT NULL UNIQUE,
    root      TEXT NOT NULL,              -- the job that this began with
    succeeded INTEGER NOT NULL CHECK (succeeded IN (0, 1)),
    seen      INTEGER NOT NULL DEFAULT 0  -- of those behind it all up to this one have followed
) STRICT;
CREATE INDEX job_followed_root ON job_followed (root, n);

-- Which job an idempotency key stands for.
CREATE TABLE job_promise (
    tenant TEXT NOT NULL,
    name   TEXT NOT NULL,
    body   BLOB NOT NULL, -- SHA-256 of the request
    job    TEXT NOT NULL,
    at_ms  INTEGER NOT NULL,
    PRIMARY KEY (tenant, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX job_promise_age ON job_promise (tenant, at_ms);
CREATE INDEX job_promise_old ON job_promise (at_ms);

-- How many of everything each tenant has; the empty name stands for all together. Kept by what follows, so that nobody
-- ever counts rows.
CREATE TABLE job_tenant (
    tenant   TEXT NOT NULL PRIMARY KEY,
    queued   INTEGER NOT NULL DEFAULT 0,
    turn     INTEGER NOT NULL DEFAULT 0, -- of those, the ones that could start now
    running  INTEGER NOT NULL DEFAULT 0,
    ended    INTEGER NOT NULL DEFAULT 0,
    bytes    INTEGER NOT NULL DEFAULT 0,
    over     INTEGER NOT NULL DEFAULT 0 -- bytes of those that have ended
) STRICT, WITHOUT ROWID;
CREATE INDEX job_tenant_turn ON job_tenant (tenant) WHERE turn > 0;
CREATE INDEX job_tenant_ended ON job_tenant (ended) WHERE ended > 0;

CREATE TRIGGER job_comes AFTER INSERT ON job BEGIN
    INSERT INTO job_tenant (tenant) VALUES (NEW.tenant), ('') ON CONFLICT DO NOTHING;
    UPDATE job_tenant SET queued = queued + (NEW.status = 'queued'), turn = turn + (NEW.waits_for = 'turn'),
        running = running + (NEW.status = 'running'), ended = ended + (NEW.ended_ms IS NOT NULL), bytes = bytes + NEW.bytes,
        over = over + iif(NEW.ended_ms IS NULL, 0, NEW.bytes)
        WHERE tenant IN (NEW.tenant, '');
END;
CREATE TRIGGER job_changes AFTER UPDATE OF status, waits_for, ended_ms, bytes ON job BEGIN
    UPDATE job_tenant SET queued = queued + (NEW.status = 'queued') - (OLD.status = 'queued'),
        turn = turn + (NEW.waits_for = 'turn') - (OLD.waits_for = 'turn'),
        running = running + (NEW.status = 'running') - (OLD.status = 'running'),
        ended = ended + (NEW.ended_ms IS NOT NULL) - (OLD.ended_ms IS NOT NULL), bytes = bytes + NEW.bytes - OLD.bytes,
        over = over + iif(NEW.ended_ms IS NULL, 0, NEW.bytes) - iif(OLD.ended_ms IS NULL, 0, OLD.bytes)
        WHERE tenant IN (NEW.tenant, '');
END;
CREATE TRIGGER job_goes AFTER DELETE ON job BEGIN
    UPDATE job_tenant SET queued = queued - (OLD.status = 'queued'), turn = turn - (OLD.waits_for = 'turn'),
        running = running - (OLD.status = 'running'), ended = ended - (OLD.ended_ms IS NOT NULL), bytes = bytes - OLD.bytes,
        over = over - iif(OLD.ended_ms IS NULL, 0, OLD.bytes)
        WHERE tenant IN (OLD.tenant, '');
    DELETE FROM job_tenant WHERE tenant = OLD.tenant AND queued + running + ended = 0;
    DELETE FROM job_order WHERE n = OLD.n;
    DELETE FROM job_result WHERE n = OLD.n;
    DELETE FROM job_run WHERE job = OLD.n;
    UPDATE job SET behind = behind - 1 WHERE id IN (SELECT needs FROM job_after WHERE job = OLD.n);
    DELETE FROM job_after WHERE job = OLD.n;
END;
