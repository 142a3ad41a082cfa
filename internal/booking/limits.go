package booking

import "time"

// rule is a rule of a practice for its patients that refuses: see the function forbidding_rule, which
// decides. That is done under the patient's lock, so no two calls count at the same time.
type rule struct {
	name   *string // nil = none
	number *int
	moment *time.Time // from or until when the rule does not refuse
}

// ruleColumns selects a rule, from a column rule.
const ruleColumns = `(rule).name, (rule).number, (rule).moment`

// Exempt reports whether what a practice asks of its patients does not bind the actor. It binds
// partners, who book for patients.
func (a Actor) Exempt() bool { return a.Kind == Staff || a.Kind == System }

// refuse words the rule: which it is, and from or until when it does not refuse.
func (r rule) refuse(code Code) error {
	n, moment := *r.number, r.moment.UTC().Format(time.RFC3339)
	switch *r.name {
	case "HORIZON":
		err := Refuse(code, "Booking of this slot opens at %s: the practice's horizon in days is %d.", moment, n)
		err.OpensAt = r.moment.UTC()
		return err
	case "NOTICE":
		return Refuse(code, "This slot could be booked until %s: the practice's notice in minutes is %d. Choose a later one.", moment, n)
	case "CUTOFF":
		return Refuse(code, "This appointment could be cancelled or moved until %s: the practice's cut-off in minutes before the start is %d. Call the practice.", moment, n)
	case "HOLDS":
		return Refuse(code, "The practice's limit of holds per patient, %d, is reached. Confirm a hold or give it back, or wait until %s.", n, moment)
	case "DAY":
		return Refuse(code, "The practice's limit of appointments per patient and day, %d, is reached. Choose another day: this one ends at %s.", n, moment)
	default: // ACTIVE
		return Refuse(code, "The practice's limit of appointments per patient, %d, is reached. Cancel one, or wait until %s.", n, moment)
	}
}
