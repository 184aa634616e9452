// What an operator may do: asked once more, with a reason, and told what came of it.

import { keepWho, tell, who } from "./api.js";
import { announce, byId, setHidden, setText } from "./dom.js";

const ofDeployment = (one) => ({ deployment: one.deployment });

/** `ends`: it may last for a time only; `mustEnd`: it does. */
export const ON_DEPLOYMENTS = [
  {
    name: "Force open",
    path: "admin/breakers/force-open",
    what: "Its breaker refuses every call from now on. Calls go to the other deployments of their route, or fail.",
    ends: true,
    isOffered: ({ breaker }) => breaker.state !== "forced_open",
    body: ofDeployment,
  },
  {
    name: "Reset",
    path: "admin/breakers/reset",
    what: "Its breaker forgets what it has seen, and any operator’s word, and passes calls again.",
    isOffered: ({ breaker }) => breaker.is_forced || breaker.state !== "closed",
    body: ofDeployment,
  },
  {
    name: "Reset upstream",
    path: "admin/breakers/reset",
    what: "The breaker of its upstream’s host forgets what it has seen. All deployments there are asked again.",
    isOffered: ({ host }) => host !== "closed",
    body: ({ upstream }) => ({ upstream }),
  },
  {
    name: "Drain",
    path: "admin/deployments/drain",
    what: "It gets no new calls. Those that run go on to their end.",
    ends: true,
    isOffered: ({ hold }) => hold === null,
    body: ofDeployment,
  },
  {
    name: "Return",
    path: "admin/deployments/return",
    what: "It is asked again, as its breaker allows.",
    isOffered: ({ hold }) => hold !== null,
    body: ofDeployment,
  },
];

export const SILENCE = {
  name: "Silence",
  path: "admin/alerts/silence",
  what: "Nobody is told of this alert. It goes on being watched, and is shown here.",
  ends: true,
  mustEnd: true,
  body: ({ alert, subject }) => ({ alert, subject }),
};

let current = null;
let onDone = () => {};

export function prepareActions(done) {
  onDone = done;
  byId("act-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
}

/** Asks whether it is meant, and why. */
export function act(action, target, title) {
  current = { action, target, title };
  byId("act-form").reset();
  setEditable(true);
  setText(byId("act-head"), `${action.name}: ${title}`);
  setText(byId("act-what"), action.what);
  setText(byId("act-do"), action.name);
  setText(byId("act-cancel"), "Cancel");
  setHidden(byId("act-do"), false);
  setHidden(byId("act-for-field"), !action.ends);
  setHidden(byId("act-said"), true);
  byId("act-for").options[0].disabled = Boolean(action.mustEnd);
  byId("act-for").selectedIndex = action.mustEnd ? 1 : 0;
  byId("act-who").value = who();
  byId("act").showModal();
  byId("act-reason").focus();
}

async function send() {
  const { action, target, title } = current;
  const reason = byId("act-reason").value.trim();
  if (reason === "") {
    say("Say why: it goes to the audit trail.");
    byId("act-reason").focus();
    return;
  }
  keepWho(byId("act-who").value.trim());
  const body = { ...action.body(target), reason };
  if (action.ends) body.for = byId("act-for").value || null;
  byId("act-do").disabled = true;
  try {
    close(await tell(action.path, body), `Done: ${action.name.toLowerCase()}, ${title}`);
    onDone();
  } catch (error) {
    say(`Not done: ${error.message}.`);
  } finally {
    byId("act-do").disabled = false;
  }
}

/** At once, unless there is something that the operator may not have meant. */
function close({ warnings, audited, unaudited_why }, done) {
  const notes = audited ? warnings : [...warnings, `it is not in the audit trail: ${unaudited_why}`];
  if (!notes.length) {
    byId("act").close();
    announce(done);
    return;
  }
  say(`Done. But take note: ${notes.join("; ")}.`);
  setEditable(false);
  setHidden(byId("act-do"), true);
  setText(byId("act-cancel"), "Close");
  byId("act-cancel").focus();
}

/** What is done is not to be changed in the form. */
function setEditable(isSo) {
  for (const name of ["act-reason", "act-for", "act-who"]) byId(name).disabled = !isSo;
}

function say(text) {
  setText(byId("act-said"), text);
  setHidden(byId("act-said"), false);
}
