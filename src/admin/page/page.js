// Shows the view that the hash of the URL names, and updates it with every event of the server.

import { at, duration, h, morph, number, percent, quantile } from "./elements.js";
import * as views from "./views.js";

const main = document.getElementById("main");
const totals = document.getElementById("totals");
const count = document.getElementById("count");
const announcement = document.getElementById("announcement");

/** The number of the last view that was asked for: what arrives later than the next one is not shown. */
let latest = 0;
let isBusy = false;

class Refused extends Error {}

async function get(path) {
  const response = await fetch(path.startsWith("/") ? path : `/api/v1/${path}`);
  if (!response.ok) throw new Refused((await response.text()).trim());
  return response.json();
}

/** The view and its parameters. */
function place() {
  const [name, query = ""] = location.hash.slice(1).split(/\?(.*)/s);
  const known = Object.hasOwn(views, name) ? name : "problems";
  return { name: known, parameters: Object.fromEntries(new URLSearchParams(query)) };
}

async function show(isUpdate) {
  const { name, parameters } = place();
  const { hash } = location;
  latest += 1;
  const mine = latest;
  isBusy = true;
  let content;
  try {
    content = await views[name](parameters, get);
  } catch (error) {
    const text = error instanceof Refused ? error.message : "The proxy does not respond.";
    content = [h("h1", { tabindex: "-1" }, "Not shown"), h("p", { class: "error" }, text)];
  }
  if (mine !== latest) return;
  isBusy = false;
  const shown = h("main", { id: "main", tabindex: "-1" }, content);
  if (isUpdate) {
    morph(main, shown);
  } else {
    main.replaceChildren(...shown.childNodes);
  }
  performance.mark("shown");
  main.dataset.shows = hash;
  const title = main.querySelector("h1").textContent;
  document.title = `${title} · Portcullis`;
  for (const link of document.querySelectorAll("header nav a")) {
    const isCurrent = link.hash === `#${name}` || (name === "route" && link.hash === "#routes");
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

/** Shows another view, and goes to its heading, as a new page would. */
async function navigate() {
  if (location.hash === "#main") return;
  await show(false);
  main.querySelector("h1").focus({ preventScroll: true });
  scrollTo(0, 0);
  announcement.textContent = main.querySelector("h1").textContent;
}

// What is typed above is a request if it looks like one, and else a part of a route.
document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = document.getElementById("query").value.trim();
  const isHost = /^[\w*-]+(\.[\w-]+)*(:\d+)?\/\S*$/.test(text);
  if (/^([A-Z]+\s+)?\w+:\/\//.test(text)) location.hash = at("explain", { request: text });
  else if (isHost) location.hash = at("explain", { request: `http://${text}` });
  else location.hash = at("routes", { filter: text });
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.matches("input, textarea, select");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    document.getElementById("query").focus();
  }
});

// Events of the server.

let before = null;
let events = 0;

function followTotals(event) {
  const now = { ...JSON.parse(event.data), time: performance.now() };
  const entry = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
  const sum = (it) => Object.values(it.requests).reduce((all, one) => all + one, 0);
  const seconds = before ? (now.time - before.time) / 1000 : null;
  const requests = before ? Math.max(0, sum(now) - sum(before)) : 0;
  const failed = before ? Math.max(0, now.requests["5xx"] - before.requests["5xx"]) : 0;
  const durations = now.durations.map((value, index) => Math.max(0, value - (before?.durations[index] ?? 0)));
  const shown = h("dl", { id: "totals", class: "totals", "aria-label": "Now" },
    entry("State", now.ready ? "ready" : "not ready"),
    entry("Requests/s", seconds ? (requests / seconds).toFixed(1) : "–"),
    entry("5xx", requests > 0 ? percent(failed / requests) : "–"),
    entry("p99", requests > 0 ? duration(quantile(0.99, now.durationBounds, durations)) : "–"),
    entry("In flight", number(now.inFlight)),
    entry("Connections", number(now.connections)),
    entry(now.revision === null ? "Generation" : "Revision", String(now.revision ?? now.generation)));
  morph(totals, shown);
  count.textContent = now.problemsTotal > 0 ? number(now.problemsTotal) : "";
  before = now;
  events += 1;
  // The first event comes with the view.
  if (events % 2 === 0 && !isBusy) show(true);
}

/** The events, while the page can be seen: a browser has few connections to a server. */
let source = null;

function listen() {
  const isWanted = document.visibilityState === "visible";
  if (source && !isWanted) {
    source.close();
    source = null;
  }
  if (source || !isWanted) return;
  const mine = new EventSource("/api/v1/events");
  source = mine;
  mine.addEventListener("totals", followTotals);
  mine.addEventListener("error", () => {
    totals.replaceChildren(h("div", {}, h("dt", {}, "State"), h("dd", {}, "not connected")));
    if (mine.readyState !== EventSource.CLOSED) return;
    // The browser connects again by itself, unless the server has refused.
    source = null;
    setTimeout(listen, 5000);
  });
}

addEventListener("hashchange", navigate);
document.addEventListener("visibilitychange", listen);
addEventListener("pagehide", () => {
  source?.close();
  source = null;
});
addEventListener("pageshow", listen);
await show(false);
listen();
