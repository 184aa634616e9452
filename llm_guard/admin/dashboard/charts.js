// Four charts of the last 15 minutes or 24 hours, drawn by uPlot. Each has its values as text above it.

/* global uPlot */

import { byId, el, setText } from "./dom.js";
import { UNKNOWN, clock, rate, seconds, share } from "./format.js";

const QUARTER_S = 900;
const DAY_S = 86_400;
const HEIGHT = 120;
const LOWEST_TOP = { rate: 1, seconds: 0.1 };

const CHARTS = [
  { title: "Calls per second", unit: "rate", write: rate, lines: [["", "calls_per_second"]] },
  { title: "Success rate", unit: "share", write: share, lines: [["", "success_rate"]] },
  {
    title: "Duration",
    unit: "seconds",
    write: seconds,
    lines: [
      ["p50", "duration_p50_s"],
      ["p95", "duration_p95_s"],
    ],
  },
  {
    title: "Time to first token",
    unit: "seconds",
    write: seconds,
    lines: [
      ["p50", "first_token_p50_s"],
      ["p95", "first_token_p95_s"],
    ],
  },
];

/** The charts of the dashboard, of a model or of a deployment. */
export class Charts {
  constructor(holder) {
    holder.replaceChildren();
    this.drawn = CHARTS.map((plan) => new Chart(plan, holder));
    const sizes = new ResizeObserver(() => this.drawn.forEach((chart) => chart.fit()));
    sizes.observe(holder);
    document.addEventListener("themechange", () => {
      readColours();
      this.drawn.forEach((chart) => chart.plot.redraw(false, false));
    });
  }

  /** `series` null: nothing is known. */
  show({ step_s, at }, series) {
    const span_s = step_s < 60 ? QUARTER_S : DAY_S;
    for (const chart of this.drawn) chart.show(at, series, span_s);
  }
}

class Chart {
  constructor(plan, holder) {
    this.plan = plan;
    this.figures = plan.lines.map(([name], at) => newFigure(name, at));
    this.when = el("span", { class: "when" });
    this.frame = el("div", { class: "plot", "aria-hidden": "true" });
    const title = el("p", {}, el("b", {}, plan.title), " ", this.when);
    const caption = el("figcaption", {}, title, el("p", {}, ...this.figures.map(({ node }) => node)));
    holder.append(el("figure", {}, caption, this.frame));
    this.data = [[], ...plan.lines.map(() => [])];
    this.span_s = QUARTER_S;
    this.plot = new uPlot(
      options(this, this.frame.clientWidth || 300),
      this.data,
      this.frame,
    );
  }

  show(at, series, span_s) {
    this.span_s = span_s;
    this.problem = series ? "" : "no history";
    const nothing = at.map(() => null);
    this.data = [at, ...this.plan.lines.map(([, key]) => series?.[key] ?? nothing)];
    this.plot.setData(this.data);
    this.say();
  }

  fit() {
    const width = this.frame.clientWidth;
    if (width && width !== this.plot.width) this.plot.setSize({ width, height: HEIGHT });
  }

  /** Shows the values under the pointer, or the latest ones. */
  say() {
    if (!this.plot) return;
    const pointed = this.plot.cursor.idx;
    const at = pointed ?? this.data[0].length - 1;
    setText(this.when, pointed === null || pointed === undefined ? (this.problem ?? "") : clock(this.data[0][at]));
    this.figures.forEach(({ value }, line) =>
      setText(value, at < 0 ? UNKNOWN : this.plan.write(this.data[line + 1][at])),
    );
  }
}

function newFigure(name, at) {
  const value = el("b", {});
  const key = name ? el("i", { class: "key", "data-line": String(at), "aria-hidden": "true" }) : null;
  return { value, node: el("span", { class: "figure" }, key, name ? `${name} ` : null, value) };
}

let colours = {};

/** Resolves the CSS variables, which a canvas cannot use. */
function readColours() {
  const probe = el("span", { hidden: true });
  document.body.append(probe);
  for (const name of ["accent", "muted", "line", "tint"]) {
    probe.style.color = `var(--${name})`;
    colours[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}

function options(chart, width) {
  const { plan } = chart;
  if (!colours.accent) readColours();
  const font = "11px Inter, system-ui, sans-serif";
  const axis = {
    stroke: () => colours.muted,
    font,
    ticks: { show: false },
    grid: { stroke: () => colours.line, width: 1 },
  };
  return {
    width,
    height: HEIGHT,
    legend: { show: false },
    cursor: { sync: { key: "quarter" }, drag: { x: false, y: false }, y: false, points: { size: 6 } },
    padding: [6, 18, 0, 0], // half of the last tick's text stands beyond its line
    scales: {
      x: { time: true, range: (_plot, _min, max) => (max === null ? [0, 1] : [max - chart.span_s, max]) },
      y: { range: (_plot, min, max) => rangeOf(plan.unit, min, max) },
    },
    axes: [
      {
        ...axis,
        size: 22,
        gap: 6,
        space: 44,
        grid: { show: false },
        incrs: [60, 300, 900, 3600, 10_800, 21_600],
        values: (_plot, ticks) => ticks.map((at) => clock(at).slice(0, 5)),
      },
      { ...axis, size: 46, gap: 4, space: 26, values: (_plot, ticks) => ticks.map((value) => onAxis(plan, value)) },
    ],
    series: [{}, ...plan.lines.map((_line, at) => lineOf(plan, at))],
    hooks: { setCursor: [() => chart.say()] },
  };
}

function lineOf(plan, at) {
  return {
    stroke: () => (at === 0 ? colours.accent : colours.muted),
    width: at === 0 ? 1.5 : 1,
    fill: plan.unit === "rate" ? () => colours.tint : undefined,
    points: { show: false },
  };
}

/** Formats a tick, without trailing zeros. */
function onAxis({ unit, write }, value) {
  if (unit === "rate") return String(Number(value.toFixed(2)));
  return write(value)
    .replace(/\.0+(?=\D)/, "")
    .replace(/(\.\d*?)0+(?=\D)/, "$1");
}

/** The success rate's axis ends at 100 %, all others begin at 0. */
function rangeOf(unit, min, max) {
  if (unit === "share") return [min === null ? 0.9 : Math.min(0.9, Math.floor(min * 10) / 10), 1];
  return [0, Math.max((max ?? 0) * 1.1, LOWEST_TOP[unit])];
}
