// graphql-ws with the settings that it has by itself, but for the number of its tries: subscribes,
// and prints what it meets, a line of JSON for each. Ids are its own, or all the same.
import { createClient } from 'graphql-ws';
import WebSocket from 'ws';
import { Slots, subscription } from './slots.js';

const [url, tokens, ids, doctorId, from, days] = process.argv.slice(2);
const say = (what) => console.log(JSON.stringify(what));
const token = tokens ? (await (await fetch(tokens, { method: 'POST' })).json()).token : '';
const client = createClient({
  url,
  webSocketImpl: WebSocket,
  retryAttempts: 2,
  connectionParams: token ? { Authorization: `Bearer ${token}` } : undefined,
  ...(ids === 'same' ? { generateID: () => 'same' } : {}),
  on: { closed: ({ code, reason }) => say({ code, reason }) },
});
const variables = { doctorIds: [doctorId], from, days: Number(days) };
const stops = [];
for (let n = 0; n < (ids === 'same' ? 2 : 1); n++) {
  const slots = new Slots();
  stops.push(client.subscribe({ query: subscription, variables }, {
    next: ({ data }) => say({ slots: [...slots.apply(data.availability).values()] }),
    error: (problem) => say({ problem: `${problem?.code ?? ''} ${problem?.message ?? problem?.reason ?? problem}` }),
    complete: () => say({ complete: true }),
  }));
}
process.stdin.on('end', () => stops.forEach((stop) => stop())).resume();
