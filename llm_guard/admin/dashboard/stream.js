// Reads server-sent events (WHATWG HTML, section 9.2) from the body of a fetch: EventSource does not tell a 401 from an
// unreachable gateway.

import { Unreachable } from "./api.js";

/**
 * Yields {id, type, data}. Ends with the body, or aborts `controller` after `silence_ms` without data. Throws
 * Unreachable.
 */
export async function* readEvents(body, silence_ms, controller) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let event = blank();
  for (;;) {
    const piece = await nextPiece(reader, silence_ms, controller);
    if (piece === null) return;
    buffer += piece;
    const lines = buffer.split(/\r\n|\n|\r(?!$)/);
    buffer = lines.pop();
    for (const line of lines) {
      if (line !== "") {
        note(event, line);
        continue;
      }
      if (event.data !== null || event.id !== null) yield { ...event, data: event.data ?? "" };
      event = blank();
    }
  }
}

async function nextPiece(reader, silence_ms, controller) {
  const timer = setTimeout(() => controller.abort(), silence_ms);
  try {
    const { done, value } = await reader.read();
    return done ? null : value;
  } catch {
    throw new Unreachable("the event stream was interrupted");
  } finally {
    clearTimeout(timer);
  }
}

const blank = () => ({ id: null, type: "message", data: null });

function note(event, line) {
  const colon = line.indexOf(":");
  if (colon === 0) return; // a comment keeps the connection alive
  const field = colon < 0 ? line : line.slice(0, colon);
  const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
  if (field === "data") event.data = event.data === null ? value : `${event.data}\n${value}`;
  else if (field === "event") event.type = value;
  else if (field === "id") event.id = value;
}
