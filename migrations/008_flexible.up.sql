-- Flexible durations: a doctor whose schedule is FLEXIBLE has working windows instead of slots. The
-- row of a slot comes into being with its appointment, and goes with it (give_back in 009_steps).
--
-- Lock order, the same on every path: doctor (advisory), slots by id, patients (advisory), referrals
-- (advisory), appointments. The doctor's lock is that of whoever writes the doctor's calendar, so
-- nobody makes FIXED slots where a time is being claimed, nor the other way round.

ALTER TABLE schedule
    ADD COLUMN kind text NOT NULL DEFAULT 'FIXED',
    ADD CONSTRAINT chk_schedule_kind CHECK (kind IN ('FIXED', 'FLEXIBLE'));

-- The shifts of a FLEXIBLE schedule. They have a table of their own, so that whoever makes slots of
-- shifts, an instance of the version before included, makes none of these.
CREATE TABLE schedule_window (
    schedule_id   bigint     NOT NULL REFERENCES schedule ON DELETE CASCADE,
    weekday       smallint   NOT NULL,             -- ISO: 1 = Monday … 7 = Sunday
    start_minute  smallint   NOT NULL,             -- minutes of wall clock after local midnight
    end_minute    smallint   NOT NULL,             -- above 1440: ends on the next day
    every_minutes smallint   NOT NULL,             -- the grid: distance between starts
    durations     smallint[] NOT NULL,             -- minutes that an appointment may last
    PRIMARY KEY (schedule_id, weekday, start_minute),
    CONSTRAINT chk_window_weekday  CHECK (weekday BETWEEN 1 AND 7),
    CONSTRAINT chk_window_start    CHECK (start_minute BETWEEN 0 AND 1439),
    CONSTRAINT chk_window_end      CHECK (end_minute > start_minute AND end_minute - start_minute <= 1440),
    CONSTRAINT chk_window_every    CHECK (every_minutes BETWEEN 1 AND 1440),
    CONSTRAINT chk_window_duration CHECK (cardinality(durations) BETWEEN 1 AND 50
        AND 1 <= ALL (durations) AND 1440 >= ALL (durations) AND array_position(durations, NULL) IS NULL)
);

ALTER TABLE time_slot
    ADD CONSTRAINT chk_flexible_capacity CHECK (kind <> 'FLEXIBLE' OR capacity = 1);

-- As before, but that a FLEXIBLE slot is made is not announced: it is taken in the same transaction,
-- which is, and nobody shall see a place in it.
CREATE OR REPLACE FUNCTION slot_announce() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    most   CONSTANT int := 1000;   -- beyond: tell which doctors to read again
    budget CONSTANT int := 7700;   -- bytes in a payload
BEGIN
    IF (SELECT count(*) FROM (SELECT FROM changed LIMIT most + 1) AS few) > most THEN
        PERFORM pg_notify('slot_change', string_agg(line, E'\n'))
        FROM (SELECT line, sum(octet_length(line) + 1) OVER (ORDER BY doctor_id) / budget AS part
              FROM (SELECT DISTINCT doctor_id, 'd ' || doctor_id AS line FROM changed) AS l) AS p
        GROUP BY part;
        RETURN NULL;
    END IF;
    -- A line is under 200 bytes, so a part that begins within the budget ends below the limit.
    PERFORM pg_notify('slot_change', string_agg(line, E'\n'))
    FROM (SELECT line, sum(octet_length(line) + 1) OVER (ORDER BY id) / budget AS part
          FROM (SELECT id, concat_ws(' ', 's', doctor_id, id,
                       version + (TG_OP = 'DELETE')::int,
                       (extract(epoch FROM start_at) * 1000000)::bigint,
                       (extract(epoch FROM end_at) * 1000000)::bigint,
                       capacity, booked_count,
                       CASE TG_OP WHEN 'DELETE' THEN 'WITHDRAWN' ELSE status END,
                       (extract(epoch FROM opens_at) * 1000000)::bigint) AS line
                FROM changed WHERE TG_OP <> 'INSERT' OR kind = 'FIXED' OR booked_count > 0) AS l) AS p
    GROUP BY part;
    RETURN NULL;
END $$;

-- wall_time is the first instant at which clocks in the zone have reached a time: what a clock change
-- leaves out is the moment of the change, what comes twice is the first of the two. (AT TIME ZONE
-- says otherwise in both cases.) It is booking.Date.At in SQL.
CREATE FUNCTION wall_time(wall timestamp, zone text) RETURNS timestamptz LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    utc    CONSTANT timestamptz := wall AT TIME ZONE 'UTC';
    -- How far clocks are ahead of UTC well before and well after: no zone is further from UTC.
    before CONSTANT interval := (utc - interval '26 hours') AT TIME ZONE zone - (wall - interval '26 hours');
    after  CONSTANT interval := (utc + interval '26 hours') AT TIME ZONE zone - (wall + interval '26 hours');
BEGIN
    IF (utc - before) AT TIME ZONE zone = wall THEN
        RETURN utc - before;
    ELSIF (utc - after) AT TIME ZONE zone = wall THEN
        RETURN utc - after;
    END IF;
    RETURN (SELECT min(at) FROM generate_series(utc - after, utc - before, interval '1 minute') AS at
             WHERE at AT TIME ZONE zone >= wall);
END $$;

-- working_hours are the windows that a doctor's FLEXIBLE schedules have on the local days from that
-- of p_from to that of p_to, those of the day before included, which may last into the first.
CREATE FUNCTION working_hours(p_doctor bigint, p_from timestamptz, p_to timestamptz)
RETURNS TABLE (start_at timestamptz, end_at timestamptz, every interval, durations smallint[])
LANGUAGE sql STABLE AS $$
    SELECT wall_time(day + make_interval(mins => w.start_minute), o.time_zone),
           wall_time(day + make_interval(mins => w.end_minute), o.time_zone),
           make_interval(mins => w.every_minutes), w.durations
      FROM doctor d
      JOIN organization o ON o.id = d.organization_id
      JOIN schedule s ON s.doctor_id = d.id AND s.kind = 'FLEXIBLE'
      JOIN schedule_window w ON w.schedule_id = s.id
      JOIN generate_series((p_from AT TIME ZONE o.time_zone)::date::timestamp - interval '1 day',
                           (p_to AT TIME ZONE o.time_zone)::date::timestamp, interval '1 day') AS day
        ON day >= s.valid_from AND (s.valid_until IS NULL OR day <= s.valid_until)
       AND extract(isodow FROM day) = w.weekday
     WHERE d.id = p_doctor
$$;

-- times_offered are the times of p_minutes on the grids of a doctor's windows that begin from p_from
-- on and before p_to, taken or not: what can be asked for. Where FIXED slots are, closed ones
-- included, nothing is: a doctor is one or the other at any one time.
CREATE FUNCTION times_offered(p_doctor bigint, p_minutes int, p_from timestamptz, p_to timestamptz)
RETURNS TABLE (start_at timestamptz, end_at timestamptz, opens_at timestamptz)
LANGUAGE sql STABLE AS $$
    SELECT DISTINCT ON (at) at, at + make_interval(mins => p_minutes),
           -- As for slots that are generated: from 07:00 on, fourteen days before.
           wall_time((at AT TIME ZONE o.time_zone)::date - 14 + time '07:00', o.time_zone)
      FROM doctor d
      JOIN organization o ON o.id = d.organization_id,
           working_hours(p_doctor, p_from, p_to) AS w,
           generate_series(w.start_at, w.end_at - make_interval(mins => p_minutes), w.every) AS at
     WHERE d.id = p_doctor AND p_minutes = ANY (w.durations) AND at >= p_from AND at < p_to
       AND NOT EXISTS (
           SELECT FROM time_slot t
            WHERE t.doctor_id = p_doctor AND t.kind = 'FIXED' AND t.status <> 'WITHDRAWN'
              AND t.start_at < at + make_interval(mins => p_minutes) AND t.end_at > at
              AND t.start_at > at - interval '1 day')       -- none is longer, and the index ends
     ORDER BY at
$$;

-- free_starts are the starts of p_minutes on a local day that claim_time would grant now: what the
-- windows offer and nobody has. A hold that has lapsed has nothing.
CREATE FUNCTION free_starts(p_now timestamptz, p_doctor bigint, p_date date, p_minutes int)
RETURNS SETOF timestamptz LANGUAGE sql STABLE AS $$
    WITH day AS (                                  -- wider than the day by more than clocks ever change
        SELECT o.time_zone, wall_time(p_date::timestamp, o.time_zone) - interval '3 hours' AS from_at,
               wall_time((p_date + 1)::timestamp, o.time_zone) + interval '3 hours' AS to_at
          FROM doctor d JOIN organization o ON o.id = d.organization_id WHERE d.id = p_doctor
    ), taken AS (
        SELECT coalesce(range_agg(tstzrange(t.start_at, t.end_at)), '{}') AS times
          FROM day JOIN time_slot t
            ON t.doctor_id = p_doctor AND t.kind = 'FLEXIBLE' AND t.status <> 'WITHDRAWN'
           AND tstzrange(t.start_at, t.end_at) && tstzrange(day.from_at, day.to_at + make_interval(mins => p_minutes))
         WHERE NOT EXISTS (SELECT FROM appointment x
                            WHERE x.slot_id = t.id AND x.status = 'HELD' AND x.expires_at <= p_now)
    )
    SELECT o.start_at
      FROM day, taken, times_offered(p_doctor, p_minutes, day.from_at, day.to_at) AS o
     WHERE (o.start_at AT TIME ZONE day.time_zone)::date = p_date
       AND o.start_at > p_now AND o.opens_at <= p_now
       AND NOT taken.times && tstzrange(o.start_at, o.end_at)
     ORDER BY o.start_at
$$;

-- open_time makes the slot for p_minutes of a doctor's time from p_start on, or finds the one that there
-- is. The caller has the doctor's lock, and claims the slot in the same transaction: none is left without
-- an appointment. outcome: OPEN; TIME_TAKEN; TIME_NOT_OFFERED, no window has it; LAPSED, there is nothing
-- in the way but slots with holds that have lapsed.
CREATE FUNCTION open_time(p_now timestamptz, p_doctor bigint, p_start timestamptz, p_minutes int)
RETURNS TABLE (outcome text, slot_id bigint, lapsed bigint[])
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_end   CONSTANT timestamptz := p_start + make_interval(mins => p_minutes);
    v_opens timestamptz;
    v_rule  text;
    taken   time_slot[];   -- the doctor's FLEXIBLE slots in the way, locked
BEGIN
    -- Those who give a time back don't need the doctor's lock. Waiting for them here and not in the
    -- insert below keeps to the order of locks.
    taken := ARRAY(SELECT t FROM time_slot t
                    WHERE t.doctor_id = p_doctor AND t.kind = 'FLEXIBLE' AND t.status <> 'WITHDRAWN'
                      AND tstzrange(t.start_at, t.end_at) && tstzrange(p_start, v_end)
                    ORDER BY t.id FOR NO KEY UPDATE);
    IF taken[1].start_at = p_start AND taken[1].end_at = v_end THEN
        slot_id := taken[1].id;                    -- just this time: perhaps the patient's own
        outcome := 'OPEN';
    ELSIF taken <> '{}' THEN
        lapsed := ARRAY(SELECT x.slot_id FROM unnest(taken) AS t JOIN appointment x ON x.slot_id = t.id
                         WHERE x.status = 'HELD' AND x.expires_at <= coalesce(p_now, clock_timestamp()));
        outcome := CASE WHEN cardinality(lapsed) = cardinality(taken) THEN 'LAPSED' ELSE 'TIME_TAKEN' END;
    ELSE
        SELECT o.opens_at INTO v_opens
          FROM times_offered(p_doctor, p_minutes, p_start, p_start + interval '1 microsecond') AS o;
        outcome := CASE WHEN FOUND THEN 'OPEN' ELSE 'TIME_NOT_OFFERED' END;
        IF outcome = 'OPEN' THEN
            BEGIN                                  -- what decides: ex_flexible_doctor_time
                INSERT INTO time_slot (doctor_id, start_at, end_at, capacity, kind, opens_at)
                VALUES (p_doctor, p_start, v_end, 1, 'FLEXIBLE', v_opens) RETURNING id INTO slot_id;
            EXCEPTION WHEN unique_violation OR exclusion_violation THEN
                GET STACKED DIAGNOSTICS v_rule = CONSTRAINT_NAME;
                IF v_rule NOT IN ('ex_flexible_doctor_time', 'uq_doctor_start') THEN
                    RAISE;
                END IF;
                outcome := 'TIME_TAKEN';
            END;
        END IF;
    END IF;
    RETURN NEXT;
END $$;

-- claim_time wins p_minutes of a doctor's time, from p_start on, for a patient. The slot's row is made
-- for it; all else is decided by claim, as for any slot, and so are the parameters and what comes back.
-- Besides: what open_time says; DOCTOR_NOT_FOUND. lapsed are the slots whose holds have lapsed, with LAPSED.
CREATE FUNCTION claim_time(
    p_now timestamptz, p_doctor bigint, p_start timestamptz, p_minutes int, p_patient bigint, p_key text,
    p_by text, p_hash bytea, p_organization bigint, p_registrar text,
    p_hold boolean, p_referral text, p_overlap text, p_exempt boolean
) RETURNS TABLE (
    outcome text, opens_at timestamptz, rule practice_rule, doctor_id bigint, a appointment, lapsed bigint[]
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    opened record;
    claimed record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('doctor:' || p_doctor, 0));

    SELECT * INTO a FROM appointment x WHERE x.booked_by = p_by AND x.idempotency_key = p_key;
    IF FOUND THEN                                  -- a replay beats every refusal
        outcome := CASE WHEN a.request_hash = p_hash THEN 'REPLAYED' ELSE 'IDEMPOTENCY_KEY_REUSED' END;
        doctor_id := (SELECT t.doctor_id FROM time_slot t WHERE t.id = a.slot_id);
        RETURN NEXT;
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM doctor d WHERE d.id = p_doctor AND p_organization IN (0, d.organization_id)) THEN
        outcome := 'DOCTOR_NOT_FOUND';
        RETURN NEXT;
        RETURN;
    END IF;
    doctor_id := p_doctor;

    BEGIN
        SELECT * INTO opened FROM open_time(p_now, p_doctor, p_start, p_minutes);
        outcome := opened.outcome;
        lapsed := opened.lapsed;
        IF outcome = 'OPEN' THEN
            SELECT * INTO claimed
              FROM claim(p_now, true, ARRAY[opened.slot_id], ARRAY[p_patient], ARRAY[p_key], ARRAY[p_by], ARRAY[p_hash],
                         ARRAY[p_organization], ARRAY[p_registrar], CASE WHEN p_hold THEN ARRAY[true] END,
                         CASE WHEN p_referral IS NOT NULL THEN ARRAY[p_referral] END,
                         CASE WHEN p_overlap IS NOT NULL THEN ARRAY[p_overlap] END,
                         CASE WHEN p_exempt THEN ARRAY[true] END);
            outcome := CASE claimed.outcome WHEN 'SLOT_FULL' THEN 'TIME_TAKEN' ELSE claimed.outcome END;
            opens_at := claimed.opens_at;
            rule := claimed.rule;
            a := claimed.a;
            IF outcome = 'LAPSED' THEN
                lapsed := ARRAY[coalesce(a.slot_id, opened.slot_id)];
            END IF;
        END IF;
        IF outcome <> 'WON' THEN
            RAISE EXCEPTION USING ERRCODE = 'OS001', MESSAGE = 'claim_time: no slot without its appointment';
        END IF;
    EXCEPTION WHEN SQLSTATE 'OS001' THEN
        NULL;                                      -- all of the block is undone but what we answer
    END;
    RETURN NEXT;
END $$;
