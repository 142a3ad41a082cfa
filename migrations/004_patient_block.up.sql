-- A blocked patient's access is refused: their tokens, however long they would still hold. What they
-- have booked stands.
ALTER TABLE patient
    ADD COLUMN blocked_at   timestamptz,           -- NULL = not blocked
    ADD COLUMN blocked_by   text,                  -- kind and subject of whoever did it
    ADD COLUMN blocked_for  bigint,                -- the organization whose staff did it; NULL = the operators
    ADD COLUMN block_reason text,
    ADD CONSTRAINT chk_patient_block CHECK (num_nulls(blocked_at, blocked_by) IN (0, 2)
        AND (blocked_at IS NOT NULL OR num_nonnulls(blocked_for, block_reason) = 0)),
    ADD CONSTRAINT chk_block_reason  CHECK (char_length(block_reason) <= 500);
CREATE INDEX ix_patient_blocked ON patient (id) WHERE blocked_at IS NOT NULL;

-- It is announced on the channel of the slots (002_change), which every instance listens to anyway:
--   p <patient>   was blocked, or let in again
CREATE FUNCTION patient_announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('slot_change', 'p ' || NEW.id);
    RETURN NULL;
END $$;
CREATE TRIGGER patient_blocked AFTER UPDATE ON patient FOR EACH ROW
    WHEN (OLD.blocked_at IS DISTINCT FROM NEW.blocked_at) EXECUTE FUNCTION patient_announce();
