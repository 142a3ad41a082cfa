-- claim as of now. The one of 005_claims, which has a parameter less, stays for instances of the
-- version before.

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
--   p_exempt        whether what a practice asks of its patients does not bind the caller: its staff
--                   Each of these four is NULL as a whole where no request has it.
--   p_moved         the appointment that the only request moves, cancelled already; see reschedule
--
-- outcome: WON, REPLAYED, UNCHANGED (the patient holds the place already), SLOT_BUSY, LAPSED, or the
-- code of a refusal. a is the appointment won, replayed, or found in the way where the caller may
-- know of it; opens_at comes with SLOT_NOT_OPEN; rule is the rule of the practice that refuses, if it
-- is one. full_version is the version of a slot that has no
-- place left once this is committed; decided_at is the database's clock while the slots were locked.
--
-- LAPSED: nothing is in the way but a hold that has lapsed, a, or something of the slot's that is due
-- if a is NULL, or what has just gone. That is for release_due, and then the request is to be made again. It is not
-- done here: whoever ends a hold makes those wait who claim for its patient or referral, and must
-- not wait for any of them.
CREATE FUNCTION claim(
    p_now timestamptz, p_wait boolean, p_slot bigint[], p_patient bigint[], p_key text[], p_by text[],
    p_hash bytea[], p_organization bigint[], p_registrar text[],
    p_hold boolean[], p_referral text[], p_overlap text[], p_exempt boolean[], p_moved appointment DEFAULT NULL
) RETURNS TABLE (
    outcome text, opens_at timestamptz, rule practice_rule, full_version bigint, decided_at timestamptz, doctor_id bigint, a appointment
) LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    slots  bigint[];       -- the slots we have locked, by id, and for each:
    locked time_slot[];    --   its state, which stands while we hold the lock
    owner  bigint[];       --   its organization
    won    int[];          --   places given away by this call
    lapsed bigint[];       -- those with a place that is due: its hold has lapsed, or it is withheld no more
    ruled  bigint[];       -- organizations with rules on claims
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
    -- anything, nothing has happened and the careful road below finds out to what. What they can't
    -- tell are the rules of a practice, and what overlaps an appointment that is allowed to overlap.
    IF '' = ALL (p_registrar) AND p_moved.id IS NULL
       AND NOT EXISTS (SELECT FROM organization g WHERE g.id = ANY (owner) AND g.ruled)
       AND NOT EXISTS (SELECT FROM appointment x WHERE x.patient_id = ANY (p_patient) AND x.overlap_allowed
                          AND x.status IN ('HELD', 'BOOKED', 'ARRIVED'))
       AND NOT EXISTS (
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
            SELECT 'WON', NULL::timestamptz, NULL::practice_rule, CASE WHEN l.booked_count + w.places = l.capacity THEN l.version + 1 END,
                   decided_at, l.doctor_id, m
              FROM unnest(made) AS m
              JOIN unnest(locked) AS l ON l.id = m.slot_id
              JOIN unnest(slots, won) AS w (id, places) ON w.id = m.slot_id
             ORDER BY m.id;
    ELSE
        lapsed := ARRAY(SELECT s FROM unnest(slots) AS s
                         WHERE (SELECT true FROM appointment x
                                 WHERE x.slot_id = s AND x.status = 'HELD' AND x.expires_at <= v_now LIMIT 1)
                            OR (SELECT true FROM appointment x
                                 WHERE x.slot_id = s AND x.returns_at IS NOT NULL AND x.returns_at <= v_now LIMIT 1));
        ruled := ARRAY(SELECT g.id FROM organization g WHERE g.id = ANY (owner) AND g.ruled);
    END IF;

    FOR n IN 1 .. CASE WHEN made IS NULL THEN cardinality(p_slot) ELSE 0 END LOOP
        opens_at := NULL;
        rule := NULL;
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
        IF outcome = 'WON' AND owner[i] = ANY (ruled) AND p_exempt[n] IS NOT TRUE THEN
            rule := forbidding_rule(v_now, owner[i], p_patient[n], slot.start_at, p_hold[n]);
            outcome := coalesce(rule.code, outcome);
        END IF;
        IF outcome = 'WON' AND p_overlap[n] IS NULL AND EXISTS (
            SELECT FROM appointment x
             WHERE x.patient_id = p_patient[n] AND x.overlap_allowed AND x.during && tstzrange(slot.start_at, slot.end_at)
               AND x.status IN ('HELD', 'BOOKED', 'ARRIVED') AND (x.status <> 'HELD' OR x.expires_at > v_now)) THEN
            outcome := 'OVERLAP';                  -- no constraint would tell
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
                                 expires_at, referral_id, overlap_allowed, overlap_reason, replaces)
        SELECT v.id, coalesce(p_moved.root_id, v.id), slot.id, p_patient[n], owner[i], CASE WHEN p_hold[n] THEN 'HELD' ELSE 'BOOKED' END, p_key[n],
               p_by[n], p_hash[n], tstzrange(slot.start_at, slot.end_at), v_now,
               CASE WHEN p_hold[n] THEN v_now + (SELECT make_interval(mins => g.hold_minutes)
                                                   FROM organization g WHERE g.id = owner[i]) END,
               p_referral[n], v_overlap IS NOT NULL, v_overlap, p_moved.id
          FROM nextval('appointment_id_seq') AS v (id)
        ON CONFLICT DO NOTHING
        RETURNING * INTO a;
        IF FOUND THEN
            won[i] := won[i] + 1;
            IF p_moved.id IS NULL THEN             -- a move is one event, with both slots
                INSERT INTO outbox_event (root_id, type, payload) VALUES (a.root_id, a.status, booking_payload(a, slot));
            END IF;
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
