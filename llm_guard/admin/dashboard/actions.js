// What an operator does: asked once more, with a reason, and told what came of it. What may be done stands with what is
// shown of it.

import { keepWho, tell, who } from "./api.js";
import { announce, byId, setHidden, setText } from "./dom.js";

let current = null;
let onDone = () => {};

export function prepareActions(done) {
  onDone = done;
  byId("act-form").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
}

/**
 * Asks whether it is meant, and why. An action is {name, path, what, body(target)}: `what` says what will become of it.
 * `ends`: it may last for a time only; `mustEnd`: it does.
 */
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
