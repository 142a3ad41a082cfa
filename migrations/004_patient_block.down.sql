DROP TRIGGER patient_blocked ON patient;
DROP FUNCTION patient_announce();
DROP INDEX ix_patient_blocked;
ALTER TABLE patient
    DROP CONSTRAINT chk_block_reason,
    DROP CONSTRAINT chk_patient_block,
    DROP COLUMN block_reason,
    DROP COLUMN blocked_for,
    DROP COLUMN blocked_by,
    DROP COLUMN blocked_at;
