-- The booking rule. One call is one round trip and one transaction; each statement below takes
-- a fresh snapshot (READ COMMITTED), so what is read after a lock is what the lock protects.
-- Lock order, the same on every path: slots by id, patients (advisory), appointments.
--
-- Plans are generic: every look-up below is one probe of an index whatever the values are, while
-- plans made for the arrays at hand are made anew at every call, at a multiple of its cost.

CREATE FUNCTION patient_lock_key(patient bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    $$ SELECT hashtextextended('patient:' || patient, 0) $$;

-- What an event tells of an appointment and its slot: ids and times only.
CREATE FUNCTION booking_payload(a appointment, slot time_slot) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_object('appointmentId', a.id, 'slotId', slot.id, 'doctorId', slot.doctor_id,
        'organizationId', a.organization_id, 'patientId', a.patient_id, 'startAt', slot.start_at, 'endAt', slot.end_at) $$;

-- book books slot p_slot[n] for patient p_patient[n], for every n, in the order given: whoever
-- fails by their own fault takes no place. One row comes back per request, in that order.
--
--   p_now           what time it is; NULL = the database's clock, read once the locks are held
--   p_wait          whether to wait for slots that others have locked, or to answer SLOT_BUSY
--   p_key, p_by     the idempotency key and the caller it belongs to
--   p_hash          hash of the request that the key stands for
--   p_organization  0, or: only slots of this organization
--   p_registrar     '' where callers book for themselves; else who registered the patient.
--                   With p_organization, patients known there by an appointment do as well.
--
-- outcome: BOOKED, REPLAYED, SLOT_BUSY, or the code of a refusal. a is the appointment booked,
-- replayed or, with ALREADY_BOOKED, the one that stands; opens_at comes with SLOT_NOT_OPEN.
-- full_version is the version of a slot that has no place left once this is committed; decided_at
-- is the database's clock while the slots were locked.
CREATE FUNCTION book(
    p_now timestamptz, p_wait boolean, p_slot bigint[], p_patient bigint[], p_key text[], p_by text[],
    p_hash bytea[], p_organization bigint[], p_registrar text[]
) RETURNS TABLE (
    outcome text, opens_at timestamptz, full_version bigint, decided_at timestamptz, doctor_id bigint, a appointment
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    slots  bigint[];       -- the slots we have locked, by id, and for each:
    locked time_slot[];    --   its state, which stands while we hold the lock
    owner  bigint[];       --   its organization
    won    int[];          --   places given away by this call
    made   appointment[];
    slot   time_slot;
    v_now  timestamptz;
    i      int;
BEGIN
    IF p_wait THEN
        SELECT array_agg(s.id), array_agg(s.slot), array_agg(s.organization_id), array_agg(0)
          INTO slots, locked, owner, won
          FROM (SELECT t.id, t AS slot, d.organization_id
                  FROM time_slot t JOIN doctor d ON d.id = t.doctor_id
                 WHERE t.id = ANY (p_slot) ORDER BY t.id FOR NO KEY UPDATE OF t) AS s;
    ELSE
        SELECT array_agg(s.id), array_agg(s.slot), array_agg(s.organization_id), array_agg(0)
          INTO slots, locked, owner, won
          FROM (SELECT t.id, t AS slot, d.organization_id
                  FROM time_slot t JOIN doctor d ON d.id = t.doctor_id
                 WHERE t.id = ANY (p_slot) ORDER BY t.id FOR NO KEY UPDATE OF t SKIP LOCKED) AS s;
    END IF;
    PERFORM pg_advisory_xact_lock(p.k)
       FROM (SELECT DISTINCT patient_lock_key(u) AS k FROM unnest(p_patient) AS u ORDER BY k) AS p;
    decided_at := clock_timestamp();               -- after the last wait
    v_now := coalesce(p_now, decided_at);

    -- Mostly everybody wins. Then the constraints alone are enough to tell, and if they object to
    -- anything, nothing has happened and the careful road below finds out to what.
    IF '' = ALL (p_registrar) AND NOT EXISTS (
        SELECT FROM (SELECT u, count(*) AS places FROM unnest(p_slot) AS u GROUP BY u) AS w
          LEFT JOIN unnest(locked) AS l ON l.id = w.u
         WHERE (l.status = 'OPEN' AND l.opens_at <= v_now AND l.start_at > v_now
                AND l.booked_count + w.places <= l.capacity) IS NOT TRUE)
    THEN
        BEGIN
            WITH inserted AS (
                INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status,
                                         idempotency_key, booked_by, request_hash, during, created_at)
                SELECT r.id, r.id, r.slot, r.patient, o.organization, 'BOOKED', r.key, r.by, r.hash,
                       tstzrange(l.start_at, l.end_at), v_now
                  FROM (SELECT nextval('appointment_id_seq') AS id, q.*
                          FROM unnest(p_slot, p_patient, p_key, p_by, p_hash) AS q (slot, patient, key, by, hash)) AS r
                  JOIN unnest(locked) AS l ON l.id = r.slot
                  JOIN unnest(slots, owner) AS o (id, organization) ON o.id = r.slot
                RETURNING *
            ), announced AS (
                INSERT INTO outbox_event (root_id, type, payload)
                SELECT x.root_id, 'BOOKED', booking_payload(ROW(x.*)::appointment, l)
                  FROM inserted x JOIN unnest(locked) AS l ON l.id = x.slot_id
                 ORDER BY x.id
            )
            SELECT array_agg(ROW(x.*)::appointment ORDER BY x.id) INTO made FROM inserted AS x;
        EXCEPTION WHEN unique_violation OR exclusion_violation OR foreign_key_violation THEN
            made := NULL;
        END;
    END IF;
    IF made IS NOT NULL THEN
        won := ARRAY(SELECT count(*) FROM unnest(slots) WITH ORDINALITY AS s (id, n)
                       JOIN unnest(p_slot) AS q ON q = s.id GROUP BY s.n ORDER BY s.n);
        RETURN QUERY
            SELECT 'BOOKED', NULL::timestamptz, CASE WHEN l.booked_count + w.places = l.capacity THEN l.version + 1 END,
                   decided_at, l.doctor_id, m
              FROM unnest(made) AS m
              JOIN unnest(locked) AS l ON l.id = m.slot_id
              JOIN unnest(slots, won) AS w (id, places) ON w.id = m.slot_id
             ORDER BY m.id;
    END IF;

    FOR n IN 1 .. CASE WHEN made IS NULL THEN cardinality(p_slot) ELSE 0 END LOOP
        opens_at := NULL;
        full_version := NULL;
        i := array_position(slots, p_slot[n]);
        slot := locked[i];
        doctor_id := slot.doctor_id;

        SELECT * INTO a FROM appointment x WHERE x.booked_by = p_by[n] AND x.idempotency_key = p_key[n];
        IF FOUND THEN                              -- a replay beats every refusal
            outcome := CASE WHEN a.request_hash = p_hash[n] THEN 'REPLAYED' ELSE 'IDEMPOTENCY_KEY_REUSED' END;
            doctor_id := (SELECT t.doctor_id FROM time_slot t WHERE t.id = a.slot_id);
            RETURN NEXT;
            CONTINUE;
        END IF;

        IF i IS NULL OR slot.status = 'WITHDRAWN' OR p_organization[n] NOT IN (0, owner[i]) THEN
            outcome := CASE WHEN i IS NULL AND EXISTS (SELECT FROM time_slot t WHERE t.id = p_slot[n])
                            THEN 'SLOT_BUSY' ELSE 'SLOT_NOT_FOUND' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        IF NOT EXISTS (SELECT FROM patient p WHERE p.id = p_patient[n]
                          AND (p_registrar[n] IN ('', p.issuer)
                               OR p_organization[n] <> 0 AND EXISTS (
                                  SELECT FROM appointment x
                                   WHERE x.patient_id = p.id AND x.organization_id = p_organization[n]))) THEN
            outcome := 'PATIENT_NOT_FOUND';
            RETURN NEXT;
            CONTINUE;
        END IF;

        opens_at := CASE WHEN slot.opens_at > v_now THEN slot.opens_at END;
        SELECT * INTO a FROM appointment x
         WHERE x.slot_id = slot.id AND x.patient_id = p_patient[n] AND x.status IN ('HELD', 'BOOKED', 'ARRIVED');
        outcome := CASE
            WHEN slot.start_at <= v_now      THEN 'SLOT_PAST'
            WHEN slot.status <> 'OPEN'       THEN 'SLOT_CLOSED'
            WHEN opens_at IS NOT NULL        THEN 'SLOT_NOT_OPEN'
            WHEN a.id IS NOT NULL            THEN 'ALREADY_BOOKED'
            WHEN slot.booked_count + won[i] >= slot.capacity THEN 'SLOT_FULL'
            ELSE 'BOOKED' END;
        IF outcome = 'SLOT_FULL' THEN              -- its version rises if this call fills it
            full_version := slot.version + (won[i] > 0)::int;
        END IF;
        IF outcome <> 'BOOKED' THEN
            RETURN NEXT;
            CONTINUE;
        END IF;

        INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status, idempotency_key,
                                 booked_by, request_hash, during, created_at)
        SELECT v.id, v.id, slot.id, p_patient[n], owner[i], 'BOOKED', p_key[n],
               p_by[n], p_hash[n], tstzrange(slot.start_at, slot.end_at), v_now
          FROM nextval('appointment_id_seq') AS v (id)
        ON CONFLICT DO NOTHING
        RETURNING * INTO a;
        IF FOUND THEN
            won[i] := won[i] + 1;
            INSERT INTO outbox_event (root_id, type, payload) VALUES (a.root_id, 'BOOKED', booking_payload(a, slot));
            RETURN NEXT;
            CONTINUE;
        END IF;

        -- The slot and the patient are locked, so what stood in the way is either the same key, used
        -- elsewhere a moment ago, or another appointment of the patient at that time.
        SELECT * INTO a FROM appointment x WHERE x.booked_by = p_by[n] AND x.idempotency_key = p_key[n];
        outcome := CASE WHEN a.id IS NULL THEN 'OVERLAP'
                        WHEN a.request_hash = p_hash[n] THEN 'REPLAYED'
                        ELSE 'IDEMPOTENCY_KEY_REUSED' END;
        RETURN NEXT;
    END LOOP;

    -- What decides: a place is won by this update or not at all.
    UPDATE time_slot t SET booked_count = t.booked_count + w.places
      FROM unnest(slots, won) AS w (id, places)
     WHERE t.id = w.id AND w.places > 0
       AND t.booked_count + w.places <= t.capacity AND t.status = 'OPEN'
       AND t.opens_at <= v_now AND t.start_at > v_now;
    GET DIAGNOSTICS i = ROW_COUNT;
    IF i <> (SELECT count(*) FROM unnest(won) AS w WHERE w > 0) THEN
        RAISE EXCEPTION 'book: a slot changed under its lock';
    END IF;
END $$;

-- cancel cancels an appointment that the caller may see, and gives its place back once.
--
--   p_patient, p_organization, p_registrar   what the caller may see: appointments of this patient,
--                                            of this organization, of patients of this registrar;
--                                            NULL = any
--
-- outcome: CANCELLED; UNCHANGED, it was cancelled before; or the code of a refusal.
CREATE FUNCTION cancel(
    p_now timestamptz, p_appointment bigint, p_patient bigint, p_organization bigint, p_registrar text,
    p_by text, p_reason text
) RETURNS TABLE (outcome text, doctor_id bigint, a appointment)
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    slot  time_slot;
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

    UPDATE appointment x
       SET status = 'CANCELLED', cancelled_at = v_now, cancelled_by = p_by, cancel_reason = p_reason
     WHERE x.id = p_appointment AND x.status IN ('HELD', 'BOOKED') AND lower(x.during) > v_now
       AND (x.status <> 'HELD' OR x.expires_at > v_now)
    RETURNING * INTO a;
    IF FOUND THEN
        outcome := 'CANCELLED';
        UPDATE time_slot t SET booked_count = t.booked_count - 1 WHERE t.id = slot.id;
        INSERT INTO outbox_event (root_id, type, payload) VALUES (a.root_id, 'CANCELLED', booking_payload(a, slot));
    ELSE
        SELECT * INTO a FROM appointment x WHERE x.id = p_appointment;
        outcome := CASE WHEN a.status = 'CANCELLED' THEN 'UNCHANGED'
                        WHEN a.status IN ('HELD', 'BOOKED') AND lower(a.during) <= v_now THEN 'TOO_LATE'
                        WHEN a.status IN ('HELD', 'EXPIRED') THEN 'HOLD_EXPIRED'
                        ELSE 'INVALID_STATE' END;
    END IF;
    RETURN NEXT;
END $$;
