DROP FUNCTION leave_waiting(timestamptz, bigint, bigint, bigint, text);
DROP FUNCTION join_waiting(timestamptz, bigint, bigint, date, date, tstzrange, bigint, text, text, int);
DROP FUNCTION offer_places(timestamptz, bigint[], int[], bigint[]);
DROP FUNCTION lock_waiting(timestamptz, bigint[], int[], bigint[]);
DROP FUNCTION wants(waiting_entry, time_slot, timestamptz);
DROP FUNCTION next_release(timestamptz, text);
DROP TABLE waiting_entry;
DROP INDEX ix_due_slot;
ALTER TABLE organization
    DROP CONSTRAINT chk_cancelled_returns,
    DROP CONSTRAINT chk_offer_minutes,
    DROP COLUMN cancelled_returns,
    DROP COLUMN offer_minutes;
