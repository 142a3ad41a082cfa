// Runs the audits of GraphQL over HTTP against the server at the given address, and prints one
// line for each: status, id, name, and the reason if it is not ok.
import { serverAudits } from 'graphql-http';

for (const audit of serverAudits({ url: process.argv[2] })) {
  const result = await audit.fn();
  console.log([result.status, audit.id, audit.name, result.reason ?? ''].join('\t'));
  await result.response?.body?.cancel?.();
}
