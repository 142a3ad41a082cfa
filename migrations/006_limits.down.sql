DROP FUNCTION cutoff_rule(timestamptz, bigint, timestamptz);
DROP FUNCTION forbidding_rule(timestamptz, bigint, bigint, timestamptz, boolean);
DROP TYPE practice_rule;
DROP INDEX ix_overlap_allowed;
ALTER TABLE organization
    DROP COLUMN ruled,
    DROP COLUMN max_per_day,
    DROP COLUMN max_holds,
    DROP COLUMN max_active,
    DROP COLUMN cutoff_minutes,
    DROP COLUMN horizon_days,
    DROP COLUMN notice_minutes;
