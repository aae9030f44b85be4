// Server-sent events over fetch: EventSource would send the cookie to whoever listens at the port
// after the daemon is gone.

/** The events in the text of a stream so far, and what is left of it. */
export function parseEvents(text) {
  const events = [];
  const parts = text.split("\n\n");
  const rest = parts.pop();
  for (const part of parts) {
    const event = { id: null, kind: "message", data: "" };
    for (const line of part.split("\n")) {
      if (line.startsWith("id: ")) event.id = Number(line.slice(4));
      else if (line.startsWith("event: ")) event.kind = line.slice(7);
      else if (line.startsWith("data: ")) event.data += line.slice(6);
    }
    if (event.id !== null) events.push({ ...event, data: JSON.parse(event.data) });
  }
  return { events, rest };
}

/** Call `take(event)` for every event behind `since`, until `signal`; raises where it breaks. */
export async function follow(session, since, take, signal) {
  const answer = await session.request(`/v1/events/stream?since=${since}`, { signal, endless: true });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const found = parseEvents(rest + value);
    rest = found.rest;
    for (const event of found.events) take(event);
  }
}
