// Starts GraphiQL on the endpoint that the page names. Headers typed into the editor, the token
// among them, travel with queries as HTTP headers and with subscriptions in connection_init.
// They are kept for this tab's session only, never on disk.
(function () {
  "use strict";
  const root = document.getElementById("graphiql");
  const url = new URL(root.dataset.endpoint, location.href);
  const socket = new URL(url);
  socket.protocol = url.protocol === "https:" ? "wss:" : "ws:";

  const token = JSON.stringify({ Authorization: "Bearer paste-a-token-here" }, null, 2);
  const examples = [
    {
      query: `# Who can be seen? Reading doctors and availability needs no token.
query Doctors {
  doctors(first: 10) {
    nodes { id name specialty timeZone organization { name } }
    pageInfo { hasNextPage endCursor }
  }
}
`,
    },
    {
      query: `# What is left of a doctor's next days, and of one of them?
query Slots($doctor: ID!, $day: Date!) {
  days(doctorId: $doctor, from: $day, days: 7) { date free capacity firstFree }
  slots(doctorId: $doctor, date: $day) {
    timeZone
    asOf
    slots { id startAt endAt opensAt capacity free }
  }
}
`,
      variables: variables({ doctor: "1", day: tomorrow() }),
    },
    {
      query: `# A patient books. The same key again gives the same appointment.
mutation Book($slot: ID!, $key: String!) {
  bookAppointment(input: { slotId: $slot, idempotencyKey: $key }) {
    replayed
    appointment { id status startAt doctor { name } }
    errors { code message retryAfter }
    alternatives { id startAt free }
  }
}
`,
      variables: variables({ slot: "1", key: "any-new-key-1" }),
      headers: token,
    },
    {
      query: `# Leave it running and book in another tab.
subscription Watch($doctors: [ID!]!, $day: Date!) {
  availability(doctorIds: $doctors, from: $day, days: 1) {
    kind
    doctorId
    slots { id startAt free status version }
  }
}
`,
      variables: variables({ doctors: ["1"], day: tomorrow() }),
    },
  ];

  function variables(values) {
    return JSON.stringify(values, null, 2);
  }

  // Of today there may be nothing left. The day is the browser's: close enough to the practice's.
  function tomorrow() {
    const day = new Date();
    day.setDate(day.getDate() + 1);
    const digits = (number) => String(number).padStart(2, "0");
    return `${day.getFullYear()}-${digits(day.getMonth() + 1)}-${digits(day.getDate())}`;
  }

  ReactDOM.createRoot(root).render(
    React.createElement(GraphiQL, {
      fetcher: GraphiQL.createFetcher({ url: url.href, subscriptionUrl: socket.href }),
      isHeadersEditorEnabled: true,
      defaultEditorToolsVisibility: "variables",
      defaultTabs: examples,
      storage: sessionStorage,
      shouldPersistHeaders: true,
    }),
  );
})();
