// The dialog that confirms an operator's action, asks for a reason and shows the result. The actions are defined by the
// modules that show their targets.

import { operatorName, post, rememberOperatorName } from "./api.js";
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
 * Opens the dialog. An action is {name, path, effect, body(target)}; `effect` describes what will happen. `ends`: a
 * duration may be chosen; `mustEnd`: one must be.
 */
export function act(action, target, title) {
  current = { action, target, title };
  byId("act-form").reset();
  setEditable(true);
  setText(byId("act-head"), `${action.name}: ${title}`);
  setText(byId("act-effect"), action.effect);
  setText(byId("act-do"), action.name);
  setText(byId("act-cancel"), "Cancel");
  setHidden(byId("act-do"), false);
  setHidden(byId("act-for-field"), !action.ends);
  setHidden(byId("act-error"), true);
  byId("act-for").options[0].disabled = Boolean(action.mustEnd);
  byId("act-for").selectedIndex = action.mustEnd ? 1 : 0;
  byId("act-operator").value = operatorName();
  byId("act").showModal();
  byId("act-reason").focus();
}

async function send() {
  const { action, target, title } = current;
  const reason = byId("act-reason").value.trim();
  if (reason === "") {
    showError("Enter a reason for the audit trail.");
    byId("act-reason").focus();
    return;
  }
  rememberOperatorName(byId("act-operator").value.trim());
  const body = { ...action.body(target), reason };
  if (action.ends) body.for = byId("act-for").value || null;
  byId("act-do").disabled = true;
  try {
    finish(await post(action.path, body), `Done: ${action.name}, ${title}`);
    onDone();
  } catch (error) {
    showError(`Failed: ${error.message}.`);
  } finally {
    byId("act-do").disabled = false;
  }
}

/** Closes the dialog, unless there are warnings to show. */
function finish({ warnings, audited, audit_error }, done) {
  const notes = audited ? warnings : [...warnings, `it was not written to the audit trail: ${audit_error}`];
  if (!notes.length) {
    byId("act").close();
    announce(done);
    return;
  }
  showError(`Done, with warnings: ${notes.join("; ")}.`);
  setEditable(false);
  setHidden(byId("act-do"), true);
  setText(byId("act-cancel"), "Close");
  byId("act-cancel").focus();
}

function setEditable(isSo) {
  for (const name of ["act-reason", "act-for", "act-operator"]) byId(name).disabled = !isSo;
}

function showError(text) {
  setText(byId("act-error"), text);
  setHidden(byId("act-error"), false);
}
