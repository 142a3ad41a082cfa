package main

// specialties of the demo doctors, in turn, with the places that each of their slots has.
var specialties = []struct {
	name     string
	capacity int
}{
	{"General practice", 1}, {"Dermatology", 1}, {"Cardiology", 1}, {"Pediatrics", 1}, {"Vaccination", 4},
	{"Orthopedics", 1}, {"Neurology", 1}, {"Ophthalmology", 1}, {"Physiotherapy group", 8}, {"Gynecology", 1},
}

// Nobody is called like this.
var (
	firstNames = []string{
		"Ada", "Ben", "Cleo", "Dora", "Emil", "Fay", "Gus", "Hana", "Ivo", "June",
		"Kai", "Lena", "Milo", "Nora", "Otto", "Pia", "Quin", "Rosa", "Sven", "Tara",
		"Udo", "Vera", "Wim", "Xenia", "Yuri", "Zoe", "Alma", "Bela", "Carl", "Dina",
		"Elsa", "Finn", "Gina", "Hugo", "Ines", "Jan", "Kira", "Leo", "Mara", "Nils",
		"Olga", "Paul", "Rita", "Sam", "Tess", "Uma", "Vito", "Wanda", "Yara", "Zeno",
	}
	lastNames = []string{
		"Example", "Sample", "Specimen", "Placeholder", "Template", "Demo", "Mockup", "Prototype", "Fixture", "Testcase",
		"Lorem", "Ipsum", "Dolor", "Consectetur", "Adipiscing", "Tempor", "Magna", "Aliqua", "Veniam", "Nostrud",
		"Foobar", "Quux", "Corge", "Grault", "Waldo", "Plugh", "Xyzzy", "Thud", "Wibble", "Wobble",
		"Alphabet", "Numeral", "Asterisk", "Ampersand", "Semicolon", "Brackets", "Backslash", "Tilde", "Caret", "Underscore",
	}
)

// maxDoctors is how many different names there are.
const maxDoctors = 2000

// doctorName is the name of demo doctor i, different for every i below maxDoctors.
func doctorName(i int) string {
	return "Dr. " + firstNames[i%len(firstNames)] + " " + lastNames[(i+i/len(firstNames))%len(lastNames)]
}
