// Keeps the page's picture current: asks again and again, and listens. Says when the gateway is away, or wants a login.

import { Away, Refused, ask, request } from "./api.js";
import { readEvents } from "./stream.js";

const PAGES = {
  metrics: { path: "admin/metrics", every_s: 1 },
  calls: { path: "admin/calls?failed=true&limit=100", every_s: 1.5 },
  alerts: { path: "admin/alerts", every_s: 3 },
  restrictions: { path: "admin/restrictions", every_s: 2 },
  history: { path: "admin/history", every_s: 5 },
};
const HIDDEN_S = 15; // nobody looks
const SILENCE_MS = 45_000;

/**
 * `heard` has a function for each of PAGES, which takes what was answered, and: `event(event)`, `missed()`,
 * `listens(isSo)`, `here()`, `away(why)`, `refused(page, message)`, `notUnderstood(page, error)` and
 * `loginWanted()`.
 */
export class Feed {
  constructor(heard) {
    this.heard = heard;
    this.polls = Object.entries(PAGES).map(([name, page]) => new Poll(this, name, page));
    this.lastEvent = null;
    this.loginDone = null;
    this.logins = 0;
    this.listening = null;
    document.addEventListener("visibilitychange", () => {
      // A browser has six connections to one address: tabs that nobody looks at must not hold them all.
      if (document.hidden) this.listening?.abort();
      else this.refresh();
    });
  }

  start() {
    for (const poll of this.polls) poll.run();
    this.listen();
  }

  /** Asks for everything now. */
  refresh(...names) {
    for (const poll of this.polls) if (!names.length || names.includes(poll.name)) poll.poke();
  }

  /** The browser has a new cookie. */
  loggedIn() {
    this.logins += 1;
    this.loginDone?.resolve();
    this.loginDone = null;
    this.refresh();
  }

  /** Resolves when there is a login that was not refused yet, or none was wanted. */
  async admitted() {
    await this.loginDone?.promise;
  }

  /** `sent`: how many logins there had been when the request went that was refused. */
  wantLogin(sent) {
    if (this.loginDone || sent !== this.logins) return;
    this.loginDone = Promise.withResolvers();
    this.heard.loginWanted();
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
        else if (!(error instanceof Away || error instanceof Refused)) this.heard.notUnderstood("events", error);
      }
      this.heard.listens(false);
      await wait(pause_s * 1000).done;
    }
  }

  async listenOnce(onOpen) {
    this.listening = new AbortController();
    const isFirst = this.lastEvent === null; // then all that is kept is news
    const headers = isFirst ? {} : { "last-event-id": this.lastEvent };
    const response = await request(`admin/events${isFirst ? "?since=0" : ""}`, {
      headers,
      signal: this.listening.signal,
    });
    onOpen();
    this.heard.listens(true);
    for await (const event of readEvents(response.body, SILENCE_MS, this.listening)) this.hear(event);
  }

  hear({ id, type, data }) {
    if (id !== null) this.lastEvent = id;
    if (type === "missed") this.heard.missed();
    else if (type !== "hello" && data !== "") this.heard.event(JSON.parse(data));
  }
}

class Poll {
  constructor(feed, name, { path, every_s }) {
    Object.assign(this, { feed, name, path, every_s, pause: null });
  }

  async run() {
    for (;;) {
      await this.feed.admitted();
      await this.once();
      this.pause = wait((document.hidden ? Math.max(HIDDEN_S, this.every_s) : this.every_s) * 1000);
      await this.pause.done;
    }
  }

  poke() {
    this.pause?.end();
  }

  async once() {
    const { heard, logins } = this.feed;
    try {
      const said = await ask(this.path);
      heard[this.name](said);
      if (this.name === "metrics") heard.here();
    } catch (error) {
      if (error.status === 401) this.feed.wantLogin(logins);
      else if (error instanceof Refused) heard.refused(this.name, error.message);
      else if (!(error instanceof Away)) heard.notUnderstood(this.name, error);
      else if (this.name === "metrics") heard.away(error.message);
    }
  }
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
