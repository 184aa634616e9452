// Connects the feed to the parts of the page.

import { prepareActions } from "./actions.js";
import { prepareBreakers, showBreakers } from "./breakers.js";
import { showCache } from "./cache.js";
import { prepareCalls, showCall, showCalls } from "./calls.js";
import { Charts } from "./charts.js";
import { showClients } from "./clients.js";
import * as deployment from "./deployment.js";
import { byId, el, setHidden, setText } from "./dom.js";
import { showEngines } from "./engines.js";
import { clearEvents, noteEvent, showConnected } from "./events.js";
import { noteRestrictions } from "./evidence.js";
import { Feed } from "./feed.js";
import { showFallbacks } from "./fallbacks.js";
import { prepareIncidents, showIncidents } from "./incidents.js";
import { follow, prepareLinks } from "./links.js";
import { showLoad } from "./load.js";
import { listenForLinks, logInByLink, logInByToken, showSession } from "./login.js";
import * as model from "./model.js";
import { showSparklines, showTraffic } from "./models.js";
import { showAlerts, showOverrides } from "./notes.js";
import { showProbes } from "./probes.js";
import { showReplicas } from "./replicas.js";
import { showRestrictions } from "./restrictions.js";
import { showLocked, showReachable, showRefused, showStatus, showUnreachable } from "./status.js";
import { showStoredCalls } from "./stored_calls.js";
import { prepareStoredCalls, refreshStoredCalls } from "./stored_calls_dialog.js";
import { countDown } from "./tiles.js";
import { forgetEvents, keepEvent } from "./timeline.js";

const COUNT_DOWN_MS = 500;
const SOON_MS = 100;

let history = null;
let day = null;
let charts = null;
let latest = null;
let isRefreshing = false;

const feed = new Feed({
  metrics(snapshot) {
    latest = snapshot;
    deployment.noteSnapshot(snapshot);
    model.noteSnapshot(snapshot);
    showStatus(snapshot);
    showTraffic(snapshot);
    showBreakers(snapshot);
    showEngines(snapshot);
    showProbes(snapshot);
    showFallbacks(snapshot);
    showCache(snapshot);
    showStoredCalls(snapshot);
    showReplicas(snapshot);
    showClients(snapshot);
    showLoad(snapshot);
    showOverrides(snapshot);
  },
  history(found) {
    history = found;
    showSparklines(history);
    showPast();
  },
  day(found) {
    day = found;
    showPast();
  },
  attempts: deployment.showAttempts,
  calls: showCalls,
  alerts: showAlerts,
  incidents(found) {
    const restrictions = found.flatMap((incident) => incident.restrictions);
    noteRestrictions(restrictions);
    showIncidents(found);
    showRestrictions(restrictions);
    if (latest) showBreakers(latest);
  },
  event(event) {
    noteEvent(event);
    keepEvent(event);
    refreshSoon();
  },
  missed() {
    clearEvents();
    forgetEvents();
  },
  connected: showConnected,
  reachable: showReachable,
  unreachable: showUnreachable,
  refused: showRefusal,
  failed(name, error) {
    console.error(error);
    showRefusal(name, "unexpected data from the gateway. Reload this page: the gateway may have been updated.");
  },
  loginNeeded: () => showTokenForm(),
});

function openDeployment(label) {
  deployment.showDeployment(label);
  feed.refresh("attempts");
}

/** Draws the charts of the selected span, once that is known. */
function showPast() {
  const past = byId("span").dataset.span === "24h" ? day : history;
  if (!past) return;
  charts ??= new Charts(byId("charts"));
  charts.show(past, past.total);
  model.noteHistory(past);
}

/** Polls soon after an event, once for several events. */
function refreshSoon() {
  if (isRefreshing) return;
  isRefreshing = true;
  setTimeout(() => {
    isRefreshing = false;
    feed.refresh("metrics", "alerts", "incidents", "calls");
    refreshStoredCalls();
  }, SOON_MS);
}

/** Shows an error in the place of the part that it is about; without metrics, in place of the whole page. */
function showRefusal(name, message) {
  if (name === "metrics") {
    showRefused(message);
    return;
  }
  const place = byId({ history: "charts", day: "charts", attempts: "deployment-charts" }[name] ?? name);
  if (place.keyedElements || place.children.length > 1) return;
  place.replaceChildren(el(place.matches("ul, ol") ? "li" : "p", { class: "none" }, message));
}

/** `problem`: why a login failed; without it the last one stays. */
function showTokenForm(problem) {
  if (problem) setText(byId("token-error"), problem);
  setHidden(byId("token-error"), byId("token-error").textContent === "");
  setHidden(byId("token"), false);
  document.documentElement.dataset.locked = "";
  showLocked();
  if (!document.querySelector("dialog[open]")) byId("token-text").focus();
}

/** `how` throws Refused or Unreachable; returns null if there was nothing to log in with. */
async function logIn(how) {
  try {
    if ((await how()) === null) return;
  } catch (error) {
    showTokenForm(`Login failed: ${error.message}.`);
    return;
  }
  setText(byId("token-error"), "");
  setHidden(byId("token"), true);
  delete document.documentElement.dataset.locked;
  feed.loggedIn();
  await showSession();
  follow();
}

byId("token").addEventListener("submit", (event) => {
  event.preventDefault();
  const field = byId("token-text");
  const token = field.value.trim();
  field.value = "";
  logIn(() => logInByToken(token));
});

for (const dialog of document.querySelectorAll("dialog")) {
  dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());
}

const periods = document.querySelectorAll("[data-period]");
for (const button of periods) {
  button.addEventListener("click", () => {
    byId("span").dataset.span = button.dataset.period;
    for (const other of periods) {
      other.setAttribute("aria-pressed", String(other.dataset.period === button.dataset.period));
    }
    showPast();
    feed.refresh("day", "attempts");
  });
}
prepareActions(() => {
  feed.refresh("metrics", "alerts", "incidents");
  refreshStoredCalls();
});
prepareBreakers();
prepareCalls();
prepareIncidents();
prepareStoredCalls();
setInterval(countDown, COUNT_DOWN_MS);
listenForLinks(() => logIn(logInByLink));
await logIn(logInByLink);
// Not before: what a link opens is requested with the cookie of the login.
prepareLinks({ call: showCall, deployment: openDeployment, model: model.showModel });
feed.start();
await showSession();
follow();
