// Requests to the admin API. The browser adds the session cookie, which scripts cannot read.

const OPERATOR_KEY = "llm_guard.operator";
const TIMEOUT_MS = 4000;

const store = storage();

/** An error response of the gateway. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** No response, or one that is not the gateway's. */
export class Unreachable extends Error {
  name = "Unreachable";
}

export const rememberOperatorName = (text) => store.setItem(OPERATOR_KEY, text);
export const operatorName = () => store.getItem(OPERATOR_KEY) ?? "";

/** Fetches a path and returns the parsed JSON. Throws Refused or Unreachable. */
export async function get(path) {
  return read(await request(path, { signal: AbortSignal.timeout(TIMEOUT_MS) }));
}

/** Posts JSON and returns the parsed response. Throws Refused or Unreachable. */
export async function post(path, body) {
  const headers = { "content-type": "application/json" };
  if (operatorName()) headers["x-llm-guard-operator"] = operatorName();
  const init = { method: "POST", headers, body: JSON.stringify(body), signal: AbortSignal.timeout(TIMEOUT_MS) };
  return read(await request(path, init));
}

/** Sends a request and returns the response, with its body unread. Throws Refused or Unreachable. */
export async function request(path, init = {}) {
  let response;
  try {
    response = await fetch(path, { ...init, cache: "no-store", redirect: "error", credentials: "same-origin" });
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "the request timed out" : "the connection failed");
  }
  if (response.ok) return response;
  throw await refusal(response);
}

/** Session storage, or memory if the browser has none. */
function storage() {
  try {
    return window.sessionStorage;
  } catch {
    const entries = new Map();
    return {
      getItem: (key) => entries.get(key) ?? null,
      setItem: (key, value) => entries.set(key, value),
      removeItem: (key) => entries.delete(key),
    };
  }
}

async function read(response) {
  try {
    return await response.json();
  } catch (error) {
    throw new Unreachable(error.name === "TimeoutError" ? "the request timed out" : "the response is not JSON");
  }
}

async function refusal(response) {
  try {
    const { error } = await response.json();
    return new Refused(response.status, error.message);
  } catch {
    return new Unreachable(`a proxy responded with status ${response.status}`);
  }
}
