DROP INDEX ix_withdrawn_doctor_start;
DROP TRIGGER appointment_offer ON appointment;
DROP FUNCTION waiting_offer();
DROP TRIGGER slot_flexible_emptied ON time_slot;
DROP TRIGGER slot_flexible_made ON time_slot;
DROP FUNCTION flexible_slot();
