// One call as a waterfall: each attempt with its waits, its result and the reason.

import { el, mark } from "./dom.js";
import { moment, rate, seconds, span, words } from "./format.js";
import { link, ofModel } from "./links.js";

const TICKS = 4;

const FROM_CACHE = {
  hit: "hit",
  stale: "stale, revalidated in the background",
  stale_if_error: "stale, because the provider failed",
  miss: "miss",
  coalesced: "shared the response of an identical call",
};
const FALLBACKS = { static: "static response" };
const BACKGROUND = {
  refresh: "background revalidation of a cached response",
  deferred: "execution of a deferred call",
  requeue: "execution of a requeued dead letter",
  fetch: "a client fetches the result of a deferred call",
};

/** The fallback response that the client of a failed call got; null: none. */
export function fallbackOf({ outcome, cache, age_s, fallback_response, deferred_id }) {
  if (outcome === "ok") return null;
  if (cache === "stale_if_error") return `stale response, ${span(age_s)} old`;
  if (deferred_id) return "deferred call";
  return fallback_response ? (FALLBACKS[fallback_response] ?? fallback_response) : null;
}

/** The elements that show a call's line. */
export function waterfall(line) {
  const total_s = Math.max(line.duration_s, ...line.attempts.map((each) => each.started_s + each.duration_s), 0.001);
  const attempts = line.attempts.map((attempt, at) => row(attempt, at + 1, total_s));
  return [
    el(
      "p",
      { class: "verdict" },
      mark(line.outcome === "ok" ? "well" : "bad"),
      el("b", {}, words(line.outcome)),
      ` ${line.reason ?? ""}`,
    ),
    facts(line),
    attempts.length ? el("ol", { class: "waterfall" }, scale(total_s), ...attempts) : el("p", {}, "No attempts."),
    skipped(line.skipped ?? []),
  ].filter(Boolean);
}

function facts(line) {
  const pairs = [
    ["Model", ofModel(line.model, line.route)],
    ["Route", line.route],
    ["Received", line.timestamp ? moment(line.timestamp) : null],
    ["Path", `${line.method} ${line.path}${line.stream ? ", stream" : ""}`],
    ["Status", line.status],
    ["Duration", seconds(line.duration_s)],
    ["Time to first token", line.ttft_s === undefined ? null : seconds(line.ttft_s)],
    ["Gateway overhead", seconds(line.overhead_s)],
    ["Client", line.client],
    ["Trace", line.trace_id],
    ["Refused by", line.refused_by],
    ["Stopped because", line.gave_up],
    ["Response cache", line.cache === undefined ? null : (FROM_CACHE[line.cache] ?? line.cache)],
    ["Cached for", line.age_s === undefined ? null : span(line.age_s)],
    ["Fallback response", fallbackOf(line)],
    ["Dead letter", line.dead_letter_id],
    ["Deferred call", line.deferred_id],
    ["Origin", line.background_purpose && (BACKGROUND[line.background_purpose] ?? line.background_purpose)],
  ];
  const known = pairs.filter(([, value]) => value !== null && value !== undefined);
  return el(
    "dl",
    { class: "facts" },
    ...known.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))),
  );
}

function scale(total_s) {
  const marks = Array.from({ length: TICKS + 1 }, (_, at) =>
    placed(el("span", {}, seconds((total_s * at) / TICKS)), at / TICKS, 0),
  );
  return el("li", { class: "scale", "aria-hidden": "true" }, el("div", { class: "track" }, ...marks));
}

const lines = () => Array.from({ length: TICKS }, (_, at) => placed(el("i", {}), at / TICKS, 0));

function row(attempt, number, total_s) {
  const isWell = attempt.outcome === "ok";
  const begins = attempt.started_s / total_s;
  const waits = attempt.waited_s / total_s;
  const track = el("div", { class: "track", "aria-hidden": "true" }, ...lines());
  if (attempt.waited_s > 0) track.append(placed(el("span", { class: "wait" }), begins - waits, waits));
  track.append(placed(el("span", { class: "bar" }), begins, attempt.duration_s / total_s));
  if (attempt.answered_s !== undefined)
    track.append(placed(el("span", { class: "token" }), begins + attempt.answered_s / total_s, 0));
  return el(
    "li",
    { "data-state": isWell ? "well" : "bad" },
    el("p", { class: "deployment" }, `${number}. `, ofDeployment(attempt.deployment), ...marks(attempt)),
    track,
    el(
      "p",
      { class: "what" },
      mark(isWell ? "well" : "bad"),
      el("b", {}, words(attempt.outcome)),
      ` ${story(attempt)}`,
    ),
    attempt.reason ? el("p", { class: "reason" }, attempt.reason) : null,
    attempt.next_step ? el("p", { class: "then" }, `Then: ${attempt.next_step}${left(attempt)}`) : null,
  );
}

function marks(attempt) {
  const labels = [];
  if (attempt.hedge) labels.push("hedge");
  if (attempt.key) labels.push(`with key ${attempt.key}`);
  if (attempt.resume_mode) labels.push(`resumes a broken stream (${words(attempt.resume_mode)})`);
  if (attempt.breaker) labels.push(`breaker ${words(attempt.breaker)}`);
  return labels.map((text) => el("small", {}, text));
}

function story({ waited_s, waited_for, started_s, duration_s, answered_s }) {
  const waited = waited_s > 0 ? `after ${seconds(waited_s)} of ${waitedFor(waited_for)}, ` : "";
  const answered = answered_s === undefined ? "" : `, first token after ${seconds(answered_s)}`;
  return `${waited}at ${seconds(started_s)}, for ${seconds(duration_s)}${answered}`;
}

function waitedFor(what) {
  if (what === "retry-after") return "Retry-After";
  return what === "queue" ? "queueing" : "backoff";
}

function left({ budget_left }) {
  return budget_left === undefined || budget_left === null ? "" : ` (${rate(budget_left)} left in the retry budget)`;
}

const ofDeployment = (label) => el("b", {}, link("deployment", label, label));

function skipped(lines) {
  if (!lines.length) return null;
  const items = lines.map(({ deployment, reason, failed_calls: causes = [] }) => {
    const calls = causes.flatMap((id) => [" ", link("call", id, id)]);
    return el("li", {}, ofDeployment(deployment), ` ${reason}`, calls.length ? ". Because of " : null, ...calls);
  });
  return el("section", { class: "skipped" }, el("h3", {}, "Skipped deployments"), el("ul", {}, ...items));
}

function placed(node, from, length) {
  node.style.left = `${(Math.max(0, from) * 100).toFixed(2)}%`;
  if (length) node.style.width = `${(length * 100).toFixed(2)}%`;
  return node;
}
