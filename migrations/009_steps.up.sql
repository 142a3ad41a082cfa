-- From one state of an appointment to the next, and how a place comes back. The functions step and
-- expire of 005_claims stay for instances of the version before.
--
-- Lock order, the same on every path: doctor (advisory, only where a calendar is written), slots by
-- id, patients (advisory), referrals (advisory), appointments.

-- give_back returns p_places[n] places of slot p_slot[n], for every n: places that nobody is in any
-- more, of different slots that the caller has locked. It is the one way for a place to come back.
-- A FLEXIBLE slot came into being with its appointment and goes with it.
CREATE FUNCTION give_back(p_now timestamptz, p_slot bigint[], p_places int[]) RETURNS void
LANGUAGE sql SET plan_cache_mode = force_generic_plan AS $$
    UPDATE time_slot t
       SET booked_count = t.booked_count - g.places,
           status = CASE WHEN t.kind = 'FLEXIBLE' AND t.booked_count = g.places THEN 'WITHDRAWN' ELSE t.status END
      FROM unnest(p_slot, p_places) AS g (slot, places)
     WHERE t.id = g.slot
$$;

-- step takes an appointment that the caller may see to its next state, under its slot's lock.
--
--   p_step          CONFIRM: HELD → BOOKED. RELEASE: HELD → CANCELLED. CANCEL: HELD, BOOKED → CANCELLED.
--   p_patient, p_organization, p_registrar   what the caller may see: appointments of this patient,
--                                            of this organization, of patients of this registrar;
--                                            NULL = any
--   p_exempt        whether what a practice asks of its patients does not bind the caller: its staff
--
-- outcome: CHANGED; UNCHANGED, the step was taken before; or the code of a refusal.
CREATE FUNCTION step(
    p_now timestamptz, p_step text, p_appointment bigint, p_patient bigint, p_organization bigint,
    p_registrar text, p_by text, p_reason text, p_exempt boolean
) RETURNS TABLE (outcome text, doctor_id bigint, a appointment)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now  timestamptz;
    v_goal text := CASE p_step WHEN 'CONFIRM' THEN 'BOOKED' ELSE 'CANCELLED' END;
    v_from text;
    slot   time_slot;
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
    v_now := coalesce(p_now, clock_timestamp());   -- after the wait
    doctor_id := slot.doctor_id;
    SELECT * INTO a FROM appointment x WHERE x.id = p_appointment;     -- now it stands still
    v_from := a.status;

    outcome := CASE
        WHEN v_from = v_goal                                 THEN 'UNCHANGED'
        WHEN v_from = 'EXPIRED' OR v_from = 'HELD' AND a.expires_at <= v_now THEN 'HOLD_EXPIRED'
        WHEN v_from <> 'HELD' AND (p_step <> 'CANCEL' OR v_from <> 'BOOKED') THEN 'INVALID_STATE'
        WHEN lower(a.during) <= v_now                        THEN 'TOO_LATE'
        ELSE 'CHANGED' END;
    IF outcome = 'CHANGED' AND v_goal = 'BOOKED' THEN
        UPDATE appointment x SET status = 'BOOKED', expires_at = NULL WHERE x.id = a.id RETURNING * INTO a;
        INSERT INTO outbox_event (root_id, type, payload) VALUES (a.root_id, 'BOOKED', booking_payload(a, slot));
    ELSIF outcome = 'CHANGED' THEN
        UPDATE appointment x
           SET status = 'CANCELLED', cancelled_at = v_now, cancelled_by = p_by, cancel_reason = p_reason
         WHERE x.id = a.id RETURNING * INTO a;
        PERFORM give_back(v_now, ARRAY[slot.id], ARRAY[1]);
        INSERT INTO outbox_event (root_id, type, payload)
        VALUES (a.root_id, CASE v_from WHEN 'HELD' THEN 'RELEASED' ELSE 'CANCELLED' END, booking_payload(a, slot));
    END IF;
    RETURN NEXT;
END $$;

-- release_due ends the holds of these slots that have lapsed and gives their places back. It returns
-- how many there were. Of any number of calls one ends each; unless p_wait, slots that others have
-- locked are left to them.
CREATE FUNCTION release_due(p_now timestamptz, p_wait boolean, p_slot bigint[]) RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    slots bigint[];
    due   bigint[];
    freed int[];           -- places of each of the slots
    v_now timestamptz;
BEGIN
    IF p_wait THEN
        slots := ARRAY(SELECT t.id FROM time_slot t WHERE t.id = ANY (p_slot) ORDER BY t.id FOR NO KEY UPDATE);
    ELSE
        slots := ARRAY(SELECT t.id FROM time_slot t WHERE t.id = ANY (p_slot) ORDER BY t.id FOR NO KEY UPDATE SKIP LOCKED);
    END IF;
    v_now := coalesce(p_now, clock_timestamp());   -- after the wait
    due := ARRAY(SELECT h.id FROM unnest(slots) AS s (id), LATERAL (
                     SELECT x.id FROM appointment x
                      WHERE x.slot_id = s.id AND x.status = 'HELD' AND x.expires_at <= v_now OFFSET 0) AS h);
    IF due <> '{}' THEN
        WITH lapsed AS (
            UPDATE appointment x SET status = 'EXPIRED' WHERE x.id = ANY (due) RETURNING x.*
        ), announced AS (
            INSERT INTO outbox_event (root_id, type, payload)
            SELECT l.root_id, 'EXPIRED', booking_payload(ROW(l.*)::appointment, t)
              FROM lapsed l JOIN time_slot t ON t.id = l.slot_id
             ORDER BY l.id
        )
        SELECT array_agg(l.slot_id), array_agg(l.places) INTO slots, freed
          FROM (SELECT slot_id, count(*)::int AS places FROM lapsed GROUP BY slot_id ORDER BY slot_id) AS l;
        PERFORM give_back(v_now, slots, freed);
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
    outcome text, opens_at timestamptz, full_version bigint, decided_at timestamptz, doctor_id bigint, a appointment,
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
        PERFORM pg_advisory_xact_lock(patient_lock_key(moved.patient_id));
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
    IF outcome <> 'WON' THEN
        RETURN NEXT;
        RETURN;
    END IF;

    BEGIN
        -- The old one goes first: neither its time nor its referral nor its place is in the way of the new one.
        UPDATE appointment x SET status = 'CANCELLED', cancelled_at = v_now, cancelled_by = p_by
         WHERE x.id = moved.id RETURNING * INTO moved;
        PERFORM give_back(v_now, ARRAY[slot.id], ARRAY[1]);
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
