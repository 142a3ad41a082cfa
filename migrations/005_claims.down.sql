DROP FUNCTION expire(timestamptz, boolean, bigint[]);
DROP FUNCTION step(timestamptz, text, bigint, bigint, bigint, text, text, text);
DROP FUNCTION claim(timestamptz, boolean, bigint[], bigint[], text[], text[], bytea[], bigint[], text[], boolean[], text[], text[]);
DROP FUNCTION referral_lock_key(bigint, text);
ALTER TABLE appointment
    DROP CONSTRAINT chk_referral,
    DROP CONSTRAINT chk_overlap_reason,
    DROP COLUMN overlap_reason;
ALTER TABLE organization
    DROP CONSTRAINT chk_hold_minutes,
    DROP COLUMN hold_minutes;
