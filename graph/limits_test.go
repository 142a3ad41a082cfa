package graph

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/99designs/gqlgen/graphql"
	"github.com/99designs/gqlgen/graphql/executor"
)

// What is too much is refused soon and in few bytes; what clients need passes.
func TestLimits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	repeat := func(n int, format string) string {
		var b strings.Builder
		for i := range n {
			b.WriteString(strings.ReplaceAll(format, "%n", strconv.Itoa(i)))
		}
		return b.String()
	}
	fragments := func(levels int) string { // each level spreads the next twice
		var b strings.Builder
		b.WriteString("{...f0}")
		for i := range levels {
			fmt.Fprintf(&b, " fragment f%d on Query{...f%d ...f%d}", i, i+1, i+1)
		}
		fmt.Fprintf(&b, " fragment f%d on Query{__typename}", levels)
		return b.String()
	}
	const (
		passes  = iota
		refused // by the parser, the rules of GraphQL or the field
		limited // by ourselves
	)
	unlimited := executor.New(NewExecutableSchema(Config{}))
	const slots = `slots(doctorId:1,date:"2030-01-01"){slots{id}}`
	for name, c := range map[string]struct {
		query string
		want  int
	}{
		"few aliases":                    {"{" + repeat(15, "a%n:__typename ") + "}", passes},
		"G1 many aliases":                {"{" + repeat(101, "a%n:__typename ") + "}", limited},
		"G2 many aliased fields":         {"{" + repeat(200, "a%n:me{role} ") + "}", limited},
		"one mutation":                   {`mutation{cancelAppointment(input:{appointmentId:1}){changed}}`, passes},
		"G3 many mutations":              {"mutation{" + repeat(2, `a%n:cancelAppointment(input:{appointmentId:1}){changed} `) + "}", limited},
		"G3 mutations in a fragment":     {"mutation{cancelAppointment(input:{appointmentId:1}){changed} ...m} fragment m on Mutation{b:cancelAppointment(input:{appointmentId:1}){changed}}", limited},
		"G5 same directive ten times":    {"{__typename " + repeat(10, "@skip(if:false) ") + "}", refused},
		"G5 unknown directive ten times": {"{__typename " + repeat(10, "@aa ") + "}", refused},
		"G6 many directives":             {"{__typename " + repeat(13_000, "@aa ") + "}", refused},
		"G7 same field 200 times":        {"{" + repeat(200, "__typename ") + "}", passes},
		"G7 same field 900 times":        {"{" + repeat(900, "__typename ") + "}", limited},
		"G7 same fields in fragments":    {"{" + repeat(20, "...f%n ") + "}" + repeat(20, " fragment f%n on Query{"+strings.Repeat("__typename ", 40)+"}"), limited},
		"G7 same field 5,000 times":      {"{" + repeat(5_000, "__typename ") + "}", refused},
		"G7 same nested field":           {"{" + repeat(120, "me{role} ") + "}", passes},
		"G7 same arguments":              {"{" + repeat(40, slots+" ") + "}", passes},
		"G8 circular introspection":      {"{__schema{types{fields{type{fields{type{fields{type{fields{type{name}}}}}}}}}}}", refused},
		"G9 introspection":               {"{__schema{queryType{name}}}", refused},
		"G9 introspection of a type":     {`{__type(name:"Query"){name}}`, refused},
		"circular fragments":             {"{...a} fragment a on Query{...b} fragment b on Query{...a}", refused},
		"fragments of fragments":         {fragments(10), passes},
		"more fragments of fragments":    {fragments(16), limited},
		"still more fragments":           {fragments(60), limited},
		"wide fragments":                 {"{...f " + repeat(60, "...f ") + "} fragment f on Query{__typename}", limited},
		"inline fragments":               {"{" + repeat(200, "...{") + "__typename" + repeat(200, "}") + "}", passes},
		"deep":                           {"{doctors{edges{node{organization{name}}}}}", passes},
		"a page of everything":           {`{appointments(doctorId:1,date:"2030-01-01",first:100){edges{cursor node{id status startAt endAt createdAt cancelledAt cancelReason slot{id doctorId startAt endAt opensAt capacity free status version} doctor{id name specialty organization{id name timeZone}} patient{id name email phone locale}}} pageInfo{hasNextPage endCursor}}}`, passes},
		"nine pages of everything":       {"{" + repeat(9, `a%n:doctors(first:100){nodes{id name specialty timeZone organization{id name timeZone}} edges{cursor node{id name specialty timeZone organization{id name timeZone}}}} `) + "}", passes},
		"too many big pages":             {"{" + repeat(15, `a%n:doctors(first:100){nodes{id name specialty timeZone organization{id name timeZone}} edges{cursor node{id name specialty timeZone organization{id name timeZone}}}} `) + "}", limited},
		"long alias":                     {"{" + strings.Repeat("a", 50_000) + ":__typename}", limited},
		"long field":                     {"{" + strings.Repeat("a", 50_000) + "}", refused},
		"long operation name":            {"query " + strings.Repeat("a", 50_000) + "{__typename}", limited},
		"long string":                    {`{doctors(search:"` + strings.Repeat("a", 50_000) + `"){nodes{id}}}`, refused},
		"long id":                        {`{doctor(id:"` + strings.Repeat("9", 50_000) + `"){id}}`, refused},
		"many variables":                 {"query(" + repeat(300, "$v%n:Int ") + "){__typename}", refused},
		"many operations":                {repeat(150, "query Q%n{__typename} "), refused},
		"deep list":                      {"{doctor(id:" + strings.Repeat("[", 400) + "1" + strings.Repeat("]", 400) + "){id}}", refused},
		"deep object":                    {"mutation{cancelAppointment(input:" + strings.Repeat("{a:", 250) + "1" + strings.Repeat("}", 250) + "){changed}}", refused},
		"no suggestions":                 {"{doctro}", refused},
		"first -1":                       {"{doctors(first:-1){nodes{id}}}", refused},
		"first 0":                        {"{doctors(first:0){nodes{id}}}", refused},
		"first null":                     {"{doctors(first:null){nodes{id}}}", refused},
		"first 101":                      {"{doctors(first:101){nodes{id}}}", refused},
		"first 99999999":                 {"{doctors(first:99999999){nodes{id}}}", refused},
		"first 3000000000":               {"{doctors(first:3000000000){nodes{id}}}", refused},
		"first is a string":              {`{doctors(first:"2"){nodes{id}}}`, refused},
		"unknown cursor":                 {`{doctors(after:"nonsense"){nodes{id}}}`, refused},
	} {
		t.Run(name, func(t *testing.T) {
			before := cpu(t)
			a := w.ask("", c.query, nil)
			spent := cpu(t) - before
			if c.want == limited { // the control: without them it would pass
				if _, errs := unlimited.CreateOperationContext(graphql.StartOperationTrace(t.Context()), &graphql.RawParams{Query: c.query}); errs != nil {
					t.Errorf("refused without our limits as well: %v", errs)
				}
			}
			if c.want == passes {
				if len(a.Errors) > 0 && a.code() == "INVALID" {
					t.Errorf("refused: %s", a.Body)
				}
				return
			}
			if a.Status != 200 || a.code() != "INVALID" || len(a.Errors) > maxErrors {
				t.Errorf("%d %.300s", a.Status, a.Body)
			}
			if len(a.Body) > 4<<10 {
				t.Errorf("the refusal has %d bytes", len(a.Body))
			}
			if strings.Contains(a.Body, "Did you mean") {
				t.Errorf("suggests: %s", a.Body)
			}
			// The race detector and tests beside this one take most of it: the fault it stands
			// against, doubling with every level, takes seconds and more.
			if spent > time.Second {
				t.Errorf("took %v of CPU", spent)
			}
		})
	}
}

// cpu is the time that this process has computed.
func cpu(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// GraphiQL's question passes where introspection is on.
func TestIntrospection(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(p *Parts) { p.Introspection = true })
	const full = `query IntrospectionQuery{__schema{queryType{name}mutationType{name}subscriptionType{name}types{...FullType}directives{name description locations args(includeDeprecated:true){...InputValue}}}}
fragment FullType on __Type{kind name description specifiedByURL fields(includeDeprecated:true){name description args(includeDeprecated:true){...InputValue}type{...TypeRef}isDeprecated deprecationReason}inputFields(includeDeprecated:true){...InputValue}interfaces{...TypeRef}enumValues(includeDeprecated:true){name description isDeprecated deprecationReason}possibleTypes{...TypeRef}}
fragment InputValue on __InputValue{name description type{...TypeRef}defaultValue isDeprecated deprecationReason}
fragment TypeRef on __Type{kind name ofType{kind name ofType{kind name ofType{kind name ofType{kind name ofType{kind name ofType{kind name ofType{kind name ofType{kind name ofType{kind name}}}}}}}}}}`
	if a := w.ask("", full, nil); len(a.Errors) > 0 || !strings.Contains(a.Body, "bookAppointment") {
		t.Errorf("%.500s", a.Body)
	}
}
