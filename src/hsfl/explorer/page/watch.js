// The page of runs: looked at again and again while one of them goes on.
import { ask, byId, digits, el, fill, frame, hover, linear, logarithmic, path, seconds, size, svg, timeTicks } from "./common.js";

const DASH = ["", "8 4", "8 3 2 3", "2 3", "10 3 2 3 2 3"];
const X = {
  time: { label: (view) => view.time, text: seconds, ticks: (high, n) => timeTicks(0, high, false, n) },
  round: { label: () => "rounds", text: (v) => v.toLocaleString("en") },
  bytes: { label: () => "sent over all links", text: size },
};
const ink = (colour) => (colour === "#000000" ? "var(--text)" : colour); // black cannot be seen in the dark
let seen = "", view = null;
const parts = {};

// Lines over time, rounds or bytes: one per run, or a mean with its range where runs differ in their seeds only.
function curves(place, kind, what, unit) {
  const lines = [];
  view.groups.forEach((group, g) => {
    const band = group.members.length > 1 && group[what];
    const colour = ink(group.colour), style = { stroke: colour, "stroke-dasharray": what === "loss" ? null : DASH[g % DASH.length], "stroke-opacity": what === "loss" ? 0.75 : null };
    if (band) lines.push({ label: group.label, x: band[kind], y: band.mean, low: band.low, high: band.high, style, colour });
    else for (const i of group.members) {
      const run = view.runs[i];
      lines.push({ label: run.label, x: run[what][kind], y: run[what].y, style, colour });
    }
  });
  const ys = lines.flatMap((l) => [...l.y, ...(l.low ?? []), ...(l.high ?? [])]).filter((v) => v !== null), xs = lines.flatMap((l) => l.x);
  if (!ys.length) { fill(place, el("p", { class: "hint" }, "Nothing yet.")); return; }
  const low = Math.min(...ys), high = Math.max(...ys), far = Math.max(...xs) || 1, log = unit === "" && low > 0 && high > 10 * low;
  const span = high - low || Math.abs(high) || 1;
  const width = Math.max(260, place.clientWidth || 380), axis = X[kind], count = Math.max(2, Math.floor(width / 110));
  const { root, sx, sy } = frame({ width, height: 250, left: 46, x: (a, b) => linear(0, far, a + 4, b), xText: axis.text, xTicks: axis.ticks?.(far, count),
    y: log ? (a, b) => logarithmic(low / 1.1, high * 1.1, a, b) : (a, b) => linear(Math.max(low >= 0 ? 0 : -Infinity, low - 0.08 * span), high + 0.06 * span, a, b),
    yText: (v) => digits(v) + unit, xLabel: axis.label(view), label: `${what.replace("_", " ")} against ${axis.label(view)}` });
  for (const line of lines) {
    if (line.low) {
      const up = line.x.map((x, i) => [sx(x), sy(line.high[i] ?? line.y[i])]), down = line.x.map((x, i) => [sx(x), sy(line.low[i] ?? line.y[i])]).reverse();
      root.append(svg("path", { d: `${path([...up, ...down])}Z`, fill: line.colour, "fill-opacity": 0.18 }));
    }
    const points = line.x.map((x, i) => [x, line.y[i]]).filter(([, y]) => y !== null);
    root.append(svg("path", { class: "line", ...line.style, d: path(points.map(([x, y]) => [sx(x), sy(y)])) }));
    if (what !== "loss") for (const [x, y] of points) {
      root.append(svg("circle", { cx: sx(x), cy: sy(y), r: 3.2, fill: line.colour, ...hover(`${line.label}\n${digits(y, 4)}${unit} after ${axis.text(x)}`) }));
    }
  }
  fill(place, root);
}
const legend = () => el("div", { class: "legend" }, view.groups.map((group, g) => el("span", {},
  el("span", { class: "swatch", style: { "border-color": ink(group.colour), "border-top-style": g % DASH.length ? "dashed" : "solid" } }),
  group.members.length > 1 ? `${group.label}: mean and range` : group.label)));

function plans(place, run) {
  const { plans: made, layers, end, averaged } = run.plans, width = Math.max(260, place.clientWidth || 560);
  const top = frame({ width, height: 210, left: 46, x: (a, b) => linear(0, end, a, b), y: (a, b) => linear(0, layers, a, b), xText: String, yText: String, label: "Layers held by each tier as the plan changed" });
  const steps = made.map((plan, i) => [plan.round, made[i + 1]?.round ?? end, [0, ...plan.cuts, layers], plan]);
  for (const [from, to, edges, plan] of steps) run.tiers.forEach((tier, m) => {
    const x = top.sx(from), y = top.sy(edges[m + 1]);
    top.root.append(svg("rect", { x, y, width: Math.max(0.6, top.sx(to) - x), height: Math.max(0, top.sy(edges[m]) - y), fill: tier.colour, "fill-opacity": 0.75,
      ...hover(`rounds ${from} to ${to}: ${tier.name} holds layers ${edges[m] + 1} to ${edges[m + 1]}\ncuts ${plan.cuts.join(", ")}; intervals ${plan.intervals.map((i) => i ?? "never").join(", ")}${plan.why ? `\n${plan.why}` : ""}`) }));
  });
  const values = steps.flatMap(([, , , plan]) => plan.intervals.filter((v, m) => v !== null && averaged[m])), most = Math.max(2, ...values);
  const bottom = frame({ width, height: 170, left: 46, x: (a, b) => linear(0, end, a, b), y: most > 20 ? (a, b) => logarithmic(0.9, most * 1.1, a, b) : (a, b) => linear(0, most + 1, a, b),
    xText: (v) => v.toLocaleString("en"), yText: String, xLabel: "rounds", label: "Rounds between averages as the plan changed" });
  run.tiers.forEach((tier, m) => {
    if (!averaged[m]) return;
    const points = steps.flatMap(([from, to, , plan]) => (plan.intervals[m] === null ? [] : [[bottom.sx(from), bottom.sy(plan.intervals[m])], [bottom.sx(to), bottom.sy(plan.intervals[m])]]));
    if (points.length) bottom.root.append(svg("path", { class: "line", stroke: tier.colour, "stroke-dasharray": DASH[m % DASH.length], d: path(points) }));
  });
  fill(place, el("div", { class: "legend" }, run.tiers.map((tier) => el("span", {}, el("span", { class: "chip", style: { background: tier.colour } }), tier.name))),
    el("h3", {}, "Layers held"), top.root, el("h3", {}, "Rounds between averages"), bottom.root);
}

function drift(place, run) {
  const kinds = [["measured", "var(--text)", "points"], ["refined", "#D55E00", ""], ["paper", "#0072B2", "6 4"]];
  fill(place, el("div", { class: "legend" }, kinds.map(([name, colour, dash]) => el("span", {}, el("span", { class: "swatch", style: { "border-color": colour, "border-top-style": dash === "points" ? "dotted" : dash ? "dashed" : "solid" } }), name === "measured" ? name : `predicted, ${name} model`))),
    run.drift.map((tier) => {
      const ys = kinds.flatMap(([name]) => tier[name]).filter((v) => v > 0);
      if (!ys.length) return null;
      const { root, sx, sy } = frame({ width: Math.max(260, place.clientWidth || 560), height: 190, left: 58, x: (a, b) => linear(0, Math.max(...tier.round), a, b), xText: String, yText: (v) => digits(v, 2),
        y: (a, b) => logarithmic(Math.min(...ys) / 1.2, Math.max(...ys) * 1.2, a, b), label: `Drift of ${tier.tier} before its averages` });
      for (const [name, colour, dash] of kinds) {
        const points = tier.round.map((r, i) => [r, tier[name][i]]).filter(([, v]) => v > 0);
        if (dash === "points") for (const [r, v] of points) root.append(svg("circle", { cx: sx(r), cy: sy(v), r: 2.6, fill: colour, ...hover(`round ${r}: ${digits(v)} measured`) }));
        else if (points.length) root.append(svg("path", { class: "line", stroke: colour, "stroke-dasharray": dash, d: path(points.map(([r, v]) => [sx(r), sy(v)])) }));
      }
      return [el("h3", {}, el("span", { class: "name" }, el("span", { class: "chip", style: { background: tier.colour } }), tier.tier)), root];
    }));
}

function clients(place, run) {
  const { round, losses, count } = run.clients, width = Math.max(260, place.clientWidth || 560), left = 46;
  const all = losses.flat().filter((v) => v !== null), low = Math.min(...all), high = Math.max(...all), rows = losses[0].length;
  const row = Math.max(3, Math.min(14, Math.floor(280 / rows))), wide = (width - left - 4) / round.length, height = row * rows + 24;
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Loss of every client at every evaluation, from ${digits(low)} to ${digits(high)}` });
  losses.forEach((column, i) => column.forEach((loss, n) => {
    const share = loss === null ? 1 : (loss - low) / (high - low || 1);
    root.append(svg("rect", { x: left + i * wide, y: n * row, width: wide - 0.5, height: row - 0.5, fill: `hsl(205 60% ${92 - 68 * share}%)`, ...hover(`client ${n + 1}, up to round ${round[i]}\nloss ${loss === null ? "not finite" : digits(loss)}`) }));
  }));
  for (let n = 0; n < rows; n += Math.ceil(rows / 10)) root.append(svg("text", { class: "soft", x: left - 6, y: n * row + row / 2 + 4, "text-anchor": "end" }, n + 1));
  for (let i = 0; i < round.length; i += Math.ceil(70 / wide)) root.append(svg("text", { class: "soft", x: left + i * wide, y: height - 6 }, round[i].toLocaleString("en")));
  fill(place, root, el("div", { class: "ends" }, el("span", {}, `light: ${digits(low)}`), el("span", {}, count > rows ? `the first ${rows} of ${count.toLocaleString("en")} clients` : `${rows} clients`), el("span", {}, `dark: ${digits(high)}`)));
}

const card = (title, ...children) => el("section", { class: "card" }, el("h2", {}, title), ...children);
const panels = (name) => el("div", { class: "panels" }, Object.keys(X).map((kind) => (parts[`${name}-${kind}`] = el("div", { id: `${name}-${kind}` }))));
function build() {
  parts.lead = el("p", { class: "lead" });
  parts.states = el("div", { id: "states" });
  parts.table = el("div", { class: "scroll" });
  parts.legend = el("div");
  parts.runs = el("div");
  fill(byId("watching"), el("h1", { class: "hidden" }, "Runs"), parts.lead, card("What is going on", parts.states), card("Summary", parts.table, parts.legend),
    (parts.accuracy = card("Test accuracy", panels("accuracy"))), card("Training loss", panels("loss")), card("Test loss", panels("test_loss")), (parts.metrics = el("div")), parts.runs);
}
function draw() {
  parts.lead.textContent = view.lead;
  fill(parts.table, el("table", {}, el("thead", {}, el("tr", {}, view.header.map((t) => el("th", { scope: "col" }, t)))),
    el("tbody", {}, view.rows.map((row) => el("tr", {}, row.map((cell, i) => el("td", { class: "whole" }, i ? cell : el("strong", {}, cell))))))));
  fill(parts.legend, legend());
  for (const kind of Object.keys(X)) {
    curves(parts[`accuracy-${kind}`], kind, "accuracy", " %");
    curves(parts[`loss-${kind}`], kind, "loss", "");
    curves(parts[`test_loss-${kind}`], kind, "test_loss", "");
  }
  if (parts.metrics.children.length !== view.metrics.length) fill(parts.metrics, view.metrics.map((name) => card(`Test ${name}`, panels(`metric ${name}`))));
  for (const name of view.metrics) for (const kind of Object.keys(X)) curves(parts[`metric ${name}-${kind}`], kind, `metric ${name}`, "");
  parts.accuracy.hidden = view.runs.some((run) => run.test_loss.y.length) && !view.runs.some((run) => run.accuracy.y.some((v) => v !== null));
  const open = new Set([...parts.runs.querySelectorAll("details[open]")].map((d) => d.dataset.run)), first = !parts.runs.children.length;
  fill(parts.runs, view.runs.map((run, i) => {
    const sections = [["plans", "Plans", run.plans, plans], ["clients", "Losses of the clients", run.clients, clients], ["drift", "Drift before averages", run.drift.length, drift]].filter(([, , has]) => has);
    const places = sections.map(([name, title]) => el("section", { class: "card" }, el("h2", {}, title), el("div", { "data-part": name })));
    const box = el("details", { "data-run": run.label, open: first ? i === 0 : open.has(run.label) }, el("summary", {}, el("strong", {}, run.label)), el("div", { class: "pair" }, places));
    const show = () => { if (box.open) sections.forEach(([, , , make], k) => make(places[k].lastChild, run)); };
    box.addEventListener("toggle", show);
    requestAnimationFrame(show);
    return box;
  }));
}
function states(answer) {
  const labels = view ? view.runs.map((run) => run.label) : [];
  fill(parts.states, el("table", {}, el("tbody", {}, answer.states.map((state, i) => el("tr", {}, el("td", { class: "whole" }, el("strong", {}, labels[i] ?? "")),
    el("td", {}, el("span", { class: state.on ? "state on" : "state" }, state.now), state.share === null ? null : el("div", { class: "progress" }, el("div", { style: { width: `${100 * state.share}%` } }))),
    el("td", { class: "dim" }, state.said))), answer.others.map((other) => el("tr", {}, el("td", {}, el("strong", {}, other.label)), el("td", { colspan: 2 }, other.now))))));
}
async function look() {
  let wait = 1000;
  try {
    const answer = await ask("runs", { seen });
    byId("gone").hidden = true;
    if (answer.error) throw new Error(answer.error);
    if (answer.view) { view = answer.view; seen = answer.version; draw(); }
    states(answer);
    wait = answer.on ? 1000 : 5000;
  } catch {
    byId("gone").textContent = "hsfl explore no longer answers: start it again, and open the address that it prints.";
    byId("gone").hidden = false;
  }
  setTimeout(look, document.hidden ? 5000 : wait);
}
export function startWatching() {
  build();
  look();
  let width = innerWidth;
  addEventListener("resize", () => { if (width !== innerWidth && view) { width = innerWidth; draw(); } });
}
export const redrawRuns = () => { if (view) draw(); };
