// Asks the gateway's JSON pages. The browser adds the cookie that a login has left; no script sees it, or the token.

const WHO = "llm_guard.who";
const PATIENCE_MS = 4000;

const shelf = storage();

/** The gateway answered, and said no. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Nobody answered, or somebody else did. */
export class Away extends Error {
  name = "Away";
}

export const keepWho = (text) => shelf.setItem(WHO, text);
export const who = () => shelf.getItem(WHO) ?? "";

/** What a page answers. Throws Refused or Away. */
export async function ask(path) {
  return read(await request(path, { signal: AbortSignal.timeout(PATIENCE_MS) }));
}

/** Tells a page something. Throws Refused or Away. */
export async function tell(path, body) {
  const headers = { "content-type": "application/json" };
  if (who()) headers["x-llm-guard-operator"] = who();
  const init = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE_MS) };
  return read(await request(path, init));
}

/** A page's answer without its body. Throws Refused or Away. */
export async function request(path, init = {}) {
  let response;
  try {
    response = await fetch(path, { ...init, cache: "no-store", redirect: "error", credentials: "same-origin" });
  } catch (error) {
    throw new Away(error.name === "TimeoutError" ? "it does not answer" : "it cannot be reached");
  }
  if (response.ok) return response;
  throw await refusal(response);
}

/** Where the browser keeps nothing, what is entered holds until the page is left. */
function storage() {
  try {
    return window.sessionStorage;
  } catch {
    const kept = new Map();
    return {
      getItem: (key) => kept.get(key) ?? null,
      setItem: (key, value) => kept.set(key, value),
      removeItem: (key) => kept.delete(key),
    };
  }
}

async function read(response) {
  try {
    return await response.json();
  } catch (error) {
    throw new Away(error.name === "TimeoutError" ? "it does not answer" : "what answers is not the gateway");
  }
}

async function refusal(response) {
  try {
    const { error } = await response.json();
    return new Refused(response.status, error.message);
  } catch {
    return new Away(`something answers ${response.status} in its place`);
  }
}
