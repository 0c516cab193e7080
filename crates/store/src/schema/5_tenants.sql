-- Whose a key is. Empty: it is a tenant of its own.
ALTER TABLE gateway_key ADD COLUMN tenant TEXT NOT NULL DEFAULT '';

-- What a tenant began and used on a day (UTC). Added to, never taken from; a server that is killed has not written the
-- CPU time of its last few seconds.
CREATE TABLE tenant_day (
    tenant    TEXT NOT NULL,
    day       INTEGER NOT NULL, -- since 1970
    runs      INTEGER NOT NULL,
    sandboxes INTEGER NOT NULL,
    cpu_ms    INTEGER NOT NULL,
    PRIMARY KEY (tenant, day)
) STRICT, WITHOUT ROWID;
CREATE INDEX tenant_day_by_day ON tenant_day (day);

CREATE INDEX usage_by_tenant ON usage_attempt (tenant, at_ms);
