// Draws lines and the graph of payments with Vega, by the specifications that the page brings along (web/drawing.py),
// and bars in tables. What a client calls itself comes in as data or as a text node: it can never become part of the page.
"use strict";

const SPECS = JSON.parse(document.getElementById("specs").textContent);
// numbers and tables do not wait for the drawing library, which is large and comes last
const LIBRARY = new Promise((done, failed) => {
  const script = document.getElementById("vega");
  script.addEventListener("load", done);
  script.addEventListener("error", () => failed(new Error("its drawing library could not be loaded: reload the page")));
});
LIBRARY.catch(() => {}); // each chart says it in its own place

function tag(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  for (const child of children) made.append(child);
  return made;
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-5 || size >= 1e7)) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(size < 1 ? 3 : 4)));
}

// Draws `data` (its data sets by name) in `place`. A drawing that is there and would look the same only gets new data;
// `look` says what it looks like.
function embed(place, spec, data, look, label) {
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", label);
  const width = place.clientWidth, key = JSON.stringify([look, width]);
  const fill = () => { for (const [name, rows] of Object.entries(data)) place.view.data(name, rows); return place.view.runAsync(); };
  place.drawing = Promise.resolve(place.drawing).then(() => LIBRARY).then(() => {
    if (place.look === key) return fill();
    place.look = key;
    const whole = { ...spec, datasets: data, config: { ...spec.config, legend: { ...spec.config.legend, columns: Math.max(1, Math.floor((width - 60) / spec.usermeta.column)) } } };
    if (spec.usermeta.square) whole.height = Math.min(510, Math.round(0.77 * width));
    if (place.view) place.view.finalize();
    const inside = document.createElement("div");
    place.replaceChildren(inside);
    // the library empties its place by writing markup, which this page's policy forbids even where it is empty
    Object.defineProperty(inside, "innerHTML", { set() { inside.replaceChildren(); } });
    return vegaEmbed(inside, whole, { actions: false, ast: true, defaultStyle: false, renderer: "canvas", tooltip: tell }).then((made) => { place.view = made.view; });
  }).catch((wrong) => {
    place.look = undefined; // the next numbers are a new try
    place.view = undefined;
    place.replaceChildren(tag("p", {}, `This chart could not be drawn. ${wrong}`));
  });
}

// Says what is under the pointer, as text.
function tell(handler, event, item, value) {
  const box = document.getElementById("told-here") || document.body.appendChild(tag("div", { id: "told-here", class: "told", hidden: "" }));
  box.hidden = value === null || value === undefined || value === "";
  if (box.hidden) return;
  const lines = typeof value === "object" ? Object.entries(value).map(([name, what]) => `${name}: ${what}`) : [String(value)];
  box.replaceChildren(...lines.map((line) => tag("div", {}, line)));
  box.style.left = `${Math.min(event.clientX + 12, window.innerWidth - box.offsetWidth - 4)}px`;
  box.style.top = `${Math.min(event.clientY + 12, window.innerHeight - box.offsetHeight - 4)}px`;
}

// One chart of lines: `lines` are {name, points: [[round, value], ...]}; the last point of each has a marker.
function drawLines(place, lines, what) {
  const shown = lines.filter((line) => line.points.length), spec = structuredClone(SPECS.lines), names = [];
  for (const line of shown) {
    // the library fails at a name that every object has, such as "constructor": a space that nobody sees makes it another
    const own = line.name in {} ? `${line.name}\u00a0` : line.name;
    let name = own;
    for (let i = 2; names.includes(name) || (name !== own && shown.some((other) => other.name === name)); i++) name = `${own} (${i})`;
    names.push(name);
  }
  const rows = shown.flatMap((line, i) => line.points.map(([x, y], at) => ({ s: names[i], x, y, ...(at === line.points.length - 1 ? { m: 1 } : {}) })));
  for (const channel of [spec.encoding.color, ...spec.layer.flatMap((layer) => [layer.encoding.strokeDash, layer.encoding.shape])]) {
    if (!channel) continue;
    channel.scale.domain = names;
    channel.legend = { values: names };
  }
  spec.usermeta.column = 7 * Math.max(...names.map((name) => name.length)) + 46;
  const now = shown.map((line) => `${line.name} ${short(line.points[line.points.length - 1][1])}`).join(", ");
  embed(place, spec, { rows }, names, `${what}, now: ${now}`);
  let said = place.nextElementSibling;
  if (!said || !said.classList.contains("now")) place.after((said = tag("p", { class: "now" })));
  said.textContent = `Now: ${now}`;
}

// A bar for a table's cell, from zero to the right, or to the left if it is negative; the number itself stands beside it.
function bar(value, low, high) {
  const span = high - low || 1, zero = -low / span, end = (value - low) / span;
  const inner = tag("span", { class: value < 0 ? "less" : "more" });
  inner.style.left = `${100 * Math.min(zero, end)}%`;
  inner.style.width = `${100 * Math.abs(end - zero)}%`;
  return tag("span", { class: "bar", "aria-hidden": "true" }, inner);
}

// The graph of payments: `flows` are [from, to, tokens], the largest first; `net` says what each account gained by them.
function drawGraph(place, flows, net, nameOf) {
  const most_nodes = place.clientWidth < 420 ? 24 : 40, volume = new Map();
  for (const [from, to, tokens] of flows) for (const a of [from, to]) volume.set(a, (volume.get(a) || 0) + tokens);
  const kept = [...volume.keys()].sort((a, b) => volume.get(b) - volume.get(a)).slice(0, most_nodes).sort(byAccount);
  const nodes = kept.map((a, i) => {
    const angle = Math.PI / 2 - (2 * Math.PI * i) / kept.length, x = Math.cos(angle), y = Math.sin(angle), gained = net(a), name = nameOf(a);
    // a client without a name of its own has its number in its mark; other names stand outside
    const plain = a.startsWith("client/") && name === a.replace("/", " ");
    const kind = !a.startsWith("client/") ? "pool" : gained >= 0 ? "received more" : "paid more";
    return { name: a, kind, x, y, inside: plain ? a.slice(7) : "", beside: [plain ? "" : name.length > 14 ? `${name.slice(0, 13)}…` : name], bx: 1.15 * x, by: 1.15 * y, told: `${name}: ${gained >= 0 ? "+" : ""}${short(gained)} tokens` };
  });
  const most = flows.length ? flows[0][2] : 1;
  const arrows = flows.filter(([from, to, tokens]) => kept.includes(from) && kept.includes(to) && tokens >= most * 0.005)
    .map(([a, b, tokens]) => ({ a, b, share: tokens / most, told: `${nameOf(a)} paid ${nameOf(b)} ${short(tokens)} tokens` }));
  const said = flows.length ? `${arrows.length} flows between ${nodes.length} accounts; the largest from ${nameOf(flows[0][0])} to ${nameOf(flows[0][1])}` : "nobody has paid anybody yet";
  embed(place, SPECS.graph, { nodes, arrows }, "graph", `Payments: ${said}`);
  return { nodes: nodes.length, accounts: volume.size, drawn: arrows.length };
}

// client/2 before client/10, clients before pools.
function byAccount(a, b) {
  const [kindA, nameA] = a.split("/"), [kindB, nameB] = b.split("/");
  if (kindA !== kindB) return kindA < kindB ? -1 : 1;
  return (Number(nameA) - Number(nameB)) || (a < b ? -1 : 1);
}
