// Formats numbers with their units; a dash where the value is not known.

export const UNKNOWN = "–";
const SPACE = "\u00a0"; // keeps a number and its unit on one line

const isKnown = (value) => typeof value === "number" && Number.isFinite(value);

/** A duration, in seconds. */
export function seconds(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value < 0.001) return value <= 0 ? `0${SPACE}ms` : `${(value * 1000).toFixed(2)}${SPACE}ms`;
  if (value < 0.01) return `${(value * 1000).toFixed(1)}${SPACE}ms`;
  if (value < 0.9995) return `${Math.round(value * 1000)}${SPACE}ms`;
  if (value < 9.995) return `${value.toFixed(2)}${SPACE}s`;
  if (value < 99.95) return `${value.toFixed(1)}${SPACE}s`;
  return span(value);
}

/** A longer time, in its two largest units. */
export function span(value) {
  if (!isKnown(value)) return UNKNOWN;
  const whole = Math.max(0, Math.round(value));
  const units = [
    ["d", 86400],
    ["h", 3600],
    ["min", 60],
    ["s", 1],
  ];
  const at = Math.max(
    0,
    units.findIndex(([, size]) => whole >= size),
  );
  const [first, second] = [units[whole === 0 ? 3 : at], units[at + 1]];
  const large = `${Math.floor(whole / first[1])}${SPACE}${first[0]}`;
  const rest = second ? Math.floor((whole % first[1]) / second[1]) : 0;
  return rest ? `${large} ${rest}${SPACE}${second[0]}` : large;
}

/** A share from 0 to 1, as a percentage that is 100 only for 1, and 0 only for 0. */
export function share(value) {
  if (!isKnown(value)) return UNKNOWN;
  const percent = value * 100;
  const digits = percent > 99.9 && percent < 100 ? 2 : percent > 0 && percent < 0.1 ? 2 : percent % 1 === 0 ? 0 : 1;
  return `${percent.toFixed(digits)}${SPACE}%`;
}

/** A rate, without a unit. */
export function rate(value) {
  if (!isKnown(value)) return UNKNOWN;
  if (value === 0) return "0";
  if (value < 0.1) return value.toFixed(2);
  return value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

export function ratio(value) {
  return isKnown(value) ? value.toFixed(2) : UNKNOWN;
}

export function count(value) {
  return isKnown(value) ? Math.round(value).toLocaleString("en") : UNKNOWN;
}

/** A size, in bytes. */
export function bytes(value) {
  if (!isKnown(value)) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  for (; value >= 1023.5 && at < units.length - 1; at += 1) value /= 1024;
  return `${value < 9.95 && at ? value.toFixed(1) : Math.round(value)}${SPACE}${units[at]}`;
}

/** Seconds since the epoch, of an ISO instant or of such seconds; NaN when it is neither. */
export function instant(value) {
  return typeof value === "number" ? value : Date.parse(value) / 1000;
}

/** The local time of day. */
export function clock(at) {
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  return [date.getHours(), date.getMinutes(), date.getSeconds()].map((part) => String(part).padStart(2, "0")).join(":");
}

/** The time of day, with the day unless it is today. */
export function moment(value) {
  const at = instant(value);
  const date = new Date(at * 1000);
  if (Number.isNaN(date.getTime())) return UNKNOWN;
  if (date.toDateString() === new Date().toDateString()) return clock(at);
  const day = [date.getFullYear(), date.getMonth() + 1, date.getDate()].map((part) => String(part).padStart(2, "0"));
  return `${day.join("-")} ${clock(at)}`;
}

/** The time from `value` to the instant `now`. */
export function ago(value, now) {
  const passed_s = instant(now) - instant(value);
  return passed_s < 2 ? "just now" : `${span(passed_s)} ago`;
}

/** An identifier as words. */
export function words(name) {
  return String(name).replaceAll("_", " ");
}

/** `1 call`, `2 calls`. */
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}
