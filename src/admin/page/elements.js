// Elements of the page, and texts for numbers. All text is set as text, never as markup.

/** Creates an element. Attributes that are null or false are left out, and so are such children; lists are flattened. */
export function h(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(key, value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((it) => it !== null && it !== undefined && it !== false));
  return element;
}

/** A hash for a view with parameters. */
export function at(view, parameters = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== 0));
  return `#${view}${query.size > 0 ? `?${query}` : ""}`;
}

export function badge(text, kind = "") {
  return h("span", { class: `badge ${kind}` }, text);
}

/** A table. Columns are labels; those of numbers begin with "#". The first cell of a row names it. The roles outlast styles that show rows as cards. */
export function table(caption, columns, rows) {
  const labels = columns.map((it) => it.replace("#", ""));
  const kind = (index) => (columns[index].startsWith("#") ? "number" : null);
  const cell = (content, index) => {
    if (index === 0) return h("th", { scope: "row", role: "rowheader" }, content);
    return h("td", { role: "cell", class: kind(index), "data-label": labels[index] }, content);
  };
  return h("table", { role: "table" },
    h("caption", {}, caption),
    h("thead", { role: "rowgroup" },
      h("tr", { role: "row" }, labels.map((label, index) => h("th", { scope: "col", role: "columnheader", class: kind(index) }, label)))),
    h("tbody", { role: "rowgroup" }, rows.map((row) => h("tr", { role: "row" }, row.map(cell)))));
}

/** Names with lines of text. */
export function facts(entries) {
  const shown = entries.filter(([, lines]) => [lines].flat().length > 0);
  const value = (lines) => (Array.isArray(lines) ? h("ul", {}, lines.map((line) => h("li", {}, line))) : lines);
  return h("dl", { class: "facts" }, shown.map(([name, lines]) => [h("dt", {}, name), h("dd", {}, value(lines))]));
}

/** What an object is shown by. */
export function object(text) {
  const rule = /^((?:HTTP|GRPC|TLS|TCP|UDP)Route \S+)(?: rule \d+)?$/.exec(text);
  const endpoint = /^(\S+) of ([A-Z]\w* \S+)/.exec(text);
  let target = null;
  if (rule) target = at("route", { name: rule[1] });
  else if (endpoint) target = at("backends", { filter: endpoint[1] });
  else if (/^Secret /.test(text)) target = at("certificates", { filter: text });
  else if (/^\w*Policy /.test(text)) target = at("policies", { filter: text });
  else if (/^(Gateway|ListenerSet) /.test(text)) target = at("listeners", { filter: text });
  else if (/^[A-Z]\w* \S+:\d+/.test(text)) target = at("backends", { filter: text });
  return target ? h("a", { href: target }, text) : text;
}

/** Links to the pages of a list. */
export function pages(view, parameters, total, size) {
  const offset = Number(parameters.offset ?? 0);
  if (total <= size && offset === 0) return null;
  const link = (text, to) => h("a", { href: at(view, { ...parameters, offset: to }) }, text);
  return h("nav", { class: "pages", "aria-label": "Pages of the list" },
    offset > 0 && link("Previous", Math.max(0, offset - size)),
    h("span", {}, `${Math.min(offset + 1, total)} to ${Math.min(offset + size, total)} of ${number(total)}`),
    offset + size < total && link("Next", offset + size));
}

/** A box that filters a list, with the parameters that it retains. */
export function filter(view, parameters, ...more) {
  const submit = (event) => {
    event.preventDefault();
    const values = Object.fromEntries(new FormData(event.currentTarget));
    location.hash = at(view, values);
  };
  return h("form", { class: "tools", submit, change: (event) => event.target.matches("select") && event.currentTarget.requestSubmit() },
    h("label", { for: "filter" }, "Filter"),
    h("input", { id: "filter", name: "filter", type: "search", value: parameters.filter ?? "", autocomplete: "off", spellcheck: "false" }),
    more, h("button", {}, "Apply"));
}

export function number(value) {
  return value.toLocaleString("en");
}

export function percent(share) {
  return `${(share * 100).toFixed(share > 0 && share < 0.1 ? 2 : 0)} %`;
}

export function duration(seconds) {
  if (seconds === null) return "–";
  return seconds < 1 ? `${(seconds * 1000).toFixed(1)} ms` : `${seconds.toFixed(2)} s`;
}

/** A number of bytes in the largest unit of which there is one. */
export function bytes(value) {
  if (value === undefined) return "–";
  const unit = [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]].find(([, size]) => value >= size);
  return unit ? `${(value / unit[1]).toFixed(1)} ${unit[0]}` : `${value.toFixed(0)} B`;
}

/** A number of seconds as days, hours or minutes. */
export function span(seconds) {
  const units = [["days", 86400], ["hours", 3600], ["minutes", 60]];
  const [unit, size] = units.find(([, size]) => Math.abs(seconds) >= 2 * size) ?? ["seconds", 1];
  return `${number(Math.floor(Math.abs(seconds) / size))} ${unit}`;
}

/** An estimate of a quantile, as Prometheus makes it; null without counts. */
export function quantile(share, bounds, buckets) {
  const rank = share * buckets.reduce((sum, count) => sum + count, 0);
  let below = 0;
  for (let index = 0; rank > 0 && index < buckets.length; index += 1) {
    if (buckets[index] > 0 && below + buckets[index] >= rank) {
      if (index >= bounds.length) return bounds[bounds.length - 1];
      const from = index > 0 ? bounds[index - 1] : 0;
      return from + ((bounds[index] - from) * (rank - below)) / buckets[index];
    }
    below += buckets[index];
  }
  return null;
}

/** Makes one node like another, in place, so that focus, selection and what is open outlast an update. */
export function morph(from, to) {
  if (from.nodeType !== to.nodeType || from.nodeName !== to.nodeName) {
    from.replaceWith(to);
    return;
  }
  if (from.nodeType === Node.TEXT_NODE) {
    if (from.data !== to.data) from.data = to.data;
    return;
  }
  for (const { name } of [...from.attributes]) if (name !== "open" && name !== "tabindex" && !to.hasAttribute(name)) from.removeAttribute(name);
  for (const { name, value } of to.attributes) if (name !== "open" && from.getAttribute(name) !== value) from.setAttribute(name, value);
  const old = [...from.childNodes];
  const now = [...to.childNodes];
  now.forEach((child, index) => (index < old.length ? morph(old[index], child) : from.append(child)));
  old.slice(now.length).forEach((child) => child.remove());
}
