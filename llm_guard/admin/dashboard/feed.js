// Keeps the page up to date: polls the JSON endpoints and reads the event stream. Reports when the gateway is
// unreachable, or needs a login.

import { Refused, Unreachable, get, request } from "./api.js";
import { byId } from "./dom.js";
import { readEvents } from "./stream.js";

const PAGES = {
  metrics: { path: "admin/metrics", every_s: 1 },
  calls: { path: "admin/calls?failed=true&limit=100", every_s: 1.5 },
  alerts: { path: "admin/alerts", every_s: 3 },
  incidents: { path: "admin/incidents", every_s: 2 },
  history: { path: "admin/history", every_s: 5 },
  day: { path: "admin/history?span=24h", every_s: 60, isWanted: () => byId("span").dataset.span === "24h" },
  attempts: { path: ofDeployment, every_s: 5, isWanted: () => byId("deployment").open },
};
const HIDDEN_S = 15; // while the tab is hidden
const SILENCE_MS = 45_000;

/**
 * `listener` has a function for each of PAGES, which takes the response, and: `event(event)`, `missed()`,
 * `connected(isConnected)`, `reachable()`, `unreachable(reason)`, `refused(page, message)`, `failed(page, error)` and
 * `loginNeeded()`.
 */
export class Feed {
  constructor(listener) {
    this.listener = listener;
    this.polls = Object.entries(PAGES).map(([name, page]) => new Poll(this, name, page));
    this.lastEvent = null;
    this.loginDone = null;
    this.logins = 0;
    this.listening = null;
    document.addEventListener("visibilitychange", () => {
      // A browser has six connections to one address, which hidden tabs must not use up.
      if (document.hidden) this.listening?.abort();
      else this.refresh();
    });
  }

  start() {
    for (const poll of this.polls) poll.run();
    this.listen();
  }

  /** Polls now: the named pages, or all. */
  refresh(...names) {
    for (const poll of this.polls) if (!names.length || names.includes(poll.name)) poll.poke();
  }

  /** To be called when the browser has a new cookie. */
  loggedIn() {
    this.logins += 1;
    this.loginDone?.resolve();
    this.loginDone = null;
    this.refresh();
  }

  /** Resolves when no login is needed. */
  async admitted() {
    await this.loginDone?.promise;
  }

  /** `sent`: the number of logins when the refused request was sent. */
  wantLogin(sent) {
    if (this.loginDone || sent !== this.logins) return;
    this.loginDone = Promise.withResolvers();
    this.listener.loginNeeded();
  }

  async listen() {
    for (let pause_s = 1; ; pause_s = Math.min(pause_s * 2, 8)) {
      await this.admitted();
      await shown();
      const sent = this.logins;
      try {
        await this.listenOnce(() => (pause_s = 0.5));
      } catch (error) {
        if (error.status === 401) this.wantLogin(sent);
        else if (!(error instanceof Unreachable || error instanceof Refused)) this.listener.failed("events", error);
      }
      this.listener.connected(false);
      await wait(pause_s * 1000).done;
    }
  }

  async listenOnce(onOpen) {
    this.listening = new AbortController();
    const isFirst = this.lastEvent === null; // then all stored events are new
    const headers = isFirst ? {} : { "last-event-id": this.lastEvent };
    const response = await request(`admin/events${isFirst ? "?since=0" : ""}`, {
      headers,
      signal: this.listening.signal,
    });
    onOpen();
    this.listener.connected(true);
    for await (const event of readEvents(response.body, SILENCE_MS, this.listening)) this.note(event);
  }

  note({ id, type, data }) {
    if (id !== null) this.lastEvent = id;
    if (type === "missed") this.listener.missed();
    else if (type !== "hello" && data !== "") this.listener.event(JSON.parse(data));
  }
}

class Poll {
  constructor(feed, name, { path, every_s, isWanted = () => true }) {
    Object.assign(this, { feed, name, path, every_s, isWanted, pause: null });
  }

  async run() {
    for (;;) {
      await this.feed.admitted();
      if (this.isWanted()) await this.once();
      this.pause = wait((document.hidden ? Math.max(HIDDEN_S, this.every_s) : this.every_s) * 1000);
      await this.pause.done;
    }
  }

  poke() {
    this.pause?.end();
  }

  async once() {
    const { listener, logins } = this.feed;
    try {
      const found = await get(typeof this.path === "string" ? this.path : this.path());
      listener[this.name](found);
      if (this.name === "metrics") listener.reachable();
    } catch (error) {
      if (error.status === 401) this.feed.wantLogin(logins);
      else if (error instanceof Refused) listener.refused(this.name, error.message);
      else if (!(error instanceof Unreachable)) listener.failed(this.name, error);
      else if (this.name === "metrics") listener.unreachable(error.message);
    }
  }
}

/** The history of the deployment whose page is open, for the selected period. */
function ofDeployment() {
  const { span } = byId("span").dataset;
  return `admin/history?span=${span}&deployment=${encodeURIComponent(byId("deployment").dataset.label)}`;
}

function wait(ms) {
  let end;
  const done = new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    end = () => {
      clearTimeout(timer);
      resolve();
    };
  });
  return { done, end };
}

async function shown() {
  while (document.hidden) {
    await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}
