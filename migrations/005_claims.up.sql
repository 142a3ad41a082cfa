-- Holds, referrals and overlaps: what a claim on a place can be besides a plain booking.
--
-- Lock order, the same on every path: slots by id, patients (advisory), referrals (advisory),
-- appointments. The functions book and cancel of 003_booking stay for instances of the version
-- before, which go on working while this one takes their place.

ALTER TABLE organization
    ADD COLUMN hold_minutes smallint NOT NULL DEFAULT 10,   -- how long a hold lasts
    ADD CONSTRAINT chk_hold_minutes CHECK (hold_minutes BETWEEN 1 AND 1440);

ALTER TABLE appointment
    ADD COLUMN overlap_reason text,                         -- why staff let it overlap another one
    ADD CONSTRAINT chk_overlap_reason CHECK (overlap_allowed = (overlap_reason IS NOT NULL)
        AND char_length(overlap_reason) BETWEEN 1 AND 500),
    ADD CONSTRAINT chk_referral CHECK (btrim(referral_id) <> '');    -- none is NULL

CREATE FUNCTION referral_lock_key(organization bigint, referral text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
    $$ SELECT hashtextextended('referral:' || organization || ':' || referral, 0) $$;

-- claim wins a place in slot p_slot[n] for patient p_patient[n], for every n, in the order given:
-- whoever fails by their own fault takes no place. One row comes back per request, in that order.
--
--   p_now           what time it is; NULL = the database's clock, read once the locks are held
--   p_wait          whether to wait for slots that others have locked, or to answer SLOT_BUSY
--   p_key, p_by     the idempotency key and the caller it belongs to
--   p_hash          hash of the request that the key stands for
--   p_organization  0, or: only slots of this organization
--   p_registrar     '' where callers book for themselves; else who registered the patient.
--                   With p_organization, patients known there by an appointment do as well.
--   p_hold          whether to hold the place and not to book it
--   p_referral      the referral, or NULL
--   p_overlap       why the appointment may overlap others of the patient, or NULL: it may not. Only
--                   with p_registrar; it is kept only if there is an overlap.
--                   Each of these three is NULL as a whole where no request has it.
--
-- outcome: WON, REPLAYED, UNCHANGED (the patient holds the place already), SLOT_BUSY, LAPSED, or the
-- code of a refusal. a is the appointment won, replayed, or found in the way where the caller may
-- know of it; opens_at comes with SLOT_NOT_OPEN. full_version is the version of a slot that has no
-- place left once this is committed; decided_at is the database's clock while the slots were locked.
--
-- LAPSED: nothing is in the way but a hold that has lapsed, a, or one of the slot's if a is NULL, or
-- what has just gone. Those are to be expired, and the request made again. That is not done here: whoever expires a hold
-- makes those wait who claim for its patient or referral, and must not wait for any of them.
CREATE FUNCTION claim(
    p_now timestamptz, p_wait boolean, p_slot bigint[], p_patient bigint[], p_key text[], p_by text[],
    p_hash bytea[], p_organization bigint[], p_registrar text[],
    p_hold boolean[], p_referral text[], p_overlap text[]
) RETURNS TABLE (
    outcome text, opens_at timestamptz, full_version bigint, decided_at timestamptz, doctor_id bigint, a appointment
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    slots  bigint[];       -- the slots we have locked, by id, and for each:
    locked time_slot[];    --   its state, which stands while we hold the lock
    owner  bigint[];       --   its organization
    won    int[];          --   places given away by this call
    lapsed bigint[];       -- those with a hold that has lapsed
    made   appointment[];
    slot   time_slot;
    v_now  timestamptz;
    v_overlap text;
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
    IF p_referral IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock(r.k)
           FROM (SELECT DISTINCT referral_lock_key(o.organization, q.referral) AS k
                   FROM unnest(p_slot, p_referral) AS q (slot, referral)
                   JOIN unnest(slots, owner) AS o (id, organization) ON o.id = q.slot
                  WHERE q.referral IS NOT NULL ORDER BY k) AS r;
    END IF;
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
                                         idempotency_key, booked_by, request_hash, during, created_at,
                                         expires_at, referral_id)
                SELECT r.id, r.id, r.slot, r.patient, o.organization, CASE WHEN r.hold THEN 'HELD' ELSE 'BOOKED' END,
                       r.key, r.by, r.hash, tstzrange(l.start_at, l.end_at), v_now,
                       CASE WHEN r.hold THEN v_now + (SELECT make_interval(mins => g.hold_minutes)
                                                        FROM organization g WHERE g.id = o.organization) END,
                       r.referral
                  FROM (SELECT nextval('appointment_id_seq') AS id, q.*
                          FROM unnest(p_slot, p_patient, p_key, p_by, p_hash, p_hold, p_referral)
                               AS q (slot, patient, key, by, hash, hold, referral)) AS r
                  JOIN unnest(locked) AS l ON l.id = r.slot
                  JOIN unnest(slots, owner) AS o (id, organization) ON o.id = r.slot
                RETURNING *
            ), announced AS (
                INSERT INTO outbox_event (root_id, type, payload)
                SELECT x.root_id, x.status, booking_payload(ROW(x.*)::appointment, l)
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
            SELECT 'WON', NULL::timestamptz, CASE WHEN l.booked_count + w.places = l.capacity THEN l.version + 1 END,
                   decided_at, l.doctor_id, m
              FROM unnest(made) AS m
              JOIN unnest(locked) AS l ON l.id = m.slot_id
              JOIN unnest(slots, won) AS w (id, places) ON w.id = m.slot_id
             ORDER BY m.id;
    ELSE
        lapsed := ARRAY(SELECT s FROM unnest(slots) AS s
                         WHERE (SELECT true FROM appointment x
                                 WHERE x.slot_id = s AND x.status = 'HELD' AND x.expires_at <= v_now LIMIT 1));
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
            WHEN a.status = 'HELD' AND a.expires_at > v_now AND p_hold[n]
                 AND a.referral_id IS NOT DISTINCT FROM p_referral[n] THEN 'UNCHANGED'
            WHEN slot.status <> 'OPEN'       THEN 'SLOT_CLOSED'
            WHEN opens_at IS NOT NULL        THEN 'SLOT_NOT_OPEN'
            WHEN a.status = 'HELD' AND a.expires_at <= v_now THEN 'LAPSED'
            WHEN a.id IS NOT NULL            THEN 'ALREADY_BOOKED'
            WHEN slot.booked_count + won[i] < slot.capacity THEN 'WON'
            WHEN slot.id = ANY (lapsed)      THEN 'LAPSED'
            ELSE 'SLOT_FULL' END;
        IF outcome = 'SLOT_FULL' THEN              -- its version rises if this call fills it
            full_version := slot.version + (won[i] > 0)::int;
        END IF;
        IF outcome <> 'WON' THEN
            RETURN NEXT;
            CONTINUE;
        END IF;

        v_overlap := CASE WHEN p_overlap[n] IS NOT NULL AND EXISTS (
            SELECT FROM appointment x
             WHERE x.patient_id = p_patient[n] AND x.during && tstzrange(slot.start_at, slot.end_at)
               AND (x.status IN ('BOOKED', 'ARRIVED') OR x.status = 'HELD' AND x.expires_at > v_now)) THEN p_overlap[n] END;
        INSERT INTO appointment (id, root_id, slot_id, patient_id, organization_id, status, idempotency_key,
                                 booked_by, request_hash, during, created_at,
                                 expires_at, referral_id, overlap_allowed, overlap_reason)
        SELECT v.id, v.id, slot.id, p_patient[n], owner[i], CASE WHEN p_hold[n] THEN 'HELD' ELSE 'BOOKED' END, p_key[n],
               p_by[n], p_hash[n], tstzrange(slot.start_at, slot.end_at), v_now,
               CASE WHEN p_hold[n] THEN v_now + (SELECT make_interval(mins => g.hold_minutes)
                                                   FROM organization g WHERE g.id = owner[i]) END,
               p_referral[n], v_overlap IS NOT NULL, v_overlap
          FROM nextval('appointment_id_seq') AS v (id)
        ON CONFLICT DO NOTHING
        RETURNING * INTO a;
        IF FOUND THEN
            won[i] := won[i] + 1;
            INSERT INTO outbox_event (root_id, type, payload) VALUES (a.root_id, a.status, booking_payload(a, slot));
            RETURN NEXT;
            CONTINUE;
        END IF;

        -- The slot, the patient and the referral are locked, so what stood in the way is either the
        -- same key, used elsewhere a moment ago, or another appointment with the referral or at that time.
        SELECT * INTO a FROM appointment x WHERE x.booked_by = p_by[n] AND x.idempotency_key = p_key[n];
        IF FOUND THEN
            outcome := CASE WHEN a.request_hash = p_hash[n] THEN 'REPLAYED' ELSE 'IDEMPOTENCY_KEY_REUSED' END;
            RETURN NEXT;
            CONTINUE;
        END IF;
        SELECT * INTO a FROM appointment x
         WHERE x.organization_id = owner[i] AND x.referral_id = p_referral[n] AND x.status IN ('HELD', 'BOOKED', 'ARRIVED');
        outcome := CASE WHEN FOUND THEN 'REFERRAL_IN_USE' ELSE 'OVERLAP' END;
        IF outcome = 'OVERLAP' THEN                -- of several, rather one that stands than one that has lapsed
            SELECT * INTO a FROM appointment x
             WHERE x.patient_id = p_patient[n] AND x.during && tstzrange(slot.start_at, slot.end_at)
               AND x.status IN ('HELD', 'BOOKED', 'ARRIVED') AND NOT x.overlap_allowed
             ORDER BY x.status = 'HELD' AND x.expires_at <= v_now LIMIT 1;
        END IF;
        IF a.id IS NULL OR a.status = 'HELD' AND a.expires_at <= v_now THEN
            outcome := 'LAPSED';                   -- or it has gone meanwhile
        ELSIF outcome = 'OVERLAP' OR a.patient_id <> p_patient[n] THEN
            a := NULL;                             -- nobody's business
        END IF;
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
        RAISE EXCEPTION 'claim: a slot changed under its lock';
    END IF;
END $$;

-- step takes an appointment that the caller may see to its next state, under its slot's lock.
--
--   p_step          CONFIRM: HELD → BOOKED. RELEASE: HELD → CANCELLED. CANCEL: HELD, BOOKED → CANCELLED.
--   p_patient, p_organization, p_registrar   what the caller may see: appointments of this patient,
--                                            of this organization, of patients of this registrar;
--                                            NULL = any
--
-- outcome: CHANGED; UNCHANGED, the step was taken before; or the code of a refusal.
CREATE FUNCTION step(
    p_now timestamptz, p_step text, p_appointment bigint, p_patient bigint, p_organization bigint,
    p_registrar text, p_by text, p_reason text
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
        UPDATE time_slot t SET booked_count = t.booked_count - 1 WHERE t.id = slot.id;
        INSERT INTO outbox_event (root_id, type, payload)
        VALUES (a.root_id, CASE v_from WHEN 'HELD' THEN 'RELEASED' ELSE 'CANCELLED' END, booking_payload(a, slot));
    END IF;
    RETURN NEXT;
END $$;

-- expire ends the holds of these slots that have lapsed and gives their places back. It returns how
-- many there were. Of any number of calls one ends each; unless p_wait, slots that others have
-- locked are left to them.
CREATE FUNCTION expire(p_now timestamptz, p_wait boolean, p_slot bigint[]) RETURNS bigint
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    slots bigint[];
    due   bigint[];
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
        ), freed AS (
            UPDATE time_slot t SET booked_count = t.booked_count - l.places
              FROM (SELECT slot_id, count(*) AS places FROM lapsed GROUP BY slot_id) AS l
             WHERE t.id = l.slot_id RETURNING t.*
        )
        INSERT INTO outbox_event (root_id, type, payload)
        SELECT l.root_id, 'EXPIRED', booking_payload(ROW(l.*)::appointment, ROW(t.*)::time_slot)
          FROM lapsed l JOIN freed t ON t.id = l.slot_id
         ORDER BY l.id;
    END IF;
    RETURN cardinality(due);
END $$;
