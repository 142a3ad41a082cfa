// A client of event streams, as npm's graphql-sse is: node watch.mjs <url> <token> <request>.
// Each line that it writes is what happened: connected, next …, complete, error ….
import { createClient } from 'graphql-sse';

const [url, token, request] = process.argv.slice(2);
const client = createClient({
  url,
  headers: token ? { Authorization: `Bearer ${token}` } : {},
  retryAttempts: 5,
  retry: () => new Promise((resolve) => setTimeout(resolve, 100)),
  on: { connected: () => console.log('connected') },
});
client.subscribe(JSON.parse(request), {
  next: (result) => console.log('next', JSON.stringify(result)),
  complete: () => console.log('complete'),
  error: (err) => console.log('error', err.response?.status ?? '', String(err.message ?? err)),
});
