// Puts the page together: what the feed hears goes to the parts that show it.

import { prepareActions } from "./actions.js";
import { showBreakers } from "./breakers.js";
import { showCache } from "./cache.js";
import { prepareCalls, showCalls } from "./calls.js";
import { showCharts } from "./charts.js";
import { showClients } from "./clients.js";
import { byId, el, setHidden, setText } from "./dom.js";
import { showEngines } from "./engines.js";
import { forgetEvents, noteEvent, showListening } from "./events.js";
import { Feed } from "./feed.js";
import { showKept } from "./kept.js";
import { prepareLetters, refreshLetters } from "./letters.js";
import { showLoad } from "./load.js";
import { showModes } from "./modes.js";
import { listenForLinks, logInByLink, logInByToken, showSession } from "./login.js";
import { listenForSelection, selectedModel, showSparklines, showTraffic } from "./models.js";
import { showAlerts, showHolds } from "./notes.js";
import { showProbes } from "./probes.js";
import { showRestrictions } from "./restrictions.js";
import { showAway, showHere, showLocked, showRefused, showStatus } from "./status.js";
import { countDown } from "./tiles.js";

const COUNT_DOWN_MS = 500;
const SOON_MS = 100;

let history = null;
let isRefreshing = false;

const feed = new Feed({
  metrics(snapshot) {
    showStatus(snapshot);
    showTraffic(snapshot);
    showBreakers(snapshot);
    showEngines(snapshot);
    showProbes(snapshot);
    showModes(snapshot);
    showCache(snapshot);
    showKept(snapshot);
    showClients(snapshot);
    showLoad(snapshot);
    showHolds(snapshot);
  },
  history(said) {
    history = said;
    showSparklines(history);
    showCharts(history, selectedModel());
  },
  calls: showCalls,
  alerts: showAlerts,
  restrictions: showRestrictions,
  event(event) {
    noteEvent(event);
    refreshSoon();
  },
  missed: forgetEvents,
  listens: showListening,
  here: showHere,
  away: showAway,
  refused: showRefusal,
  notUnderstood(name, error) {
    console.error(error);
    showRefusal(name, "this page does not understand what it says; reload it, the gateway may be a newer one");
  },
  loginWanted: () => showTokenForm(),
});

/** An event says that the figures have changed; several that come together say it once. */
function refreshSoon() {
  if (isRefreshing) return;
  isRefreshing = true;
  setTimeout(() => {
    isRefreshing = false;
    feed.refresh("metrics", "alerts", "restrictions", "calls");
    refreshLetters();
  }, SOON_MS);
}

/** A part of which nothing can be told says why, in its own place; without the figures there is no page. */
function showRefusal(name, message) {
  if (name === "metrics") {
    showRefused(message);
    return;
  }
  const place = byId(name === "history" ? "charts" : name);
  if (place.keyedElements || place.children.length > 1) return;
  place.replaceChildren(el(place.matches("ul, ol") ? "li" : "p", { class: "none" }, message));
}

/** `why`: what was wrong with a login; without it what was said last stays. */
function showTokenForm(why) {
  if (why) setText(byId("token-said"), why);
  setHidden(byId("token-said"), byId("token-said").textContent === "");
  setHidden(byId("token"), false);
  document.documentElement.dataset.locked = "";
  showLocked();
  if (!document.querySelector("dialog[open]")) byId("token-text").focus();
}

/** `how` throws Refused or Away; returns null if there was nothing to log in with. */
async function logIn(how) {
  try {
    if ((await how()) === null) return;
  } catch (error) {
    showTokenForm(`Not logged in: ${error.message}.`);
    return;
  }
  setText(byId("token-said"), "");
  setHidden(byId("token"), true);
  delete document.documentElement.dataset.locked;
  feed.loggedIn();
  await showSession();
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

listenForSelection(() => history && showCharts(history, selectedModel()));
prepareActions(() => {
  feed.refresh("metrics", "alerts", "restrictions");
  refreshLetters();
});
prepareCalls();
prepareLetters();
setInterval(countDown, COUNT_DOWN_MS);
listenForLinks(() => logIn(logInByLink));
await logIn(logInByLink);
feed.start();
await showSession();
