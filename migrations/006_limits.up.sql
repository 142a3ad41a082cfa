-- What a practice asks of its patients: how early and how late they book and cancel, and how much
-- they have at once. It binds whoever books for patients too, but neither its staff nor the operators.
ALTER TABLE organization                           -- NULL = no such rule
    ADD COLUMN notice_minutes int,                 -- booked at least so long before the start
    ADD COLUMN horizon_days   int,                 -- and so many days at most, by the wall clock
    ADD COLUMN cutoff_minutes int,                 -- cancelled or moved at least so long before the start
    ADD COLUMN max_active     int,                 -- appointments of a patient that stand and are not over
    ADD COLUMN max_holds      int,                 -- live holds of a patient
    ADD COLUMN max_per_day    int,                 -- appointments of a patient on a day of the practice's zone
    ADD COLUMN ruled boolean NOT NULL GENERATED ALWAYS AS (
        num_nonnulls(notice_minutes, horizon_days, max_active, max_holds, max_per_day) > 0) STORED, -- on claims
    ADD CONSTRAINT chk_notice_minutes CHECK (notice_minutes BETWEEN 1 AND 525600),
    ADD CONSTRAINT chk_horizon_days   CHECK (horizon_days BETWEEN 1 AND 3650),
    ADD CONSTRAINT chk_cutoff_minutes CHECK (cutoff_minutes BETWEEN 1 AND 525600),
    ADD CONSTRAINT chk_max_active     CHECK (max_active BETWEEN 1 AND 10000),
    ADD CONSTRAINT chk_max_holds      CHECK (max_holds BETWEEN 1 AND 10000),
    ADD CONSTRAINT chk_max_per_day    CHECK (max_per_day BETWEEN 1 AND 10000);
CREATE INDEX ix_organization_ruled ON organization (id) WHERE ruled;

-- ex_patient_overlap does not see appointments that staff let overlap others. They are few, and an
-- ordinary one is not to overlap them either: claim looks here.
CREATE INDEX ix_overlap_allowed ON appointment (patient_id)
    WHERE overlap_allowed AND status IN ('HELD', 'BOOKED', 'ARRIVED');

-- A rule that forbids something: the code of the refusal, the rule's name, its number, and from or
-- until when it does not forbid it.
CREATE TYPE practice_rule AS (code text, name text, number int, moment timestamptz);

-- forbidding_rule is the rule of an organization that forbids a patient to book or hold a place in a
-- slot that begins at p_start, or NULL. The caller has locked the patient before p_now was read, so
-- that nobody counts at the same time.
--
-- What is not over counts as active, whether or not anybody has written down who came. To a day belongs
-- all but what was given up; a hold that has lapsed counts nowhere.
CREATE FUNCTION forbidding_rule(
    p_now timestamptz, p_organization bigint, p_patient bigint, p_start timestamptz, p_hold boolean
) RETURNS practice_rule LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    o        organization;
    v_day    date;
    v_moment timestamptz;
    ends     timestamptz[];      -- when each of those that count stops counting
BEGIN
    SELECT * INTO o FROM organization g WHERE g.id = p_organization;
    v_moment := (p_start AT TIME ZONE o.time_zone - make_interval(days => o.horizon_days)) AT TIME ZONE o.time_zone;
    IF p_now < v_moment THEN
        RETURN ROW('TOO_EARLY', 'HORIZON', o.horizon_days, v_moment)::practice_rule;
    END IF;
    v_moment := p_start - make_interval(mins => o.notice_minutes);
    IF p_now > v_moment THEN
        RETURN ROW('TOO_LATE', 'NOTICE', o.notice_minutes, v_moment)::practice_rule;
    END IF;
    IF p_hold AND o.max_holds IS NOT NULL THEN
        ends := ARRAY(SELECT x.expires_at FROM appointment x
                       WHERE x.patient_id = p_patient AND x.organization_id = p_organization
                         AND x.status = 'HELD' AND x.expires_at > p_now ORDER BY 1);
        IF cardinality(ends) >= o.max_holds THEN
            RETURN ROW('LIMIT_REACHED', 'HOLDS', o.max_holds, ends[cardinality(ends) - o.max_holds + 1])::practice_rule;
        END IF;
    END IF;
    IF o.max_per_day IS NOT NULL THEN
        v_day := (p_start AT TIME ZONE o.time_zone)::date;
        IF o.max_per_day <= (SELECT count(*) FROM appointment x
                              WHERE x.patient_id = p_patient AND x.organization_id = p_organization
                                AND (lower(x.during) AT TIME ZONE o.time_zone)::date = v_day
                                AND (x.status IN ('BOOKED', 'ARRIVED', 'FULFILLED', 'NO_SHOW')
                                     OR x.status = 'HELD' AND x.expires_at > p_now)) THEN
            RETURN ROW('LIMIT_REACHED', 'DAY', o.max_per_day, (v_day + 1)::timestamp AT TIME ZONE o.time_zone)::practice_rule;
        END IF;
    END IF;
    IF o.max_active IS NOT NULL THEN
        ends := ARRAY(SELECT CASE x.status WHEN 'HELD' THEN least(x.expires_at, upper(x.during)) ELSE upper(x.during) END
                        FROM appointment x
                       WHERE x.patient_id = p_patient AND x.organization_id = p_organization AND upper(x.during) > p_now
                         AND (x.status IN ('BOOKED', 'ARRIVED') OR x.status = 'HELD' AND x.expires_at > p_now) ORDER BY 1);
        IF cardinality(ends) >= o.max_active THEN
            RETURN ROW('LIMIT_REACHED', 'ACTIVE', o.max_active, ends[cardinality(ends) - o.max_active + 1])::practice_rule;
        END IF;
    END IF;
    RETURN NULL;
END $$;

-- cutoff_rule is the rule of an organization that forbids a patient to cancel or move an appointment
-- that begins at p_start, or NULL.
CREATE FUNCTION cutoff_rule(p_now timestamptz, p_organization bigint, p_start timestamptz) RETURNS practice_rule
LANGUAGE sql SET plan_cache_mode = force_generic_plan AS $$
    SELECT 'TOO_LATE', 'CUTOFF', o.cutoff_minutes, p_start - make_interval(mins => o.cutoff_minutes)
      FROM organization o
     WHERE o.id = p_organization AND p_now > p_start - make_interval(mins => o.cutoff_minutes)
$$;
