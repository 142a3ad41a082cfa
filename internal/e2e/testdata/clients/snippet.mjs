// Runs a snippet of docs/live.md: prints what it shows and what it fails with, in a line of JSON
// each, and stops it when the input ends. Then nothing may keep the process.
import WebSocket from 'ws';

globalThis.WebSocket = WebSocket; // as browsers have it
const [snippet, doctorId, from, days] = process.argv.slice(2);
const { watch } = await import(`./${snippet}`);
const stop = watch(
  { doctorId, from, days: Number(days) },
  (slots) => console.log(JSON.stringify({ slots: [...slots.values()] })),
  (problem) => console.log(JSON.stringify({ problem: problem?.message ?? JSON.stringify(problem) })),
);
process.stdin.on('end', stop).resume();
