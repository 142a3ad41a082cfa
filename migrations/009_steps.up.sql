-- From one state of an appointment to the next, and how a place comes back. The functions step and
-- expire of 005_claims stay for instances of the version before.
--
-- Lock order, the same on every path: doctor (advisory, only where a calendar is written), slots by
-- id, patients (advisory), referrals (advisory), appointments.

-- give_back returns p_places[n] places of slot p_slot[n], for every n: places that nobody is in any
-- more, of different slots that the caller has locked. It is the one way for a place to come back.
-- A FLEXIBLE slot came into being with its appointment and goes with it, at once: it is neither offered
-- nor withheld, and so never in the way of the time that its patient moves to.
--
--   p_waiting    what lock_waiting said of these slots: those get the places first, as offers
--   p_cancelled  for every n the booked appointment that was in one of the places until now, or NULL.
--                What nobody waits for stays taken until the next release if the practice wants that,
--                unless the slot has begun by then.
--
-- The slots' versions rise in any case: whoever keeps a copy learns anew when it changes by itself.
CREATE FUNCTION give_back(
    p_now timestamptz, p_slot bigint[], p_places int[], p_waiting bigint[] DEFAULT NULL, p_cancelled bigint[] DEFAULT NULL
) RETURNS void LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    places int[] := p_places;
BEGIN
    IF p_waiting IS NOT NULL THEN
        places := offer_places(p_now, p_slot, places, p_waiting);
    END IF;
    IF p_cancelled IS NOT NULL THEN
        WITH withheld AS (
            UPDATE appointment x SET returns_at = r.at
              FROM unnest(p_cancelled, places) AS c (id, places), organization o, next_release(p_now, o.time_zone) AS r (at), time_slot t
             WHERE x.id = c.id AND c.places > 0 AND o.id = x.organization_id AND t.id = x.slot_id AND t.kind = 'FIXED'
               AND o.cancelled_returns = 'NEXT_RELEASE' AND r.at < lower(x.during)
            RETURNING x.id
        )
        SELECT array_agg(c.places - (w.id IS NOT NULL)::int ORDER BY c.n) INTO places
          FROM unnest(p_cancelled, places) WITH ORDINALITY AS c (id, places, n) LEFT JOIN withheld w ON w.id = c.id;
    END IF;
    UPDATE time_slot t
       SET booked_count = t.booked_count - g.places,
           status = CASE WHEN t.kind = 'FLEXIBLE' AND t.booked_count = g.places THEN 'WITHDRAWN' ELSE t.status END
      FROM unnest(p_slot, places) AS g (slot, places)
     WHERE t.id = g.slot;
END $$;

-- step takes an appointment that the caller may see to its next state, under its slot's lock.
--
--   p_step          CONFIRM: HELD → BOOKED. RELEASE: HELD → CANCELLED. CANCEL: HELD, BOOKED → CANCELLED.
--                   ARRIVED, FULFILLED, NO_SHOW, UNMARK: from BOOKED or another of these to that state,
--                   UNMARK to BOOKED. Nobody can be missed or, without having arrived, be done with
--                   before the appointment begins.
--   p_patient, p_organization, p_registrar   what the caller may see: appointments of this patient,
--                                            of this organization, of patients of this registrar;
--                                            NULL = any
--   p_exempt        whether what a practice asks of its patients does not bind the caller: its staff
--
-- outcome: CHANGED; UNCHANGED, the step was taken before; or the code of a refusal, with the rule of
-- the practice that refuses, if it is one. A mark that is undone makes what was over active again, so
-- it can be refused for what has been booked since; LAPSED and a are then as in claim.
CREATE FUNCTION step(
    p_now timestamptz, p_step text, p_appointment bigint, p_patient bigint, p_organization bigint,
    p_registrar text, p_by text, p_reason text, p_exempt boolean
) RETURNS TABLE (outcome text, rule practice_rule, doctor_id bigint, a appointment)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now  timestamptz;
    v_mark boolean := p_step IN ('ARRIVED', 'FULFILLED', 'NO_SHOW', 'UNMARK');
    v_goal text := CASE WHEN p_step IN ('CONFIRM', 'UNMARK') THEN 'BOOKED' WHEN v_mark THEN p_step ELSE 'CANCELLED' END;
    v_from text;
    slot   time_slot;
    waiting bigint[];
    other  appointment;
BEGIN
    SELECT x.* INTO a
      FROM appointment x JOIN patient p ON p.id = x.patient_id
     WHERE x.id = p_appointment
       AND (p_patient IS NULL OR x.patient_id = p_patient)
       AND (p_organization IS NULL OR x.organization_id = p_organization)
       AND (p_registrar IS NULL OR p.issuer = p_registrar);
    IF NOT FOUND THEN
        outcome := 'NOT_FOUND';
        RETURN NEXT;
        RETURN;
    END IF;
    SELECT * INTO slot FROM time_slot t WHERE t.id = a.slot_id FOR NO KEY UPDATE;
    IF v_goal = 'CANCELLED' THEN
        waiting := lock_waiting(p_now, ARRAY[slot.id], ARRAY[1], ARRAY[a.patient_id]);
    ELSE
        -- What is marked may become active again. And limits don't count a hold that has lapsed: whoever
        -- counts must not find it so by a later clock than the one it is confirmed by.
        PERFORM pg_advisory_xact_lock(patient_lock_key(a.patient_id));
    END IF;
    IF v_mark AND a.referral_id IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(referral_lock_key(a.organization_id, a.referral_id));
    END IF;
    v_now := coalesce(p_now, clock_timestamp());   -- after the last wait
    doctor_id := slot.doctor_id;
    SELECT * INTO a FROM appointment x WHERE x.id = p_appointment;     -- now it stands still
    v_from := a.status;

    outcome := CASE
        WHEN v_from = v_goal                                 THEN 'UNCHANGED'
        WHEN v_from = 'EXPIRED' OR v_from = 'HELD' AND a.expires_at <= v_now THEN 'HOLD_EXPIRED'
        WHEN v_mark AND v_from NOT IN ('BOOKED', 'ARRIVED', 'FULFILLED', 'NO_SHOW') THEN 'INVALID_STATE'
        WHEN v_mark AND lower(a.during) > v_now
             AND (v_goal = 'NO_SHOW' OR v_goal = 'FULFILLED' AND v_from <> 'ARRIVED') THEN 'NOT_BEGUN'
        WHEN v_mark                                          THEN 'CHANGED'
        WHEN v_from <> 'HELD' AND (p_step <> 'CANCEL' OR v_from <> 'BOOKED') THEN 'INVALID_STATE'
        WHEN lower(a.during) <= v_now                        THEN 'TOO_LATE'
        ELSE 'CHANGED' END;
    IF outcome = 'CHANGED' AND v_from = 'BOOKED' AND v_goal = 'CANCELLED' AND NOT p_exempt THEN
        rule := cutoff_rule(v_now, a.organization_id, lower(a.during));
        outcome := coalesce(rule.code, outcome);
    END IF;
    IF outcome = 'CHANGED' AND v_mark THEN
        BEGIN
            UPDATE appointment x SET status = v_goal WHERE x.id = a.id RETURNING * INTO a;
            INSERT INTO outbox_event (root_id, type, payload)
            VALUES (a.root_id, CASE p_step WHEN 'UNMARK' THEN 'UNMARKED' ELSE v_goal END, booking_payload(a, slot));
        EXCEPTION WHEN unique_violation OR exclusion_violation THEN
            outcome := 'ALREADY_BOOKED';
            SELECT * INTO other FROM appointment x
             WHERE x.slot_id = a.slot_id AND x.patient_id = a.patient_id AND x.status IN ('HELD', 'BOOKED', 'ARRIVED');
            IF NOT FOUND THEN
                outcome := 'REFERRAL_IN_USE';
                SELECT * INTO other FROM appointment x
                 WHERE x.organization_id = a.organization_id AND x.referral_id = a.referral_id AND x.status IN ('HELD', 'BOOKED', 'ARRIVED');
            END IF;
            IF NOT FOUND THEN
                outcome := 'OVERLAP';
                SELECT * INTO other FROM appointment x
                 WHERE x.patient_id = a.patient_id AND x.during && a.during
                   AND x.status IN ('HELD', 'BOOKED', 'ARRIVED') AND NOT x.overlap_allowed
                 ORDER BY x.status = 'HELD' AND x.expires_at <= v_now LIMIT 1;
            END IF;
            IF other.id IS NULL OR other.status = 'HELD' AND other.expires_at <= v_now THEN
                outcome := 'LAPSED';               -- or it has gone meanwhile
            ELSIF outcome = 'OVERLAP' OR other.patient_id <> a.patient_id THEN
                other := NULL;                     -- nobody's business
            END IF;
            a := other;
        END;
    ELSIF outcome = 'CHANGED' AND v_goal = 'BOOKED' THEN
        UPDATE appointment x SET status = 'BOOKED', expires_at = NULL WHERE x.id = a.id RETURNING * INTO a;
        UPDATE waiting_entry w SET status = 'BOOKED' WHERE w.appointment_id = a.id AND w.status = 'OFFERED';
        INSERT INTO outbox_event (root_id, type, payload) VALUES (a.root_id, 'BOOKED', booking_payload(a, slot));
    ELSIF outcome = 'CHANGED' THEN
        UPDATE appointment x
           SET status = 'CANCELLED', cancelled_at = v_now, cancelled_by = p_by, cancel_reason = p_reason
         WHERE x.id = a.id RETURNING * INTO a;
        INSERT INTO outbox_event (root_id, type, payload)
        VALUES (a.root_id, CASE v_from WHEN 'HELD' THEN 'RELEASED' ELSE 'CANCELLED' END, booking_payload(a, slot));
        -- A hold comes back at once, given back or lapsed: it was nobody's for longer than minutes.
        PERFORM give_back(v_now, ARRAY[slot.id], ARRAY[1], waiting, CASE v_from WHEN 'BOOKED' THEN ARRAY[a.id] END);
    END IF;
    RETURN NEXT;
END $$;

-- release_due ends the holds of these slots that have lapsed, and the time for which places of
-- cancelled appointments are withheld, and gives these places back: at most 500, a full answer means
-- that there may be more. It returns how many there were. Of any number of calls one ends each; unless
-- p_wait, slots that others have locked are left to them.
CREATE FUNCTION release_due(p_now timestamptz, p_wait boolean, p_slot bigint[]) RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    most CONSTANT int := 500;      -- their patients may have to be locked
    slots   bigint[];
    due     bigint[];
    freed   int[];         -- places of each of the slots
    waiting bigint[];
    v_now   timestamptz;
BEGIN
    IF p_wait THEN
        slots := ARRAY(SELECT t.id FROM time_slot t WHERE t.id = ANY (p_slot) ORDER BY t.id FOR NO KEY UPDATE);
    ELSE
        slots := ARRAY(SELECT t.id FROM time_slot t WHERE t.id = ANY (p_slot) ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    v_now := coalesce(p_now, clock_timestamp());   -- after the wait
    due := ARRAY(SELECT d.id FROM unnest(slots) AS s (id), LATERAL (
                     SELECT x.id FROM appointment x
                      WHERE x.slot_id = s.id AND x.status = 'HELD' AND x.expires_at <= v_now
                     UNION ALL
                     SELECT x.id FROM appointment x
                      WHERE x.slot_id = s.id AND x.returns_at IS NOT NULL AND x.returns_at <= v_now
                     OFFSET 0) AS d LIMIT most);
    IF due <> '{}' THEN
        SELECT array_agg(d.slot_id), array_agg(d.places) INTO slots, freed
          FROM (SELECT x.slot_id, count(*)::int AS places FROM appointment x WHERE x.id = ANY (due)
                 GROUP BY x.slot_id ORDER BY x.slot_id) AS d;
        waiting := lock_waiting(p_now, slots, freed, ARRAY(SELECT x.patient_id FROM appointment x WHERE x.id = ANY (due)));
        v_now := coalesce(p_now, clock_timestamp());
        UPDATE appointment x SET returns_at = NULL WHERE x.id = ANY (due) AND x.returns_at IS NOT NULL;
        WITH lapsed AS (
            UPDATE appointment x SET status = 'EXPIRED' WHERE x.id = ANY (due) AND x.status = 'HELD' RETURNING x.*
        )
        INSERT INTO outbox_event (root_id, type, payload)
        SELECT l.root_id, 'EXPIRED', booking_payload(ROW(l.*)::appointment, t)
          FROM lapsed l JOIN time_slot t ON t.id = l.slot_id
         ORDER BY l.id;
        PERFORM give_back(v_now, slots, freed, waiting);
    END IF;
    RETURN cardinality(due);
END $$;

-- reschedule moves a booked appointment that the caller may see to another slot of its organization:
-- the old one is cancelled and a new one with the same root booked, as claim books, in one go. Any
-- refusal leaves everything as it was.
--
--   p_patient, p_organization, p_registrar   what the caller may see, as in step
--   p_slot          where to; or NULL, and a time instead:
--   p_doctor, p_start, p_minutes   a time of a doctor whose hours are flexible, as for claim_time
--   p_key, p_by, p_hash   the idempotency key, the caller it belongs to, and what it stands for
--   p_overlap       why the appointment may overlap others of the patient where it moves to, or NULL
--
-- It answers as claim does, and with UNCHANGED if the appointment is in that slot, or at that time,
-- already; and to a time as claim_time does.
CREATE FUNCTION reschedule(
    p_now timestamptz, p_appointment bigint, p_patient bigint, p_organization bigint, p_registrar text,
    p_slot bigint, p_key text, p_by text, p_hash bytea, p_overlap text, p_exempt boolean,
    p_doctor bigint, p_start timestamptz, p_minutes int
) RETURNS TABLE (
    outcome text, opens_at timestamptz, rule practice_rule, full_version bigint, decided_at timestamptz, doctor_id bigint, a appointment,
    lapsed bigint[]
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now  timestamptz;
    moved  appointment;
    slot   time_slot;      -- that it leaves
    target time_slot;
    v_slot bigint := p_slot;
    v_end  CONSTANT timestamptz := p_start + make_interval(mins => p_minutes);
    opened record;
    claimed record;
    waiting bigint[];
BEGIN
    decided_at := clock_timestamp();
    SELECT * INTO a FROM appointment x WHERE x.booked_by = p_by AND x.idempotency_key = p_key;
    IF NOT FOUND THEN
        SELECT x.* INTO moved
          FROM appointment x JOIN patient p ON p.id = x.patient_id
         WHERE x.id = p_appointment
           AND (p_patient IS NULL OR x.patient_id = p_patient)
           AND (p_organization IS NULL OR x.organization_id = p_organization)
           AND (p_registrar IS NULL OR p.issuer = p_registrar);
        IF NOT FOUND THEN
            outcome := 'NOT_FOUND';
            RETURN NEXT;
            RETURN;
        END IF;
        IF p_doctor IS NULL THEN
            PERFORM FROM time_slot t WHERE t.id IN (moved.slot_id, p_slot) ORDER BY t.id FOR NO KEY UPDATE;
        ELSE
            PERFORM pg_advisory_xact_lock(hashtextextended('doctor:' || p_doctor, 0));
            PERFORM FROM time_slot t
              WHERE t.id = ANY (moved.slot_id || ARRAY(
                        SELECT f.id FROM time_slot f
                         WHERE f.doctor_id = p_doctor AND f.kind = 'FLEXIBLE' AND f.status <> 'WITHDRAWN'
                           AND tstzrange(f.start_at, f.end_at) && tstzrange(p_start, v_end)))
              ORDER BY t.id FOR NO KEY UPDATE;
        END IF;
        waiting := lock_waiting(p_now, ARRAY[moved.slot_id], ARRAY[1], ARRAY[moved.patient_id]);
        IF waiting IS NULL THEN                    -- nobody waits, and nobody was locked
            PERFORM pg_advisory_xact_lock(patient_lock_key(moved.patient_id));
        END IF;
        IF moved.referral_id IS NOT NULL THEN
            PERFORM pg_advisory_xact_lock(referral_lock_key(moved.organization_id, moved.referral_id));
        END IF;
        decided_at := clock_timestamp();           -- after the last wait
        SELECT * INTO a FROM appointment x WHERE x.booked_by = p_by AND x.idempotency_key = p_key;
    END IF;
    IF a.id IS NOT NULL THEN                       -- a replay beats every refusal
        outcome := CASE WHEN a.request_hash = p_hash THEN 'REPLAYED' ELSE 'IDEMPOTENCY_KEY_REUSED' END;
        doctor_id := (SELECT t.doctor_id FROM time_slot t WHERE t.id = a.slot_id);
        RETURN NEXT;
        RETURN;
    END IF;

    v_now := coalesce(p_now, decided_at);
    SELECT * INTO moved FROM appointment x WHERE x.id = p_appointment;     -- now it stands still
    SELECT * INTO slot FROM time_slot t WHERE t.id = moved.slot_id;
    SELECT * INTO target FROM time_slot t WHERE t.id = p_slot;
    doctor_id := slot.doctor_id;
    a := moved;
    outcome := CASE
        WHEN moved.status = 'BOOKED' AND (slot.id = p_slot OR (slot.doctor_id, slot.start_at, slot.end_at) = (p_doctor, p_start, v_end))
                                                             THEN 'UNCHANGED'
        WHEN moved.status = 'EXPIRED' OR moved.status = 'HELD' AND moved.expires_at <= v_now THEN 'HOLD_EXPIRED'
        WHEN moved.status <> 'BOOKED'                        THEN 'INVALID_STATE'
        WHEN lower(moved.during) <= v_now                    THEN 'TOO_LATE'
        -- Elsewhere its referral is another one. Staff hear of another's slot only that there is none.
        WHEN p_organization IS NULL AND moved.organization_id <>
             (SELECT d.organization_id FROM doctor d WHERE d.id = coalesce(p_doctor, target.doctor_id)) THEN 'OTHER_ORGANIZATION'
        WHEN p_doctor IS NOT NULL AND NOT EXISTS (
             SELECT FROM doctor d WHERE d.id = p_doctor AND d.organization_id = moved.organization_id) THEN 'DOCTOR_NOT_FOUND'
        ELSE 'WON' END;
    IF outcome = 'WON' AND NOT p_exempt THEN
        rule := cutoff_rule(v_now, moved.organization_id, lower(moved.during));
        outcome := coalesce(rule.code, outcome);
    END IF;
    IF outcome <> 'WON' THEN
        RETURN NEXT;
        RETURN;
    END IF;

    BEGIN
        -- The old one goes first: neither its time nor its referral nor its place is in the way of the new one,
        -- and no limit counts it.
        UPDATE appointment x SET status = 'CANCELLED', cancelled_at = v_now, cancelled_by = p_by
         WHERE x.id = moved.id RETURNING * INTO moved;
        PERFORM give_back(v_now, ARRAY[slot.id], ARRAY[1], waiting, ARRAY[moved.id]);
        IF p_doctor IS NOT NULL THEN
            SELECT * INTO opened FROM open_time(v_now, p_doctor, p_start, p_minutes);
            IF opened.outcome <> 'OPEN' THEN
                outcome := opened.outcome;
                lapsed := opened.lapsed;
                a := NULL;
                RAISE EXCEPTION USING ERRCODE = 'OS001', MESSAGE = 'reschedule: the old place is kept';
            END IF;
            v_slot := opened.slot_id;
        END IF;
        SELECT * INTO claimed
          FROM claim(v_now, true, ARRAY[v_slot], ARRAY[moved.patient_id], ARRAY[p_key], ARRAY[p_by], ARRAY[p_hash],
                     ARRAY[coalesce(p_organization, 0)], ARRAY[''], ARRAY[false], ARRAY[moved.referral_id],
                     ARRAY[p_overlap], ARRAY[p_exempt], moved);
        outcome := claimed.outcome;
        opens_at := claimed.opens_at;
        rule := claimed.rule;
        full_version := claimed.full_version;
        doctor_id := claimed.doctor_id;
        a := claimed.a;
        IF p_doctor IS NOT NULL AND outcome = 'SLOT_FULL' THEN
            outcome := 'TIME_TAKEN';
        ELSIF outcome = 'LAPSED' THEN
            lapsed := ARRAY[coalesce(a.slot_id, v_slot)];
        END IF;
        IF outcome <> 'WON' THEN
            RAISE EXCEPTION USING ERRCODE = 'OS001', MESSAGE = 'reschedule: the old place is kept';
        END IF;
        UPDATE appointment x SET replaced_by = a.id WHERE x.id = moved.id;
        SELECT * INTO target FROM time_slot t WHERE t.id = v_slot;
        IF target.booked_count = target.capacity THEN
            full_version := target.version;
        END IF;
        INSERT INTO outbox_event (root_id, type, payload)
        VALUES (a.root_id, 'RESCHEDULED', booking_payload(a, target) || jsonb_build_object('from', booking_payload(moved, slot)));
    EXCEPTION WHEN SQLSTATE 'OS001' THEN
        NULL;                                      -- all of the block is undone but what we answer
    END;
    RETURN NEXT;
END $$;
