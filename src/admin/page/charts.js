// What the process did in the last minutes: a card for each value, with its number and a line.

import { duration, h, number, span } from "./elements.js";

// The name of the language, which nothing loads.
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 20;

/** The cards of the document `history`. */
export function cards(history) {
  const { stepSeconds, connections } = history;
  if (connections.length === 0) {
    return [h("h2", {}, "Last 5 minutes"), h("p", { class: "faint" }, `The first values come ${stepSeconds} seconds after the start.`)];
  }
  const time = span(connections.length * stepSeconds);
  const rate = (value) => value.toFixed(1);
  const entries = [
    ["Requests per second", history.requestsPerSecond, rate], ["5xx per second", history.failedPerSecond, rate],
    ["p99 of durations", history.p99Seconds, duration], ["Open connections", connections, number],
  ];
  return [h("h2", {}, `Last ${time}`), h("ul", { class: "plain cards" }, entries.map((entry) => card(entry, time, history.maxSteps)))];
}

function card([name, values, text], time, steps) {
  const known = values.filter((value) => value !== null);
  const highest = known.length > 0 ? Math.max(...known) : null;
  const shown = (value, none) => (value === null ? none : text(value));
  const words = `${name}, last ${time}: now ${shown(values.at(-1), "none")}, highest ${shown(highest, "none")}`;
  return h("li", {},
    h("p", {}, name),
    h("p", {}, h("strong", {}, shown(values.at(-1), "–"))),
    element("svg", { role: "img", "aria-label": words, viewBox: `0 0 ${steps - 1} ${HEIGHT}`, preserveAspectRatio: "none" },
      element("path", { d: line(values, steps, highest) })),
    h("p", { class: "faint" }, `Highest ${shown(highest, "–")}`));
}

/** A line from 0 at the bottom to the highest value at the top, which ends at the right edge. What is not known is a gap, and a value between two gaps a dot. */
function line(values, steps, highest) {
  const isGap = (index) => (values[index] ?? null) === null;
  const point = (value, index) => {
    const y = Number((HEIGHT * (1 - value / (highest || 1))).toFixed(1));
    const isDot = isGap(index - 1) && isGap(index + 1);
    return `${isGap(index - 1) ? "M" : "L"}${steps - values.length + index} ${y}${isDot ? "h0" : ""}`;
  };
  return values.map((value, index) => (value === null ? "" : point(value, index))).join("");
}

/** Creates an element of a picture. */
function element(name, attributes, ...children) {
  const created = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
  created.append(...children);
  return created;
}
