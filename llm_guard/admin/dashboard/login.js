// Logs this browser in, with a link of `llm-guard login` or with the token itself, and says whose token it has. What
// comes of it is a cookie that no script can read.

import { Refused, ask, tell } from "./api.js";

const LINK = "#login=";

/** Whether the address had a code that was taken; null if it had none. Throws Refused or Away. */
export async function logInByLink() {
  if (!location.hash.startsWith(LINK)) return null;
  const code = location.hash.slice(LINK.length);
  // A code is good once: it is not left where it would be sent again, or seen over a shoulder.
  history.replaceState(null, "", location.pathname + location.search);
  await tell("dashboard/login", { code });
  return true;
}

export async function logInByToken(token) {
  await tell("dashboard/login", { token });
}

/** `act` is called when a link is opened in the tab that shows the page already. */
export function listenForLinks(act) {
  window.addEventListener("hashchange", () => location.hash.startsWith(LINK) && act());
}

/** What a viewer may not do is not offered, and a name is wanted only of those who share a token. */
export async function showSession() {
  const root = document.documentElement;
  try {
    const session = await ask("admin/session");
    root.dataset.role = session.role;
    root.dataset.shared = session.is_shared ? "yes" : "no";
  } catch (error) {
    if (!(error instanceof Refused) && error.name !== "Away") console.error(error);
  }
}
