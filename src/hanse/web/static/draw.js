// Draws lines, bars and the graph of payments as SVG. Texts come in as text nodes alone: what a client calls itself
// can never become part of the page.
"use strict";

const SVG = "http://www.w3.org/2000/svg";
// Okabe and Ito's colours, darker where a thin line needs it; dashes say the same without colour
const COLOURS = ["#0072b2", "#b84a00", "#007a58", "#8a5a00", "#a8457c", "#1f1f1f"];
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4", "4 2"];

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  for (const child of children) made.append(child);
  return made;
}

function tag(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  for (const child of children) made.append(child);
  return made;
}

// Steps of 1, 2, 2.5 or 5 times a power of ten: about `wanted` ticks between low and high.
function ticks(low, high, wanted, whole) {
  const rough = (high - low) / Math.max(1, wanted) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  let step = [1, 2, 2.5, 5, 10].map((s) => s * power).find((s) => s >= rough);
  if (whole) step = Math.max(1, Math.round(step));
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function short(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-5 || size >= 1e7)) return value.toExponential(1).replace("e+", "e");
  return String(Number(value.toPrecision(size < 1 ? 3 : 4)));
}

// One chart of lines: `lines` are {name, points: [[round, value], ...]}; `place` is the element that holds it.
function drawLines(place, lines, what) {
  const shown = lines.filter((line) => line.points.length);
  const width = Math.max(260, place.clientWidth), left = 52, right = 10, top = 10;
  const plot = width > 480 ? 210 : 190, height = top + plot + 38 + 18 * shown.length;
  let low = Infinity, high = -Infinity, first = Infinity, last = -Infinity;
  for (const line of shown) for (const [x, y] of line.points) {
    low = Math.min(low, y); high = Math.max(high, y); first = Math.min(first, x); last = Math.max(last, x);
  }
  if (!(high > low)) { const pad = Math.abs(high) * 0.1 || 1; low -= pad; high += pad; }
  else { const pad = (high - low) * 0.04; low -= low >= 0 && low < pad ? low : pad; high += pad; }
  if (last <= first) last = first + 1;
  const X = (x) => left + ((x - first) / (last - first)) * (width - left - right);
  const Y = (y) => top + plot - ((y - low) / (high - low)) * plot;
  const ends = shown.map((line) => `${line.name} ${short(line.points[line.points.length - 1][1])}`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${what}, now: ${ends}` });
  for (const y of ticks(low, high, 5, false)) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: Y(y), y2: Y(y), stroke: "#e2e2e2" }));
    picture.append(svg("text", { x: left - 6, y: Y(y) + 4, "text-anchor": "end", class: "dim" }, short(y)));
  }
  for (const x of ticks(first, last, width > 480 ? 6 : 4, true))
    picture.append(svg("text", { x: X(x), y: top + plot + 18, "text-anchor": "middle", class: "dim" }, short(x)));
  picture.append(svg("text", { x: width - right, y: top + plot + 33, "text-anchor": "end", class: "dim" }, "round"));
  shown.forEach((line, i) => {
    const style = { stroke: COLOURS[i % COLOURS.length], "stroke-dasharray": DASHES[i % DASHES.length], "stroke-width": 2, fill: "none" };
    picture.append(svg("polyline", { ...style, "stroke-linejoin": "round", points: line.points.map(([x, y]) => `${X(x).toFixed(1)},${Y(y).toFixed(1)}`).join(" ") }));
    const [x, y] = line.points[line.points.length - 1];
    picture.append(svg("circle", { cx: X(x), cy: Y(y), r: 3.5, fill: style.stroke }));
    const down = top + plot + 50 + 18 * i;
    picture.append(svg("line", { ...style, x1: left, x2: left + 28, y1: down - 4, y2: down - 4 }));
    picture.append(svg("text", { x: left + 34, y: down }, `${line.name}  ${short(y)}`));
  });
  place.replaceChildren(picture);
}

// A bar for a table's cell, from zero to the right, or to the left if it is negative.
function bar(value, low, high, label) {
  const width = 110, height = 12, span = high - low || 1, zero = (-low / span) * width, end = ((value - low) / span) * width;
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
    svg("rect", { x: Math.min(zero, end), y: 1, width: Math.max(0.5, Math.abs(end - zero)), height: height - 2, fill: value < 0 ? "#b84a00" : "#0072b2" }),
    svg("line", { x1: zero, x2: zero, y1: 0, y2: height, stroke: "#1c1c1c" }));
}

// The graph of payments: `flows` are [from, to, tokens], the largest first; `net` says what each account gained by them.
function drawGraph(place, flows, net, nameOf) {
  const width = Math.max(280, place.clientWidth), most_nodes = width < 420 ? 24 : 40, volume = new Map();
  for (const [from, to, tokens] of flows) for (const a of [from, to]) volume.set(a, (volume.get(a) || 0) + tokens);
  const nodes = [...volume.keys()].sort((a, b) => volume.get(b) - volume.get(a)).slice(0, most_nodes).sort(byAccount);
  // a client without a name of its own has its number in its mark; names stand outside, cut to what there is room for
  const plain = (a) => a.startsWith("client/") && nameOf(a) === a.replace("/", " ");
  const letters = Math.min(width < 420 ? 9 : 14, Math.max(0, ...nodes.filter((a) => !plain(a)).map((a) => nameOf(a).length)));
  const height = Math.min(width, 560), ring = Math.min(width / 2 - 22 - 7 * letters, height / 2 - (letters ? 36 : 22));
  const radius = Math.max(9, Math.min(17, (Math.PI * ring) / Math.max(1, nodes.length) - 1.5));
  const at = new Map(nodes.map((a, i) => {
    const angle = (2 * Math.PI * i) / nodes.length - Math.PI / 2;
    return [a, { x: width / 2 + ring * Math.cos(angle), y: height / 2 + ring * Math.sin(angle), angle }];
  }));
  const most = flows.length ? flows[0][2] : 1;
  const drawn = flows.filter(([from, to, tokens]) => at.has(from) && at.has(to) && tokens >= most * 0.005);
  const said = flows.length ? `${drawn.length} flows between ${nodes.length} accounts; the largest from ${nameOf(flows[0][0])} to ${nameOf(flows[0][1])}` : "nobody has paid anybody yet";
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Payments: ${said}` });
  for (const [from, to, tokens] of drawn.slice().reverse()) picture.append(arrow(at.get(from), at.get(to), tokens / most, radius, `${nameOf(from)} paid ${nameOf(to)} ${short(tokens)} tokens`));
  for (const a of nodes) {
    const { x, y, angle } = at.get(a), gained = net(a), fill = !a.startsWith("client/") ? "#1f1f1f" : gained >= 0 ? "#0072b2" : "#b84a00";
    const look = { fill, stroke: "#fff", "stroke-width": 2 }, r = radius;
    const shape = !a.startsWith("client/") ? svg("path", { ...look, d: `M${x} ${y - r * 1.2}L${x + r * 1.2} ${y}L${x} ${y + r * 1.2}L${x - r * 1.2} ${y}Z` })
      : gained >= 0 ? svg("circle", { ...look, cx: x, cy: y, r }) : svg("rect", { ...look, x: x - r * 0.9, y: y - r * 0.9, width: r * 1.8, height: r * 1.8 });
    shape.append(svg("title", {}, `${nameOf(a)}: ${gained >= 0 ? "+" : ""}${short(gained)} tokens`));
    picture.append(shape);
    if (plain(a)) {
      picture.append(svg("text", { x, y: y + 4, "text-anchor": "middle", class: "inside" }, a.slice(7)));
      continue;
    }
    const out = radius + 6, side = Math.cos(angle), label = nameOf(a);
    picture.append(svg("text", {
      x: x + out * side, y: y + out * Math.sin(angle) + 4 + 4 * Math.sin(angle), "text-anchor": side > 0.2 ? "start" : side < -0.2 ? "end" : "middle",
    }, label.length > letters ? label.slice(0, letters - 1) + "…" : label));
  }
  place.replaceChildren(picture);
  return { nodes: nodes.length, accounts: volume.size, drawn: drawn.length };
}

// A bent arrow, so that what goes forth and what comes back lie beside each other.
function arrow(from, to, share, radius, title) {
  const dx = to.x - from.x, dy = to.y - from.y, far = Math.hypot(dx, dy) || 1, bend = 0.12;
  const mx = (from.x + to.x) / 2 - dy * bend, my = (from.y + to.y) / 2 + dx * bend;
  const toward = (x, y, tx, ty, by) => { const d = Math.hypot(tx - x, ty - y) || 1; return [x + ((tx - x) / d) * by, y + ((ty - y) / d) * by]; };
  const wide = 0.6 + 5 * share, head = 5 + 7 * share;
  const [sx, sy] = toward(from.x, from.y, mx, my, radius + 1), [px, py] = toward(to.x, to.y, mx, my, radius + 2);
  const [bx, by] = toward(px, py, mx, my, head), nx = (-(py - by) / head) * head * 0.5, ny = ((px - bx) / head) * head * 0.5;
  const ink = { opacity: (0.3 + 0.6 * share).toFixed(2) }, colour = "#3b3b3b";
  return svg("g", ink, svg("title", {}, title),
    svg("path", { d: `M${sx} ${sy}Q${mx} ${my} ${bx} ${by}`, fill: "none", stroke: colour, "stroke-width": wide.toFixed(2) }),
    svg("path", { d: `M${px} ${py}L${bx + nx} ${by + ny}L${bx - nx} ${by - ny}Z`, fill: colour }));
}

// client/2 before client/10, clients before pools.
function byAccount(a, b) {
  const [kindA, nameA] = a.split("/"), [kindB, nameB] = b.split("/");
  if (kindA !== kindB) return kindA < kindB ? -1 : 1;
  return (Number(nameA) - Number(nameB)) || (a < b ? -1 : 1);
}
