// Logs this browser in, with a link of `llm-guard login` or with a token. The session cookie is hidden from scripts.

import { Refused, get, post } from "./api.js";

const LINK = "#login=";

/** Logs in with the code in the address. Returns null if it has none. Throws Refused or Unreachable. */
export async function logInByLink() {
  if (!location.hash.startsWith(LINK)) return null;
  const code = location.hash.slice(LINK.length);
  // The code is valid once: removed from the address, so that a reload does not send it again.
  history.replaceState(null, "", location.pathname + location.search);
  await post("dashboard/login", { code });
  return true;
}

export async function logInByToken(token) {
  await post("dashboard/login", { token });
}

/** Calls `act` when a login link is opened in a tab that already shows the page. */
export function listenForLinks(act) {
  window.addEventListener("hashchange", () => location.hash.startsWith(LINK) && act());
}

/** Hides actions from viewers, and the name field if the token is not shared. */
export async function showSession() {
  const root = document.documentElement;
  try {
    const session = await get("admin/session");
    root.dataset.role = session.role;
    root.dataset.shared = session.is_shared ? "yes" : "no";
  } catch (error) {
    if (!(error instanceof Refused) && error.name !== "Unreachable") console.error(error);
  }
}
