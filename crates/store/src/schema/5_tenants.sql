-- Whose a key is. Empty: it is a tenant of its own.
ALTER TABLE gateway_key ADD COLUMN tenant TEXT NOT NULL DEFAULT '';
