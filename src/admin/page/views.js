// The views of the page. Each gets its parameters and a function that gets documents, and returns its elements.

import { cards } from "./charts.js";
import { at, badge, bytes, duration, facts, filter, h, number, object, pages, percent, quantile, span, table } from "./elements.js";

const PAGE = 50;
const ENDPOINTS = 20;
const KINDS = {
  controller: "Controller", port: "Port", overload: "Overload", expired: "Expired",
  notYetValid: "Not valid yet", hostname: "Wrong hostname", clients: "TLS of clients",
  signIn: "Sign-in fails", backend: "No endpoint", route: "Failing route",
  failing: "Failing endpoint", endpoint: "Ejected", slow: "Slow", peer: "Pod", limit: "Limit hit",
  file: "File", object: "Refused", policy: "Policy",
  shadowed: "Shadowed", telemetry: "Telemetry", expires: "Expires soon", note: "Note",
};
const SEVERITIES = { error: "bad", warning: "warn" };

/** Documents of `/api/v1/` have these parameters in common. */
function part(parameters, limit = PAGE) {
  const { filter: text = "", offset = 0, sort = "" } = parameters;
  const query = new URLSearchParams({ filter: text, offset, limit });
  if (sort) query.set("sort", sort);
  return `?${query}`;
}

// Counters of listeners and routes at the last look, for rates.

let looks = new Map();

/** Adds to counters what they did per second since the last look. */
function look(name, counters) {
  const now = { time: performance.now(), ...counters };
  const before = looks.get(name);
  const isOld = before && now.time - before.time > 1000;
  if (!before || isOld) looks.set(name, { ...now, rates: isOld ? rates(counters, now, before) : null });
  if (looks.size > 1000) looks = new Map([...looks].slice(-500));
  return { ...counters, rates: looks.get(name).rates };
}

function rates(counters, now, before) {
  const perSecond = (counter) => Math.max(0, now[counter] - before[counter]) / ((now.time - before.time) / 1000);
  return Object.fromEntries(Object.keys(counters).map((counter) => [counter, perSecond(counter)]));
}

/** Sums counters by class of status. */
function responses(name, counters) {
  const sum = { all: 0, failed: 0 };
  for (const counts of counters) {
    sum.all += Object.values(counts).reduce((sum, count) => sum + count, 0);
    sum.failed += counts["5xx"];
  }
  return look(name, sum);
}

/** Sums what rules forward: connections, or sessions of a UDPRoute. */
function connections(name, rules) {
  const sum = { total: 0, failed: 0, bytesReceived: 0, bytesSent: 0 };
  let open = 0;
  for (const { forwarded } of rules) {
    for (const counter of Object.keys(sum)) sum[counter] += forwarded[counter];
    open += forwarded.open;
  }
  return { ...look(name, sum), open };
}

function perSecond(rate) {
  return rate === undefined ? "–" : rate.toFixed(1);
}

/** The responses of the rules of a route, and their p99. */
function activity(name, rules, bounds) {
  const buckets = bounds.map(() => 0).concat(0);
  for (const rule of rules) rule.durations.forEach((count, index) => { buckets[index] = (buckets[index] ?? 0) + count; });
  return { ...responses(name, rules.map((rule) => rule.requests)), p99: quantile(0.99, bounds, buckets) };
}

function errors(counts) {
  return Object.entries(counts).map(([name, count]) => `${name} ${number(count)}`).join(", ");
}

function routeName(route) {
  return `${route.kind} ${route.namespace}/${route.name}`;
}

/** How bad a problem is, and its kind. */
function what(it) {
  return [badge(it.severity, SEVERITIES[it.severity]), ` ${KINDS[it.kind] ?? it.kind}`];
}

/** The object of a problem, and where it is in a file. */
function whereabouts(it) {
  const file = it.file && h("div", { class: "faint" }, `${it.file}${it.line > 0 ? `:${it.line}` : ""}`);
  return [it.object !== it.file && object(it.object), file];
}

/** What is wrong, what that does now, what to do, and since when it is known. Of a symptom, what to do links to its cause. */
function parts(it) {
  const cause = /^see ([A-Z].*)$/.exec(it.remedy ?? "");
  return [it.cause, it.effect, cause ? ["see ", object(cause[1])] : it.remedy, it.since && h("time", { datetime: it.since }, it.since)];
}

const PARTS = ["Cause", "Effect", "What to do", "Since"];

// Problems and overview.

export async function problems(parameters, get) {
  const lists = ["ports", "backends", "certificates"].map((name) => get(`${name}?limit=5`));
  const [status, ports, backends, certificates, routes, history] = await Promise.all([
    get(`status${part(parameters)}`), ...lists, get("routes?sort=requests&limit=10"), get("history"),
  ]);
  const count = status.problemsTotal;
  const row = (it) => [what(it), whereabouts(it), ...parts(it)];
  const title = count === 0 ? "Nothing is wrong" : `${number(count)} ${count === 1 ? "problem" : "problems"}`;
  const all = (text, view, total, shown) => (total > shown ? h("p", {}, h("a", { href: at(view) }, `All ${number(total)} ${text}`)) : null);
  return [
    h("h1", { tabindex: "-1" }, parameters.filter ? `${title} with “${parameters.filter}”` : title),
    !status.ready && h("p", { class: "error" }, `Not ready: ${status.waiting ?? "not configured yet"}`),
    count > 0 || parameters.filter ? [
      (count > PAGE || parameters.filter) && filter("problems", parameters),
      table("Errors first, then those with the most effect on requests", ["What", "Object", ...PARTS], status.problems.map(row)),
      pages("problems", parameters, count, PAGE),
    ] : h("p", { class: "well" }, "Ports, certificates, objects, routes and endpoints are as they should be."),
    cards(history),
    h("h2", {}, "Configuration"),
    facts([
      ["In service", status.loadedAt === null ? "nothing yet" : `generation ${status.generation}${status.revision === null ? "" : `, revision ${status.revision} of the controller`}, since ${status.loadedAt}`],
      ["Controller", status.controllerConnected === null ? [] : status.controllerConnected ? "connected" : badge("not connected", "bad")],
      ["Objects", `${number(status.ports)} ports, ${number(status.routes)} routes, ${number(status.backends)} backends with ${number(status.endpoints)} endpoints, ${number(status.endpointsEjected)} of them ejected`],
      ["Version", status.version],
    ]),
    h("h2", {}, "Listeners"), listenerTable(ports), all("ports", "listeners", ports.total, 5),
    h("h2", {}, "Routes"), routeTables(routes, "Those with the most requests first"), all("routes", "routes", routes.total, 10),
    h("h2", {}, "Backends"), backendTable(backends), all("backends", "backends", backends.total, 5),
    h("h2", {}, "Certificates"), certificateTable(certificates), all("certificates", "certificates", certificates.total, 5),
  ];
}

// Lists.

function list(view, title, show, more = () => []) {
  return async (parameters, get) => {
    const name = view === "listeners" ? "ports" : view;
    const document = await get(`${name}${part(parameters)}`);
    return [
      h("h1", { tabindex: "-1" }, title),
      filter(view, parameters, more(parameters)),
      document.total === 0 ? h("p", {}, parameters.filter ? `None has “${parameters.filter}”.` : "There are none.") : show(document),
      pages(view, parameters, document.total, PAGE),
    ];
  };
}

export const listeners = list("listeners", "Listeners", listenerTable);
export const routes = list("routes", "Routes", (document) => routeTables(document, "Counts are those since the route exists"), sorting);
export const backends = list("backends", "Backends", backendTable);
export const certificates = list("certificates", "Certificates", certificateTable);
export const policies = list("policies", "Policies", policyTable);
export const conditions = list("conditions", "Conditions", conditionTable);
export const limits = list("limits", "Limits", limitTable);

function sorting(parameters) {
  const option = ([value, text]) => h("option", { value, selected: value === (parameters.sort ?? "name") }, text);
  const options = [["name", "Name"], ["requests", "Most requests or connections"], ["errors", "Most failures"]].map(option);
  return [h("label", { for: "sort" }, "Order"), h("select", { id: "sort", name: "sort" }, options)];
}

function listenerTable({ ports }) {
  const row = (port) => port.listeners.map((it) => [
    `${it.declaredBy} listener ${it.name}`, port.address, it.http3 ? `${it.protocol}, HTTP/3` : it.protocol, it.hostname, number(it.routes), ...requestRates(it, port),
    it.problems.length > 0 ? [badge("not in service", "bad"), ` ${it.problems.join("; ")}`] : badge("in service", "good"),
  ]);
  return table("Listeners by port", ["Listener", "Port", "Protocol", "Hostname", "#Routes", "#Requests/s", "#5xx/s", "State"], ports.flatMap(row));
}

/** Requests and 5xx per second of a listener, which has none if it forwards connections. */
function requestRates({ declaredBy, name, requests }, { address }) {
  if (requests === null) return ["–", "–"];
  const { rates } = responses(`${declaredBy} listener ${name} ${address}`, [requests]);
  const failed = perSecond(rates?.failed);
  return [perSecond(rates?.all), rates?.failed > 0 ? badge(failed, "bad") : failed];
}

/** Routes of requests, and those that forward connections or datagrams as they are: these have other counters. */
function routeTables({ routes, durationBounds }, caption) {
  const isForwarding = ({ rules }) => rules.some((it) => it.forwarded);
  const forwarding = routes.filter(isForwarding);
  const others = routes.filter((it) => !isForwarding(it));
  return [
    (others.length > 0 || forwarding.length === 0) && routeTable(others, durationBounds, caption),
    forwarding.length > 0 && connectionTable(forwarding),
  ];
}

function backendsOf({ rules }) {
  return short([...new Set(rules.flatMap((rule) => rule.backends.map((it) => it.backend)))], 2);
}

function routeTable(routes, durationBounds, caption) {
  const row = (route) => {
    const name = routeName(route);
    const { all, failed, rates, p99 } = activity(name, route.rules, durationBounds);
    const matches = route.rules.flatMap((rule) => rule.matches);
    return [
      object(name), short(route.hostnames, 3), short(matches, 3), backendsOf(route), number(all), perSecond(rates?.all),
      failed > 0 ? badge(`${number(failed)} (${percent(failed / all)})`, "bad") : "0", duration(p99),
    ];
  };
  return table(caption, ["Route", "Hostnames", "Matches", "Backends", "#Requests", "#Per second", "#5xx", "#p99"], routes.map(row));
}

function connectionTable(routes) {
  const row = (route) => {
    const name = routeName(route);
    const { open, total, failed, rates } = connections(name, route.rules);
    const now = rates?.failed > 0 ? `, ${perSecond(rates.failed)}/s` : "";
    return [
      object(name), short(route.hostnames, 3), backendsOf(route), number(open), number(total), perSecond(rates?.total),
      failed > 0 ? badge(`${number(failed)}${now}`, "bad") : "0",
      bytes(rates?.bytesReceived), bytes(rates?.bytesSent),
    ];
  };
  const columns = ["Route", "Hostnames", "Backends", "#Open", "#Total", "#New/s", "#Failed", "#Received/s", "#Sent/s"];
  return table("Connections of TCPRoutes and TLSRoutes, and sessions of UDPRoutes", columns, routes.map(row));
}

function short(texts, most) {
  const rest = texts.length - most;
  return texts.slice(0, most).join(", ") + (rest > 0 ? ` and ${number(rest)} more` : "");
}

function backendTable({ backends, durationBounds }) {
  const row = (it) => {
    const failed = errors({ ...it.errors, ...it.tlsErrors });
    return [
      it.backend, it.tls ? `by ${it.tlsPolicy}` : "no", endpointList(it), duration(quantile(0.99, durationBounds, it.durations)),
      number(it.responses), failed ? badge(failed, "warn") : "none",
    ];
  };
  return table("Backends with their endpoints", ["Backend", "TLS", "Endpoints", "#p99", "#Responses", "Failed attempts"], backends.map(row));
}

/** The endpoints of a backend, those that get no requests first. */
function endpointList({ endpoints }) {
  if (endpoints.length === 0) return badge("no ready endpoint", "bad");
  const isWell = (it) => it.state === "healthy";
  const sorted = [...endpoints].sort((one, other) => isWell(one) - isWell(other));
  const text = (it) => {
    const left = it.ejectedForSeconds === null ? "" : `, ${it.ejectedForSeconds} s left`;
    const cause = it.cause ?? (it.state === "failed" ? "health checks fail" : it.state === "ejected" ? "requests failed" : null);
    const why = cause === null ? "" : `: ${cause}`;
    return h("li", {}, h("span", { class: "mono" }, it.hostname ?? it.address), " ", badge(`${it.state}${why}${left}`, isWell(it) ? "good" : "bad"), ` ${number(it.inFlight)} in flight`);
  };
  const rest = sorted.length - ENDPOINTS;
  return h("ul", { class: "plain" }, sorted.slice(0, ENDPOINTS).map(text), rest > 0 && h("li", {}, `and ${number(rest)} more`));
}

function certificateTable({ certificates }) {
  const state = (seconds) => {
    if (seconds <= 0) return badge(`expired ${span(seconds)} ago`, "bad");
    return badge(`in ${span(seconds)}`, seconds < 14 * 86400 ? "warn" : "good");
  };
  const row = (it) => [it.source, [state(it.expiresInSeconds), ` ${it.expires}`], it.names.join(", "), short(it.usedBy, 3), h("code", {}, it.sha256.slice(0, 16))];
  return table("The next to expire first", ["Secret", "Expires", "Names", "Listeners", "SHA-256"], certificates.map(row));
}

function policyTable({ policies }) {
  return table("Policies for each object that they affect", ["Policy", "Object", "Conditions"], policies.map((it) => [it.policy, it.for, conditionList(it.conditions)]));
}

function conditionTable({ conditions }) {
  return table("Conditions of each object, and of its parts", ["Object", "Part", "Conditions"], conditions.map((it) => [object(it.object), it.for, conditionList(it.conditions)]));
}

function conditionList(conditions) {
  const text = (it) => h("li", {}, badge(`${it.type} ${it.status}`, it.problem ? "bad" : ""), ` ${it.reason}${it.message ? `: ${it.message}` : ""}`);
  return h("ul", { class: "plain" }, conditions.map(text));
}

function limitTable({ limits }) {
  const used = (it) => badge(`${it.digest ? `${it.digest}: ` : ""}${it.percent} %`, it.percent >= 100 ? "bad" : "");
  const row = (it) => [it.limit, object(it.policy), it.mode, it.exceeded > 0 ? badge(number(it.exceeded), "warn") : "0", number(it.keys), it.most.map(used), number(it.keysEvicted)];
  const caption = "Keys are shown by a digest, and with what they use of the burst or of the requests in progress";
  return table(caption, ["Limit", "Policy", "Mode", "#Requests over it", "#Keys in use", "Keys that use most", "#Keys evicted"], limits.map(row));
}

// One route, from its listeners to its endpoints.

const LABELS = {
  filters: "Filters", timeouts: "Timeouts", retry: "Retries", ipRules: "IP rules", limits: "Limits", policies: "Policies", credentials: "Credentials",
  authorization: "Authorization", order: "Order",
};

export async function route({ name }, get) {
  const [document, { problems }] = await Promise.all([
    get(`route?${new URLSearchParams({ name })}`), get(`problems?${new URLSearchParams({ filter: name, limit: 10 })}`),
  ]);
  const named = (it) => parts(it).map((part, index) => part && [PARTS[index], h("span", {}, part)]).filter(Boolean);
  const wrong = problems.map((it) => h("li", {}, what(it), " ", whereabouts(it), facts(named(it))));
  return [
    h("h1", { tabindex: "-1" }, name),
    wrong.length > 0 && h("ul", { class: "plain error", "aria-label": "Problems" }, wrong),
    document.rules.length === 0 && h("p", { class: "error" }, "No rule of this route is in service."),
    document.rules.map((rule) => [h("h2", {}, `Rule ${rule.rule}${rule.name ? ` ${rule.name}` : ""}`), ruleFlow(name, rule, document)]),
    h("h2", {}, "Conditions"),
    table("What the controller says about the route", ["For", "Conditions"], document.conditions.map((it) => [it.for || "the route", conditionList(it.conditions)])),
  ];
}

/** What a rule takes of what its listeners get, and how much that is. */
function taken(name, rule, durationBounds) {
  const key = `${name} ${rule.rule}`;
  if (rule.forwarded) {
    const { open, total, failed, rates } = connections(key, [rule]);
    const noun = name.startsWith("UDPRoute ") ? "sessions" : "connections";
    const text = `${number(open)} of ${number(total)} ${noun} are open, ${perSecond(rates?.total)} new, ${bytes(rates?.bytesReceived)} received and ${bytes(rates?.bytesSent)} sent per second, `;
    return h("p", {}, text, badge(`${number(failed)} failed`, failed > 0 ? "bad" : "good"));
  }
  const { all, failed, rates, p99 } = activity(key, [rule], durationBounds);
  return [
    h("ul", { class: "plain" }, rule.matches.map((it) => h("li", {}, h("code", {}, it)))),
    h("p", {}, `${number(all)} requests, ${perSecond(rates?.all)} per second, p99 ${duration(p99)}, `, badge(`${number(failed)} 5xx`, failed > 0 ? "bad" : "good")),
  ];
}

function ruleFlow(name, rule, { listeners, durationBounds }) {
  const listener = (it) => h("li", {}, h("a", { href: at("listeners", { filter: it.gateway }) }, `${it.gateway} listener ${it.listener}`), ` ${it.protocol} ${it.port}, ${short(it.hostnames, 5)}`);
  const details = Object.entries(LABELS).filter(([key]) => rule.details?.[key]?.length > 0).map(([key, label]) => [label, rule.details[key]]);
  const sum = rule.backends.reduce((sum, it) => sum + it.weight, 0);
  const backend = (it, index) => {
    const target = rule.targets[index];
    const share = sum > 0 ? percent(it.weight / sum) : `weight ${it.weight}`;
    return h("li", {}, h("p", {}, `${share} `, target ? object(it.backend) : badge(it.backend, "bad")), target && endpointList(target), target?.tls && h("p", {}, `TLS by ${target.tlsPolicy}`));
  };
  // The edge to a step that nothing gets to is broken.
  const mark = () => h("p", {}, badge("nothing gets here", "bad"));
  const step = (title, isBroken, ...content) => h("li", { class: isBroken && "broken" }, h("h3", {}, title), isBroken && mark(), content);
  return h("ol", { class: "flow" },
    step("Listeners", false, listeners.length > 0 ? h("ul", { class: "plain" }, listeners.map(listener)) : "none"),
    step(rule.forwarded ? "Traffic" : "Matches", listeners.length === 0, taken(name, rule, durationBounds)),
    step("Filters and policies", false, details.length > 0 ? facts(details) : "none"),
    step("Backends", Boolean(rule.broken), rule.broken && h("p", {}, rule.broken), rule.backends.length > 0 ? h("ul", { class: "plain" }, rule.backends.map(backend)) : "none"));
}

// A request that nobody sends.

export async function explain({ request = "", headers = "" }, get) {
  const submit = (event) => {
    event.preventDefault();
    location.hash = at("explain", Object.fromEntries(new FormData(event.currentTarget)));
  };
  const form = h("form", { class: "tools", submit },
    h("label", { for: "request" }, "Request"),
    h("input", { id: "request", name: "request", type: "search", value: request, placeholder: "GET https://shop.example.com/cart", autocomplete: "off", spellcheck: "false" }),
    h("button", {}, "Explain"),
    h("label", { for: "headers" }, "Headers, one a line"), h("textarea", { id: "headers", name: "headers", rows: 2, spellcheck: "false" }, headers));
  if (!request) return [h("h1", { tabindex: "-1" }, "Explain a request"), form, h("p", { class: "faint" }, "Says what the configuration in service does with a request. Nothing is sent.")];
  const query = new URLSearchParams({ request: /\s/.test(request) ? request : `GET ${request}`, output: "json" });
  headers.split("\n").filter((line) => line.trim()).forEach((line) => query.append("header", line.trim()));
  const explanation = await get(`/explain?${query}`);
  return [
    h("h1", { tabindex: "-1" }, explanation.found ? "A rule takes the request" : "No rule takes the request"),
    form, explanation.ports.map((port) => explainedPort(port)),
  ];
}

/** Labels of an explanation, in the order of a request; others follow. */
const ORDER = ["port", "listener", "tls", "clients", "response", "rule", "backends", "filters", "timeouts", "retry"];

function explainedPort({ outcome, notChosen, ...lines }) {
  const result = () => {
    const status = outcome?.grpcStatus ? `gRPC status ${outcome.grpcStatus}` : outcome?.status;
    const response = badge(status ? `the response is ${status}` : "refused", status < 400 && outcome.reason === undefined ? "" : "bad");
    if (!outcome?.route) return response;
    const rule = [object(outcome.route), `, rule ${outcome.rule}`];
    return status ? [...rule, " ", response] : rule;
  };
  const words = (key) => key.replace(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`).replace(/^./, (letter) => letter.toUpperCase());
  const label = (key) => LABELS[key] ?? (key === "tls" ? "TLS" : words(key));
  const place = (key) => (ORDER.includes(key) ? ORDER.indexOf(key) : ORDER.length);
  const sorted = Object.entries(lines).sort(([one], [other]) => place(one) - place(other));
  return [h("h2", {}, "Result: ", result()), facts([...sorted.map(([key, value]) => [label(key), value]), ["Not chosen", notChosen ?? []]])];
}
